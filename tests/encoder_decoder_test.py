"""The encoder-decoder against numpy, and the texts that it writes."""

import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support.devices import assert_same_on_any_mesh
from support.modules import one_text_per_row as rows
from support.modules import spread
from support.numpy_layers import attend, dense, layers, mlp, norm, parameters, softmax

from retrieval.methods.writer.decoding import Ends, beam_search, greedy, sample
from retrieval.methods.writer.model import EncoderDecoder, WriterConfig, teacher_forced
from retrieval.models.architecture import PRE_NORM
from retrieval.models.transformer_config import TransformerConfig
from retrieval.training.losses import token_cross_entropy

V = 9
SIZES = dict(vocab_size=V, num_layers=2, hidden_size=8, num_heads=2, mlp_size=12, max_length=6)
CONFIG = TransformerConfig(**SIZES, architecture=PRE_NORM)
WRITER = WriterConfig(layers=2, max_length=5)
START, END = 2, 3
ENDS = Ends(START, END, 5, 0)
TWO_TOKENS = Ends(START, END, 2, 0)
RANDOM = np.random.default_rng(0)


# Sources of different lengths, the last one empty; and texts.
IDS = np.where(np.arange(6) < np.array([6, 3, 1, 6, 5, 2, 6, 0])[:, None], RANDOM.integers(1, V, (8, 6)), -1)
IDS = IDS.astype(np.int32)
TEXTS = RANDOM.integers(1, V, (8, 5)).astype(np.int32)


@pytest.fixture(scope="module", params=["write", "copy"])
def model(request):
    writer = dataclasses.replace(WRITER, copy=request.param == "copy")
    return spread(EncoderDecoder(CONFIG, writer, rngs=nnx.Rngs(0)))


@nnx.jit
def logits_of(model, source, ids):
    return model(source, ids, None)


@nnx.jit
def written_greedily(model, source):
    return greedy(model, source, ENDS)


def by_numpy(model, source, ids):
    """Logits, or log-probabilities, of one text without padding."""
    p = parameters(model)

    def embedded(ids, at):
        return p["encoder"]["token_embedding"]["embedding"][ids] + at["position_embedding"]["embedding"][: len(ids)]

    x = embedded(source, p["encoder"]) + p["encoder"]["type_embedding"]["embedding"][0]
    for at in layers(p["encoder"]["layers"]):
        y = norm(x, at["attention_norm"])
        x = x + attend(y, y, at["attention"], 2)
        x = x + mlp(norm(x, at["mlp_norm"]), at)
    states, x = norm(x, p["encoder"]["final_norm"]), embedded(ids, p)
    for at in layers(p["layers"]):
        y = norm(x, at["attention_norm"])
        x = x + attend(y, y, at["attention"], 2, np.tri(len(ids), dtype=bool))
        x = x + attend(norm(x, at["source_norm"]), states, at["source_attention"], 2)
        x = x + mlp(norm(x, at["mlp_norm"]), at)
    hidden = norm(x, p["norm"])
    logits = hidden @ p["encoder"]["token_embedding"]["embedding"].T + p["bias"]
    if "pointer" not in p:
        return logits
    weight = softmax(dense(hidden, p["pointer"]["query"]) @ states.T / math.sqrt(8))
    gate = 1 / (1 + np.exp(-dense(np.concatenate([hidden, weight @ states], axis=1), p["pointer"]["gate"])))
    return np.log(gate * softmax(logits) + (1 - gate) * weight @ np.eye(V)[source])


def test_logits_are_those_of_numpy(model):
    logits = logits_of(model, rows(IDS), jnp.asarray(TEXTS))
    assert logits.shape == (8, 5, V) and logits.dtype == jnp.float32
    assert np.isfinite(logits).all()
    for row in range(7):
        expected = by_numpy(model, IDS[row][IDS[row] >= 0], TEXTS[row])
        np.testing.assert_allclose(logits[row], expected, rtol=0, atol=5e-5)


def log_probability(model, source, text):
    """Of a text of ids up to the end token, by the model as a whole; no padding is among its tokens."""
    ids = np.array([START, *text])
    logits = by_numpy(model, source, ids[:-1])[:, 1:]
    log = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return sum(log[place, token - 1] for place, token in enumerate(text))


def tokens(ids):
    """The tokens of a row that was written, up to the end token."""
    ids = ids.tolist()
    return ids[: ids.index(END) + 1] if END in ids else ids


def test_greedy_texts_are_those_of_a_loop(model):
    written = written_greedily(model, rows(IDS))
    assert written.ids_RWT.shape == (8, 1, 5)
    for row in range(7):
        source, expected = IDS[row][IDS[row] >= 0], []
        while len(expected) < 5 and END not in expected:
            expected.append(1 + int(by_numpy(model, source, np.array([START, *expected]))[-1, 1:].argmax()))
        assert written.ids_RWT[row, 0].tolist() == expected + [-1] * (5 - len(expected))
        value = log_probability(model, source, expected)
        assert written.log_probability_RW[row, 0] == pytest.approx(value, abs=1e-4)


def test_a_wide_beam_finds_all_texts():
    """All 15 of at most 3 tokens out of 3, the most probable first; there is no 16th."""
    config = dataclasses.replace(CONFIG, vocab_size=4)
    model = spread(EncoderDecoder(config, WRITER, rngs=nnx.Rngs(0)), size=0.3)
    source = np.minimum(IDS[:4], 3)
    texts = [(*head, END) for n in range(3) for head in itertools.product((1, 2), repeat=n)]
    texts += itertools.product((1, 2), repeat=3)
    logs = [{text: log_probability(model, ids[ids >= 0], text) for text in texts} for ids in source]
    ends = Ends(START, END, 3, 0)
    beam = nnx.jit(lambda model, source: beam_search(model, source, ends, width=16))(model, rows(source))
    for row, log in enumerate(logs):
        expected = sorted(texts, key=lambda text: -log[text])
        assert [tuple(tokens(ids)) for ids in beam.ids_RWT[row, :15]] == expected
        values = [log[text] for text in expected]
        np.testing.assert_allclose(beam.log_probability_RW[row], [*values, -np.inf], atol=1e-4)


def test_drawn_texts_follow_the_model(model):
    """2,000 texts of one source, from the four most probable tokens: first tokens, and second ones
    behind the most probable of these."""
    draw = nnx.jit(lambda model, source, keys: sample(model, source, TWO_TOKENS, keys, count=2000, top_k=4))
    written = draw(model, rows(IDS[:1]), jax.random.split(jax.random.key(0), 1))
    before, drawn = [START], written.ids_RWT[0]
    for place, least, within in ((0, 2000, 0.05), (1, 400, 0.08)):
        logits = by_numpy(model, IDS[0], np.array(before))[place]
        logits[0] = -np.inf
        chosen = np.argsort(-logits)[:4]
        counts = np.bincount(drawn[:, place], minlength=V)
        assert counts.sum() == counts[chosen].sum() >= least
        np.testing.assert_allclose(counts[chosen] / counts.sum(), softmax(logits[chosen]), atol=within)
        before.append(next(token for token in chosen if token != END))
        drawn = drawn[drawn[:, 0] == before[1]]
    for number in range(5):
        text = tokens(written.ids_RWT[0, number])
        value = log_probability(model, IDS[0], text)
        assert written.log_probability_RW[0, number] == pytest.approx(value, abs=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("model", ["copy"], indirect=True)
def test_loss_gradients_and_texts_are_mesh_independent(model):
    graphdef, params = nnx.split(model)

    def gradients(params, batch):
        source, ids = batch
        inputs, labels, weights = teacher_forced(ids)

        def loss(params):
            logits = nnx.merge(graphdef, params)(source, inputs, jax.random.key(1))
            return token_cross_entropy(logits, labels, weights, smoothing=0.1)[0].mean()

        return jax.value_and_grad(loss)(params)

    def texts(params, batch):
        source, keys = batch
        return sample(nnx.merge(graphdef, params), source, TWO_TOKENS, keys, count=2, top_k=5)

    # One after the other: devices that share few cores may begin the collectives of independent parts of a program in
    # another order than each other, and wait for ever.
    assert_same_on_any_mesh(gradients, params, (rows(IDS), jnp.asarray(TEXTS)), atol=2e-5)
    assert_same_on_any_mesh(texts, params, (rows(IDS), jax.random.split(jax.random.key(0), 8)), atol=2e-5)
