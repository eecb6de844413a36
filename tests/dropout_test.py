"""Masks of dropout: as many values are kept as asked, and none tells of another."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from retrieval.models.dropout import dropout

SHAPE = (64, 4, 48, 96)  # rows, heads, tokens, tokens attended to


def mask(seed, rate=0.25):
    return np.asarray(dropout(jnp.ones(SHAPE), rate, jax.random.key(seed))) > 0


def correlation(one, other):
    return np.corrcoef(one.ravel(), other.ravel())[0, 1]


@pytest.mark.parametrize("rate", [0.01, 0.5])
def test_drops_the_asked_share_and_scales_the_rest(rate):
    values = np.asarray(dropout(jnp.full(SHAPE, 3.0), rate, jax.random.key(5)))
    assert abs((values == 0).mean() - rate) < 5 * (rate * (1 - rate) / values.size) ** 0.5
    np.testing.assert_allclose(values[values != 0], 3 / (1 - rate), rtol=1e-6)


def test_neighbours_rows_and_keys_are_uncorrelated():
    kept, bound = mask(0).astype(float), 5 / np.prod(SHAPE) ** 0.5
    pairs = {(axis, step): (kept, np.roll(kept, step, axis)) for axis in (0, 2, 3) for step in (1, 2, 8, 32)}
    pairs["heads"] = kept, np.roll(kept, 1, 1)
    pairs |= {seed: (kept, mask(seed).astype(float)) for seed in (1, 2, 3, 1 << 16, 1 << 31)}
    assert {name: value for name, pair in pairs.items() if abs(value := correlation(*pair)) > bound} == {}


@pytest.mark.parametrize("axes", [(1, 2, 3), (3,)])
def test_counts_vary_as_of_coins(axes):
    counts = mask(7).sum(axis=axes)
    trials = np.prod([SHAPE[axis] for axis in axes])
    assert abs(counts.var() / (trials * 0.25 * 0.75) - 1) < 5 * (2 / counts.size) ** 0.5
