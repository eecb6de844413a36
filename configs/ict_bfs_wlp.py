"""ICT + BFS + WLP: the two-tower Transformer of Chang et al. 2020, pre-trained on Wikipedia.

The paper's run takes 32 TPU v3 chips, 100k steps of batch 8192, and about 2.5 days. `configs/reqa.py` fine-tunes it;
with 1 % of ReQA SQuAD's questions the paper has R@1 37.4, with 80 % 58.4.

    python -m retrieval.main --config=configs/ict_bfs_wlp.py --workdir=runs/ict_bfs_wlp \\
        --config.corpus=enwiki-latest-pages-articles.xml.bz2 --config.vocab=vocab.txt \\
        --config.sets.reqa=train-v1.1.json,dev-v1.1.json

At the size of a laptop, on the docstrings of the installed packages (2 CPU cores, 10 minutes):

    python -m retrieval.main --config=configs/ict_bfs_wlp.py:local --workdir=runs/quickstart
"""

from ml_collections import ConfigDict

from retrieval.config.experiment import defaults, sized
from retrieval.configs import laptop


def get_config(size: str = "paper") -> ConfigDict:
    """The paper's configuration, or 'local': the same experiment for a laptop's CPU."""
    return pretraining(size, ict=1.0, bfs=1.0, wlp=1.0)


def pretraining(size: str, **rates: float) -> ConfigDict:
    """Towers that learn from these tasks alone; all else is the size's."""
    config = sized(size, paper=_paper, local=_local)
    config.stages = ("prepare", "sets", "train", "encode", "index", "evaluate", "report")
    config.data.rates.update(rates)
    return config


def _paper() -> ConfigDict:
    """Section 4.1. What the paper leaves open is BERT's, ORQA's or ours, as the comments say."""
    config = defaults()
    # Each tower is BERT-base, with a linear layer on [CLS].
    config.model.update(num_layers=12, hidden_size=768, num_heads=12, mlp_size=3072, dropout=0.1)
    config.model.update(pooling="cls", embed_dim=512, tied=False, normalize=False, dtype="bfloat16")
    config.data.update(query_length=64, document_length=288)
    config.prepare.update(longest_passage=256, vocab_size=30_522)  # with a title it fits 288 tokens
    config.data.ict_removal = 1.0  # of the query's sentence from its passage; ORQA: 0.9
    # Sampled softmax over the batch, with the correction log Q(d).
    config.train.update(loss="in_batch_softmax", log_q=True, symmetric=False, temperature=1.0)
    # 32 TPU v3 chips, 100K steps of 8192, about 2.5 days. Linear decay to 0.
    config.train.update(steps=100_000, batch_size=8192)
    config.train.update(optimizer="adam", learning_rate=1e-4, warmup_ratio=0.1)
    config.train.update(weight_decay=0.0, adam_epsilon=1e-6, clip_norm=1.0)
    # Pairs of Wikipedia fill 59 % of a text per row (docs/scale.md). A TPU computes rows in steps of 128.
    config.data.pack.update(query=0.62, query_row=128, document=0.6, document_row=384)
    return config


def _local() -> ConfigDict:
    config = laptop.defaults()
    config.corpus, config.sets.pydocs = "pydocs", True
    config.train.update(steps=600, batch_size=128, learning_rate=2e-3)
    config.loop.update(checkpoint_every=200, validate_every=0)
    return config
