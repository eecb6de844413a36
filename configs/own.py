"""Your own documents: a published model over them, as it is, in a table beside BM25 and hybrid search, and as a search.

    python -m retrieval.main --config=own:hf:sentence-transformers/all-MiniLM-L6-v2 --workdir=runs/own \\
        --config.corpus=DATA/docs
    python -m retrieval.main --workdir=runs/own --stage=serve

The argument is a folder of sentence-transformers, or a model of Hugging Face's hub; without one it is the model above.
A tenth of the passages is tested on: a sentence of each of these asks for the rest. Labelled pairs (JSON lines such as
{"query": "q", "positives": ["a"]}, or the other formats) are a test too, and they train the model:

    python -m retrieval.main --config=own:pairs:MODEL --workdir=runs/tuned --config.base=runs/own \\
        --config.sets.labelled=DATA/pairs.jsonl

A right document may stand in place of an answer: {"query": "q", "document": "guide/start.md"}. For a file of another
name set --config.split.set=NAME. A fifth of its queries is the test (`split.ratio`; of few, `studies/folds.py` tests on
all). The step that is best on a tenth of the others is the result.

Pre-training from nothing is the other way. `own:local` has small towers for a laptop, `own:large` those of BERT-base's
size for an accelerator, which can start from BERT: --config.vocab=hf:NAME --config.train.init_from=hf:NAME.

    python -m retrieval.main --config=own:local --workdir=runs/small --config.corpus=DATA/docs
    python -m retrieval.main --config=own:local_pairs --workdir=runs/small_tuned --config.base=runs/small \\
        --config.train.init_from=runs/small --config.sets.labelled=DATA/pairs.jsonl

Of ICT, BFS and WLP they train on the tasks that the documents can feed: BFS needs headings, WLP needs links. On a
laptop training takes ten minutes at most (`train.minutes`); a finished run goes on with --config.train.minutes=60. BM25
finds hard negatives for labelled pairs; those without one are trained on, too. `own:large_pairs` goes with `own:large`.
"""

from pathlib import Path

from ml_collections import ConfigDict

from retrieval.common.errors import unknown_name
from retrieval.config.experiment import defaults
from retrieval.configs import fine_tune, laptop, published
from retrieval.configs.fine_tuning import on_labelled_examples

_MODEL = "hf:sentence-transformers/all-MiniLM-L6-v2"
_PAIRS = "pairs:"


def get_config(start: str = _MODEL) -> ConfigDict:
    """Documents, or labelled pairs on top of them.

    Args:
      start: a published model, as `published.get_config` takes it; 'pairs' or 'pairs:' and one; or a size to pre-train.

    Raises:
      UserError: it is none of these, or a part of the model is not understood here.
    """
    sizes = {"local": _local, "local_pairs": _local_pairs, "large": _large, "large_pairs": _large_pairs}
    if start in sizes:
        return sizes[start]()
    if start == "pairs" or start.startswith(_PAIRS):
        return _published_pairs(start.removeprefix("pairs").removeprefix(":") or _MODEL)
    if start.isidentifier() and not Path(start).exists():
        raise unknown_name("size or model of --config=own", start, [*sizes, "pairs", "hf:NAME", "pairs:hf:NAME"])
    return _published(start)


def _published(model: str) -> ConfigDict:
    config = published.get_config(model, "own")
    config.stages = ("prepare", "sets", "adopt", "encode", "index", "evaluate", "report")
    longest = min(224, config.data.document_length * 7 // 8)  # titles take the rest
    config.prepare.update(longest_passage=longest, shortest_paragraph=min(96, longest), least_passage=5)
    config.data.held_out = config.sets.sentences = 0.1
    config.encode.corpus = True
    config.index.dense = "exact"  # a few ten thousand passages need no other, and it imports nothing
    return config


def _published_pairs(model: str) -> ConfigDict:
    config = fine_tune.get_config(model)
    config.stages = ("sets", "pairs", "train", "encode", "index", "evaluate", "report", "export")
    config.split.update(set="pairs", shards=8)
    config.pairs.positives = 3  # of a document that is right: the passages that BM25 finds best for the question
    config.encode.corpus = True
    config.index.dense = "exact"
    config.train.update(epochs=10, minutes=10, batch_size=32, learning_rate=2e-5)  # on two cores
    config.loop.update(checkpoint_every=50, validate_every=50, validate_queries=200, validate_candidates=1000)
    return config


def _large() -> ConfigDict:
    return _documents(_encoder(defaults()), epochs=10, batch_size=256, learning_rate=1e-4)


def _local() -> ConfigDict:
    return _documents(_laptop(), epochs=30, minutes=10, batch_size=64, learning_rate=1e-3)


def _large_pairs() -> ConfigDict:
    return _labelled(_encoder(defaults()), epochs=10, batch_size=64, learning_rate=2e-5)


def _local_pairs() -> ConfigDict:
    return _labelled(_laptop(), epochs=20, minutes=10, batch_size=32, learning_rate=3e-4)


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
    config.data.update(skip_empty=True, held_out=0.15, lanes=1)
    config.sets.sentences = 0.1  # the rest of what is held out chooses the best step
    config.encode.untrained = False
    return _trained(config, **train)


def _labelled(config: ConfigDict, **train: float) -> ConfigDict:
    config = on_labelled_examples(config)
    config.stages = ("sets", "index", "mine", "pairs", "train", "encode", "evaluate", "report", "export")
    config.split.update(set="pairs", shards=8)
    config.mine.last = 100
    config.data.update(lanes=1, negatives=1)
    config.pairs.update(positives=3, keep_lone=True)
    config.encode.corpus = True
    return _trained(config, **train)


def _trained(config: ConfigDict, **train: float) -> ConfigDict:
    config.train.update(warmup_ratio=0.1, **train)
    config.loop.update(log_every=20, checkpoint_every=100, validate_every=100)
    config.loop.update(validate_queries=200, validate_candidates=1000)
    return config
