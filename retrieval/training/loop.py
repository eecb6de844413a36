"""The training loop: the only one. It gets an objective, an optimizer and batches, and knows none of the papers."""

import contextlib
import copy
import dataclasses
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax

from retrieval.common import files, terminal
from retrieval.common.errors import UserError
from retrieval.common.runtime import hosts
from retrieval.common.runtime.signals import PreemptedError
from retrieval.training import frozen
from retrieval.training.checkpoint import Checkpointer, Resumable

_log = logging.getLogger(__name__)

_STEPS = "steps.npz"
_STEP_OF = "step of "  # a metric: steps of other losses lack it


# Of parameters, a batch (its fields, and `step`, how many steps came before) and the key of dropout: the loss of each
# example [B], whose mean is minimised, and metrics of each [B]; 'tokens', those it has, is one.
Objective: TypeAlias = Callable[[Any, Mapping[str, jax.Array], jax.Array], tuple[jax.Array, dict[str, jax.Array]]]


class Batches(Resumable, Iterator[dict[str, jax.Array]], Protocol):
    """An endless, resumable iterator of batches."""


class Progress:
    """Where a run goes on: the position in its batches, and what the steps gave since the last line of the log.

    Attributes:
      batches: the batches.
      steps: the metrics of these steps, so that the next line is of all of them, whoever did them.
    """

    def __init__(self, batches: Batches):
        self.batches = batches
        self.steps: list[Mapping[str, jax.Array | np.ndarray]] = []

    def save(self, folder: Path) -> None:
        """Writes both into an existing folder."""
        self.batches.save(folder)
        if self.steps and hosts.is_first():
            stacked: dict[str, Any] = {}
            for number, step in enumerate(jax.device_get(self.steps)):
                for name, value in step.items():
                    stacked.setdefault(name, []).append(value)
                    stacked.setdefault(_STEP_OF + name, []).append(number)
            np.savez(folder / _STEPS, **stacked)

    def restore(self, folder: Path) -> None:
        """Goes back to what `folder` has."""
        self.batches.restore(folder)
        path = folder / _STEPS
        stacked = dict(np.load(path, allow_pickle=False)) if path.exists() else {}
        steps: dict[int, dict[str, np.ndarray]] = {}
        for name in (name for name in stacked if not name.startswith(_STEP_OF)):
            for number, value in zip(stacked[_STEP_OF + name].tolist(), stacked[name]):
                steps.setdefault(number, {})[name] = value
        self.steps = [steps[number] for number in sorted(steps)]


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class TrainState:
    """Everything that a step changes. `step` counts batches, `skipped` the updates in a row that were not finite.

    The optimizer knows, and checkpoints have, the parameters that are trained, by `frozen.split`.
    """

    step: jax.Array
    skipped: jax.Array
    params: Any
    opt_state: Any

    @classmethod
    def create(cls, params: Any, optimizer: optax.GradientTransformation) -> "TrainState":
        """The state before the first step."""
        trained, _ = frozen.split(params)
        return cls(jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32), params, optimizer.init(trained))

    def saved(self) -> "TrainState":
        """What a checkpoint has of it."""
        return dataclasses.replace(self, params=frozen.split(self.params)[0])

    def restored(
        self, checkpointer: Checkpointer, data: Resumable | None = None, step: int | None = None
    ) -> "TrainState":
        """The state of a checkpoint, as `Checkpointer.restore` reads it; what that lacks is this one's."""
        state = checkpointer.restore(self.saved(), data, step)
        return dataclasses.replace(state, params=frozen.join(state.params, frozen.split(self.params)[1]))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """When the loop does what, in batches.

    Attributes:
      validate_every: 0 for never; a checkpoint is saved with every validation, and after the last step.
      refresh_every: 0 for never; a checkpoint is saved before every refresh.
      keep_steps: a checkpoint of each is saved.
      from_model: whether training starts from a model that may be better than what it makes of it. Then that is
        validated and saved as step 0.
      max_skipped: so many updates in a row with a loss or gradient that is not finite end the run.
      bad_batches: the folder for the batch that did, one file per host.
      trace_steps: the first and the last step of a trace, written to the folder `trace`; none by default.
    """

    steps: int
    log_every: int
    checkpoint_every: int
    validate_every: int = 0
    refresh_every: int = 0
    keep_steps: tuple[int, ...] = ()
    from_model: bool = False
    max_skipped: int = 10
    bad_batches: Path = Path("bad_batches")
    trace_steps: tuple[int, int] = (0, 0)
    trace: Path = Path("profile")


@dataclasses.dataclass(frozen=True)
class Cost:
    """What a step costs.

    Attributes:
      flops: floating-point operations of the model, forward and backward, without what is computed twice.
      peak: such operations that all devices together can do in a second; None where it is not known.
    """

    flops: float
    peak: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hooks:
    """What the loop calls on its way.

    Attributes:
      log: writes the metrics of a step.
      validate: parameters to scores; what it gives is logged, and goes into the checkpoint of the step.
      refresh: step and parameters to numbers for the log, if there are any; from then on the batches may be others. It
        comes before every step but the first: a run that goes on from a checkpoint begins with it, as if it had not
        ended.
      second_phase: step, state and scores of a validation to the state that training goes on from. The checkpoint of
        the step has that state.
      must_stop: asked after every step whether the machine is about to go away.
      cost: what a step costs, for the log.
    """

    log: Callable[[int, dict[str, float]], None]
    validate: Callable[[Any], dict[str, float]] | None = None
    refresh: Callable[[int, Any], dict[str, float]] | None = None
    second_phase: Callable[[int, TrainState, Mapping[str, float]], TrainState] | None = None
    must_stop: Callable[[int], bool] = lambda step: False
    cost: Cost | None = None


def make_step(objective: Objective, optimizer: optax.GradientTransformation, seed: int) -> Callable:
    """A jitted `(state, batch) -> (state, metrics)`; the old state is donated.

    The dropout key is a function of seed and step alone, so a resumed run needs no saved key. An update whose loss or
    gradient norm is not finite is not applied.
    """

    def loss(trained: Any, others: Any, batch: Any, key: jax.Array) -> tuple[jax.Array, dict[str, Any]]:
        values, metrics = objective(frozen.join(trained, others), batch, key)
        return values.mean(), {name: metric.mean() for name, metric in metrics.items()} | {"examples": len(values)}

    def step(state: TrainState, batch: dict[str, jax.Array]) -> tuple[TrainState, dict[str, jax.Array]]:
        key = jax.random.fold_in(jax.random.key(seed), state.step)
        trained, others = frozen.split(state.params)
        fields = copy.copy(batch)  # which may be more than a dict: one that says which of several objectives it is for
        fields["step"] = state.step
        (value, metrics), grads = jax.value_and_grad(loss, has_aux=True)(trained, others, fields, key)
        norm = optax.tree.norm(grads)
        finite = jnp.isfinite(value) & jnp.isfinite(norm)
        updates, opt_state = optimizer.update(grads, state.opt_state, trained)
        params = optax.apply_updates(trained, updates)
        params, opt_state = jax.tree.map(
            lambda new, old: jnp.where(finite, new, old), (params, opt_state), (trained, state.opt_state)
        )
        skipped = jnp.where(finite, 0, state.skipped + 1)
        state = TrainState(state.step + 1, skipped, frozen.join(params, others), opt_state)
        return state, {"loss": value, "gradient_norm": norm, "skipped": skipped, **metrics}

    return jax.jit(step, donate_argnums=0)


def train(
    state: TrainState,
    step_fn: Callable,
    progress: Progress,
    checkpointer: Checkpointer,
    settings: Settings,
    hooks: Hooks,
) -> TrainState:
    """Trains from `state` to `settings.steps`.

    Raises:
      PreemptedError: `hooks.must_stop` says so, and the step is saved.
      UserError: the loss or its gradient was not finite for `settings.max_skipped` steps in a row.
    """
    first, last = int(state.step), settings.steps
    # A CPU gives two steps at once twice the memory, and spends its time on that; fake devices would deadlock.
    in_step = jax.default_backend() == "cpu"
    trace_from, trace_to = settings.trace_steps
    window, guard = _Window(progress.steps), _Guard(settings)
    if hooks.validate and settings.from_model:
        checkpointer.save(0, state.saved(), progress, _validated(hooks, 0, state))
    for step in terminal.progress(range(first + 1, last + 1), desc="train", initial=first, total=last):
        if step == trace_from:
            jax.profiler.start_trace(settings.trace)
        if hooks.refresh and step > 1:
            with window.spent("pause"):
                numbers = hooks.refresh(step - 1, state.params)
            if numbers:
                hooks.log(step, {f"refresh/{name}": value for name, value in numbers.items()})
        with window.spent("waiting"):
            batch = next(progress.batches)
        state, metrics = step_fn(state, batch)
        if in_step:
            jax.block_until_ready(metrics)
        window.steps.append(metrics)
        guard.watch(step, metrics["skipped"], batch)
        checkpointer.check()
        if step == trace_to and first < trace_from:
            jax.block_until_ready(metrics)
            jax.profiler.stop_trace()
        if step % settings.log_every == 0 or step == last:
            guard.catch_up()
            means = _means(window.steps, step)
            hooks.log(step, means | window.speed(means, hooks.cost))
            progress.steps = []
            window = _Window(progress.steps)
        scores = None
        if hooks.validate and (step % settings.validate_every == 0 or step == last):
            with window.spent("pause"):
                scores = _validated(hooks, step, state)
            state = hooks.second_phase(step, state, scores) if hooks.second_phase and scores else state
        is_due = step % settings.checkpoint_every == 0 or (hooks.refresh and step % settings.refresh_every == 0)
        if scores or is_due or step in settings.keep_steps or step == last:
            checkpointer.save(step, state.saved(), progress, scores)
        if hooks.must_stop(step) and step < last:
            checkpointer.save(step, state.saved(), progress)
            checkpointer.wait()
            raise PreemptedError(f"interrupted after step {step}, which is saved: the same command goes on from there")
    return state


def _validated(hooks: Hooks, step: int, state: TrainState) -> dict[str, float] | None:
    """The scores of a step, which are logged; None without a validation."""
    if not hooks.validate:
        return None
    scores = hooks.validate(state.params)
    hooks.log(step, {f"validation/{name}": value for name, value in scores.items()})
    return scores


class _Window:
    """The steps since the last line of the log, and where the time of those went that this process did."""

    def __init__(self, steps: list[Mapping[str, jax.Array | np.ndarray]]):
        self.steps, self._before, self._began = steps, len(steps), time.perf_counter()
        self._seconds = {"waiting": 0.0, "pause": 0.0}

    @contextlib.contextmanager
    def spent(self, kind: str) -> Iterator[None]:
        """Around what makes a batch ('waiting'; an accelerator runs steps meanwhile), or is no training ('pause')."""
        began = time.perf_counter()
        yield
        self._seconds[kind] += time.perf_counter() - began

    def speed(self, means: Mapping[str, float], cost: Cost | None) -> dict[str, float]:
        """Examples, tokens (no padding) and operations per second, and shares of the time and of the devices' peak."""
        seconds = time.perf_counter() - self._began - self._seconds["pause"]
        steps = len(self.steps) - self._before
        examples, waited = steps * means["examples"] / seconds, self._seconds["waiting"] / seconds
        speed = {"examples_per_second": examples, "input_wait": waited}
        speed |= {"tokens_per_second": examples * means["tokens"]} if "tokens" in means else {}
        if cost:
            speed["flops_per_second"] = steps * cost.flops / seconds
            if cost.peak:
                speed["share_of_peak"] = speed["flops_per_second"] / cost.peak
        return speed


class _Guard:
    """Ends a run whose updates are not finite, and keeps the batch for a look.

    It asks for what a step gave when two more have been dispatched: an accelerator need not wait for the question.
    """

    def __init__(self, settings: Settings):
        self._settings = settings
        self._unasked: deque[tuple[int, jax.Array, Mapping[str, jax.Array]]] = deque()

    def watch(self, step: int, skipped: jax.Array, batch: Mapping[str, jax.Array]) -> None:
        """Notes a step; raises as `catch_up` does, for steps before."""
        self._unasked.append((step, skipped, batch))
        self.catch_up(but=2)

    def catch_up(self, but: int = 0) -> None:
        """Raises `UserError` where too many updates in a row were not finite, up to the newest steps `but` for some."""
        while len(self._unasked) > but:
            self._ask(*self._unasked.popleft())

    def _ask(self, step: int, skipped: jax.Array, batch: Mapping[str, jax.Array]) -> None:
        if int(skipped) < self._settings.max_skipped:
            return
        path = self._settings.bad_batches / f"step-{step}-host-{jax.process_index()}.npz"
        with files.atomic(path) as temporary, temporary.open("wb") as file:
            arrays: dict[str, Any] = {name: _on_this_host(values) for name, values in batch.items()}
            np.savez(file, **arrays)
        raise UserError(
            f"step {step}: loss or gradient was not finite for {int(skipped)} steps in a row; the last batch is in "
            f"{path}; look at it, or lower config.train.learning_rate in a new --workdir: no checkpoint has what "
            "these steps did"
        )


def _on_this_host(values: jax.Array) -> np.ndarray:
    """The rows that are on this host's devices, in order."""
    rows = {shard.index[0].start or 0: shard.data for shard in values.addressable_shards}
    return np.concatenate([np.asarray(rows[start]) for start in sorted(rows)])


def _means(window: list[Mapping[str, jax.Array | np.ndarray]], step: int) -> dict[str, float]:
    """Means over the steps that were applied."""
    values = jax.device_get(window)
    applied = [v for v in values if not v["skipped"]]
    if len(applied) < len(values):
        _log.warning("step %d: skipped %d updates that were not finite", step, len(values) - len(applied))
    names = dict.fromkeys(name for v in values for name in v)  # batches of several losses have several metrics
    by_name = {name: [v[name] for v in applied if name in v] for name in names}
    means = {name: float(np.mean(of_steps)) if of_steps else math.nan for name, of_steps in by_name.items()}
    return means | {"skipped": float(len(values) - len(applied))}
