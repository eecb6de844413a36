"""DeepCT (Dai & Callan 2019): BERT learns how much each word of a passage counts, and BM25 counts it so many times.

It learns from labelled pairs: words of a passage that its queries have are worth more. Passages of 128 tokens, batches
of 16, learning rate 2e-5, 3 epochs; the paper starts from BERT-base, and its index has k1 10 and b 0.9. (On MS MARCO
the paper has MRR@10 0.243 against BM25's 0.184.)

    python -m retrieval.main --config=configs/deepct.py --workdir=runs/deepct --config.vocab=bert-base-uncased \\
        --config.train.init_from=bert-base-uncased --config.pairs.files=triples.train.small.tsv \\
        --config.sets.beir=DATA/msmarco

At the size of a laptop, from the encoder of a masked language model:

    python -m retrieval.main --config=configs/deepct.py:local --workdir=runs/deepct --config.base=runs/mlm \\
        --config.train.init_from=runs/mlm --config.sets.reqa=train-v1.1.json,dev-v1.1.json --config.split.set=reqa

BM25 over the weighed words, beside BM25 over the passages:

    python -m retrieval.main --config=configs/evaluate.py --workdir=runs/weighed --config.base=runs/deepct \\
        --config.stages="('index', 'evaluate', 'report')" --config.index.words="('bm25', 'deepct')" \\
        --config.index.term_weights=runs/deepct/term_weights
"""

from ml_collections import ConfigDict

from retrieval.config.experiment import defaults, sized
from retrieval.configs import laptop
from retrieval.configs.fine_tuning import on_labelled_examples


def get_config(size: str = "paper") -> ConfigDict:
    """The paper's training, or 'local': one for a laptop."""
    config = on_labelled_examples(sized(size, paper=_paper, local=_local))
    config.recipe = "deepct"
    config.stages = ("sets", "pairs", "train", "weigh")
    config.data.rates.update(pairs=0.0, deepct=1.0)
    config.loop.validate_every = 0
    return config


def _paper() -> ConfigDict:
    config = defaults()
    config.data.document_length = 128
    config.train.update(steps=100_000, batch_size=16, learning_rate=2e-5)
    return config


def _local() -> ConfigDict:
    config = laptop.defaults()
    config.train.update(steps=2000, batch_size=32, learning_rate=5e-4)
    config.loop.update(checkpoint_every=500)
    return config
