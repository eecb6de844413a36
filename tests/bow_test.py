"""BoW-MLP against the formula."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from retrieval.models.text import Text
from retrieval.models.two_tower import BowConfig, BowMlp

IDS = np.array([[2, 0, 8, 3, -1, -1], [2, 9, 9, 9, 4, 0], [2, 3, -1, -1, -1, -1], [-1] * 6], np.int32)


def build():
    return BowMlp(BowConfig(vocab_size=10, hidden_size=6, mlp_size=5), 4, rngs=nnx.Rngs(0))


def embed(model, ids):
    return model(Text.from_ids(jnp.asarray(ids), jnp.zeros_like(ids)), dropout_key=None)


def test_the_embedding_is_an_mlp_of_the_mean_token():
    model = build()
    p = nnx.to_pure_dict(nnx.state(model))
    p["hidden"]["bias"] = jnp.linspace(-1, 1, 5)
    p["output"]["bias"] = jnp.linspace(1, 2, 4)
    model.hidden.bias[...], model.output.bias[...] = p["hidden"]["bias"], p["output"]["bias"]
    p = jax.tree.map(np.asarray, p)
    for row, embedding in zip(IDS, embed(model, IDS)):
        total = sum((p["token_embedding"]["embedding"][i] for i in row if i >= 0), np.zeros(6))
        hidden = np.tanh(total / max(1, (row >= 0).sum()) @ p["hidden"]["kernel"] + p["hidden"]["bias"])
        np.testing.assert_allclose(embedding, hidden @ p["output"]["kernel"] + p["output"]["bias"], atol=1e-6)


def test_packed_texts_have_the_same_embeddings():
    packed = Text(
        ids_RL=jnp.array([[2, 3, 2, 9, 9, 9, 4, 0], [2, 0, 8, 3, -1, -1, -1, -1]]),
        types_RL=jnp.zeros((2, 8), int),
        segments_RL=jnp.array([[3, 3, 2, 2, 2, 2, 2, 2], [1, 1, 1, 1, 0, 0, 0, 0]]),
        positions_RL=jnp.array([[0, 1, 0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 0, 0, 0, 0]]),
        starts_GC=jnp.array([[8, 2, 0]]),
    )
    model = build()
    np.testing.assert_allclose(model(packed, dropout_key=None), embed(model, IDS)[:3], atol=1e-6)
