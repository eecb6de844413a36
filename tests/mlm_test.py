"""The masked language model's output layer; `pretrained_golden_test` has its numbers."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from support.modules import one_text_per_row, spread

from retrieval.models.mlm import MaskedLanguageModel
from retrieval.models.transformer_config import TransformerConfig

CONFIG = TransformerConfig(vocab_size=30, num_layers=1, hidden_size=8, num_heads=2, mlp_size=12, max_length=10)
RANDOM = np.random.default_rng(0)
IDS = RANDOM.integers(1, 30, (8, 10)).astype(np.int32)
POSITIONS = RANDOM.integers(0, 10, (8, 3)).astype(np.int32)


def build():
    """A model whose parameters are all far from 0 and 1."""
    return spread(MaskedLanguageModel(CONFIG, rngs=nnx.Rngs(0)))


def test_the_output_layer_is_the_token_embedding():
    model = build()
    tables = [leaf for leaf in jax.tree.leaves(nnx.state(model)) if leaf.shape == (30, 8)]
    assert len(tables) == 1
    before = model(one_text_per_row(IDS), jnp.asarray(POSITIONS), None)
    unseen = next(token for token in range(1, 30) if token not in IDS[:1])
    model.encoder.token_embedding.embedding[...] = model.encoder.token_embedding.embedding[...].at[unseen].add(1)
    changed = np.abs(model(one_text_per_row(IDS), jnp.asarray(POSITIONS), None) - before)[0] > 1e-6
    np.testing.assert_array_equal(np.flatnonzero(changed.any(axis=0)), [unseen])
