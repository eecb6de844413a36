"""The forms of attention against its definition in numpy, for padding, packed texts, other texts, and with dropout."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.modules import products_of

from retrieval.models import attention, cpu_attention, dropout, products

R, N, D, L = 8, 2, 16, 24
RANDOM = np.random.default_rng(0)
QUERY, KEY, VALUE, READOUT = (RANDOM.normal(0, 1.5, (R, N, D, L)).astype(np.float32) for _ in range(4))
ROUNDED = functools.partial(cpu_attention.attend, factor="bfloat16")
EXACT = {
    "plain": attention.plain,
    "stored": attention.stored,
    "cpu": functools.partial(cpu_attention.attend, factor="float32"),
}


def packed():
    """Segments [R, L]: rows of one text, of several, of padding at the end, and of padding alone."""
    segments = np.ones((R, L), np.int32)
    segments[1, 15:], segments[2, 7:], segments[2, 12:], segments[3, 1:], segments[4] = 0, 2, 3, 0, 0
    return segments


def same(segments):
    return (segments[:, :, None] == segments[:, None, :])[:, None]


# Whom each token sees, and the share that dropout takes: of packed texts, and of other texts, one mask for all tokens.
CASES = {"packed": (same(packed()), 0.25), "other texts": (packed()[:, None, None, :20] != 2, 0.0)}


def arguments(mask):
    return QUERY, KEY[..., : mask.shape[3]], VALUE[..., : mask.shape[3]]


def defined(mask, rate):
    """What tokens see, and the gradients by queries, keys and values of its product with READOUT; float64."""
    query, key, value = (x.astype(np.float64) for x in arguments(mask))
    score = np.where(mask, np.einsum("rndl,rndm->rnlm", query, key) / np.sqrt(D), -np.inf)
    power = np.exp(score - score.max(axis=3, keepdims=True))
    weight = power / power.sum(axis=3, keepdims=True)
    kept = np.asarray(dropout.kept(dropout.row_keys(QUERY, jax.random.key(3)), weight.shape, rate)) / (1 - rate)
    of_weight = np.einsum("rndl,rndm->rnlm", READOUT, value) * kept
    of_score = weight * (of_weight - (weight * of_weight).sum(axis=3, keepdims=True)) / np.sqrt(D)
    return (
        np.einsum("rnlm,rndm->rndl", weight * kept, value),
        np.einsum("rnlm,rndm->rndl", of_score, key),
        np.einsum("rnlm,rndl->rndm", of_score, query),
        np.einsum("rnlm,rndl->rndm", weight * kept, READOUT),
    )


def computed(form, mask, rate, dtype=jnp.float32):
    """The same by a form of attention, in float32."""

    def loss(given):
        seen = form(tuple(x.astype(dtype) for x in given), mask, rate, jax.random.key(3)).astype(jnp.float32)
        return (seen * READOUT).sum(), seen

    (_, seen), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(arguments(mask))
    return seen, *gradients


def errors(found, expected):
    return [np.linalg.norm(x - exact) / np.linalg.norm(exact) for x, exact in zip(found, expected, strict=True)]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", EXACT)
def test_each_form_is_the_definition(name, case):
    for found, wanted in zip(computed(EXACT[name], *CASES[case]), defined(*CASES[case]), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("case", CASES)
def test_in_half_precision_all_err_alike(case):
    """Those of a CPU not less, which would be float32."""
    expected, half = defined(*CASES[case]), jnp.bfloat16
    plain, stored = (errors(computed(EXACT[name], *CASES[case], half), expected) for name in ("plain", "stored"))
    for usual, one, other in zip(plain, stored, errors(computed(ROUNDED, *CASES[case]), expected), strict=True):
        assert 1e-4 < one < 1.5 * usual + 1e-3 < 0.02 and 1e-4 < other < 1.2 * one


def test_backward_reads_scores_in_the_type_of_activations():
    """In bfloat16 it would otherwise read and exponentiate them in float32."""
    given = tuple(jnp.asarray(x, jnp.bfloat16) for x in (QUERY, KEY, VALUE))
    mask = same(packed())
    _, pullback = jax.vjp(lambda q, k, v: attention.attend((q, k, v), mask, 0.25, jax.random.key(0)), *given)
    large = {leaf.dtype for leaf in jax.tree.leaves(pullback) if leaf.shape == (R, N, L, L) and leaf.dtype != bool}
    assert large == {jnp.dtype(jnp.bfloat16)}


def test_all_six_products_are_ones_that_xla_has_in_bfloat16(monkeypatch):
    """One axis for rows and heads, and a sum over the last axis of the first factor."""
    monkeypatch.setattr(products, "_has_amx", lambda: True)
    mask = same(packed())
    program = jax.make_jaxpr(jax.grad(lambda given: ROUNDED(given, mask, 0.25, jax.random.key(0)).sum()))(
        (QUERY, KEY, VALUE)
    )
    found = list(products_of(program))
    assert len(found) == 6
    for equation in found:
        (contracted, _), batched = equation.params["dimension_numbers"]
        assert contracted == (2,) and batched == ((0,), (0,))
        assert {factor.aval.dtype for factor in equation.invars} == {jnp.dtype(jnp.bfloat16)}
