"""What a program has to do, counted where XLA's own count is wrong: XLA counts the body of a loop once."""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from jax.extend.core import ClosedJaxpr, Jaxpr


class Work(NamedTuple):
    """What one device does.

    Attributes:
      flops: operations of matrix products, two for a multiplication and an addition. The rest of a Transformer
        (softmax, LayerNorm, GELU, dropout) is less than a hundredth of them.
      bytes: operands and results of matrix products. The rest is at best done on the way from one to the next.
    """

    flops: float = 0.0
    bytes: float = 0.0


def of(program: ClosedJaxpr | Jaxpr) -> Work:
    """The work of a traced function; of one for a mesh with Explicit axes, that on a device's shards.

    Args:
      program: the `jaxpr` of the traced function. `jax.lax.scan` and `jax.lax.map` count as often as they turn; a
        `while` loop, whose turns nobody knows, counts once.
    """
    jaxpr = program.jaxpr if isinstance(program, ClosedJaxpr) else program
    return _sum(map(_equation, jaxpr.eqns))


def _equation(equation: Any) -> Work:
    inner = [of(value) for value in _programs(equation.params)]
    if equation.primitive.name == "cond":
        return max(inner)
    if equation.primitive.name == "pallas_call":
        return _kernel(equation, inner)
    if inner:
        return _sum(inner * equation.params.get("length", 1))
    ins, outs = ([variable.aval for variable in side] for side in (equation.invars, equation.outvars))
    if equation.primitive.name != "dot_general":
        return Work()
    contracted = equation.params["dimension_numbers"][0][0]
    operand, out = _shard(ins[0]), _shard(outs[0])
    flops = 2.0 * math.prod(out) * math.prod(operand[axis] for axis in contracted)
    return Work(flops, _bytes(ins + outs))


def _kernel(equation: Any, inner: list[Work]) -> Work:
    """That of a kernel, whose program runs at each place of its grid; from memory come its operands alone."""
    steps = math.prod(equation.params["grid_mapping"].grid)
    avals = [variable.aval for variable in (*equation.invars, *equation.outvars)]
    return Work(steps * _sum(inner).flops, _bytes(avals))


def _bytes(avals: list[Any]) -> int:
    return sum(math.prod(_shard(aval)) * aval.dtype.itemsize for aval in avals)


def _shard(aval: Any) -> tuple[int, ...]:
    is_shard = aval.sharding.mesh.manual_axes  # inside a shard_map
    return aval.shape if is_shard else aval.sharding.shard_shape(aval.shape)


def _sum(works: Iterable[Work]) -> Work:
    return Work(*map(sum, zip(Work(), *works)))


def _programs(settings: dict[str, Any]) -> list[ClosedJaxpr | Jaxpr]:
    values = [item for value in settings.values() for item in (value if isinstance(value, tuple | list) else [value])]
    return [value for value in values if isinstance(value, ClosedJaxpr | Jaxpr)]
