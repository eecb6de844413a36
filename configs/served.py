"""Published models behind a server, without documents: embeddings, token vectors, sparse vectors and rerank scores.

    retrieval serve --model=hf:sentence-transformers/all-MiniLM-L6-v2 --model=hf:cross-encoder/ms-marco-MiniLM-L6-v2

The argument is a model that encodes, a reranker, or one of each with a comma: folders, names on Hugging Face's hub, or
work directories.
"""

from ml_collections import ConfigDict

from retrieval.config.experiment import defaults


def get_config(models: str = "") -> ConfigDict:
    """The stage that serves some models."""
    config = defaults()
    config.stages = ("serve_models",)
    config.served.models = tuple(filter(None, models.split(",")))
    config.model.dtype = "float32"
    return config
