"""Hard negatives for your pairs by any embedder, as files that this and other trainers read.

    python -m retrieval.main --config=mine:hf:sentence-transformers/all-MiniLM-L6-v2 --workdir=runs/mined \\
        --config.pairs.files=DATA/pairs.jsonl --config.mine.negatives=5

`runs/mined/negatives/negatives.jsonl` is Tevatron's format; --config.mine.format=triplet or n-tuple puts
sentence-transformers' beside it. Candidates are the documents of all pairs; with --config.pairs.collection=CORPUS.jsonl
what that has, and the positives. The rule is TopK-PercPos of 95 % (NV-Retriever): of the candidates that score at most
0.95 times a query's worst positive the best. With --config.mine.reranker=hf:NAME a cross-encoder's scores count.
"""

from ml_collections import ConfigDict

from retrieval.config.experiment import defaults


def get_config(model: str = "") -> ConfigDict:
    """Mining alone.

    Args:
      model: work directory, folder or hf:NAME of an embedder.
    """
    config = defaults()
    config.stages = ("mine",)
    config.mine.update(model=model, negatives=3, first=1, last=100, relative_margin=0.05, sampling="top")
    config.data.update(query_length=512, document_length=512, negatives=0)  # at most; fewer where the model says so
    config.model.dtype = "float32"
    config.encode.batch_tokens = 16_384
    return config
