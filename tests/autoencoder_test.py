"""The autoencoder against a decoder written in numpy, and the parts of its loss."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support.modules import one_text_per_row, spread
from support.numpy_layers import attend, dense, layers, mlp, norm, parameters

from retrieval.methods.seed_encoder.model import Autoencoder, Bottleneck, Decoder, DecoderConfig, following, unmasked
from retrieval.models.transformer_config import TransformerConfig

CONFIG = TransformerConfig(vocab_size=30, num_layers=1, hidden_size=8, num_heads=2, mlp_size=12, max_length=10)
RANDOM = np.random.default_rng(0)
IDS = RANDOM.integers(1, 30, (8, 10)).astype(np.int32)
POSITIONS = np.stack([RANDOM.permutation(10)[:3] for _ in range(8)]).astype(np.int32)


def decode_by_numpy(p, tokens, cls, decoder):
    """Hidden states of one text."""
    content = tokens if decoder.span else np.where(np.arange(len(tokens))[:, None] == 0, tokens, 0)
    if decoder.wiring == "prefix":
        content = np.concatenate([cls[None], content[1:]])
    x = norm(content + p["position_embedding"]["embedding"][: len(tokens)], p["embedding_norm"])
    for number, at in enumerate(layers(p["layers"])):
        span = decoder.span if number == 0 or decoder.window == "layer" else 1
        sees = [[j in (0, i) or 0 <= i - j < span for j in range(len(x))] for i in range(len(x))]
        if decoder.wiring == "cross":
            y = norm(x, at["attention_norm"])
            x = x + attend(y, y, at["attention"], 2, sees) + dense(dense(cls, at["cls_value"]), at["cls_output"])
            x = x + mlp(norm(x, at["mlp_norm"]), at)
        else:
            x = norm(x + attend(x, x, at["attention"], 2, sees), at["attention_norm"])
            x = norm(x + mlp(x, at), at["mlp_norm"])
    return norm(x, p["norm"]) if decoder.wiring == "cross" else x


@pytest.mark.parametrize(("wiring", "window", "span"), [("cross", "decoder", 2), ("prefix", "layer", 2)])
def test_hidden_states_are_those_of_numpy(wiring, window, span):
    settings = DecoderConfig(layers=2, span=span, wiring=wiring, window=window)
    decoder = spread(Decoder(CONFIG, settings, nnx.Rngs(0)))
    tokens, cls = RANDOM.normal(size=(2, 10, 8)).astype(np.float32), RANDOM.normal(size=(2, 8)).astype(np.float32)
    text = one_text_per_row(np.where(np.arange(10) < [[10], [6]], IDS[:2], -1))
    hidden = nnx.jit(lambda decoder: decoder(jnp.asarray(tokens), jnp.asarray(cls), text, None))(decoder)
    for row, length in enumerate((10, 6)):
        expected = decode_by_numpy(parameters(decoder), tokens[row, :length], cls[row], settings)
        np.testing.assert_allclose(hidden[row, :length], expected, rtol=0, atol=2e-5)


def test_cls_has_the_same_gradient_in_bfloat16():
    """It is a sum over the 512 tokens of a text, which bfloat16 itself would cut at 256 terms of a size."""
    config = dataclasses.replace(CONFIG, max_length=512, dropout=0.0)
    text = dataclasses.replace(one_text_per_row(np.ones((2, 512), np.int32)), starts_GC=jnp.zeros((2, 1), int))
    tokens, cls = jnp.asarray(RANDOM.normal(size=(2, 512, 8)), jnp.float32), jnp.asarray(RANDOM.normal(size=(2, 8)))
    readout = jnp.asarray(RANDOM.normal(1, 1, 8))

    def gradient(dtype):
        settings = dataclasses.replace(config, dtype=dtype)
        decoder = spread(Decoder(settings, DecoderConfig(layers=1), nnx.Rngs(0)))
        loss = jax.jit(jax.grad(lambda cls: (decoder(tokens, cls, text, None) @ readout).mean()))
        return np.asarray(loss(cls.astype(dtype)), np.float32)

    expected = gradient("float32")
    assert np.linalg.norm(gradient("bfloat16") - expected) < 0.03 * np.linalg.norm(expected)


def test_encoder_and_decoder_logits_share_one_table():
    model = spread(Autoencoder(CONFIG, DecoderConfig(layers=1), rngs=nnx.Rngs(0)))
    (table,) = (np.asarray(leaf) for leaf in jax.tree.leaves(nnx.state(model)) if leaf.shape == (30, 8))

    @nnx.jit
    def parts(model):
        hidden = model.encoder(one_text_per_row(IDS), dropout_key=None)
        written = model.decoder(jnp.asarray(table[IDS[::-1]]), hidden[:, 0], one_text_per_row(IDS), None)
        return model(one_text_per_row(IDS), POSITIONS, IDS[::-1], None), model.predict(hidden, POSITIONS), written

    result, predicted, written = parts(model)
    assert result.divergence_BZ is None
    np.testing.assert_allclose(result.masked_GPV, predicted, atol=1e-6)
    expected = np.asarray(written) @ table.T + np.asarray(model.bias[...])
    np.testing.assert_allclose(result.next_RLV, expected, rtol=0, atol=1e-4)


def test_masked_tokens_are_put_back():
    text = np.array([[5, 1, 7, 1], [1, 6, -1, -1]], np.int32)
    positions = np.array([[1, 3], [0, 0]], np.int32)
    labels, weights = np.array([[8, 9], [4, 0]], np.int32), np.array([[1, 1], [1, 0]], np.float32)
    np.testing.assert_array_equal(unmasked(text, positions, labels, weights), [[5, 8, 7, 9], [4, 6, -1, -1]])
    # Packed: both rows are one group, and positions count through them.
    positions, labels, weights = (np.array([x]) for x in ([1, 3, 4, 0], [8, 9, 4, 0], [1, 1, 1, 0]))
    np.testing.assert_array_equal(unmasked(text, positions, labels, weights), [[5, 8, 7, 9], [4, 6, -1, -1]])


def test_the_token_after_each_ends_with_its_text():
    ids, segments = np.array([[2, 5, 3, 2, 3, 0], [2, 6, 7, 8, 9, 3]]), np.array([[1, 1, 1, 2, 2, 0], [3] * 6])
    labels, weights = following(ids, segments)
    np.testing.assert_array_equal(weights, [[1, 1, 0, 1, 0, 0], [1, 1, 1, 1, 1, 0]])
    np.testing.assert_array_equal(np.where(weights, labels, 0), [[5, 3, 0, 3, 0, 0], [6, 7, 8, 9, 3, 0]])


def test_the_bottlenecks_divergence_is_the_integral():
    bottleneck = spread(Bottleneck(CONFIG, 3, nnx.Rngs(0)))
    cls = jnp.asarray(RANDOM.normal(size=(4, 8)))
    mean, log_variance = np.split(np.asarray(bottleneck.moments(cls), np.float64), 2, axis=1)
    x = np.linspace(-40, 40, 400_001)[:, None, None]
    density = np.exp(-((x - mean) ** 2) / (2 * np.exp(log_variance))) / np.sqrt(2 * math.pi * np.exp(log_variance))
    ratio = -((x - mean) ** 2) / (2 * np.exp(log_variance)) - log_variance / 2 + x**2 / 2
    output, divergence = bottleneck(cls, None)
    np.testing.assert_allclose(divergence, (density * ratio).sum(axis=0) * (x[1] - x[0]), rtol=1e-4)
    np.testing.assert_allclose(output, bottleneck.output(jnp.asarray(mean, jnp.float32)), atol=1e-5)
    drawn = jax.jit(jax.vmap(lambda key: bottleneck(cls, key)[0]))(jax.random.split(jax.random.key(0), 300))
    kernel = np.asarray(bottleneck.output.kernel[...], np.float64)
    np.testing.assert_allclose(drawn.mean(axis=0), output, atol=0.5)
    np.testing.assert_allclose(drawn.var(axis=0), np.exp(log_variance) @ kernel**2, rtol=0.4)
