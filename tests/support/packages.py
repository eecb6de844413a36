"""Packages of others, which our own environment has not: tests that need them are skipped there, and fetch nothing.

`launch/interop.sh` and `launch/handover.sh` have environments with them; the latter sets HANDOVER_TESTS=1: then a
package that is missing fails the test.
"""

import importlib
import os
from types import ModuleType

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["USE_TF"] = "0"  # transformers 4 would take our TensorFlow, and miss a package


def package(name: str) -> ModuleType:
    """The module of that name."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        if os.environ.get("HANDOVER_TESTS") == "1":
            raise
        pytest.skip(f"{name} is not installed: launch/interop.sh or handover.sh installs it", allow_module_level=True)
