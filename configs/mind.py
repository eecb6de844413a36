"""News recommendation on MIND, as SEED-Encoder is evaluated (Lu et al. 2021, section 4.4 and Table 3).

    python -m retrieval.main --config=mind --workdir=runs/mind --config.base=runs/seed \\
        --config.train.init_from=runs/seed --config.sets.mind=dev/news.tsv,dev/behaviors.tsv \\
        --config.pairs.files=train/behaviors.tsv --config.pairs.collection=train/news.tsv

A user is the titles that they clicked, a candidate a title with its abstract, and a page is ranked by inner products.
Where one file has both halves, `--config.sets.mind_split=2019-11-14` divides it by time. The paper's numbers on the
public dev set, from BERT and from SEED-Encoder: AUC 0.7015 and 0.7059, MRR 0.3460 and 0.3506, nDCG@5 0.3844 and 0.3908,
nDCG@10 0.4479 and 0.4526.
"""

from ml_collections import ConfigDict

from retrieval.config.experiment import defaults, sized
from retrieval.configs import laptop
from retrieval.configs.fine_tuning import on_labelled_examples


def get_config(size: str = "paper") -> ConfigDict:
    """BERT-base with histories of 512 tokens, or 'local', for a model of `mlm:local` with documents of 128 tokens."""
    config = on_labelled_examples(sized(size, paper=_paper, local=_local))
    config.stages = ("sets", "pairs", "train", "encode", "index", "impressions")
    config.data.negatives = 4
    config.train.update(loss="multi_negative_nll", log_q=False)
    return config


def _paper() -> ConfigDict:
    """The paper is silent on the optimiser of this task: all but the steps is DPR's, as for its questions."""
    config = defaults()
    config.data.update(query_length=512, document_length=128)
    config.model.embed_dim = 0
    config.train.update(steps=20_000, batch_size=128, learning_rate=2e-5, adam_epsilon=1e-8)
    config.train.update(warmup_ratio=0.067, clip_norm=2.0)
    config.loop.update(log_every=50, checkpoint_every=1000, validate_every=1000)
    return config


def _local() -> ConfigDict:
    config = laptop.defaults()
    config.data.update(query_length=128, document_length=48)
    config.train.update(steps=400, batch_size=32, learning_rate=5e-4, warmup_ratio=0.1)
    config.loop.update(checkpoint_every=100, validate_every=100)
    return config
