"""DeepCT: frequencies, the model and its loss; against the examples that its authors give."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from retrieval.methods.deepct.recipe import DeepCT, term_regression
from retrieval.methods.deepct.stage import term_frequencies, words
from retrieval.models.text import Text
from retrieval.models.transformer_config import TransformerConfig
from retrieval.search.words import Words


def test_words_of_pieces():
    pieces = "[CLS] the gr ##ass ##land , ##land [UNK] ##x zebra ##s [SEP] [PAD]".split()
    assert words(pieces) == [(1, "the"), (2, "grassland"), (5, ",land"), (9, "zebras")]
    assert words(["[CLS]", "##s", "a"]) == [(2, "a")]


def test_frequencies_by_hand():
    pieces = "[CLS] cat sat ##s cat dog ##s mat [UNK] [SEP]".split()
    weights = [9, 0.2, 0.004, 9, 0.3, -0.5, 9, 0.0, 9, 9]
    assert term_frequencies(pieces, weights) == {"cat": 30}
    assert term_frequencies(pieces, weights, scale=1000) == {"cat": 300, "sats": 4}


@pytest.mark.parametrize(
    ("text", "pieces", "expected"),
    [
        ("我们喜欢 GPU", "我 们 喜 欢 gp ##u", {"我们": 20, "们喜": 30, "喜欢": 40, "gpu": 50}),
        ("나는 학교에", "나 ##는 학교 ##에", {"나는": 10, "학교에": 30}),
    ],
)
def test_words_of_scripts_without_spaces_are_those_of_bm25(text, pieces, expected):
    """WordPiece makes each Han letter a word. Korean has spaces, and no pair goes across one."""
    pieces = ["[CLS]", *pieces.split(), "[SEP]"]
    frequencies = term_frequencies(pieces, [place / 10 for place in range(len(pieces))])
    assert frequencies == expected
    assert {term for word in Words().of(frequencies) for term in word} == set(next(Words().of([text])))


def test_the_authors_example_of_weights(shared_data):
    """A passage's pieces and weights, some left out in its middle; their program drops what is below 1 unrounded."""
    readme = (shared_data / "msmarco" / "doc2query_golden" / "DeepCT_README.md").read_text()
    line = re.search(r"`(\[CLS\] 0\.0 .*)`", readme)[1].replace("...", "")
    fields = line.split()
    pieces, weights = fields[::2], [float(weight) for weight in fields[1::2]]
    assert term_frequencies(pieces, weights) == {"presence": 2, "lives": 2, "obliterated": 1}


CONFIG = TransformerConfig(20, num_layers=1, hidden_size=8, num_heads=2, mlp_size=12, max_length=6, dropout=0.0)
RANDOM = np.random.default_rng(0)
IDS = np.where(np.arange(6) < RANDOM.integers(2, 7, (8, 1)), RANDOM.integers(1, 20, (8, 6)), -1).astype(np.int32)
TARGETS, COUNTS = RANDOM.random((8, 6)).astype(np.float32), ((IDS > 0) & (IDS % 3 > 0)).astype(np.float32)


def passages():
    return Text.from_ids(jnp.asarray(IDS), jnp.zeros_like(IDS))


def test_a_weight_is_linear_in_a_tokens_hidden_state():
    model = DeepCT(CONFIG, rngs=nnx.Rngs(0))
    model.weight.bias[...] += 0.5
    of = nnx.jit(lambda model: (model.encoder(passages(), dropout_key=None), model(passages(), None)))
    hidden, weights = of(model)
    assert weights.shape == (8, 6) and weights.dtype == jnp.float32
    np.testing.assert_allclose(weights, (hidden @ model.weight.kernel[...])[:, :, 0] + 0.5, atol=1e-6)


def test_the_loss_is_the_mean_square_of_first_pieces():
    weights = RANDOM.normal(size=(8, 6)).astype(np.float32)
    loss, metrics = term_regression(weights, TARGETS, COUNTS)
    errors = (weights - TARGETS)[COUNTS > 0]
    assert loss.mean() == pytest.approx(np.mean(errors**2), rel=1e-5)
    assert metrics["absolute_error"].mean() == pytest.approx(np.mean(np.abs(errors)), rel=1e-5)
    grad = jax.grad(lambda weights: term_regression(weights, TARGETS, COUNTS)[0].mean())(weights)
    np.testing.assert_allclose(grad, 2 * COUNTS * (weights - TARGETS) / COUNTS.sum(), atol=1e-6)
    assert not term_regression(weights, TARGETS, 0 * COUNTS)[0].any()
