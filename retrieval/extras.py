"""Packages that not everybody needs. They are extras: `setup.py` lists what each has."""

from retrieval import REPOSITORY
from retrieval.errors import UserError

# A checkout may be used without being installed. On the package index "retrieval" is another program.
_WHOSE = "." if (REPOSITORY / "setup.py").exists() else "retrieval-jax"


def install(extra: str) -> str:
    """The command that installs an extra."""
    return f"pip install '{_WHOSE}[{extra}]'"


def missing(what: str, package: str, extra: str) -> UserError:
    """The error where a package cannot be imported.

    Args:
      what: needs the package, such as a field with its value.
    """
    return UserError(f"{what} needs the package {package}, which is not installed: {install(extra)}")
