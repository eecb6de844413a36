"""Dropout, with masks that cost next to nothing.

Random bits are dear. `jax.random` draws them with threefry, some hundred operations for a value. On a TPU that was an
eighth of the paper's step, and its masks were written and read again. On a CPU dropout took 28 times as long as here.

A mask needs less than a cipher does. A value is kept by a hash of its place in the row and of the row's own key. The
compiler makes the hash part of what reads the values. Only the keys of the rows are drawn by `jax.random`.
"""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def dropout(x_R: jax.Array, rate: float, key: jax.Array | None) -> jax.Array:
    """Sets a share `rate` of the values to zero and scales up the rest.

    Args:
      x_R: [R, ...], less than 2^32 values in a row. Devices may share the rows, and no other axis.
      key: the same key gives the same masks on any number of devices. None: the identity.
    """
    if key is None or rate == 0:
        return x_R
    keeps_R = kept(row_keys(x_R, key), x_R.shape, rate)
    return jnp.where(keeps_R, x_R * (1 / (1 - rate)), 0).astype(x_R.dtype)


def row_keys(x_R: jax.Array, key: jax.Array) -> jax.Array:
    """A key of its own for each row, uint32 [R], where the rows are."""
    bits_R = jax.random.bits(key, x_R.shape[:1], jnp.uint32)
    # Not by `out_sharding`: JAX 0.11 then fails where a layer keeps them for the gradient and the loop is unrolled.
    sharding = jax.typeof(x_R).sharding
    alone = jax.sharding.get_abstract_mesh().empty
    return bits_R if alone else jax.reshard(bits_R, sharding.update(spec=P(*sharding.spec[:1])))


def kept(rows_R: jax.Array, shape: tuple[int, ...], rate: float) -> jax.Array:
    """Which values of an array [R, ...] dropout keeps, by the keys of its rows."""
    places = _places(shape[1:]) ^ rows_R.reshape(-1, *[1] * (len(shape) - 1))
    return _hash(places) >= jnp.uint32(round(rate * 2**32))


def left(x_R: jax.Array, rows_R: jax.Array | None, rate: float) -> jax.Array:
    """What dropout leaves, by the keys of the rows, and does not scale up; None: all."""
    return x_R if rows_R is None else jnp.where(kept(rows_R, x_R.shape, rate), x_R, 0)


def split(key: jax.Array | None, count: int) -> jax.Array | list[None]:
    """As many keys as are needed; None for each where there is no key."""
    return [None] * count if key is None else jax.random.split(key, count)


def _places(shape: tuple[int, ...]) -> jax.Array:
    """A number of its own for each place of a row, spread over 32 bits by Knuth's multiplicative hash."""
    place, stride = jnp.zeros(shape, jnp.uint32), 1
    for axis in reversed(range(len(shape))):
        place += jax.lax.broadcasted_iota(jnp.uint32, shape, axis) * jnp.uint32(stride)
        stride *= shape[axis]
    return place * jnp.uint32(2654435769)


def _hash(x: jax.Array) -> jax.Array:
    """A hash of 32 bits, the constants from C. Wellons, "Prospecting for hash functions" (2018): `lowbias32`.

    Without its last shift: that one improves the low bits, and a comparison reads the high ones.
    """
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    return (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
