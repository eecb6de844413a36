"""Packages that not everybody needs, which are extras of `setup.py`, and those that take seconds to import.

The latter stand here for modules that most commands load and few use:

    from retrieval.common.libraries import tf

Each is imported when the first of its names is asked for. So a module that has its line here must not ask for a name
while it is itself imported: annotations are texts (`from __future__ import annotations`), and a class of ours that
inherits from one of theirs is in a module that is imported where it is needed.
"""

import importlib
import importlib.util
from types import ModuleType
from typing import TYPE_CHECKING, Any

from retrieval import REPOSITORY
from retrieval.common.errors import UserError

# A checkout may be used without being installed. On the package index "retrieval" is another program.
_WHOSE = "." if (REPOSITORY / "setup.py").exists() else "retrieval-jax"

TRAIN = "train"
_OF_TRAINING = ("clu", "seqio", "tensorflow")


class _Late(ModuleType):
    """Stands for a module that is not yet imported, and hands on what is asked of it."""

    def __getattr__(self, name: str) -> Any:
        try:
            module = importlib.import_module(self.__name__)
        except ModuleNotFoundError as error:
            raise missing("this", str(error.name), TRAIN) from error
        return getattr(module, name)


def install(extra: str) -> str:
    """The command that installs an extra."""
    return f"pip install '{_WHOSE}[{extra}]'"


def missing(what: str, package: str, extra: str) -> UserError:
    """The error where a package cannot be imported.

    Args:
      what: needs the package, such as a field with its value.
    """
    return UserError(f"{what} needs the package {package}, which is not installed: {install(extra)}")


def check_training(run: Any) -> None:
    """Checks, before a run begins, that what its stages need is there; any run.

    Raises:
      UserError: a package that prepares examples or trains is missing.
    """
    for package in _OF_TRAINING:
        if importlib.util.find_spec(package) is None:
            raise missing("a run that prepares examples or trains", package, TRAIN)


def package(what: str, name: str, extra: str) -> Any:
    """A package that an extra has."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise missing(what, name, extra) from error


if TYPE_CHECKING:
    import ir_measures
    import seqio
    import tensorflow as tf
    from clu import metric_writers as clu_writers
    from matplotlib import figure as figures
    from matplotlib import ticker as tickers
    from scipy import special
else:
    ir_measures, seqio, tf = map(_Late, ("ir_measures", "seqio", "tensorflow"))
    clu_writers, figures, tickers = map(_Late, ("clu.metric_writers", "matplotlib.figure", "matplotlib.ticker"))
    special = _Late("scipy.special")
