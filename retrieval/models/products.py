"""Products of hidden states with a matrix of parameters, the most of what an encoder computes.

TPUs multiply float32 in bfloat16 by themselves, and GPUs in TF32. CPUs do neither, but those with AMX multiply bfloat16
three times as fast. `model.matmul_dtype` says whether the factors of products are rounded, those of attention on CPUs
too. Sums stay in float32.

On a CPU the gradient is our own. JAX's asks for a product over two axes, rows and tokens, and XLA copies both of its
factors for that. Over one axis of all tokens it copies neither: that made a step of 4 layers of 256 a quarter faster.
In bfloat16 XLA is only fast where the first factor is summed over its last axis. So the narrower factor of a matrix's
gradient is transposed before: that took another eighth off.
"""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp

from retrieval.common.runtime.arrays import is_on_cpu, reshape_rows

_BLOCK = 16  # tokens that are transposed at a time: with the features of a layer they fit a core's cache

AUTO = "auto"
SAME = "dtype"


def times(x: jax.Array, kernel_IO: jax.Array, dtype: str, matmul_dtype: str) -> jax.Array:
    """[..., I] times a matrix to [..., O]; float32 on a CPU, elsewhere in `dtype`.

    Args:
      dtype: of the computation, 'float32' or 'bfloat16'.
      matmul_dtype: `SAME` as `dtype`, 'bfloat16', or `AUTO`: that on CPUs with a unit for it.
    """
    factor = factor_type(dtype, matmul_dtype)
    if is_on_cpu():
        return _on_cpu(factor, x, kernel_IO)
    return jnp.dot(x.astype(factor), kernel_IO.astype(factor), preferred_element_type=dtype)


def columns(x_RLI: jax.Array, kernel_IO: jax.Array, dtype: str, matmul_dtype: str) -> jax.Array:
    """[R, L, I] times a matrix to [R, O, L]: as `times`, with the tokens last; not on CPUs, where bfloat16 fails."""
    factor = factor_type(dtype, matmul_dtype)
    factors = x_RLI.astype(factor), kernel_IO.astype(factor)
    return jnp.einsum("rli,io->rol", *factors, preferred_element_type=dtype)


def factor_type(dtype: str, matmul_dtype: str) -> str:
    """The type that factors are rounded to. Args are those of `times`."""
    if matmul_dtype == AUTO:
        return "bfloat16" if is_on_cpu() and _has_amx() else dtype
    return dtype if matmul_dtype == SAME else matmul_dtype


def rounded(x: jax.Array, factor: str) -> jax.Array:
    """The values in `factor`; in float32 where a CPU has no unit for bfloat16, and float32 is what is fast."""
    if factor == "bfloat16" and not _has_amx():
        return jax.lax.reduce_precision(x.astype(jnp.float32), exponent_bits=8, mantissa_bits=7)
    return x.astype(factor)


@functools.cache
def _has_amx() -> bool:
    """Whether the processor has Intel's matrix unit for bfloat16; Linux says so."""
    about = Path("/proc/cpuinfo")
    return about.exists() and " amx_bf16" in about.read_text(encoding="utf-8")


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _on_cpu(factor: str, x: jax.Array, kernel_IO: jax.Array) -> jax.Array:
    return _forward(factor, x, kernel_IO)[0]


def _forward(factor: str, x: jax.Array, kernel_IO: jax.Array) -> tuple[jax.Array, tuple]:
    # A sum in bfloat16 would not only be worse: XLA has no fast product for it.
    y = jnp.dot(rounded(x, factor), rounded(kernel_IO, factor), preferred_element_type=jnp.float32)
    return y, (x, kernel_IO)


def _backward(factor: str, residuals: tuple, gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, kernel_IO = residuals
    left, right = rounded(x, factor), rounded(gradient, factor)
    if left.dtype == jnp.bfloat16:
        left, right = jax.lax.optimization_barrier((left, right))  # rounded once, not in each that reads them
    of_x = _product("...o,io->...i", right, rounded(kernel_IO, factor), x)
    return of_x, _of_kernel(left, right, kernel_IO)


_on_cpu.defvjp(_forward, _backward)


def _of_kernel(x: jax.Array, gradient: jax.Array, kernel_IO: jax.Array) -> jax.Array:
    """The gradient of a matrix: a sum over all tokens, of factors as they are multiplied."""
    x_TI, gradient_TO = (reshape_rows(y, -1, y.shape[-1]) for y in (x, gradient))
    if x.dtype != jnp.bfloat16 or x.ndim == 2 or x.shape[-2] % _BLOCK:
        return _product("ti,to->io", x_TI.astype(jnp.float32), gradient_TO.astype(jnp.float32), kernel_IO)
    # Both products end at a barrier: XLA would swap the factors where what reads the product transposes it.
    if kernel_IO.shape[0] <= kernel_IO.shape[1]:
        of_kernel_IO = _product("it,to->io", _tokens_last(x), gradient_TO, kernel_IO)
        return jax.lax.optimization_barrier(of_kernel_IO)
    of_kernel_OI = _product("ot,ti->oi", _tokens_last(gradient), x_TI, kernel_IO.T)
    return jax.lax.optimization_barrier(of_kernel_OI).T


def _tokens_last(x: jax.Array) -> jax.Array:
    """[..., L, H] to [H, T], blocks of tokens first: else each value would be a miss of the cache."""
    blocks_BHK = reshape_rows(x, -1, _BLOCK, x.shape[-1]).swapaxes(1, 2)
    blocks_HBK = jax.lax.optimization_barrier(blocks_BHK).swapaxes(0, 1)
    return blocks_HBK.reshape(x.shape[-1], -1)


def _product(equation: str, a: jax.Array, b: jax.Array, primal: jax.Array) -> jax.Array:
    """The gradient of `primal`, in its type and sharded as that is."""
    sharding = jax.typeof(primal).sharding
    gradient = jnp.einsum(equation, a, b, preferred_element_type=jnp.float32, out_sharding=sharding)
    return gradient.astype(primal.dtype)
