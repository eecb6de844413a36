"""Attention on a CPU gives what the plain form gives, with and without rounded factors."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.devices import assert_same_on_any_mesh
from support.modules import products_of

from retrieval.models import attention, cpu_attention, products

R, N, D = 8, 2, 16
RANDOM = np.random.default_rng(0)


def drawn(*shape):
    return RANDOM.normal(0, 1.5, shape).astype(np.float32)


def packed(length):
    """Segments [R, length]: rows of one text, of two, and of padding alone."""
    segments = np.ones((R, length), np.int32)
    segments[1, length // 2 :], segments[2, 1:], segments[3] = 2, 0, 0
    return segments


def same(segments):
    return (segments[:, :, None] == segments[:, None, :])[:, None]


def value_and_gradients(form, given, mask, rate):
    """What tokens see, and the gradients by queries, keys and values of a readout of it."""
    readout = np.cos(np.arange(given[0].size)).reshape(given[0].shape)

    def loss(given):
        seen = form(*given, mask, rate, jax.random.key(3))
        return (seen * readout).sum(), seen

    (_, seen), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(given)
    return seen, *gradients


def in_factors(factor):
    return functools.partial(cpu_attention.attend, factor=factor)


@pytest.mark.parametrize("rate", [0.0, 0.25])
@pytest.mark.parametrize(
    ("length", "others", "mask"),
    [
        (40, 40, same(packed(40))),
        (40, 24, packed(24)[:, None, None] != 2),
        (1, 7, np.arange(7)[None, None, None] < 5),
        (1, 1, np.ones((1, 1, 1, 1), bool)),
    ],
    ids=["packed", "of other texts", "one token, a mask for all rows", "one token"],
)
def test_each_form_is_the_plain_one(length, others, mask, rate):
    given = drawn(R, N, D, length), drawn(R, N, D, others), drawn(R, N, D, others)
    expected = value_and_gradients(attention.plain, given, mask, rate)
    exact = value_and_gradients(in_factors("float32"), given, mask, rate)
    rounded = value_and_gradients(in_factors("bfloat16"), given, mask, rate)
    for wanted, found, near in zip(expected, exact, rounded, strict=True):
        assert found.dtype == near.dtype == jnp.float32
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=2e-5)
        assert np.linalg.norm(near - wanted) <= 0.01 * np.linalg.norm(wanted) + 1e-5


def test_rounded_factors_are_those_of_bfloat16():
    """Off by about as much as the form that TPUs have, and not by less, which would be float32."""
    given, mask = [drawn(R, N, D, 40) for _ in range(3)], same(packed(40))
    expected = value_and_gradients(attention.plain, given, mask, 0.25)
    half = value_and_gradients(attention.stored, [jnp.asarray(x, jnp.bfloat16) for x in given], mask, 0.25)
    found = value_and_gradients(in_factors("bfloat16"), given, mask, 0.25)
    for exact, usual, one in zip(expected, half, found, strict=True):
        error, allowed = (np.linalg.norm(np.float32(x) - exact) / np.linalg.norm(exact) for x in (one, usual))
        assert 1e-4 < error < allowed * 1.2


def test_without_amx_rounded_values_stay_float32(monkeypatch):
    given, mask = [drawn(R, N, D, 40) for _ in range(3)], same(packed(40))
    monkeypatch.setattr(products, "_has_amx", lambda: True)
    expected = value_and_gradients(in_factors("bfloat16"), given, mask, 0.25)
    monkeypatch.setattr(products, "_has_amx", lambda: False)
    jax.clear_caches()
    for wanted, found in zip(expected, value_and_gradients(in_factors("bfloat16"), given, mask, 0.25), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0.01, atol=1e-3)


@pytest.mark.parametrize("factor", ["float32", "bfloat16"])
def test_each_form_is_the_same_on_any_mesh(factor):
    def gradients(_, batch):
        *given, segments = batch
        mask = (segments[:, :, None] == segments[:, None, :])[:, None]
        form = in_factors(factor)
        return jax.grad(lambda given: jnp.sin(form(*given, mask, 0.25, jax.random.key(0))).mean())(tuple(given))

    assert_same_on_any_mesh(gradients, {}, (*(drawn(R, N, D, 40) for _ in range(3)), packed(40)))


def test_all_six_products_are_ones_that_xla_has_in_bfloat16(monkeypatch):
    """One axis for rows and heads, and a sum over the last axis of the first factor."""
    monkeypatch.setattr(products, "_has_amx", lambda: True)
    given, mask = [drawn(R, N, D, 40) for _ in range(3)], same(packed(40))
    form = in_factors("bfloat16")
    program = jax.make_jaxpr(jax.grad(lambda given: form(*given, mask, 0.25, jax.random.key(0)).sum()))(given)
    found = list(products_of(program))
    assert len(found) == 6
    for equation in found:
        (contracted, _), batched = equation.params["dimension_numbers"]
        assert contracted == (2,) and batched == ((0,), (0,))
        assert {factor.aval.dtype for factor in equation.invars} == {jnp.dtype(jnp.bfloat16)}
