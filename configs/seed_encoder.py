"""SEED-Encoder (Lu et al. 2021): BERT-base with a weak decoder beside its MLM, which needs all of a text in [CLS].

The paper's run (8 V100 GPUs; 1M steps of 256 texts of 512 tokens, Wikipedia and BookCorpus; fine-tuned on MS MARCO
passages with BM25 negatives, MRR@10 is 0.329 in place of BERT's 0.320):

    python -m retrieval.main --config=configs/seed_encoder.py --workdir=runs/seed_encoder \\
        --config.corpus=enwiki-latest-pages-articles.xml.bz2 --config.vocab=vocab.txt

The vocabulary of the paper has 32,768 tokens; without a --config.vocab one of that size is trained on the corpus. The
decoder is that of the authors' code: [CLS] through cross-attention, a span of 2 tokens in each of 3 layers, and logits
without a bias ('local' has one: the study was measured so). The loss is
the paper's sum of both, where that code has their mean: Adam sees no difference, clipping does. The
other models of the paper, from the same corpus (--config.base=runs/seed_encoder --config.stages="('train',)"):

    equation 9 to the letter: --config.model.decoder.window=decoder --config.model.decoder.wiring=prefix
    strong decoder (Figure 3): --config.model.decoder.layers=5 --config.model.decoder.span=512
    Optimus: --config.model.decoder.layers=12 --config.model.decoder.span=512 --config.model.decoder.latent=768 \\
        --config.train.free_bits=0.5
    BERT (ours): --config.recipe=mlm

What is left of a document, and a short one, would be padded. So the run packs texts into as few rows as its corpus
needs (`data.pack.auto`): of Wikipedia 0.8 of the rows hold as many. Books fill their rows, and keep a text per row.
That is for at most 16 devices, of which the paper has 8. More need as many lanes: --config.data.lanes=64.

The decoder is dropped afterwards: --config.train.init_from=runs/seed_encoder starts towers from the encoder.

At the size of a laptop, on the docstrings of the installed packages:

    python -m retrieval.main --config=configs/seed_encoder.py:local --workdir=runs/seed_encoder
"""

from ml_collections import ConfigDict

from retrieval.config.experiment import defaults, sized
from retrieval.configs import laptop


def get_config(size: str = "paper") -> ConfigDict:
    """The paper's pre-training (section 4.1), or 'local': the same for a laptop's CPU."""
    config = sized(size, paper=_paper, local=_local)
    config.stages = ("prepare", "train")
    config.prepare.across_sections = True
    config.recipe = "autoencoder"
    config.data.rates.mlm = 1.0
    config.data.held_out = 0.0
    config.loop.validate_every = 0
    return config


def _paper() -> ConfigDict:
    config = defaults()
    # Pre-training: 1M steps of 256 texts of 512 tokens, 15 % masked. Documents are cut into texts that fill a row; the
    # rest of one shares a row with others.
    config.prepare.update(longest_passage=510, shortest_paragraph=510, vocab_size=32_768)
    config.data.update(document_length=512, lanes=16, shuffle_buffer=2048)
    config.data.pack.update(auto=True, document_row=512)
    config.train.update(steps=1_000_000, batch_size=256)
    # Adam with epsilon 1e-6, a peak of 1e-4 after 10k steps, then linear decay.
    config.train.update(optimizer="adam", adam_epsilon=1e-6, learning_rate=1e-4, warmup_ratio=0.01)
    config.train.update(clip_norm=1.0, weight_decay=0.01)
    # The encoder is BERT-base, with its 12 heads, where the paper's text says eight.
    config.model.update(num_layers=12, hidden_size=768, num_heads=12, mlp_size=3072, dropout=0.1, remat="none")
    # The decoder: three layers that see the previous two tokens.
    config.model.decoder.update(layers=3, span=2, wiring="cross", window="layer", latent=0, bias=False)
    config.loop.checkpoint_every = 10_000
    return config


def _local() -> ConfigDict:
    config = laptop.defaults()
    config.corpus = "pydocs"
    config.prepare.update(longest_passage=126, shortest_paragraph=126, held_out=0.0)
    config.data.document_length = 128
    config.train.update(steps=400, batch_size=32, learning_rate=1e-3, weight_decay=0.01)
    config.loop.checkpoint_every = 100
    return config
