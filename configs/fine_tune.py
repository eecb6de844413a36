"""`embedding.py` with the model as its argument.

    python -m retrieval.main --config=fine_tune:hf:sentence-transformers/all-MiniLM-L6-v2 --workdir=runs/tuned \\
        --config.pairs.files=DATA/pairs.jsonl --config.sets.labelled=DATA/test.jsonl
"""

from ml_collections import ConfigDict

from retrieval.common.errors import UserError
from retrieval.configs import embedding
from retrieval.configs.embedding import complete as complete


def get_config(model: str = "") -> ConfigDict:
    """Training on labelled pairs, and the evaluation of both models.

    Args:
      model: as `train.init_from` takes it.

    Raises:
      UserError: it is none, or a part of it is not understood here.
    """
    if not model:
        raise UserError("--config=fine_tune starts from a model: write --config=fine_tune:FOLDER or fine_tune:hf:NAME")
    config = embedding.get_config()
    config.train.init_from = model
    complete(config)
    return config
