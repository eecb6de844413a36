"""Packages that not everybody needs. They are extras: `setup.py` lists what each has."""

import importlib
import importlib.util
from typing import Any

from retrieval import REPOSITORY
from retrieval.errors import UserError

# A checkout may be used without being installed. On the package index "retrieval" is another program.
_WHOSE = "." if (REPOSITORY / "setup.py").exists() else "retrieval-jax"

TRAIN = "train"
_OF_TRAINING = ("clu", "ir_measures", "matplotlib", "seqio", "tensorflow")


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
      UserError: a package that prepares, trains or evaluates is missing.
    """
    for package in _OF_TRAINING:
        if importlib.util.find_spec(package) is None:
            raise missing("a run that prepares, trains or evaluates", package, TRAIN)


def package(what: str, name: str, extra: str) -> Any:
    """A package that an extra has."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise missing(what, name, extra) from error
