"""Learning rates over updates: from 0 up to the highest in a warm-up, then as the name of a schedule says."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from retrieval.common.errors import UserError

_DECAY = 0.1  # share of the updates, the last ones, in which the rate of wsd falls


def check(name: str, warmup_ratio: float) -> None:
    """Checks that a schedule has updates left for its decay."""
    if (name == "cosine" and warmup_ratio == 1) or (name == "wsd" and warmup_ratio + _DECAY > 1):
        raise UserError(
            f"config.train.schedule={name} falls after the warm-up, and config.train.warmup_ratio={warmup_ratio:g} "
            "leaves too few steps for that: lower it"
        )


def scale_in_phases(rates: tuple[float, float], steps: int, warmup_ratio: float) -> optax.GradientTransformation:
    """As the linear schedule for each of two phases; the second one has the steps that are left."""

    def init(_: Any) -> Phase:
        return Phase(jnp.zeros([], jnp.int32), jnp.zeros([], jnp.int32))

    def update(updates: Any, state: Phase, _: Any = None) -> tuple[Any, Phase]:
        left = jnp.maximum(steps - state.before, 1).astype(jnp.float32)
        highest = jnp.where(state.before > 0, rates[1], rates[0])
        corners = jnp.stack([jnp.zeros_like(left), warmup_ratio * left, left])
        rate = highest * jnp.interp(state.count, corners, jnp.array([0.0, 1.0, 0.0]))
        return jax.tree.map(lambda u: -rate.astype(u.dtype) * u, updates), state._replace(count=state.count + 1)

    return optax.GradientTransformation(init, update)  # pyright: ignore[reportArgumentType] (its types are of any state)


class Phase(NamedTuple):
    """The state of a schedule of two phases: updates of this phase, and those before it (0 in the first)."""

    count: jax.Array
    before: jax.Array


def begin_second(state: Any, before: jax.Array) -> Any:
    """The state of an optimizer that has done nothing yet, at the beginning of the second phase.

    Args:
      before: updates of the first phase, at least 1.
    """

    def begun(node: Any) -> Any:
        return node._replace(before=jnp.int32(before)) if isinstance(node, Phase) else node

    return jax.tree.map(begun, state, is_leaf=lambda node: isinstance(node, Phase))


def _linear(rate: float, steps: Any, warmup: Any) -> optax.Schedule:
    """In a line to 0 at update `steps`, as BERT is trained. optax's own differs from it in the last bit."""
    corners, rates = np.array([0, warmup, steps]), np.array([0, rate, 0])
    return lambda count: jnp.interp(count, corners, rates)


def _cosine(rate: float, steps: Any, warmup: Any) -> optax.Schedule:
    """Half a cosine, to 0 at update `steps` (Loshchilov & Hutter 2017)."""
    return _after_warmup(rate, warmup, optax.cosine_decay_schedule(rate, steps - warmup))


def _wsd(rate: float, steps: Any, warmup: Any) -> optax.Schedule:
    """Warm-up, stable, decay (Hu et al. 2024, MiniCPM): a tenth of the updates, the last ones, go to 0 in a line."""
    decay: Any = _DECAY * steps
    phases = [optax.constant_schedule(rate), optax.linear_schedule(rate, 0.0, decay)]
    return _after_warmup(rate, warmup, optax.join_schedules(phases, [steps - warmup - decay]))


def _constant(rate: float, steps: Any, warmup: Any) -> optax.Schedule:
    """The highest rate, to the end and behind it."""
    return _after_warmup(rate, warmup, optax.constant_schedule(rate))


def _after_warmup(rate: float, warmup: Any, then: optax.Schedule) -> optax.Schedule:
    """A schedule behind a line from 0 to its beginning, whose updates need not be a whole number."""
    return optax.join_schedules([optax.linear_schedule(0.0, rate, warmup), then], [warmup]) if warmup else then


# Of the highest rate, and of updates: all, and those of the warm-up, which need not be whole numbers.
SCHEDULES: dict[str, Callable[[float, Any, Any], optax.Schedule]] = dict(
    linear=_linear, cosine=_cosine, wsd=_wsd, constant=_constant
)
