"""With this folder in PYTHONPATH a process and its children have JAX, flax, optax, NumPy and what these need, alone."""

import re
import sys
from importlib import metadata
from importlib.machinery import PathFinder


def _needed(names):
    """The distributions of some names, and those that they need."""
    found, waiting = set(), list(names)
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in found:
            continue
        try:
            needs = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        found.add(name)
        waiting += [re.match(r"[\w.-]+", need)[0] for need in needs if "extra ==" not in need]
    return found


class _Bare:
    """The finder of modules in folders, which finds no others."""

    def __init__(self):
        needed = _needed(["jax", "flax", "optax", "numpy"])
        self._absent = {
            package
            for package, owners in metadata.packages_distributions().items()
            if not needed & {re.sub(r"[-_.]+", "-", owner).lower() for owner in owners}
        }

    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        packed = any(folder.endswith("packages") and "site-packages" not in folder for folder in sys.path)
        is_absent = top in self._absent and not (top == "ml_collections" and packed)
        return None if is_absent else PathFinder.find_spec(name, path, target)

    def invalidate_caches(self):
        PathFinder.invalidate_caches()


sys.meta_path[sys.meta_path.index(PathFinder)] = _Bare()
