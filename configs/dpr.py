"""Fine-tuning on labelled examples with hard negatives, as DPR (Karpukhin et al. 2020, section 3.2): files of DPR, of
MS MARCO's triples or of JSON lines, evaluated on sets of any format.

    python -m retrieval.main --config=configs/dpr.py --workdir=runs/dpr --config.base=runs/mlm \\
        --config.train.init_from=runs/mlm --config.pairs.files=biencoder-nq-train.json --config.pairs.positives=1 \\
        --config.sets.labelled=biencoder-nq-dev.json

DPR's files list every passage that holds the answer, and the gold passage first: `pairs.positives=1` trains on that one
alone, as the paper does. Files of other formats list what was judged, so all positives are trained on by default.

`base` lends the vocabulary, `init_from` the parameters, of an encoder with as many positions or more; BERT's weights
need no base, but `--config.vocab`. The embedding is [CLS] itself: towers that were trained with a projection want their
own `model.embed_dim`. The paper starts from BERT, on 8 GPUs of 32 GB; its top-20 accuracy on Natural Questions, 78.4,
is over 21 million passages and counts answers, so it is none of the numbers here.
"""

from ml_collections import ConfigDict

from retrieval.config.experiment import defaults, sized
from retrieval.configs import laptop
from retrieval.configs.fine_tuning import on_labelled_examples


def get_config(size: str = "paper") -> ConfigDict:
    """The paper's fine-tuning (40 epochs of 58,880 questions, batch 128), or 'local', for a model of
    `ict_bfs_wlp.py:local`."""
    config = on_labelled_examples(sized(size, paper=_paper, local=_local))
    config.stages = ("sets", "pairs", "train", "encode", "index", "evaluate", "report")
    config.data.negatives = 1
    config.train.update(warmup_ratio=0.067, clip_norm=2.0, log_q=False)
    return config


def _paper() -> ConfigDict:
    config = defaults()
    # Two BERT-base encoders, the embedding is [CLS] itself. Passages of 100 words.
    config.model.update(num_layers=12, hidden_size=768, num_heads=12, mlp_size=3072, dropout=0.1)
    config.model.update(pooling="cls", embed_dim=0, tied=False)
    config.data.update(query_length=64, document_length=256)
    # Section 5: batch 128 with one BM25 negative a question, 40 epochs, Adam, 2e-5, 1,237 steps of warm-up.
    config.train.update(steps=18_400, batch_size=128, learning_rate=2e-5, adam_epsilon=1e-8, weight_decay=0.0)
    config.loop.update(log_every=50, checkpoint_every=1000, validate_every=1000)
    return config


def _local() -> ConfigDict:
    config = laptop.defaults()
    config.train.update(steps=300, batch_size=32, learning_rate=5e-4)
    config.loop.update(checkpoint_every=50, validate_every=50)
    return config
