"""Encoders of every family: what needs no library; `interop_encoders_test` compares their numbers with the library."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import encoder_folders
from support.encoder_folders import FAMILIES, H, V, write
from support.encoder_models import gradient, hidden, load, packed, rows

from retrieval.models.encoder_folder import EncoderFolder, written_config
from retrieval.models.encoders import family as families
from retrieval.models.text import Text, position_vectors
from retrieval.models.transformer_config import TransformerConfig


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """A function that loads a family's encoder of one period of layers, once."""

    def of(name, dtype="float32", change=None):
        layers = "num_layers" if name.startswith("t5") else "num_hidden_layers"
        return load(write(tmp_path_factory.mktemp(name), name, change, **{layers: 3}), dtype=dtype)

    return functools.cache(of)


@pytest.mark.parametrize("name", ["modernbert", "qwen3", "llama3", "mistral", "gemma3", "embedding_gemma"])
def test_a_written_config_says_the_same_to_transformers_4(name, tmp_path):
    """Which does not know rope_parameters."""
    linear = {"rope_scaling": {"rope_type": "linear", "factor": 8.0}} if name == "gemma3" else {}
    sizes = EncoderFolder.open(write(tmp_path / "published", name, **linear)).sizes
    written = written_config(TransformerConfig(**sizes))
    assert written.pop("rope_parameters")
    (tmp_path / "config.json").write_text(json.dumps(written))
    assert families.read(tmp_path / "config.json")[1] == sizes


def three(name):
    """Texts that are neighbours in a row, longer than a window on both sides of each border."""
    window, rng = FAMILIES[name].window, np.random.default_rng(3)
    least = 1 if name == "mpnet" else 4  # padding, too, where it is not counted
    return [rng.integers(least, V, length) for length in (window + 3, 2 * window + 1, window)]


@pytest.mark.parametrize("name", FAMILIES)
def test_packed_texts_are_as_texts_alone(name, encoder):
    texts, model = three(name), encoder(name)
    alone, together = hidden(model, rows(texts)), hidden(model, packed(texts))
    for one, other in zip(alone, together):
        np.testing.assert_allclose(other, one, rtol=0, atol=2e-6 * np.abs(one).max())


def test_padding_that_is_written_in_a_text_is_not_counted():
    """As in transformers: cumsum(ids != 1) * (ids != 1), where place 0 is before the first and of zeros."""
    ids, table = np.array([[5, 1, 1, 6, 7], [1, 8, 1, 9, 1]]), np.arange(1, 6, dtype=np.float32)[:, None]
    wanted = np.cumsum(ids != 1, axis=1) * (ids != 1)
    for text in (rows(ids), packed(ids, gap=0)):  # each text counts its own
        np.testing.assert_array_equal(position_vectors(jnp.asarray(table), text, 1).reshape(2, 5), wanted)


LONG = [pytest.param(name, marks=pytest.mark.long) for name in ("qwen3", "embedding_gemma", "gte")]


@pytest.mark.parametrize("name", ["modernbert", "t5", *LONG])
def test_gradients_of_packed_texts_are_as_of_texts_alone(name, encoder):
    texts, model = three(name), encoder(name)
    direction_H = np.random.default_rng(5).standard_normal(H).astype(np.float32)
    alone, together = (gradient(model, arrange(texts), direction_H) for arrange in (rows, packed))
    largest = max(np.abs(leaf).max() for leaf in jax.tree.leaves(alone))
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(other, one, rtol=0, atol=5e-6 * largest), alone, together
    )


# Of one layer: family, fields that make it local or global, how many tokens it sees before its own and behind.
REACHES = {
    "modernbert, local": ("modernbert", dict(layer_types=["sliding_attention"]), 4, 4),
    "gemma3, local": ("gemma3", {}, 5, 0),
    "embedding_gemma, local": ("embedding_gemma", {}, 4, 4),
    "embedding_gemma, global": ("embedding_gemma", dict(sliding_window_pattern=1), 11, 11),
    "mistral, later": ("mistral", dict(sliding_window=None), 11, 0),
}


@pytest.mark.parametrize("case", REACHES)
def test_a_token_sees_what_it_may_and_nothing_else(case, tmp_path):
    """By the gradient of each hidden state with respect to each token's embedding, in two packed texts."""
    name, fields, before, behind = REACHES[case]
    model = load(write(tmp_path, name, **fields, num_hidden_layers=1))
    length = 12
    ids = np.arange(4, 4 + 2 * length)
    text = packed([ids[:length], ids[length:]], gap=0)
    seen = _dependence(model, text, ids)
    place, text_of = np.arange(2 * length) % length, np.arange(2 * length) // length
    distance = place - place[:, None]
    wanted = (text_of == text_of[:, None]) & (distance >= -before) & (distance <= behind)
    np.testing.assert_array_equal(seen, wanted)


def _dependence(model, text, ids):
    """Whether each token's hidden state depends on each token's embedding, bool [L, L]."""
    graphdef, params = nnx.split(model)
    table_VH = params["token_embedding"]["embedding"]
    direction_H = np.random.default_rng(1).standard_normal(H).astype(np.float32)

    @jax.jit
    def of_table(values_VH):
        params["token_embedding"]["embedding"] = table_VH.replace(values_VH)
        return nnx.merge(graphdef, params)(text, dropout_key=None)[0] @ direction_H

    gradient_LVH = jax.jacrev(of_table)(table_VH[...])
    return np.abs(gradient_LVH).max(axis=2)[:, ids] > 0


def test_a_text_may_end_in_the_token_that_is_padding_elsewhere(encoder):
    """Qwen3's embedders pool the token that batches are filled with."""
    model = encoder("qwen3")
    ids = np.array([[5, 6, 7, 3], [5, 6, 3, -1], [0, 6, -1, -1]], np.int32)
    text = Text.from_ids(ids, np.zeros_like(ids))
    states = hidden(model, text)
    assert list(map(len, states)) == [4, 3, 2]
    for row, state in zip(ids, states):
        alone = hidden(model, rows([row[row >= 0]]))[0]
        np.testing.assert_allclose(state, alone, rtol=0, atol=1e-6 * np.abs(alone).max())


@pytest.mark.parametrize("name", ["gemma3", "t5"])
def test_half_precision_is_near(name, encoder):
    text = rows(encoder_folders.texts(name))
    pooled, halved = (
        np.array([states.mean(axis=0) for states in hidden(model, text)])
        for model in (encoder(name), encoder(name, "bfloat16"))
    )
    norms = np.linalg.norm(pooled, axis=1) * np.linalg.norm(halved, axis=1)
    assert ((pooled * halved).sum(axis=1) / norms).min() > 0.999
    assert np.abs(pooled - halved).max() > 1e-4


def test_large_embeddings_are_finite_in_half_precision(encoder):
    """Those of Gemma reach 8e5 within the layers, which float16 has no numbers for."""

    def larger(_, tensors):
        tensors["embed_tokens.weight"] *= 1000

    model = encoder("embedding_gemma", "bfloat16", larger)
    for states in hidden(model, rows(encoder_folders.texts("embedding_gemma"))):
        assert np.isfinite(states).all()
