"""Where a model stands: nDCG@10, recall@100 and MRR@10 on evaluation sets, beside BM25. Nothing is trained.

    python -m retrieval.main --config=benchmark:hf:sentence-transformers/all-MiniLM-L6-v2 --workdir=runs/minilm \\
        --config.sets.parquet=hf:sentence-transformers/NanoBEIR-en

The argument is a folder of sentence-transformers, a model of Hugging Face's hub, or the work directory of a run. The
command `retrieval benchmark` does such runs for several models, and compares them.
"""

from pathlib import Path

from ml_collections import ConfigDict

from retrieval.configs import evaluate, published


def get_config(model: str = "") -> ConfigDict:
    """The stages that evaluate a model.

    Args:
      model: as `published.get_config` takes it, or a work directory whose training has ended.

    Raises:
      UserError: it is none, or a part of it is not understood here.
    """
    from retrieval.errors import UserError
    from retrieval.models.encoder_folder import is_encoder
    from retrieval.runtime import hub, store

    if not model:
        raise UserError("--config=benchmark has no model: write --config=benchmark:FOLDER, a work directory or hf:NAME")
    folder = Path(model)
    is_folder = not (hub.is_name(model) or store.is_url(model))
    if store.is_url(model) or (is_folder and (folder / "config.json").exists() and not is_encoder(folder)):
        config = evaluate.get_config()
        config.base = model
    else:
        config = published.get_config(model, "benchmark")
    config.evaluate.metrics = ("nDCG@10", "R@100", "RR@10")
    return config
