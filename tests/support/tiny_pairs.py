"""A tiny cross-encoder and pairs for it."""

import jax.numpy as jnp
import numpy as np
from flax import nnx

from retrieval.models.text import Text
from retrieval.models.transformer_config import TransformerConfig

CONFIG = TransformerConfig(vocab_size=30, num_layers=2, hidden_size=8, num_heads=2, mlp_size=12, max_length=10)
_RANDOM = np.random.default_rng(0)
_LENGTHS = np.array([10, 4, 7, 9, 5, 10, 6, 8])[:, None]
IDS = np.where(np.arange(10) < _LENGTHS, _RANDOM.integers(0, 30, (8, 10)), -1).astype(np.int32)
TYPES = np.where(np.arange(10) < _LENGTHS, np.arange(10) > 3, 0).astype(np.int32)


def pairs(rows=slice(None), length=10):
    """Some of the pairs, in rows of another length."""
    ids, types = (np.pad(x[rows], ((0, 0), (0, max(0, length - 10))))[:, :length] for x in (IDS, TYPES))
    return Text.from_ids(jnp.asarray(ids), jnp.asarray(types))


@nnx.jit
def scores(model, pairs):
    return model.scores(pairs)
