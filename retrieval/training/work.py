"""Operations of a traced program, counted here because XLA's own count takes the body of a loop once."""

import math
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr


def flops(program: ClosedJaxpr | Jaxpr) -> float:
    """Operations of matrix products, two for a multiplication and an addition.

    The rest of a Transformer (softmax, LayerNorm, GELU, dropout) is less than a hundredth of them.

    Args:
      program: the `jaxpr` of a traced function. For a mesh with Explicit axes, the count is that of a device's shards.
        `jax.lax.scan` and `jax.lax.map` count once for each iteration; a `while` loop of unknown length counts once.
    """
    jaxpr = program.jaxpr if isinstance(program, ClosedJaxpr) else program
    return sum(map(_flops, jaxpr.eqns))


def _flops(equation: Any) -> float:
    params, name = equation.params, equation.primitive.name
    inner = [flops(each) for each in _programs(params)]
    if name == "cond":
        return max(inner)
    if name == "pallas_call":  # its program runs at each place of the grid
        return math.prod(params["grid_mapping"].grid) * sum(inner)
    if name != "dot_general":
        return params.get("length", 1) * sum(inner) if inner else 0.0
    contracted = params["dimension_numbers"][0][0]
    operand, result = _shard(equation.invars[0].aval), _shard(equation.outvars[0].aval)
    return 2.0 * math.prod(result) * math.prod(operand[axis] for axis in contracted)


def _shard(aval: Any) -> tuple[int, ...]:
    is_shard = aval.sharding.mesh.manual_axes  # inside a shard_map
    return aval.shape if is_shard else aval.sharding.shard_shape(aval.shape)


def _programs(params: dict[str, Any]) -> list[ClosedJaxpr | Jaxpr]:
    values = [item for value in params.values() for item in (value if isinstance(value, tuple | list) else [value])]
    return [value for value in values if isinstance(value, ClosedJaxpr | Jaxpr)]
