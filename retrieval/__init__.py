"""Embedding-based retrieval: pre-training, fine-tuning, search and evaluation.

    import retrieval

    model = retrieval.load("runs/quickstart")
    hits = model.index("docs", kind="hybrid").search("how do I read a zip archive")

What these need is imported when they are first called. `__init__.pyi` has their types.
"""

import importlib
import os
from pathlib import Path
from typing import Any

# Read when TensorFlow and JAX are imported, which is later. What matters comes as an exception.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

__version__ = "0.1.0"  # setup.py reads it

_PACKAGE = Path(__file__).resolve().parent
REPOSITORY = _PACKAGE.parent  # of a checkout
# The versions whose packages make up the pydocs corpus; a wheel has the file inside.
LOCK = next((path for path in (_PACKAGE / "requirements.lock",) if path.exists()), REPOSITORY / "requirements.lock")

_MODULES = {"Answer": "answering", "Model": "loaded_model", "load": "loading", "load_index": "loading"}
_MODULES |= dict.fromkeys(("DocumentIndex", "Hit"), "document_index")
_MODULES |= dict.fromkeys(("FinishedRun", "run"), "finished_run")
_MODULES["fine_tune"] = "tuning"
_MODULES |= dict.fromkeys(("MtebEncoder", "MtebSearch"), "mteb_models")


def __getattr__(name: str) -> Any:
    if name == "errors":
        return importlib.import_module("retrieval.common.errors")
    if name not in _MODULES:
        raise AttributeError(f"module 'retrieval' has no attribute '{name}'")
    return getattr(importlib.import_module(f"retrieval.api.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, "errors"})
