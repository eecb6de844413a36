"""Poolings beside NumPy: one text a row, several a row, and what is left out of a text."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from retrieval.models.pooling import POOLINGS
from retrieval.models.text import Text
from retrieval.training import sharding

LENGTHS = (5, 9, 3, 7, 4, 2, 8, 6)
RANDOM = np.random.default_rng(0)
HIDDEN = [RANDOM.normal(size=(length, 6)).astype(np.float32) - 1 for length in LENGTHS]
# Without numpy's own names for them, so that a mistake is not made twice.
EXPECTED = {
    "cls": lambda x, places: x[0],
    "last": lambda x, places: x[-1],
    "mean": lambda x, places: x.sum(axis=0) / len(x),
    "weighted_mean": lambda x, places: sum(p * row for p, row in zip(places, x)) / sum(places),
}


def rows(members, length, texts=1):
    """Hidden states and their text, of groups of rows with so many texts each: [[[1, 0], [2]], [[3]]]."""
    shape = len(members), len(members[0]), length
    hidden = np.full((*shape, 6), 100, np.float32)  # of padding, which must not count
    segments, positions = np.zeros((2, *shape), np.int32)
    starts = np.zeros((len(members), texts), np.int32)
    for group, of_group in enumerate(members):
        for row, of_row in enumerate(of_group):
            offset = 0
            for text in of_row:
                at = group, row, slice(offset, offset + LENGTHS[text])
                hidden[at], positions[at], segments[at] = HIDDEN[text], np.arange(LENGTHS[text]), text % texts + 1
                starts[group, text % texts] = row * length + offset
                offset += LENGTHS[text]
    return jnp.asarray(hidden.reshape(-1, length, 6)), segments, positions, starts


def single():
    hidden, segments, positions, _ = rows([[[text]] for text in range(len(LENGTHS))], 10)
    return hidden, Text(*(jnp.asarray(x[:, 0]) for x in (segments, segments, segments, positions)))


def packed():
    hidden, segments, positions, starts = rows([[[1, 2], [3, 0]], [[6, 5], [7, 4]]], 12, texts=4)
    return hidden, Text.from_groups(*map(jnp.asarray, (segments, segments, segments, positions, starts)))


@pytest.mark.parametrize("form", [single, packed])
@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("name", POOLINGS)
def test_a_text_is_pooled_without_padding_and_neighbours(name, start, form):
    hidden, text = form()
    places = [np.arange(start, length) + 1 for length in LENGTHS]
    expected = [EXPECTED[name](x[start:], place) for x, place in zip(HIDDEN, places)]
    np.testing.assert_allclose(POOLINGS[name](jnp.asarray(hidden), text, start), expected, atol=1e-5)


def by_text(form, text, x_RLH):
    """The values of each text's tokens, and those of padding."""
    groups, texts = (len(LENGTHS), 1) if form is single else text.starts_GC.shape
    segments = np.asarray(text.segments_RL).reshape(groups, -1)
    number = np.where(segments, np.arange(groups)[:, None] * texts + segments, 0).reshape(text.segments_RL.shape)
    return [np.asarray(x_RLH)[number == each] for each in range(1, len(LENGTHS) + 1)], np.asarray(x_RLH)[number == 0]


@pytest.mark.parametrize("name", POOLINGS)
def test_gradients_of_packed_texts_are_those_of_single_ones(name):
    """On one device and on two."""
    weights = RANDOM.normal(size=(len(LENGTHS), 6))

    def of(form, **where):
        hidden, text = jax.device_put(form(), **where)
        given = jax.jit(jax.grad(lambda x, text: (POOLINGS[name](x, text, 1) * weights).sum()))(hidden, text)
        texts, padding = by_text(form, text, given)
        assert not padding.any()
        return texts

    expected = of(single)
    forms = [of(packed)]
    mesh = sharding.make_mesh(devices=jax.devices()[:2])
    with jax.set_mesh(mesh):
        forms += [of(form, device=sharding.batch_sharding(mesh)) for form in (single, packed)]
    for each in forms:
        for given, one in zip(each, expected, strict=True):
            np.testing.assert_allclose(given, one, atol=1e-6)
            assert np.abs(one).max() > 0


@pytest.mark.parametrize("name", POOLINGS)
def test_a_row_of_padding_is_finite(name):
    nothing = jnp.zeros((2, 4), jnp.int32)
    pooled = POOLINGS[name](jnp.ones((2, 4, 6)), Text(nothing, nothing, nothing, nothing + jnp.arange(4)), 0)
    assert pooled.shape == (2, 6) and np.isfinite(pooled).all()
