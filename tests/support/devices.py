"""The same computation on one device, without a mesh, and on eight."""

import jax
import jax.numpy as jnp
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


def assert_loss_same_on_any_mesh(loss, scale, batch):
    """`loss(scale, batch)` gives (value, others): all of it, and its gradients by the scale and by what are no ids."""
    step = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True, allow_int=True)

    def without_integers(scale, batch):
        values, (scale_grad, batch_grad) = step(scale, batch)
        return values, scale_grad, [g for g, x in zip(batch_grad, batch) if jnp.issubdtype(x.dtype, jnp.floating)]

    assert_same_on_any_mesh(without_integers, scale, batch)
