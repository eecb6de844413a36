"""The encoder-decoder against numpy, what its tokens see, and the texts that it writes."""

import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from support.devices import assert_same_on_any_mesh
from support.modules import one_text_per_row as rows
from support.modules import spread

from retrieval.errors import UserError
from retrieval.methods.writer.decoding import Ends, beam_search, greedy, sample
from retrieval.methods.writer.model import EncoderDecoder, WriterConfig, teacher_forced
from retrieval.models.transformer import TransformerConfig
from retrieval.training.losses import token_cross_entropy

V = 9
CONFIG = TransformerConfig(
    vocab_size=V, num_layers=2, hidden_size=8, num_heads=2, mlp_size=12, max_length=6, pre_norm=True
)
WRITER = WriterConfig(layers=2, max_length=5)
START, END = 2, 3
ENDS = Ends(START, END, 5)
TWO_TOKENS = Ends(START, END, 2)
RANDOM = np.random.default_rng(0)
# Sources of different lengths, the last one empty; and texts.
IDS = np.where(np.arange(6) < np.array([6, 3, 1, 6, 5, 2, 6, 0])[:, None], RANDOM.integers(1, V, (8, 6)), 0)
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
    """Logits, or log-probabilities, of one text without padding; float64."""
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), nnx.to_pure_dict(nnx.state(model, nnx.Param)))

    def norm(x, at):
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12) * at["scale"] + at["bias"]

    def dense(x, at):
        return x @ at["kernel"] + at["bias"]

    def softmax(x):
        return np.exp(x) / np.exp(x).sum(-1, keepdims=True)

    def attend(x, others, at, sees):
        query, key, value = dense(x, at["query"]), dense(others, at["key"]), dense(others, at["value"])
        parts = []
        for head in np.split(np.arange(8), 2):
            score = query[:, head] @ key[:, head].T / math.sqrt(len(head))
            parts.append(softmax(np.where(sees, score, -np.inf)) @ value[:, head])
        return dense(np.concatenate(parts, axis=1), at["output"])

    def mlp(x, at):
        inner = dense(x, at["mlp_in"])
        return dense(inner * 0.5 * (1 + np.vectorize(math.erf)(inner / math.sqrt(2))), at["mlp_out"])

    def embedded(ids, at):
        positions = at["position_embedding"]["embedding"][: len(ids)]
        return p["encoder"]["token_embedding"]["embedding"][ids] + positions

    x = embedded(source, p["encoder"]) + p["encoder"]["type_embedding"]["embedding"][0]
    for number in range(2):
        at = jax.tree.map(lambda leaf, number=number: leaf[number], p["encoder"]["layers"])
        y = norm(x, at["attention_norm"])
        x = x + attend(y, y, at["attention"], True)
        x = x + mlp(norm(x, at["mlp_norm"]), at)
    states, x = norm(x, p["encoder"]["final_norm"]), embedded(ids, p)
    for number in range(2):
        at = jax.tree.map(lambda leaf, number=number: leaf[number], p["layers"])
        y = norm(x, at["attention_norm"])
        x = x + attend(y, y, at["attention"], np.tri(len(ids), dtype=bool))
        x = x + attend(norm(x, at["source_norm"]), states, at["source_attention"], True)
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
        expected = by_numpy(model, IDS[row][IDS[row] > 0], TEXTS[row])
        np.testing.assert_allclose(logits[row], expected, rtol=0, atol=5e-5)


def test_with_copying_logits_are_a_distribution(model):
    total = np.exp(logits_of(model, rows(IDS), jnp.asarray(TEXTS))).sum(axis=2)
    if model.writer.copy:
        np.testing.assert_allclose(total, 1, atol=1e-5)
    else:
        assert np.abs(total - 1).min() > 1e-3


def test_a_logit_depends_on_nothing_that_follows(model):
    """By gradients: those of the embedding of a place in the text."""
    graphdef, params = nnx.split(model)
    texts = jnp.asarray(TEXTS[:1])

    @jax.jit
    def gradient(params, place):
        loss = jax.grad(lambda params: jnp.sin(nnx.merge(graphdef, params)(rows(IDS[:1]), texts, None)[0, place]).sum())
        return loss(params)["position_embedding"]["embedding"][...]

    for place in range(5):
        moved = np.abs(gradient(params, place)).max(axis=1) > 1e-6
        assert moved.tolist() == [True] * (place + 1) + [False] * (4 - place)
    other = IDS[:1].copy()
    other[0, 4] = other[0, 4] % (V - 1) + 1
    difference = logits_of(model, rows(other), texts) - logits_of(model, rows(IDS[:1]), texts)
    assert (np.abs(difference).max(axis=2) > 1e-6).all()


def test_token_by_token_the_logits_are_the_same(model):
    """Two texts of each source at a time, with keys and values from the cache."""
    texts = np.stack([TEXTS, TEXTS[:, ::-1]], axis=1)

    @nnx.jit
    def stepwise(model, source, texts_RWT):
        memory = model.read(source)
        cache, logits = model.empty_cache(memory, 2, 5), []
        for place in range(5):
            logits_RWV, cache = model.step(texts_RWT[:, :, place], jnp.int32(place), memory, cache)
            logits.append(logits_RWV)
        return jnp.stack(logits, axis=2)

    stepped = stepwise(model, rows(IDS), jnp.asarray(texts))
    for number in range(2):
        at_once = logits_of(model, rows(IDS), jnp.asarray(texts[:, number]))
        np.testing.assert_allclose(stepped[:, number], at_once, rtol=0, atol=2e-5)


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
        source, expected = IDS[row][IDS[row] > 0], []
        while len(expected) < 5 and END not in expected:
            expected.append(1 + int(by_numpy(model, source, np.array([START, *expected]))[-1, 1:].argmax()))
        assert written.ids_RWT[row, 0].tolist() == expected + [0] * (5 - len(expected))
        value = log_probability(model, source, expected)
        assert written.log_probability_RW[row, 0] == pytest.approx(value, abs=1e-4)


def test_a_wide_beam_finds_all_texts():
    """All 15 of at most 3 tokens out of 3, in the order of their penalised scores; there is no 16th."""
    config = dataclasses.replace(CONFIG, vocab_size=4)
    model = spread(EncoderDecoder(config, WRITER, rngs=nnx.Rngs(0)), size=0.3)
    source = np.minimum(IDS[:4], 3)
    texts = [(*head, END) for n in range(3) for head in itertools.product((1, 2), repeat=n)]
    texts += itertools.product((1, 2), repeat=3)
    logs = [{text: log_probability(model, ids[ids > 0], text) for text in texts} for ids in source]
    ends = Ends(START, END, 3)
    for penalty in (0.0, 4.0):
        search = nnx.jit(lambda model, source, p=penalty: beam_search(model, source, ends, width=16, length_penalty=p))
        beam = search(model, rows(source))
        for row, log in enumerate(logs):
            expected = sorted(texts, key=lambda text: -log[text] / ((5 + len(text)) / 6) ** penalty)
            assert [tuple(tokens(ids)) for ids in beam.ids_RWT[row, :15]] == expected
            values = [log[text] for text in expected]
            np.testing.assert_allclose(beam.log_probability_RW[row], [*values, -np.inf], atol=1e-4)


def test_drawn_texts_follow_the_model(model):
    """2,000 texts of one source, from the four most probable tokens, at temperature 2: first tokens, and second ones
    behind the most probable of these."""
    draw = nnx.jit(
        lambda model, source, keys: sample(model, source, TWO_TOKENS, keys, count=2000, top_k=4, temperature=2.0)
    )
    written = draw(model, rows(IDS[:1]), jax.random.split(jax.random.key(0), 1))
    logits = by_numpy(model, IDS[0], np.array([START]))[0]
    logits[0] = -np.inf
    chosen = np.argsort(-logits)[:4]
    share = np.exp(logits[chosen] / 2) / np.exp(logits[chosen] / 2).sum()
    counts = np.bincount(written.ids_RWT[0, :, 0], minlength=V)
    assert counts.sum() == counts[chosen].sum() == 2000
    np.testing.assert_allclose(counts[chosen] / 2000, share, atol=0.05)
    first = next(token for token in chosen if token != END)
    logits = by_numpy(model, IDS[0], np.array([START, first]))[1]
    logits[0] = -np.inf
    chosen = np.argsort(-logits)[:4]
    share = np.exp(logits[chosen] / 2) / np.exp(logits[chosen] / 2).sum()
    behind = written.ids_RWT[0, :, 1][written.ids_RWT[0, :, 0] == first]
    assert len(behind) > 400
    np.testing.assert_allclose(np.bincount(behind, minlength=V)[chosen] / len(behind), share, atol=0.08)
    for number in range(5):
        text = tokens(written.ids_RWT[0, number])
        value = log_probability(model, IDS[0], text)
        assert written.log_probability_RW[0, number] == pytest.approx(value, abs=1e-4)


def test_drawn_texts_depend_on_their_key_alone(model):
    draw = nnx.jit(lambda model, source, keys: sample(model, source, ENDS, keys, count=3, top_k=V - 1))
    keys = jax.random.split(jax.random.key(3), 8)
    written = draw(model, rows(IDS), keys)
    np.testing.assert_array_equal(draw(model, rows(IDS), keys).ids_RWT, written.ids_RWT)
    order = RANDOM.permutation(8)
    np.testing.assert_array_equal(draw(model, rows(IDS[order]), keys[order]).ids_RWT, written.ids_RWT[order])
    assert (draw(model, rows(IDS), keys[::-1]).ids_RWT != written.ids_RWT).any()
    assert (written.ids_RWT[:, 0] != written.ids_RWT[:, 1]).any()


@pytest.mark.parametrize("model", ["copy"], indirect=True)
def test_loss_gradients_and_texts_are_mesh_independent(model):
    graphdef, params = nnx.split(model)

    def everything(params, batch):
        source, ids, keys = batch
        inputs, labels, weights = teacher_forced(ids)

        def loss(params):
            logits = nnx.merge(graphdef, params)(source, inputs, jax.random.key(1))
            return token_cross_entropy(logits, labels, weights, smoothing=0.1)[0].mean()

        model = nnx.merge(graphdef, params)
        texts = [beam_search(model, source, ENDS, width=2), sample(model, source, ENDS, keys, count=2, top_k=5)]
        return jax.value_and_grad(loss)(params), texts

    assert_same_on_any_mesh(
        everything,
        params,
        (rows(IDS), jnp.asarray(TEXTS), jax.random.split(jax.random.key(0), 8)),
        atol=2e-5,
    )


def test_a_small_model_learns_to_write_its_sources_backwards():
    config = dataclasses.replace(CONFIG, num_layers=1, hidden_size=32, mlp_size=64, dropout=0.0)
    model = EncoderDecoder(config, WriterConfig(layers=1, max_length=6, copy=True), rngs=nnx.Rngs(0))
    sources = np.random.default_rng(0).integers(4, V, (8, 4)).astype(np.int32)
    edges = np.ones((8, 1), np.int32)
    targets = np.concatenate([START * edges, sources[:, ::-1], END * edges], axis=1)
    inputs, labels, weights = teacher_forced(jnp.asarray(targets))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)

    @nnx.jit
    def train(model, optimizer):
        def loss(model):
            return token_cross_entropy(model(rows(sources), inputs, None), labels, weights)[0].mean()

        value, grads = nnx.value_and_grad(loss)(model)
        optimizer.update(model, grads)
        return value

    for _ in range(150):
        loss = train(model, optimizer)
    assert loss < 0.05
    written = nnx.jit(lambda model, source: greedy(model, source, Ends(START, END, 6)))(model, rows(sources))
    np.testing.assert_array_equal(written.ids_RWT[:, 0, :5], targets[:, 1:])
    np.testing.assert_array_equal(written.ids_RWT[:, 0, 5], 0)


def test_teacher_forcing_by_hand():
    inputs, labels, weights = teacher_forced(jnp.array([[2, 7, 8, 3, 0], [2, 3, 0, 0, 0]]))
    assert inputs.tolist() == [[2, 7, 8, 3], [2, 3, 0, 0]]
    assert labels.tolist() == [[7, 8, 3, 0], [3, 0, 0, 0]]
    assert weights.tolist() == [[1, 1, 1, 0], [1, 0, 0, 0]]


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda m, s: greedy(m, s, Ends(START, END, 6)), "a text of 6 tokens, .* positions for 5"),
        (lambda m, s: beam_search(m, s, ENDS, length_penalty=-1), "length_penalty -1"),
        (lambda m, s: sample(m, s, ENDS, None, top_k=0), "top_k 0"),
        (lambda m, s: sample(m, s, ENDS, None, top_k=1, temperature=0), "temperature 0"),
    ],
)
def test_what_cannot_be_written_is_refused(write, message):
    model = nnx.eval_shape(lambda: EncoderDecoder(CONFIG, WRITER, rngs=nnx.Rngs(0)))
    with pytest.raises(UserError, match=message):
        nnx.eval_shape(lambda model: write(model, rows(IDS)), model)
