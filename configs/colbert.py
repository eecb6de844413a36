"""ColBERT (Khattab & Zaharia 2020): a vector for every token, and the sum of each query token's best match.

    python -m retrieval.main --config=configs/colbert.py --workdir=runs/colbert \\
        --config.vocab=BERT --config.train.init_from=BERT --config.pairs.files=triples.train.small.tsv \\
        --config.sets.msmarco=collection.tsv,queries.dev.small.tsv,qrels.dev.small.tsv

BERT is a folder of BERT-base's weights (uncased), whose [unused0] and [unused1] stand before queries and documents. The
paper has an MRR@10 of 0.349 on dev for the first 1,000 of BM25, and trains on one GPU of 32 GB.

At the size of a laptop, from a small masked language model, on a share of an evaluation set's questions with BM25's
negatives (2 CPU cores):

    python -m retrieval.main --config=mlm:local --workdir=runs/mlm --config.data.document_length=128 \\
        --config.stages="('prepare', 'train')"
    python -m retrieval.main --config=configs/colbert.py:local --workdir=runs/colbert --config.base=runs/mlm \\
        --config.train.init_from=runs/mlm --config.sets.beir=scifact --config.split.set=scifact

`train.init_from` may also be a folder that PyLate loads: architecture and prefixes have to be its own then, and an
error has the flags. `late.systems` names what is ranked anew: bm25, or other systems of this run or its base.
"""

from ml_collections import ConfigDict

from retrieval.config.experiment import defaults, sized
from retrieval.configs import laptop
from retrieval.configs.fine_tuning import on_labelled_examples


def get_config(size: str = "paper") -> ConfigDict:
    """The paper's BERT-base, or 'local'."""
    config = on_labelled_examples(sized(size, paper=_paper, local=_local))
    config.recipe = "late_interaction"
    config.data.titles = "joined"
    return config


def _paper() -> ConfigDict:
    """A batch is 32 triples; the loss compares a positive with its own negative alone."""
    config = defaults()
    config.stages = ("sets", "index", "pairs", "train", "evaluate", "tokens", "maxsim", "report")
    config.index.update(bm25_k1=0.82, bm25_b=0.68)
    config.evaluate.depth = 1000
    config.data.update(query_length=32, document_length=180, negatives=1)
    config.data.update(query_prefix="[unused0]", document_prefix="[unused1]")
    config.model.update(num_layers=12, hidden_size=768, num_heads=12, mlp_size=3072, embed_dim=128)
    config.train.update(steps=200_000, batch_size=32, learning_rate=3e-6, warmup_ratio=0.0, loss="multi_negative_nll")
    config.late.depth = 1000
    config.loop.update(checkpoint_every=5000, validate_every=5000)
    return config


def _local() -> ConfigDict:
    """All documents of a batch are negatives."""
    config = laptop.defaults()
    config.stages = ("sets", "index", "mine", "pairs", "train", "evaluate", "tokens", "maxsim", "report")
    config.data.update(query_length=32, document_length=128, negatives=1)
    config.data.update(query_prefix="query: ", document_prefix="passage: ")
    config.mine.last = 100
    config.train.update(steps=600, batch_size=32, learning_rate=5e-4, temperature=1.0, loss="maxsim_softmax")
    config.loop.update(checkpoint_every=100, validate_every=100, validate_queries=100, validate_candidates=2000)
    return config
