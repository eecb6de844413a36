"""Steps of training and the checkpoint after them, with all that guards a run and without it: seconds."""

import itertools
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks import pairs, worker
from benchmarks.measure import timed


def prepare(settings: Mapping[str, Any]) -> worker.Turn:
    """Settings: config, pairs, batch, batches, vocab_size, protected."""
    import jax
    from ml_collections import ConfigDict

    from benchmarks.ours import training
    from retrieval.recipes import initial_parameters, train_state
    from retrieval.recipes.placement import bind
    from retrieval.recipes.recipe import abstract_model, recipe_of
    from retrieval.runtime import ending
    from retrieval.training import checkpoint, loop, sharding

    config, mesh = ConfigDict(settings["config"]), training.one_device()
    model = abstract_model(config, settings["vocab_size"])
    like = train_state.abstract_state(config, model, mesh)
    rows = [dict(rows) for rows in pairs.batches(Path(settings["pairs"]), settings["batch"], settings["batches"])]

    class Given:
        """The same batches again and again, which have no position."""

        def __init__(self):
            self._batches = itertools.cycle(rows)

        def __next__(self):
            return jax.device_put(next(self._batches), sharding.batch_sharding(mesh))

        def save(self, folder: Path) -> None:
            (folder / "position").touch()

    def guarded() -> Callable:
        step_fn = train_state.make_step(config, model)
        when = loop.Settings(steps=len(rows), log_every=len(rows), checkpoint_every=len(rows))

        def run(state: Any, folder: Path) -> float:
            logged: list[float] = []  # the last step logs before it saves
            with ending.watch() as stops_at:
                checkpointer, progress = checkpoint.Checkpointer(folder), loop.Progress(Given())
                write = lambda *_: logged.append(time.perf_counter())  # noqa: E731
                loop.train(state, step_fn, progress, checkpointer, write, when, stops_at=stops_at)
                checkpointer.close()
            return logged[0]

        return run

    def bare() -> Callable:
        step_fn = _bare_step(recipe_of(config).objective(bind(model)), train_state.make_optimizer(config), config.seed)

        class Unsealed(checkpoint.Checkpointer):
            def _seal(self) -> None:
                """No sums."""

        def run(state: Any, folder: Path) -> float:
            checkpointer, batches, metrics = Unsealed(folder), Given(), []
            for _ in rows:
                state, values = step_fn(state, next(batches))
                metrics.append(values)
            jax.device_get(metrics)
            stepped = time.perf_counter()
            checkpointer.save(len(rows), state, batches)
            checkpointer.close()
            return stepped

        return run

    run = guarded() if settings["protected"] else bare()

    def turn() -> dict[str, float]:
        state = jax.block_until_ready(initial_parameters.initial_state(config, settings["vocab_size"], like))
        with tempfile.TemporaryDirectory() as folder, jax.set_mesh(mesh):
            began = time.perf_counter()
            stepped, seconds = timed(lambda: run(state, Path(folder) / "checkpoints"))
            return {"seconds": seconds, "seconds of the steps": stepped - began}

    return turn


def _bare_step(loss_of: Any, tx: Any, seed: int) -> Callable:
    """`loop.make_step` without a look at whether anything is finite."""
    import jax
    import optax

    from retrieval.training.loop import TrainState

    def loss(params: Any, batch: Any, key: Any) -> Any:
        values, metrics = loss_of(params, batch, key)
        return values.mean(), {name: metric.mean() for name, metric in metrics.items()}

    def step(state: TrainState, batch: Any) -> Any:
        key = jax.random.fold_in(jax.random.key(seed), state.step)
        (value, metrics), grads = jax.value_and_grad(loss, has_aux=True)(state.params, batch, key)
        updates, opt_state = tx.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        return TrainState(state.step + 1, state.skipped, params, opt_state), metrics | {"loss": value}

    return jax.jit(step, donate_argnums=0)


if __name__ == "__main__":
    worker.serve(prepare)
