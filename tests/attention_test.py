"""The forms of attention give the same values and gradients, for padding, packed texts, and with dropout."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.devices import assert_same_on_any_mesh

from retrieval.models import attention

R, N, D, L = 8, 2, 16, 40
RANDOM = np.random.default_rng(0)
QUERY, KEY, VALUE, READOUT = (RANDOM.normal(0, 1.5, (R, N, D, L)).astype(np.float32) for _ in range(4))


def packed():
    """Segments [R, L]: rows of one text, of several, of padding at the end, and of padding alone."""
    segments = np.ones((R, L), np.int32)
    segments[1, 25:], segments[2, 7:], segments[2, 20:], segments[3, 1:], segments[4] = 0, 2, 3, 0, 0
    return segments


def same(segments):
    return (segments[:, :, None] == segments[:, None, :])[:, None]


def value_and_gradients(form, mask, rate, dtype=jnp.float32):
    """What tokens see, and the gradients by queries, keys and values of a readout of it; all float32."""

    def loss(given):
        seen = form(*(x.astype(dtype) for x in given), mask, rate, jax.random.key(3)).astype(jnp.float32)
        return (seen * READOUT).sum(), seen

    (_, seen), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))((QUERY, KEY, VALUE))
    return seen, *gradients


@pytest.mark.parametrize("rate", [0.0, 0.25])
@pytest.mark.parametrize("mask", [same(packed()), packed()[:, None, None] != 9], ids=["packed", "all"])
def test_the_stored_form_is_the_plain_one(rate, mask):
    expected = value_and_gradients(attention.plain, mask, rate)
    for wanted, found in zip(expected, value_and_gradients(attention.stored, mask, rate), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=2e-5)


def test_in_bfloat16_both_err_alike():
    mask, half = same(packed()), jnp.bfloat16
    expected = value_and_gradients(attention.plain, mask, 0.25)
    plain, stored = (value_and_gradients(form, mask, 0.25, half) for form in (attention.plain, attention.stored))
    for exact, one, other in zip(expected, plain, stored, strict=True):
        error, usual = (np.linalg.norm(x - exact) / np.linalg.norm(exact) for x in (other, one))
        assert 1e-4 < error < 1.5 * usual + 1e-3 < 0.02


def test_the_stored_form_is_the_same_on_any_mesh():
    def loss(_, batch):
        query, key, value, segments = batch
        mask = (segments[:, :, None] == segments[:, None, :])[:, None]
        return jnp.sin(attention.stored(query, key, value, mask, 0.25, jax.random.key(0))).mean()

    def gradients(nothing, batch):
        return jax.grad(lambda floats: loss(nothing, (*floats, batch[3])))(batch[:3])

    assert_same_on_any_mesh(gradients, {}, (QUERY, KEY, VALUE, packed()))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_backward_reads_scores_in_the_type_of_activations(dtype):
    """In bfloat16 it would otherwise read and exponentiate them in float32."""
    given = tuple(jnp.asarray(x, dtype) for x in (QUERY, KEY, VALUE))
    mask = same(packed())
    _, pullback = jax.vjp(lambda q, k, v: attention.attend(q, k, v, mask, 0.25, jax.random.key(0)), *given)
    large = {leaf.dtype for leaf in jax.tree.leaves(pullback) if leaf.shape == (R, N, L, L) and leaf.dtype != bool}
    assert large == {jnp.dtype(dtype)}
