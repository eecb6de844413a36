"""The autoencoder against a decoder written in numpy, and what each of its predictions can depend on."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from support.devices import assert_same_on_any_mesh
from support.modules import one_text_per_row, spread

from retrieval.errors import UserError
from retrieval.methods.seed_encoder.model import (
    Autoencoder,
    Bottleneck,
    Decoder,
    DecoderConfig,
    following,
    unmasked,
)
from retrieval.models.transformer import TransformerConfig
from retrieval.training.losses import token_cross_entropy

CONFIG = TransformerConfig(vocab_size=30, num_layers=1, hidden_size=8, num_heads=2, mlp_size=12, max_length=10)
RANDOM = np.random.default_rng(0)
IDS = RANDOM.integers(1, 30, (8, 10)).astype(np.int32)
POSITIONS = np.stack([RANDOM.permutation(10)[:3] for _ in range(8)]).astype(np.int32)


def decode_by_loops(params, tokens, cls, decoder):
    """Hidden states of one text, in float64."""
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)

    def norm(x, at):
        return (x - x.mean()) / np.sqrt(x.var() + 1e-12) * at["scale"] + at["bias"]

    def dense(x, at):
        return x @ at["kernel"] + at["bias"]

    def attend(x, i, seen, at):
        query, mixed = dense(x[i], at["query"]), []
        for head in np.split(np.arange(8), 2):
            weight = np.exp([query[head] @ dense(x[j], at["key"])[head] / math.sqrt(len(head)) for j in seen])
            mixed.append((weight / weight.sum()) @ [dense(x[j], at["value"])[head] for j in seen])
        return dense(np.concatenate(mixed), at["output"])

    def mlp(x, at):
        return dense(
            np.array([v * 0.5 * (1 + math.erf(v / math.sqrt(2))) for v in dense(x, at["mlp_in"])]), at["mlp_out"]
        )

    x = []
    for i, token in enumerate(tokens):
        content = token if decoder.span or i == 0 else 0
        content = cls if decoder.wiring == "prefix" and i == 0 else content
        x.append(norm(content + p["position_embedding"]["embedding"][i], p["embedding_norm"]))
    for number in range(decoder.layers):
        at = jax.tree.map(lambda leaf, number=number: leaf[number], p["layers"])
        span = decoder.span if number == 0 or decoder.reach == "layer" else 1
        below, x = x, []
        normed = [norm(v, at["attention_norm"]) for v in below]
        for i, v in enumerate(below):
            seen = [j for j in range(i + 1) if j in (0, i) or i - j < span]
            if decoder.wiring == "cross":
                v = v + attend(normed, i, seen, at["attention"])
                v = v + dense(dense(cls, at["cls_value"]), at["cls_output"])
                x.append(v + mlp(norm(v, at["mlp_norm"]), at))
            else:
                v = norm(v + attend(below, i, seen, at["attention"]), at["attention_norm"])
                x.append(norm(v + mlp(v, at), at["mlp_norm"]))
    return np.array([norm(v, p["norm"]) for v in x] if decoder.wiring == "cross" else x)


@pytest.mark.parametrize(
    ("wiring", "reach", "span"),
    [("cross", "layer", 2), ("cross", "decoder", 2), ("prefix", "layer", 2), ("prefix", "decoder", 0)],
)
def test_hidden_states_are_those_of_the_loops(wiring, reach, span):
    settings = DecoderConfig(layers=2, span=span, wiring=wiring, reach=reach)
    decoder = spread(Decoder(CONFIG, settings, nnx.Rngs(0)))
    tokens, cls = RANDOM.normal(size=(2, 10, 8)).astype(np.float32), RANDOM.normal(size=(2, 8)).astype(np.float32)
    text = one_text_per_row(np.where(np.arange(10) < [[10], [6]], IDS[:2], 0))
    hidden = nnx.jit(lambda decoder: decoder(jnp.asarray(tokens), jnp.asarray(cls), text, None))(decoder)
    params = nnx.to_pure_dict(nnx.state(decoder, nnx.Param))
    for row, length in enumerate((10, 6)):
        expected = decode_by_loops(params, tokens[row, :length], cls[row], settings)
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


@pytest.mark.parametrize(
    ("decoder", "seen"),
    [
        (DecoderConfig(layers=3, span=2, wiring="cross", reach="decoder"), 2),
        (DecoderConfig(layers=3, span=3, wiring="prefix", reach="decoder"), 3),
        (DecoderConfig(layers=3, span=2, wiring="cross"), 4),  # a layer looks back from where the one below did
        (DecoderConfig(layers=3, span=0, wiring="cross"), 0),
    ],
)
def test_a_prediction_depends_on_cls_and_its_span_alone(decoder, seen):
    """Equation 9, by gradients. Row i is what predicts token i + 1; token 0 is [CLS], the same in all texts."""
    graphdef, params = nnx.split(spread(Decoder(CONFIG, decoder, nnx.Rngs(0))))
    tokens, cls = jnp.asarray(RANDOM.normal(size=(10, 8))), jnp.asarray(RANDOM.normal(size=8))
    readout = jnp.asarray(RANDOM.normal(size=8))  # not the sum, which a LayerNorm makes constant

    def predictions(tokens, cls):
        decoder = nnx.merge(graphdef, params)
        return decoder(tokens[None], cls[None], one_text_per_row(IDS[:1]), None)[0] @ readout

    by_token, by_cls = jax.jit(jax.jacrev(predictions, (0, 1)))(tokens, cls)
    depends = np.abs(by_token).max(axis=2) > 0
    for i in range(10):
        expected = set(range(max(0, i - seen + 1), i + 1))
        expected = expected | {0} if decoder.wiring == "cross" else expected - {0}
        assert set(np.flatnonzero(depends[i])) == expected
    assert (np.abs(by_cls).max(axis=1) > 1e-4).all()


def test_the_text_reaches_the_decoder_through_cls_alone():
    """Other masked tokens change [CLS] and with it what is written; with [CLS] as it was, nothing changes."""
    model = spread(Autoencoder(CONFIG, DecoderConfig(layers=1), rngs=nnx.Rngs(0)))
    masked = IDS.copy()
    masked[:, 4] = 29 - masked[:, 4] + 1
    written = nnx.jit(lambda model, ids: model(one_text_per_row(ids), POSITIONS, IDS, None).next_RLV)
    next_, changed = (written(model, ids) for ids in (IDS, masked))
    assert (np.abs(next_ - changed).max(axis=2) > 1e-4).all()
    tokens, cls = jnp.ones((8, 10, 8)), jnp.ones((8, 8))
    decode = nnx.jit(lambda model, ids: model.decoder(tokens, cls, one_text_per_row(ids), None))
    hidden, same = (decode(model, ids) for ids in (IDS, masked))
    np.testing.assert_array_equal(hidden, same)


def test_encoder_and_decoder_logits_share_one_table():
    model = spread(Autoencoder(CONFIG, DecoderConfig(layers=1), rngs=nnx.Rngs(0)))
    tables = [leaf for leaf in jax.tree.leaves(nnx.state(model)) if leaf.shape == (30, 8)]
    assert len(tables) == 1
    result = model(one_text_per_row(IDS), POSITIONS, IDS[::-1], None)
    assert result.divergence_BZ is None
    hidden = model.encoder(one_text_per_row(IDS), dropout_key=None)
    np.testing.assert_allclose(result.masked_GPV, model.predict(hidden, POSITIONS), atol=1e-6)
    table = np.asarray(tables[0])
    written = model.decoder(table[IDS[::-1]], hidden[:, 0], one_text_per_row(IDS), None)
    expected = np.asarray(written) @ table.T + np.asarray(model.bias[...])
    np.testing.assert_allclose(result.next_RLV, expected, rtol=0, atol=1e-4)


def test_masked_tokens_are_put_back():
    text = np.array([[5, 1, 7, 1], [1, 6, 0, 0]], np.int32)
    positions = np.array([[1, 3], [0, 0]], np.int32)
    labels, weights = np.array([[8, 9], [4, 0]], np.int32), np.array([[1, 1], [1, 0]], np.float32)
    np.testing.assert_array_equal(unmasked(text, positions, labels, weights), [[5, 8, 7, 9], [4, 6, 0, 0]])
    # Packed: both rows are one group, and positions count through them.
    positions, labels, weights = (np.array([x]) for x in ([1, 3, 4, 0], [8, 9, 4, 0], [1, 1, 1, 0]))
    np.testing.assert_array_equal(unmasked(text, positions, labels, weights), [[5, 8, 7, 9], [4, 6, 0, 0]])


def test_the_token_after_each_ends_with_its_text():
    ids, segments = np.array([[2, 5, 3, 2, 3, 0], [2, 6, 7, 8, 9, 3]]), np.array([[1, 1, 1, 2, 2, 0], [3] * 6])
    labels, weights = following(ids, segments)
    np.testing.assert_array_equal(weights, [[1, 1, 0, 1, 0, 0], [1, 1, 1, 1, 1, 0]])
    np.testing.assert_array_equal(np.where(weights, labels, 0), [[5, 3, 0, 3, 0, 0], [6, 7, 8, 9, 3, 0]])


@pytest.mark.long
def test_a_weak_decoder_learns_random_texts_through_cls():
    """Three tokens, each one of four and independent of the others: without [CLS] none is better than ln 4."""
    config = dataclasses.replace(CONFIG, vocab_size=8, hidden_size=32, mlp_size=64, max_length=5, dropout=0.0)
    graphdef, params = nnx.split(Autoencoder(config, DecoderConfig(layers=1, span=2), rngs=nnx.Rngs(0)))
    optimizer = optax.adam(3e-3)

    def draw(key):
        tokens = jax.random.randint(key, (128, 3), 4, 8)
        return jnp.concatenate([jnp.full((128, 1), 1), tokens, jnp.full((128, 1), 2)], axis=1)

    def loss(params, ids, through_cls):
        model = nnx.merge(graphdef, params)
        text = one_text_per_row(ids)
        cls = model.encoder(text, dropout_key=None)[:, 0] * through_cls
        next_ = model.scores(model.decoder(model.encoder.token_embedding(ids), cls, text, None))
        labels, weights = following(ids, text.segments_RL)
        return token_cross_entropy(next_[:, :3], labels[:, :3], weights[:, :3])[0].mean()

    @jax.jit
    def train(params, through_cls):
        def step(carry, key):
            params, state = carry
            value, grads = jax.value_and_grad(loss)(params, draw(key), through_cls)
            updates, state = optimizer.update(grads, state)
            return (optax.apply_updates(params, updates), state), value

        keys = jax.random.split(jax.random.key(0), 250)
        return jax.lax.scan(step, (params, optimizer.init(params)), keys)[1][-20:].mean()

    assert train(params, 0.0) == pytest.approx(math.log(4), abs=0.02)
    assert train(params, 1.0) < 0.7 * math.log(4)


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


@pytest.mark.parametrize(
    "decoder",
    [
        DecoderConfig(layers=2, latent=4),
        pytest.param(DecoderConfig(layers=2, wiring="prefix", reach="decoder"), marks=pytest.mark.long),
    ],
    ids=["cross", "prefix"],
)
def test_logits_and_gradients_are_the_same_on_any_mesh(decoder):
    graphdef, params = nnx.split(spread(Autoencoder(CONFIG, decoder, rngs=nnx.Rngs(0))))

    def loss(params, batch):
        ids, positions = batch
        original = unmasked(ids, positions, positions + 1, jnp.ones_like(positions))
        result = nnx.merge(graphdef, params)(one_text_per_row(ids), positions, original, jax.random.key(0))
        return sum(jnp.tanh(x / 10).mean() for x in result if x is not None), (original, result)

    assert_same_on_any_mesh(jax.value_and_grad(loss, has_aux=True), params, (IDS, POSITIONS), atol=5e-5)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"layers": 0}, "layers 0 must be at least 1"),
        ({"wiring": "crossed"}, "unknown wiring 'crossed': did you mean cross"),
    ],
)
def test_bad_settings_are_refused(setting, message):
    with pytest.raises(UserError, match=message):
        DecoderConfig(**setting)
