"""Packages of others that tests of the hand-over need. `.venv/handover` has them, our own environment has not.

`launch/handover.sh` sets HANDOVER_TESTS=1: then a package that is missing fails the test, which otherwise is skipped.
"""

import importlib
import os
from types import ModuleType

import pytest

ALL_ARE_THERE = "HANDOVER_TESTS"


def package(name: str) -> ModuleType:
    """The module of that name.

    Raises:
      ModuleNotFoundError: it is not installed, though all of them should be.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        if os.environ.get(ALL_ARE_THERE) == "1":
            raise
        pytest.skip(f"{name} is not installed: launch/handover.sh installs it", allow_module_level=True)
