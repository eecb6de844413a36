"""Your own documents: towers that are pre-trained on them, an index, a report against BM25, and an export.

    python -m retrieval.main --config=configs/own.py:local --workdir=runs/own --config.corpus=DATA/docs

Of ICT, BFS and WLP it trains on the tasks that the documents can feed: BFS needs headings, WLP needs links. A tenth of
the passages is held out; a sentence of each of these asks for the rest, which gives the report. Without `:local` the
model has the size of BERT-base, for an accelerator; then it can start from BERT's weights, with
--config.vocab=hf:NAME --config.train.init_from=hf:NAME. Give a finished run more with --config.train.epochs=40.

With labelled pairs (JSON lines such as {"query": "q", "positives": ["a"]}, or the other formats), on top of that:

    python -m retrieval.main --config=configs/own.py:local_pairs --workdir=runs/tuned --config.base=runs/own \\
        --config.train.init_from=runs/own --config.sets.labelled=DATA/pairs.jsonl

For a file of another name set --config.split.set=NAME. A fifth of its queries is the test (`split.ratio`), and BM25
finds the hard negatives of the others. Pairs without one are trained on, too. `own.py:pairs` goes with `own.py`.
"""

from ml_collections import ConfigDict

from retrieval.config.experiment import defaults, sized
from retrieval.configs import laptop
from retrieval.configs.fine_tuning import on_labelled_examples


def get_config(size: str = "paper") -> ConfigDict:
    """Documents, at the size of BERT-base or 'local'; and labelled pairs on top, 'pairs' or 'local_pairs'."""
    return sized(size, paper=_large, local=_local, pairs=_large_pairs, local_pairs=_local_pairs)


def _large() -> ConfigDict:
    return _documents(_encoder(defaults()), epochs=10, batch_size=256, learning_rate=1e-4)


def _local() -> ConfigDict:
    return _documents(_laptop(), epochs=30, batch_size=64, learning_rate=1e-3)


def _large_pairs() -> ConfigDict:
    return _labelled(_encoder(defaults()), epochs=10, batch_size=64, learning_rate=2e-5)


def _local_pairs() -> ConfigDict:
    return _labelled(_laptop(), epochs=20, batch_size=32, learning_rate=3e-4)


def _encoder(config: ConfigDict) -> ConfigDict:
    """BERT-base, with the mean of its tokens as the embedding."""
    config.prepare.update(longest_passage=224, least_passage=5)
    config.data.update(query_length=64, document_length=256)
    config.model.update(embed_dim=0, pooling="mean", tied=True, normalize=True)
    config.train.temperature = 0.05
    return config


def _laptop() -> ConfigDict:
    config = laptop.defaults()
    config.prepare.update(longest_passage=112, least_passage=5, held_out=0.0)
    config.data.document_length = 128
    return config


def _documents(config: ConfigDict, **train: float) -> ConfigDict:
    config.stages = ("prepare", "sets", "train", "encode", "index", "evaluate", "report", "export")
    config.prepare.shards = 8
    config.data.rates.update(ict=1.0, bfs=1.0, wlp=1.0)
    config.data.update(skip_empty=True, held_out=0.1, lanes=1)
    config.sets.sentences = 0.1
    config.encode.untrained = False
    return _trained(config, **train)


def _labelled(config: ConfigDict, **train: float) -> ConfigDict:
    config = on_labelled_examples(config)
    config.stages = ("sets", "index", "mine", "pairs", "train", "encode", "evaluate", "report", "export")
    config.split.update(set="pairs", shards=8)
    config.mine.last = 100
    config.data.update(lanes=1, negatives=1)
    config.pairs.keep_lone = True
    config.encode.corpus = True
    return _trained(config, **train)


def _trained(config: ConfigDict, **train: float) -> ConfigDict:
    config.train.update(warmup_ratio=0.1, **train)
    config.loop.update(log_every=20, checkpoint_every=200, validate_every=0)
    return config
