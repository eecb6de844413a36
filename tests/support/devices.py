"""The same computation on one device, without a mesh, and on eight."""

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P


def assert_same_on_any_mesh(function, params, batch, atol=1e-5):
    """`function(params, batch)`, jitted: parameters replicated, batches sharded on axis 0. Returns its result."""
    expected = jax.block_until_ready(jax.jit(function)(params, batch))
    mesh = jax.make_mesh((8,), ("data",))
    with jax.set_mesh(mesh):
        placed = (
            jax.device_put(params, NamedSharding(mesh, P())),
            jax.device_put(batch, NamedSharding(mesh, P("data"))),
        )
        actual = jax.block_until_ready(jax.jit(function)(*placed))
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=atol, err_msg=str(path))
    return expected
