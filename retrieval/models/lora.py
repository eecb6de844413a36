"""LoRA (Hu et al. 2021): beside a matrix W that stays as it is, a product of low rank is trained.

    y = W x + b + s B(A(drop(x)))        s = alpha / r, or alpha / sqrt(r) (rsLoRA, Kalajdzievski 2023)

The adapter of a matrix is two more parameters beside its kernel, float32: `lora_a` [layers, in, r] and `lora_b`
[layers, r, out]. A tree of parameters has them or not, and so has the model that is made of it.
"""

from collections.abc import Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx, traverse_util

from retrieval.models.dropout import dropout
from retrieval.models.products import times

A, B = "lora_a", "lora_b"

# The matrices of a layer that may have one, and what families call them whose targets somebody may know.
MODULES = {
    "query": ("q_proj", "q_lin", "query_proj", "q"),
    "key": ("k_proj", "k_lin", "key_proj", "k"),
    "value": ("v_proj", "v_lin", "value_proj", "v"),
    "output": ("o_proj", "out_lin", "o"),
    "mlp_gate": ("gate_proj", "wi_0"),
    "mlp_in": ("up_proj", "lin1", "wi", "wi_1"),
    "mlp_out": ("down_proj", "lin2", "wo"),
}
ALL = "all"


def modules(targets: Collection[str]) -> set[str]:
    """The matrices that some names are of; what none of a layer is called is left out."""
    return {ours for ours, theirs in MODULES.items() if ALL in targets or {ours, *theirs} & set(targets)}


def are_targets(value: Any) -> bool:
    """Whether a value of `config.train.lora.targets` names matrices."""
    return isinstance(value, tuple | list) and bool(value) and all(isinstance(x, str) and modules([x]) for x in value)


def with_shapes(params: Mapping[str, Any], rank: int, targets: Collection[str]) -> dict[str, Any]:
    """The shapes of a model's parameters with those of adapters beside the kernels of its encoders.

    Args:
      targets: as `modules` takes them; a matrix that the encoder has not is passed over.
    """
    flat: dict[tuple, Any] = traverse_util.flatten_dict(params)
    named = modules(targets)
    for path, leaf in list(flat.items()):
        if "encoder" in path and "layers" in path and path[-1] == "kernel" and path[-2] in named:
            layers, size_in, size_out = leaf.shape
            flat[*path[:-1], A] = jax.ShapeDtypeStruct((layers, size_in, rank), jnp.float32)
            flat[*path[:-1], B] = jax.ShapeDtypeStruct((layers, rank, size_out), jnp.float32)
    return traverse_util.unflatten_dict(flat)


def initial(shapes: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """New adapters, as PEFT draws them: A from U(-1/sqrt(in), 1/sqrt(in)), and B is 0, so that nothing changes yet.

    Args:
      shapes: of parameters, of which those of adapters count.
    """
    key, adapters = jax.random.key(seed), {}
    for number, (path, leaf) in enumerate(sorted(_flat(divide(shapes)[1]).items())):
        bound = leaf.shape[1] ** -0.5 if path[-1] == A else 0.0
        draw = jax.random.uniform(jax.random.fold_in(key, number), leaf.shape, minval=-bound, maxval=bound)
        adapters[path] = np.asarray(draw) if bound else np.zeros(leaf.shape, np.float32)
    return traverse_util.unflatten_dict(adapters)


def divide(params: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Parameters without their adapters, and these alone."""
    flat = _flat(params)
    adapters = {path: leaf for path, leaf in flat.items() if path[-1] in (A, B)}
    if not adapters:
        return params, {}
    others = {path: leaf for path, leaf in flat.items() if path not in adapters}
    return traverse_util.unflatten_dict(others), traverse_util.unflatten_dict(adapters)


def together(params: Mapping[str, Any], adapters: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters with adapters: what `divide` divides."""
    return traverse_util.unflatten_dict(_flat(params) | _flat(adapters))


def attach(model: nnx.Module, adapters: Mapping[str, Any]) -> None:
    """Gives a model's layers their adapters."""
    for path, value in _flat(adapters).items():
        module = model
        for name in path[:-1]:
            module = getattr(module, name)
        setattr(module, path[-1], nnx.Param(value))


def branch(linear: Any, x: jax.Array, last: Any = times) -> jax.Array:
    """What the adapter of a layer adds, float32.

    Args:
      linear: the layer, a `transformer.Linear` with an adapter.
      last: the second product, `products.times` or `products.columns`.
    """
    config = linear.config
    key = getattr(linear, "lora_key", None)
    x = dropout(x, config.lora_dropout, None if key is None else key[...])
    low = times(x, linear.lora_a[...], config.dtype, config.matmul_dtype)
    return config.lora_scale * last(low, linear.lora_b[...], config.dtype, config.matmul_dtype).astype(jnp.float32)


def set_dropout(layer: nnx.Module, rate: float, key: jax.Array | None) -> None:
    """Gives the adapters of a layer the keys of their masks, by the key of the layer."""
    if rate and key is not None:
        adapted: Any = (module for _, module in nnx.iter_modules(layer) if hasattr(module, A))
        for number, linear in enumerate(adapted):
            # Numbers that are of no other mask of the layer.
            linear.lora_key = nnx.Variable(jax.random.fold_in(key, 16 + number))


def merged(params: Mapping[str, Any], scale: float) -> dict[str, Any]:
    """Parameters with W + s A B in place of W and its adapter. All are float32, and lie where they lay."""
    flat = _flat(params)
    for path in [path for path in flat if path[-1] == A]:
        module = path[:-1]
        # On the host: a product of a TPU is not of float32 by itself, and the axes are sharded differently.
        a_NIR, b_NRO = (np.asarray(flat.pop((*module, side)), np.float32) for side in (A, B))
        kernel_NIO = flat[*module, "kernel"]
        merged_NIO = np.asarray(kernel_NIO).astype(np.float32) + scale * (a_NIR @ b_NRO)
        flat[*module, "kernel"] = jax.device_put(merged_NIO, kernel_NIO.sharding)
    return traverse_util.unflatten_dict({path: leaf.astype(jnp.float32) for path, leaf in flat.items()})


def _flat(params: Mapping[str, Any]) -> dict[tuple, Any]:
    return dict(traverse_util.flatten_dict(params))
