"""Work directories of versions that lacked a field."""

import json

import pytest
from conftest import REPOSITORY

from configs import bm25
from retrieval.config import experiment, fields
from retrieval.config.fields import Field, whole
from retrieval.errors import UserError
from retrieval.pipeline import preflight, records, runner
from retrieval.pipeline.stage import STAGES, Stage
from retrieval.stage_outputs import Run


@pytest.fixture
def older(monkeypatch, own_table, tmp_path):
    """A run with two finished stages, one of which is fixed. `add` then declares a field that it lacks."""
    experiment.load_fields()
    monkeypatch.setattr(fields, "_FIELDS", dict(fields._FIELDS))
    own_table(STAGES)
    made = []
    for name in ("copied", "learned"):
        stage = Stage(
            lambda run, name=name: made.append(name) or (run.folder / name).write_text(""),
            settings=("train",),
            outputs=(name,),
            fixed=name == "learned",
        )
        STAGES.register(name, stage)
    config = bm25.get_config()
    config.stages = ("copied", "learned")
    run = Run(config, tmp_path, REPOSITORY / "requirements.lock")
    again(run)
    assert made == ["copied", "learned"]
    made.clear()
    return made


def again(run):
    runner.take_run(run)
    for name in run.config.stages:
        runner.run_stage(run, name)


def opened(folder, **changes):
    config = preflight.read_config(folder)
    config.update_from_flattened_dict(changes)
    return Run(config, folder, REPOSITORY / "requirements.lock")


def test_a_new_fields_old_value_changes_nothing(older, tmp_path):
    fields.declare("train", parts=Field(4, whole(1), "parts of a batch", was=1))
    fields.declare("train.new", rate=Field(3, whole(0), "in a group that is new", was=0))
    run = opened(tmp_path)
    assert run.config.train.parts == 1 and run.config.train.new.rate == 0  # not the defaults of today
    again(run)
    assert older == []
    assert json.loads((tmp_path / "config.json").read_text())["train"]["parts"] == 1
    again(opened(tmp_path))  # with the field written down
    assert older == []


def test_a_new_fields_other_value_is_a_change(older, tmp_path):
    fields.declare("train", parts=Field(4, whole(1), "parts of a batch", was=1))
    run = opened(tmp_path, **{"train.parts": 4})
    assert not records.has_settings(run, "copied")
    with pytest.raises(UserError, match=r"another config:\n  config\.train\.parts: 1 there, 4 now"):
        runner.take_run(run)


def test_a_field_that_says_nothing_of_before_is_missing(older, tmp_path):
    fields.declare("train", parts=Field(1, whole(1), "parts of a batch"))
    with pytest.raises(UserError, match=r"config\.train\.parts is missing"):
        opened(tmp_path)


def test_a_base_without_a_field_has_its_old_behaviour(older, tmp_path):
    fields.declare("train", parts=Field(4, whole(1), "parts of a batch", was=1))
    config = opened(tmp_path).config
    config.base = str(tmp_path)
    assert Run(config, tmp_path / "next", REPOSITORY / "requirements.lock").chain[1].config.train.parts == 1


def test_values_of_before_may_be_set():
    experiment.load_fields()
    for path, field in fields.declared().items():
        if field.was is not None:
            fields.check_value(path, field.was, field.kind)
