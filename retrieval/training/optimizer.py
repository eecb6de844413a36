"""The optimizers of `OPTIMIZERS`: what they make of a gradient, before weight decay and the learning rate.

adam is AdamW, as BERT is trained (Devlin et al. 2019; Chang et al. 2020, section 4.1). lamb (You et al. 2020) is
ANCE's.
The parts are optax's, but for LAMB's lengths: optax has no limit of them, and takes all layers for one parameter.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from retrieval.training import schedules

OPTIMIZERS = ("adam", "lamb")


def make_optimizer(
    *,
    learning_rate: float,
    steps: int,
    warmup_ratio: float = 0.1,
    weight_decay: float = 0.0,
    clip_norm: float | None = None,
    epsilon: float = 1e-6,
    name: str = "adam",
    lamb_norm_limit: float | None = None,
    is_stacked: Callable[[tuple], bool] = lambda path: False,
    second_rate: float | None = None,
    schedule: str = "linear",
) -> optax.GradientTransformation:
    """An optimizer with decoupled weight decay and a schedule, after clipping by the global norm.

    Args:
      learning_rate: the highest, reached at the end of the warm-up.
      steps: updates that the learning rate is planned for (not micro-batches of an accumulated gradient).
      warmup_ratio: share of `steps` in which the rate rises from 0.
      weight_decay: times the learning rate, per update; not of biases and LayerNorm scales.
      name: in `OPTIMIZERS`; LAMB scales the update of every parameter to the parameter's own length.
      lamb_norm_limit: the longest that LAMB takes a parameter for; None for no limit. ANCE's authors have 10.
      is_stacked: whether the parameter at a path is one of several layers, along its first axis; each layer's is a
        parameter of its own.
      clip_norm: the maximum gradient norm; None for none. Clipping makes a gradient with an infinite value NaN.
      epsilon: Adam's, which keeps small gradients from large updates.
      second_rate: the highest learning rate of a second phase, which `schedules.begin_second` begins, of the linear
        schedule; None where there is none.
      schedule: in `schedules.SCHEDULES`.
    """
    rate = schedules.SCHEDULES[schedule](learning_rate, steps, warmup_ratio * steps)
    adam = optax.scale_by_adam(b1=0.9, b2=0.999, eps=epsilon)
    parts = [adam, optax.add_decayed_weights(weight_decay, decayed)]
    if name == "lamb":
        parts.append(_scale_by_length(is_stacked, lamb_norm_limit or math.inf))
    scale = optax.scale_by_learning_rate(rate)
    if second_rate is not None:
        scale = schedules.scale_in_phases((learning_rate, second_rate), steps, warmup_ratio)
    tx = optax.chain(*parts, scale)
    return tx if clip_norm is None else optax.chain(optax.clip_by_global_norm(clip_norm), tx)


class _Sum(NamedTuple):
    """The state of `accumulated`: batches since the last update, their gradients, and the optimizer's own state."""

    batches: jax.Array
    gradient: Any
    inner: Any


def accumulated(
    optimizer: optax.GradientTransformation, count: int, clip_norm: float | None = None
) -> optax.GradientTransformation:
    """One update of the mean gradient of every `count` batches.

    Args:
      clip_norm: the longest that the sum of the parts may be after each batch (RepBERT's code); None for no such limit.
    """
    if count == 1:
        return optimizer
    if clip_norm is None:
        return optax.MultiSteps(optimizer, count).gradient_transformation()
    clip = optax.clip_by_global_norm(clip_norm)

    def init(params: Any) -> _Sum:
        return _Sum(jnp.zeros([], jnp.int32), jax.tree.map(jnp.zeros_like, params), optimizer.init(params))

    def update(gradient: Any, state: _Sum, params: Any = None) -> tuple[Any, _Sum]:
        total = jax.tree.map(lambda so_far, part: so_far + part / count, state.gradient, gradient)
        total, _ = clip.update(total, optax.EmptyState())
        zeros = jax.tree.map(jnp.zeros_like, total)

        def finish() -> tuple[Any, Any, Any]:
            updates, inner = optimizer.update(total, state.inner, params)
            return updates, zeros, inner

        is_last = state.batches == count - 1
        updates, total, inner = jax.lax.cond(is_last, finish, lambda: (zeros, total, state.inner))
        return updates, _Sum(jnp.where(is_last, 0, state.batches + 1), total, inner)

    return optax.GradientTransformation(init, update)  # pyright: ignore[reportArgumentType] (its types are of any state)


def _scale_by_length(is_stacked: Callable[[tuple], bool], limit: float) -> optax.GradientTransformation:
    """Gives an update the length of its parameter, but at most the limit, where neither is 0.

    You et al. 2020, algorithm 2; the limit is the upper bound of its function phi.
    """

    def scale(path: tuple, update: jax.Array, param: jax.Array) -> jax.Array:
        axes = tuple(range(1 if is_stacked(path) else 0, param.ndim))
        of_param, of_update = (jnp.sqrt(jnp.square(x).sum(axes, keepdims=True)) for x in (param, update))
        is_zero = (of_param == 0) | (of_update == 0)
        return update * jnp.where(is_zero, 1.0, jnp.minimum(of_param, limit) / jnp.where(is_zero, 1.0, of_update))

    return optax.stateless(lambda updates, params: jax.tree.map_with_path(scale, updates, params))


def decayed(params: Any) -> Any:
    """Which parameters weight decay applies to: a tree of bool like `params`, False for biases and scales."""
    return jax.tree.map_with_path(lambda path, _: _name(path) not in ("bias", "scale"), params)


def _name(path: tuple) -> str:
    """The attribute that holds a parameter; what `nnx` adds below it (`.value`) is no dictionary key."""
    return [str(key.key) for key in path if hasattr(key, "key")][-1]
