"""The keys that parameters are drawn from."""

import jax
from flax import nnx


class Rngs(nnx.Rngs, pytree=False):
    """The keys of `nnx.Rngs(seed)`, counted in Python.

    There the count is an array. Where a model is made in a program that is traced, flax asks at every key how that
    array is sharded, and JAX answers with an error of several pages: four fifths of the time to trace BERT.
    """

    def __init__(self, seed: int):
        self.default = _Stream(seed)  # of every name


class _Stream:
    def __init__(self, seed: int):
        self._key, self._count = jax.random.key(seed), 0

    def __call__(self) -> jax.Array:
        """The next key."""
        key = jax.random.fold_in(self._key, self._count)
        self._count += 1
        return key
