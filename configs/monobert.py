"""monoBERT (Nogueira & Cho 2019): a cross-encoder that reranks what BM25 finds, trained on MS MARCO's triples.

    python -m retrieval.main --config=configs/monobert.py --workdir=runs/monobert \\
        --config.vocab=BERT --config.train.init_from=BERT --config.pairs.files=triples.train.small.tsv \\
        --config.sets.msmarco=collection.tsv,queries.dev.small.tsv,qrels.dev.small.tsv

BERT is a folder of BERT-Large's weights (uncased). The paper has an MRR@10 of 0.365 on dev for the first 1,000 of BM25,
and 0.347 with BERT-Base. Its 12.8 million pairs take 100,000 steps of 128.

At the size of a laptop, from a small masked language model, on a share of an evaluation set's questions with BM25's
negatives (2 CPU cores):

    python -m retrieval.main --config=mlm:local --workdir=runs/mlm --config.data.document_length=128 \\
        --config.stages="('prepare', 'train')"
    python -m retrieval.main --config=configs/monobert.py:local --workdir=runs/monobert --config.base=runs/mlm \\
        --config.train.init_from=runs/mlm --config.sets.beir=scifact --config.split.set=scifact

`rerank.systems` names what is reranked: bm25, or other systems of this run or its base. The runs of other people's
systems are files, in `runs.files`. The paper trains on the official BM25's negatives; ours are `rerank.trained_on`.
"""

from ml_collections import ConfigDict

from retrieval.config.experiment import defaults, sized
from retrieval.configs import laptop
from retrieval.configs.fine_tuning import on_labelled_examples


def get_config(size: str = "paper") -> ConfigDict:
    """The paper's BERT-Large, or 'local'."""
    config = on_labelled_examples(sized(size, paper=_paper, local=_local))
    config.recipe = "reranker"
    config.train.loss = "class_cross_entropy"
    config.rerank.trained_on = ("bm25",)
    return config


def _paper() -> ConfigDict:
    """A batch is 64 triples: 64 pairs that are relevant, and 64 that are not."""
    config = defaults()
    config.stages = ("sets", "index", "pairs", "train", "evaluate", "rerank", "report")
    config.index.update(bm25_k1=0.82, bm25_b=0.68)
    config.evaluate.depth = 1000
    config.data.update(query_length=64, document_length=512, negatives=1)
    config.model.update(num_layers=24, hidden_size=1024, num_heads=16, mlp_size=4096)
    config.train.update(steps=100_000, batch_size=64, learning_rate=3e-6, warmup_ratio=0.1, weight_decay=0.01)
    config.loop.update(checkpoint_every=5000, validate_every=5000)
    return config


def _local() -> ConfigDict:
    config = laptop.defaults()
    config.stages = ("sets", "index", "mine", "pairs", "train", "evaluate", "rerank", "report")
    config.data.update(query_length=32, document_length=128, negatives=3)
    config.mine.last = 100
    config.rerank.update(depths=(5, 10, 50, 100), trained_depth=100)
    config.train.update(steps=600, batch_size=16, learning_rate=5e-4, temperature=1.0)
    config.loop.update(checkpoint_every=100, validate_every=100, validate_queries=100, validate_candidates=2000)
    return config
