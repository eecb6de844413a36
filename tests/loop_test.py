"""The training loop and its checkpoints: exact resume, skipped updates."""

import errno
import functools
import json
import math
import os
import pathlib
import shutil
import signal
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from support import toy_store

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.common.runtime import ending
from retrieval.common.runtime.signals import PreemptedError
from retrieval.common.runtime.store import Store
from retrieval.training import loop
from retrieval.training.checkpoint import Checkpointer, drop_damaged, steps_in
from retrieval.training.loop import Hooks, Settings, TrainState

SPEED = ("examples_per_second", "tokens_per_second", "flops_per_second", "share_of_peak", "input_wait")
TRUE_WEIGHTS = np.array([1.0, -2.0, 0.5], np.float32)


class Numbers:
    """Regression data; batch i is a function of i, and `poison` maps steps to a value that spoils them."""

    def __init__(self, mesh, poison=None):
        self.position, self.poison = 0, poison or {}
        self.sharding = NamedSharding(mesh, P("data"))

    def __next__(self):
        x = np.random.default_rng(self.position).normal(size=(16, 3)).astype(np.float32)
        y = x @ TRUE_WEIGHTS + self.poison.get(self.position, 0)
        self.position += 1
        return {"x": jax.device_put(x, self.sharding), "y": jax.device_put(y, self.sharding)}

    def save(self, folder):
        (folder / "position.json").write_text(json.dumps(self.position))

    def restore(self, folder):
        self.position = json.loads((folder / "position.json").read_text())


def objective(params, batch, key):
    # Dropout on the inputs, so that a wrong key on resume changes the result.
    x = jnp.where(jax.random.bernoulli(key, 0.9, (16, 3)), batch["x"], 0)
    error = x @ params["w"] - batch["y"]
    return error**2, {"absolute": jnp.abs(error), "tokens": jnp.full(16, 5)}


def run(folder, steps, *, poison=None, stop=None, max_skipped=3, optimizer=None, settings=None, **hooks):
    with jax.set_mesh(mesh := jax.make_mesh((8,), ("data",))):
        optimizer = optimizer or optax.adamw(0.05)
        state = TrainState.create({"w": jnp.zeros(3)}, optimizer)
        state = jax.device_put(state, NamedSharding(mesh, P()))
        drop_damaged(folder)
        progress, checkpointer, log = loop.Progress(Numbers(mesh, poison)), Checkpointer(folder), []
        if checkpointer.latest_step() is not None:
            state = checkpointer.restore(state, progress)
        step_fn = loop.make_step(objective, optimizer, seed=0)
        every_5 = dict(steps=stop or steps, log_every=5, checkpoint_every=5, max_skipped=max_skipped)
        every_5["bad_batches"] = pathlib.Path(folder.with_name("bad_batches"))
        settings = Settings(**every_5 | (settings or {}))
        try:
            hooks = Hooks(log=lambda *row: log.append(row), **hooks)
            state = loop.train(state, step_fn, progress, checkpointer, settings, hooks)
        finally:
            checkpointer.close()
        return jax.device_get(state), log


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Gives the state after some steps that nothing happened to."""
    return functools.cache(lambda steps: run(tmp_path_factory.mktemp("whole") / "checkpoints", steps)[0])


@pytest.fixture
def place(request, tmp_path):
    """A folder for checkpoints."""
    if request.param == "disk":
        return tmp_path / "checkpoints"
    toy_store.bucket(tmp_path / "bucket")
    return Store(toy_store.URL).path / "checkpoints"


def test_steps_with_other_metrics_are_kept_and_averaged_apart(tmp_path):
    """Batches of several losses have several metrics."""
    steps = [{"loss": 1.0, "recall": 0.5}, {"loss": 2.0, "spread": 3.0}, {"loss": 6.0, "recall": 1.0}]
    steps = [{"skipped": np.int32(0)} | {name: np.float32(value) for name, value in step.items()} for step in steps]
    progress, again = (loop.Progress(Numbers(jax.make_mesh((1,), ("data",)))) for _ in range(2))
    progress.steps = steps
    progress.save(tmp_path)
    again.restore(tmp_path)
    assert again.steps == steps
    assert loop._means(again.steps, 3) == {"loss": 3.0, "recall": 0.75, "spread": 3.0, "skipped": 0.0}


@pytest.mark.parametrize(("place", "stop"), [("disk", 13), ("store", 10)], indirect=["place"])
def test_a_resumed_run_is_bitwise_the_same(tmp_path, place, stop, monkeypatch):
    """Also in the line of the log that steps before and behind the stop are of, one of which is skipped."""
    poison = {11: float("nan")}
    whole, log = run(tmp_path / "whole", 20, poison=poison)
    with pytest.raises(PreemptedError):
        run(place, 20, poison=poison, must_stop=lambda step: step == stop)
    bars = []
    monkeypatch.setattr(loop.terminal, "progress", lambda steps, **options: bars.append(options) or steps)
    resumed, tail = run(place, 20, poison=poison)
    assert bars == [{"desc": "train", "initial": stop, "total": 20}]
    jax.tree.map(np.testing.assert_array_equal, whole, resumed)
    strip = lambda rows: [(s, {n: v for n, v in m.items() if n not in SPEED}) for s, m in rows]  # noqa: E731
    assert strip(log)[2:] == strip(tail)
    assert steps_in(place) == [15, 20]


@pytest.mark.parametrize("at", [pytest.param("manifest.json", marks=pytest.mark.long), "commit_success.txt", "delete"])
def test_a_step_that_is_not_whole_on_a_store_is_left_out(tmp_path, whole, at):
    """The machine dies before the step is sealed, before it counts, or while an older one is deleted."""
    bucket = toy_store.bucket(tmp_path / "bucket")
    place = Store(toy_store.URL).path / "checkpoints"
    kind, name = ("delete", "checkpoints/5/state") if at == "delete" else ("write", f"checkpoints/10/{at}")
    bucket.fails = toy_store.dies_at(kind, name)
    with pytest.raises(UserError, match="the machine is gone"):
        run(place, 20)
    bucket.fails = lambda *_: None
    jax.tree.map(np.testing.assert_array_equal, whole(20), run(place, 20)[0])
    assert steps_in(place) == [15, 20]
    assert {name.split("/")[3] for name in bucket.names()} == {"15", "20"}


def test_an_old_step_stays_until_the_next_is_whole(tmp_path):
    """A run that is killed meanwhile goes on from it: what belongs to it must not be deleted before."""
    under_way, may_end = threading.Event(), threading.Event()

    class Held(Checkpointer):
        def _seal(self):
            under_way.set()
            may_end.wait(60)
            super()._seal()

    may_end.set()
    mesh = jax.make_mesh((1,), ("data",), devices=jax.devices()[:1])
    checkpointer, data = Held(tmp_path / "checkpoints", keep=1), Numbers(mesh)
    checkpointer.save(1, {"w": jnp.zeros(3)}, data)
    checkpointer.wait()
    under_way.clear()
    may_end.clear()
    checkpointer.save(2, {"w": jnp.ones(3)}, data)
    assert under_way.wait(60) and checkpointer.steps() == [1]
    may_end.set()
    checkpointer.wait()
    assert checkpointer.steps() == [2]
    checkpointer.close()


def test_a_refresh_is_done_again_when_a_run_resumes(tmp_path):
    """It has something to do at steps 3 and 6 of 7, with the parameters of the checkpoint that is written first."""

    def refreshed(folder, calls, fails=0):
        def refresh(step, params):
            if step == fails:
                raise KeyboardInterrupt
            if step % 3:
                return {}
            calls.append((step, np.asarray(params["w"])))
            return {"number": float(step)}

        return run(folder, 7, settings={"refresh_every": 3}, refresh=refresh)

    calls, parts = [], []
    whole, log = refreshed(tmp_path / "whole", calls)
    assert [step for step, _ in calls] == [3, 6]
    assert [row for row in log if "refresh/number" in row[1]] == [(n + 1, {"refresh/number": float(n)}) for n in (3, 6)]
    with pytest.raises(KeyboardInterrupt):
        refreshed(tmp_path / "parts", parts, fails=6)
    assert Checkpointer(tmp_path / "parts").latest_step() == 6
    resumed, _ = refreshed(tmp_path / "parts", parts)
    jax.tree.map(np.testing.assert_array_equal, (whole, calls), (resumed, parts))


def test_sigterm_asks_for_a_stop_while_watched():
    before = signal.getsignal(signal.SIGTERM)
    with ending.watch() as stops_at:
        assert not stops_at(1)
    assert signal.getsignal(signal.SIGTERM) is before
    try:
        with ending.watch() as stops_at:
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGTERM)
                assert stops_at(2)
        os.kill(os.getpid(), signal.SIGTERM)  # it is about to end, and another notice must not disturb it
        # Python writes a traceback of a signal that is under way while SIG_IGN is set.
        assert callable(signal.getsignal(signal.SIGTERM))
    finally:
        signal.signal(signal.SIGTERM, before)


def flip(path):
    """Changes one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def largest(folder):
    return max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


@pytest.mark.parametrize(
    "damage",
    [
        lambda step: flip(largest(step)),
        pytest.param(lambda step: largest(step).unlink(), marks=pytest.mark.long),
        lambda step: flip(step / "data" / "position.json"),
        lambda step: (step / "manifest.json").unlink(),
        pytest.param(lambda step: shutil.rmtree(step / "state"), marks=pytest.mark.long),
    ],
    ids=["flip", "delete", "position", "manifest", "state"],
)
def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path, whole, caplog, damage):
    folder = tmp_path / "checkpoints"
    run(folder, 15, stop=10)
    damage(folder / "10")
    with caplog.at_level("WARNING"):
        resumed, _ = run(folder, 15)
    jax.tree.map(np.testing.assert_array_equal, whole(15), resumed)
    assert "checkpoint 10 is moved to damaged/: " in caplog.text and "going on from checkpoint 5" in caplog.text
    assert (tmp_path / "damaged" / "10").exists()
    assert sorted(path.name for path in folder.iterdir()) == ["10", "15"]  # the newest, and no trash


def test_a_damaged_checkpoint_on_a_store_gives_way_to_the_one_before(tmp_path, whole, caplog):
    bucket = toy_store.bucket(tmp_path / "bucket")
    place = Store(toy_store.URL).path / "checkpoints"
    run(place, 15, stop=10)
    flip(bucket.path(next(name for name in bucket.names() if "10/state/d/" in name)))
    jax.tree.map(np.testing.assert_array_equal, whole(15), run(place, 15)[0])
    assert "checkpoint 10 is deleted: " in caplog.text and "going on from checkpoint 5" in caplog.text


def test_a_run_without_a_good_checkpoint_says_so(tmp_path):
    folder = tmp_path / "checkpoints"
    run(folder, 10)
    for step in ("5", "10"):
        flip(largest(folder / step))
    with pytest.raises(UserError, match=r"no checkpoint was good, and all are moved to damaged/; the same"):
        run(folder, 15)
    assert run(folder, 5)[0].step == 5  # afresh


def test_a_failed_save_ends_the_run_within_a_step(tmp_path, monkeypatch):
    run(tmp_path, 20, stop=5)
    steps, save = [], Checkpointer.save

    def save_and_look(self, *of_step):
        save(self, *of_step)
        while self._manager.is_saving_in_progress():
            time.sleep(0.01)

    def fail(*_, **__):  # in the thread that saves
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))

    monkeypatch.setattr(Checkpointer, "save", save_and_look)
    monkeypatch.setattr(files, "write_manifest", fail)
    with pytest.raises(UserError, match=rf"a checkpoint cannot be written \(.*{os.strerror(errno.EFBIG)}"):
        run(tmp_path, 20, must_stop=steps.append)
    assert steps[-1] == 10  # whose save has failed before step 11
    assert Checkpointer(tmp_path).latest_step() == 5


def test_a_folder_that_goes_away_ends_the_run(tmp_path):
    """Also where Orbax has made it anew since."""
    steps = []

    def stops_at(step):
        steps.append(step)
        if step == 7:
            (tmp_path / "checkpoints").rename(tmp_path / "elsewhere")
            (tmp_path / "checkpoints").mkdir()

    with pytest.raises(UserError, match=r"cannot be written \(its folder was moved or deleted meanwhile\)"):
        run(tmp_path / "checkpoints", 20, must_stop=stops_at, settings=dict(checkpoint_every=100))
    assert steps[-1] == 7


def test_the_log_tells_how_fast_it_was(tmp_path):
    def wait(step):  # counts as time of the steps
        time.sleep(0.02)
        return False

    _, log = run(tmp_path, 10, must_stop=wait, cost=loop.Cost(flops=1e9, peak=1e12))
    for _, metrics in log:
        speed = metrics["examples_per_second"]
        assert metrics["examples"] == 16 and 0 < speed < 16 / 0.02
        assert metrics["tokens_per_second"] == pytest.approx(5 * speed)
        assert metrics["flops_per_second"] == pytest.approx(1e9 * speed / 16)
        assert metrics["share_of_peak"] == pytest.approx(1e9 * speed / 16 / 1e12)
        assert 0 < metrics["input_wait"] < 1


def test_a_trace_of_some_steps(tmp_path):
    run(tmp_path / "run", 6, settings=dict(trace_steps=(2, 3), trace=tmp_path / "trace"))
    assert list((tmp_path / "trace").rglob("*.xplane.pb"))


def test_an_update_that_is_not_finite_is_skipped(tmp_path):
    poisoned, log = run(tmp_path / "a", 10, poison={3: math.nan, 4: math.inf})
    assert np.isfinite(poisoned.params["w"]).all()
    assert log[0][1]["skipped"] == 2 and math.isfinite(log[0][1]["loss"]) and log[1][1]["skipped"] == 0


def test_a_gradient_that_is_not_finite_is_skipped():
    optimizer = optax.sgd(1.0)
    step = loop.make_step(lambda params, batch, key: (jnp.sqrt(params["w"] * batch["x"]), {}), optimizer, seed=0)
    state, metrics = step(TrainState.create({"w": jnp.zeros(3)}, optimizer), {"x": jnp.ones(3)})
    assert metrics["loss"] == 0 and math.isinf(metrics["gradient_norm"])
    assert state.skipped == 1 and not state.params["w"].any()


def test_many_bad_updates_in_a_row_end_the_run(tmp_path):
    folder, poison = tmp_path / "checkpoints", dict.fromkeys(range(6, 20), math.nan)
    with pytest.raises(UserError, match=r"step 9: loss or .* not finite for 3 steps in a row; .*step-9-host-0"):
        run(folder, 20, poison=poison)
    with np.load(tmp_path / "bad_batches" / "step-9-host-0.npz") as kept:
        np.testing.assert_array_equal(kept["x"], np.random.default_rng(8).normal(size=(16, 3)).astype(np.float32))
        assert np.isnan(kept["y"]).all()
    state, _ = run(folder, 5)
    assert int(state.step) == 5 and np.isfinite(state.params["w"]).all()


def test_every_step_has_a_dropout_key_of_its_own():
    optimizer, draws = optax.sgd(0.1), []
    for seed in (0, 1):
        draw = lambda params, batch, key: (jnp.zeros(1), {"draw": jax.random.uniform(key, (1,))})  # noqa: E731
        state, step = TrainState.create({"w": jnp.zeros(3)}, optimizer), loop.make_step(draw, optimizer, seed)
        for _ in range(20):
            state, metrics = step(state, {})
            draws.append(float(metrics["draw"]))
    assert len(set(draws)) == 40


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    run(tmp_path, 5)
    with pytest.raises(UserError, match="not a checkpoint of this model"):
        Checkpointer(tmp_path).restore(TrainState.create({"v": jnp.zeros(3)}, optax.adamw(0.05)))


def validated(folder, scores, keep, **settings):
    """Trains a model of ones, whose validations have the scores; its checkpoints, opened again."""
    with jax.set_mesh(mesh := jax.make_mesh((1,), ("data",), devices=jax.devices()[:1])):
        optimizer, log, steps = optax.sgd(0.1), [], iter(scores)
        state = TrainState.create({"w": jnp.ones(3)}, optimizer)
        checkpointer, step_fn = Checkpointer(folder, keep, best="RR"), loop.make_step(objective, optimizer, seed=0)
        settings = Settings(steps=max(scores), log_every=5, validate_every=2, **settings)
        hooks = Hooks(log=lambda *row: log.append(row), validate=lambda params: {"RR": scores[next(steps)]})
        loop.train(state, step_fn, loop.Progress(Numbers(mesh)), checkpointer, settings, hooks)
        checkpointer.close()
    assert [(s, m["validation/RR"]) for s, m in log if "validation/RR" in m] == list(scores.items())
    return Checkpointer(folder, keep, best="RR"), TrainState.create({"w": jnp.zeros(3)}, optimizer)


def test_validations_are_logged_and_the_best_step_is_kept(tmp_path):
    scores = {2: 0.1, 4: 0.7, 6: 0.2, 8: 0.7, 10: 0.3, 11: 0.0}
    reopened, like = validated(tmp_path, scores, 2, checkpoint_every=3)
    assert (reopened.best_step(), reopened.latest_step()) == (8, 11)  # the later of two that are equal
    assert sorted(int(p.name) for p in tmp_path.iterdir() if p.name.isdigit()) == [8, 10, 11]
    assert int(reopened.restore(like, step=8).step) == 8
    reopened.close()
    without = Checkpointer(tmp_path)
    assert without.best_step() == 11
    without.close()


def test_a_model_that_training_makes_worse_stays_the_best(tmp_path):
    reopened, like = validated(tmp_path, {0: 0.5, 2: 0.4, 4: 0.3}, 1, checkpoint_every=2, from_model=True)
    assert (reopened.best_step(), reopened.latest_step()) == (0, 4)
    assert reopened.restore(like, step=0).params["w"].tolist() == [1, 1, 1]
    reopened.close()
