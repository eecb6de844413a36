"""Operations of a traced program, counted here because XLA's own count takes the body of a loop once."""

import math
from typing import Any

import numpy as np
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


def unattended(length: int, causal: bool, window: int | None) -> float:
    """How many tokens of a row a token does not see, on average, because of causality and windows alone.

    Args:
      window: how far before it a token sees, and behind it where it sees any; None: the whole row.
    """
    offset = np.arange(1 - length, length)  # of the token that is seen
    is_seen = (abs(offset) <= (length if window is None else window)) & ((offset <= 0) | (not causal))
    return length - (length - abs(offset))[is_seen].sum() / length


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
