"""A finished run that gets more steps goes on from its last checkpoint, and later stages run again."""

import dataclasses
import functools
import json
import shutil

import jax
import numpy as np
import pytest
from support.tiny import CHEAP, execute, make_run

from retrieval.common.errors import UserError
from retrieval.common.runtime.signals import PreemptedError
from retrieval.recipes.parameters import make_mesh
from retrieval.recipes.recipe import abstract_model
from retrieval.runs.fitting import training_length
from retrieval.runs.pipeline import preflight, protected, records, runner
from retrieval.runs.pipeline.run import Run
from retrieval.runs.weights import train_state
from retrieval.stages import train
from retrieval.training import checkpoint

CHANGES = CHEAP | {
    "train.learning_rate": 1e-2,
    "train.warmup_ratio": 0.0,
    "encode.untrained": False,
    "loop.log_every": 1,
}


def tower_run(inputs, folder, steps, **changes):
    return make_run("ict", inputs, folder, **CHANGES, **{"train.steps": steps}, **changes)


@pytest.fixture(scope="module")
def finished(inputs, prepared, tmp_path_factory):
    run = tower_run(inputs, shutil.copytree(prepared, tmp_path_factory.mktemp("more") / "run"), 4)
    execute(run, "train", "encode")
    return run


def copy(finished, folder, steps):
    config = finished.config.copy_and_resolve_references()
    config.train.steps = steps
    return Run(config, shutil.copytree(finished.folder, folder / "run"), finished.lock)


def losses(run):
    lines = map(json.loads, (run.folder / "metrics" / "train.jsonl").read_text().splitlines())
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


def parameters(run, step):
    config = run.config
    vocabulary = run.load_vocabulary()
    like = train_state.abstract_state(config, abstract_model(config, len(vocabulary)), make_mesh(config))
    checkpointer = train_state.open_checkpoints(run.folder, config)
    restored = checkpointer.restore(like, step=step).params
    checkpointer.close()
    return jax.tree.leaves(restored)


def test_it_goes_on_and_the_later_stages_run_again(finished, tmp_path, caplog):
    run = copy(finished, tmp_path, 8)
    before, embedded = losses(run), records.read_record(run, "encode")["outputs"]
    preflight.check(run, ["train", "encode"])
    with caplog.at_level("WARNING", logger="retrieval"):
        execute(run, "train", "encode")
    assert "finished with 4 steps, and goes on to 8 with the learning rates of 8" in caplog.text
    after = losses(run)
    assert list(after) == list(range(1, 9)) and {step: after[step] for step in before} == before
    details = records.details(run, "train")
    assert (details["step"], details["steps"], details["went on from"]) == (8, 8, [4])
    assert records.read_record(run, "encode")["outputs"] != embedded
    execute(run, "train", "encode")  # nothing to do
    assert records.details(run, "train")["went on from"] == [4]


def start_at(finished, inputs, folder, step, **changes):
    source = {"base": str(finished.folder), "corpus": "", "train.init_from": str(finished.folder)}
    source |= {"train.init_step": step, "stages": ("train", "encode")}
    return make_run("ict", inputs, folder, **CHEAP, **(source | changes))


def test_named_steps_stay_beside_the_newest_and_a_run_adopts_one_of_them(whole_and_cut, inputs, tmp_path):
    whole, _ = whole_and_cut
    assert checkpoint.steps_in(whole.folder / "checkpoints") == [6, 7, 8]
    run = start_at(whole, inputs, tmp_path / "run", 7, stages=("adopt", "encode"))
    preflight.check(run, ["adopt", "encode"])
    execute(run, "adopt", "encode")
    with pytest.raises(UserError, match="stage 'train': the model of this run is that of its stage 'adopt'"):
        preflight.check(run, ["train"])
    assert records.details(run, "train")["step"] == 0
    for ours, theirs, last in zip(parameters(run, 0), parameters(whole, 7), parameters(whole, 8)):
        np.testing.assert_array_equal(ours, theirs)
        assert not np.array_equal(theirs, last)
    run = start_at(whole, inputs, tmp_path / "other", 2)
    with pytest.raises(UserError, match=r"init_step=2: .* keeps no checkpoint of that step, but of 6, 7, 8: take"):
        preflight.check(run, ["train"])


def _stopped(do, *args):
    """Training whose machine goes away after step 6."""
    return do(*args[:-1], dataclasses.replace(args[-1], must_stop=lambda step: step == 6))


def test_fewer_steps_and_other_settings_are_refused(finished, tmp_path):
    run = copy(finished, tmp_path, 3)
    with pytest.raises(UserError, match=r"config\.train\.steps: 4 there, 3 now"):
        protected.check_run(run)
    run.config.train.steps, run.config.train.learning_rate = 8, 1e-3
    with pytest.raises(UserError, match=r"config\.train\.learning_rate: 0\.01 there, 0\.001 now"):
        protected.check_run(run)
    run.config.train.learning_rate = 1e-2
    records.write_record(run, "train", records.read_record(run, "train") | {"done": False})
    with pytest.raises(UserError, match=r"config\.train\.steps: 4 there, 8 now"):  # of a run that is not finished
        protected.check_run(run)


def test_steps_that_were_never_begun_may_be_taken_back(finished, tmp_path):
    """The larger number is in config.json as soon as a command has begun."""
    run = copy(finished, tmp_path, 8)
    runner.open_run(run)
    run.config.train.steps = 4
    trained = records.read_record(run, "train")
    execute(run, "train", "encode")
    assert json.loads((run.folder / "config.json").read_text())["train"]["steps"] == 4
    assert records.read_record(run, "train") == trained


@pytest.fixture(scope="module")
def whole_and_cut(inputs, prepared, tmp_path_factory):
    """A run of 8 steps, and one that was cut off after step 6, as folders."""
    folders = [shutil.copytree(prepared, tmp_path_factory.mktemp(name) / "run") for name in ("whole", "cut")]
    whole, cut = (tower_run(inputs, folder, 8, **{"loop.keep_steps": (6, 7)}) for folder in folders)
    execute(whole, "train")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train.loop, "train", functools.partial(_stopped, train.loop.train))
        with pytest.raises(PreemptedError):
            execute(cut, "train")
    return whole, cut


@pytest.mark.parametrize(("asked", "last"), [(7, 7), pytest.param(3, 6, marks=pytest.mark.long)])
def test_an_unfinished_run_ends_early(whole_and_cut, tmp_path, caplog, asked, last):
    """It has the parameters that the whole run had then; where it is further than that, it ends at once."""
    whole, cut = whole_and_cut
    run = copy(cut, tmp_path, asked)
    with caplog.at_level("INFO", logger="retrieval"):
        execute(run, "train", "encode")
    assert f"train: ends after step {last} of the 8 that were planned, and is at 6" in caplog.text
    assert f"train: step {last} of {last} is the result" in caplog.text
    details = records.details(run, "train")
    assert (details["step"], details["steps"], details["went on from"]) == (last, last, [])
    for ours, theirs in zip(parameters(run, last), parameters(whole, last)):
        np.testing.assert_array_equal(ours, theirs)
    execute(run, "train", "encode")  # nothing to do
    run.config.train.steps = 8
    execute(run, "train")
    assert records.details(run, "train")["went on from"] == [last]


@pytest.mark.long
def test_a_length_in_minutes_is_measured_once(inputs, prepared, tmp_path, caplog, monkeypatch):
    """The first steps of a slower machine, or a faster one, change nothing in a run that has begun."""
    run = tower_run(inputs, shutil.copytree(prepared, tmp_path / "run"), 50, **{"train.minutes": 1.0})
    monkeypatch.setattr(training_length, "measure_step", lambda *_: 7.5)
    with monkeypatch.context() as patch, caplog.at_level("INFO", logger="retrieval"):
        patch.setattr(train.loop, "train", functools.partial(_stopped, train.loop.train))
        with pytest.raises(PreemptedError):
            execute(run, "train")
    assert "a step takes 7.5 s here, so 8 of 50 steps are trained, in 1 minutes" in caplog.text
    monkeypatch.setattr(training_length, "measure_step", lambda *_: pytest.fail("it is measured again"))
    execute(run, "train")
    assert records.details(run, "train")["step"] == 8
    monkeypatch.setattr(training_length, "measure_step", lambda *_: 10.0)
    for minutes, steps in ((1.5, 9), (0.0, 50)):
        run.config.train.minutes = minutes
        preflight.check(run, ["train"])
        protected.check_run(run)
        if minutes:
            execute(run, "train")
            assert records.details(run, "train")["step"] == steps
    run.config.train.minutes = 1.0
    with pytest.raises(UserError, match=r"config\.train\.minutes: 1\.5 there, 1\.0 now"):
        protected.check_run(run)
