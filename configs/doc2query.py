"""doc2query (Nogueira et al. 2019): queries that each passage may answer, by an encoder-decoder, for BM25 to index.

It learns from labelled pairs, passage to query, and writes queries of the passages of every evaluation set. The sizes
are those of the authors' code: 6 + 6 layers of 512, sources of 400 tokens, targets of 100, label smoothing 0.1. Their
batches hold 32,768 tokens, of which about 512 pairs are made; their learning rate falls with the root of the step,
ours linearly. (4 GPUs; on 532,751 pairs of MS MARCO the paper has a perplexity of 15.2, and MRR@10 0.215 against BM25's
0.184.)

    python -m retrieval.main --config=configs/doc2query.py --workdir=runs/doc2query --config.vocab=vocab.txt \\
        --config.pairs.files=triples.train.small.tsv --config.sets.beir=DATA/msmarco

At the size of a laptop, on the vocabulary of another run:

    python -m retrieval.main --config=configs/doc2query.py:local --workdir=runs/doc2query \\
        --config.base=runs/quickstart --config.sets.reqa=train-v1.1.json,dev-v1.1.json --config.split.set=reqa

BM25 over the expanded passages, beside BM25 over the passages alone, of the same sets:

    python -m retrieval.main --config=configs/evaluate.py --workdir=runs/expanded --config.base=runs/doc2query \\
        --config.stages="('index', 'evaluate', 'report')" \\
        --config.index.words="('bm25', 'doc2query')"
"""

from ml_collections import ConfigDict

from retrieval.config.experiment import defaults, sized
from retrieval.configs import laptop
from retrieval.configs.fine_tuning import on_labelled_examples


def get_config(size: str = "paper") -> ConfigDict:
    """The authors' model, or 'local': one of 2 + 2 layers, for a laptop."""
    config = on_labelled_examples(sized(size, paper=_paper, local=_local))
    config.recipe = "seq2seq"
    config.stages = ("sets", "pairs", "train", "generate")
    config.data.rates.update(pairs=0.0, doc2query=1.0)
    config.train.label_smoothing = 0.1
    config.loop.best = "LogLikelihood"
    return config


def _paper() -> ConfigDict:
    config = defaults()
    config.data.update(query_length=100, document_length=400)
    config.model.update(num_layers=6, hidden_size=512, num_heads=8, mlp_size=2048)
    config.model.writer.layers = 6
    config.train.update(steps=10_000, batch_size=512, learning_rate=1e-3, warmup_ratio=0.8)
    config.loop.update(checkpoint_every=1000, validate_every=1000)
    config.generate.update(queries=10)
    return config


def _local() -> ConfigDict:
    config = laptop.defaults()
    config.model.writer.update(layers=2, copy=True)
    config.train.update(steps=3000, batch_size=32, learning_rate=1e-3)
    config.loop.update(checkpoint_every=500, validate_every=500)
    return config
