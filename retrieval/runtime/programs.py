"""Compiled programs, kept for later processes: a train step of BERT's size takes a GPU a minute to compile."""

import functools
import importlib.util
import os

import jax
from jax.experimental.compilation_cache import compilation_cache

_MOST = 8 << 30  # bytes: from there on what was not used for longest goes
_DIRECTORY, _MOST_FIELD = "jax_compilation_cache_dir", "jax_compilation_cache_max_size"


@functools.cache
def keep() -> None:
    """Has an accelerator's programs kept in the user's cache; JAX_COMPILATION_CACHE_DIR is another folder, or '' none.

    A CPU's are not: what is compiled for one processor may fail on another one that has the same home.
    """
    asked = _DIRECTORY.upper() in os.environ or getattr(jax.config, _DIRECTORY)
    if asked or jax.default_backend() == "cpu" or not importlib.util.find_spec("filelock"):
        return
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    jax.config.update(_DIRECTORY, os.path.join(cache, "retrieval", "programs"))
    jax.config.update(_MOST_FIELD, _MOST)


def keep_at(place: str) -> None:
    """As `keep`, from now on at the address of a folder on a store, where other hosts and later machines find them."""
    if _DIRECTORY.upper() not in os.environ and jax.default_backend() != "cpu":
        compilation_cache.reset_cache()  # JAX may have opened another one
        jax.config.update(_DIRECTORY, place)
        jax.config.update(_MOST_FIELD, -1)  # what is deleted would take locks
