"""Products with a matrix against float64, and which numbers are rounded."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.devices import assert_same_on_any_mesh
from support.modules import products_of

from retrieval.models import products

RANDOM = np.random.default_rng(0)
X, KERNEL, GRADIENT = (RANDOM.normal(size=shape).astype(np.float32) for shape in ((3, 5, 64), (64, 16), (3, 5, 16)))


def rounded(x):
    return np.asarray(jnp.asarray(x, jnp.bfloat16), np.float64)


@jax.jit
def product(x, kernel, gradient):
    """The product with rounded factors, and the gradients of `x` and the matrix."""
    y, backward = jax.vjp(lambda x, kernel: products.times(x, kernel, "float32", "bfloat16"), x, kernel)
    return y, *backward(gradient)


def computed(dtype, name):
    """The product, and the gradients of `x` and the matrix."""
    y, backward = jax.vjp(lambda x, kernel: products.times(x, kernel, dtype, name), jnp.asarray(X), jnp.asarray(KERNEL))
    return y, *backward(jnp.asarray(GRADIENT, y.dtype))


@pytest.mark.parametrize("name", ["dtype", "bfloat16"])
def test_products_and_gradients_are_those_of_float64_and_bfloat16_rounds_factors_and_not_sums(name):
    x, kernel, gradient = (rounded(part) if name == "bfloat16" else np.float64(part) for part in (X, KERNEL, GRADIENT))
    expected = x @ kernel, gradient @ kernel.T, np.einsum("rli,rlo->io", x, gradient)
    for found, wanted in zip(computed("float32", name), expected, strict=True):
        assert found.dtype == jnp.float32
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("rows", [(1,), (3, 7), (2, 3, 48)])
@pytest.mark.parametrize(("size_in", "size_out"), [(16, 1), (33, 65)])
def test_every_shape_can_be_rounded(rows, size_in, size_out, monkeypatch):
    """XLA has a product of bfloat16 for some orders of axes, and for others an error when the program runs."""
    shapes = (*rows, size_in), (size_in, size_out), (*rows, size_out)
    x, kernel, gradient = (jnp.asarray(RANDOM.normal(size=shape), jnp.float32) for shape in shapes)
    found = product(x, kernel, gradient)
    monkeypatch.setattr(products, "_has_amx", lambda: False)
    jax.clear_caches()
    for one, other in zip(found, product(x, kernel, gradient), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=5e-5)


@pytest.mark.parametrize("sizes", [(32, 64), (64, 32)])
def test_all_three_products_are_ones_that_xla_has_in_bfloat16(sizes, monkeypatch):
    """A sum over the last axis of the first factor, and nothing that transposes the result may move it from there."""
    monkeypatch.setattr(products, "_has_amx", lambda: True)
    x, kernel = (jnp.asarray(RANDOM.normal(size=shape), jnp.float32) for shape in ((2, 16, sizes[0]), sizes))

    def value(x, kernel):
        return jnp.square(products.times(x, kernel, "float32", "bfloat16")).sum()

    found = list(products_of(jax.make_jaxpr(jax.grad(value, argnums=(0, 1)))(x, kernel)))
    assert len(found) == 3
    for equation in found:
        (contracted, _), batched = equation.params["dimension_numbers"]
        assert contracted == (equation.invars[0].aval.ndim - 1,) and batched == ((), ())
        assert {factor.aval.dtype for factor in equation.invars} == {jnp.dtype(jnp.bfloat16)}


def test_a_matrix_that_is_a_transposed_table_can_be_rounded():
    sizes = 32, 64
    x, table = (jnp.asarray(RANDOM.normal(size=shape), jnp.float32) for shape in ((2, 16, sizes[0]), sizes[::-1]))

    @jax.jit
    def gradient(table):
        return jax.grad(lambda table: products.times(x, table.T, "float32", "bfloat16").sum())(table)

    expected = np.broadcast_to(rounded(x).sum(axis=(0, 1)), table.shape)
    np.testing.assert_allclose(gradient(table), expected, rtol=0, atol=5e-5)


def test_rounded_products_are_the_same_on_any_mesh():
    """Rows are over all devices; the gradient of the matrix is the sum over them."""
    x, kernel = (RANDOM.normal(size=shape).astype(np.float32) for shape in ((8, 16, 32), (32, 48)))

    def gradients(kernel, x):
        return jax.grad(lambda *given: jnp.sin(products.times(*given, "float32", "bfloat16")).mean(), (0, 1))(x, kernel)

    assert_same_on_any_mesh(gradients, kernel, x)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 0.1)])
def test_other_devices_get_the_same_to_within_the_type(dtype, tolerance, monkeypatch):
    on_cpu = computed(dtype, "dtype")
    on_cpu = [*on_cpu, on_cpu[0].swapaxes(1, 2)]
    monkeypatch.setattr(products, "is_on_cpu", lambda: False)
    elsewhere = [*computed(dtype, "dtype"), products.columns(jnp.asarray(X), jnp.asarray(KERNEL), dtype, "dtype")]
    assert elsewhere[0].dtype == dtype
    for one, other in zip(on_cpu, elsewhere, strict=True):
        np.testing.assert_allclose(np.float32(one), np.float32(other), rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("on_cpu", "has_amx", "rounds"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_auto_rounds_on_cpus_with_amx_alone(on_cpu, has_amx, rounds, monkeypatch):
    monkeypatch.setattr(products, "is_on_cpu", lambda: on_cpu)
    monkeypatch.setattr(products, "_has_amx", lambda: has_amx)
    y = products.times(jnp.asarray(X), jnp.asarray(KERNEL), "float32", "auto")
    assert (np.abs(y - X.astype(np.float64) @ KERNEL).max() > 1e-3) == rounds
