"""Checkpoints that stay for a curve, and runs that start from one of them."""

import shutil

import jax
import numpy as np
import pytest
from support.tiny import CHEAP, execute, make_run

from retrieval.common.errors import UserError
from retrieval.recipes.parameters import make_mesh
from retrieval.recipes.recipe import abstract_model
from retrieval.runs.pipeline import preflight, records
from retrieval.runs.weights import train_state
from retrieval.training import checkpoint


@pytest.fixture(scope="module")
def curve(inputs, prepared, tmp_path_factory):
    changes = CHEAP | {"train.steps": 6, "loop.keep_steps": (1, 3)}
    folder = shutil.copytree(prepared, tmp_path_factory.mktemp("curve") / "run")
    run = make_run("ict", inputs, folder, **changes)
    execute(run, "train")
    return run


def start_at(curve, inputs, folder, step, **changes):
    source = {"base": str(curve.folder), "corpus": "", "train.init_from": str(curve.folder), "train.init_step": step}
    source["stages"] = ("train", "encode")
    return make_run("ict", inputs, folder, **CHEAP, **(source | changes))


def parameters(run, step):
    config = run.config
    like = train_state.abstract_state(config, abstract_model(config, len(run.load_vocabulary())), make_mesh(config))
    return jax.tree.leaves(checkpoint.Checkpointer(run.folder / "checkpoints").restore(like, step=step).params)


def test_named_steps_stay_beside_the_newest_and_a_run_adopts_one_of_them(curve, inputs, tmp_path):
    assert checkpoint.steps_in(curve.folder / "checkpoints") == [1, 3, 4, 6]
    run = start_at(curve, inputs, tmp_path / "run", 3, stages=("adopt", "encode"))
    preflight.check(run, ["adopt", "encode"])
    execute(run, "adopt", "encode")
    with pytest.raises(UserError, match="stage 'train': the model of this run is that of its stage 'adopt'"):
        preflight.check(run, ["train"])
    assert records.details(run, "train")["step"] == 0
    for ours, theirs, last in zip(parameters(run, 0), parameters(curve, 3), parameters(curve, 6)):
        np.testing.assert_array_equal(ours, theirs)
        assert not np.array_equal(theirs, last)


def test_a_step_that_was_not_kept_is_refused(curve, inputs, tmp_path):
    run = start_at(curve, inputs, tmp_path / "run", 2)
    with pytest.raises(UserError, match=r"init_step=2: .* keeps no checkpoint of that step, but of 1, 3, 4, 6: take"):
        preflight.check(run, ["train"])
