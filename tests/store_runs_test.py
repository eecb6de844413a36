"""Whole runs with a work directory on an object store, which here is a folder that behaves like one."""

import os
import shutil

import numpy as np
import pytest
from support import toy_store
from support.run_results import metrics, results, state
from support.tiny import CHEAP, fine_tuning, make_run
from support.toy_store import URL, contents, dies_at

import retrieval
from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.common.runtime import artefacts, lease
from retrieval.runs.pipeline import downloads, preflight, records, runner
from retrieval.runs.pipeline.run import Run
from retrieval.runs.pipeline.stage import STAGES
from retrieval.stages import train

pytest_plugins = ["support.machines_of_a_store"]
pytestmark = pytest.mark.usefixtures("free_leases")

CHANGES = CHEAP | {"train.steps": 6, "index.dense": "exact", "encode.corpus": False}


def execute(run, copy, names=()):
    """What `retrieval.main` does with a work directory on a store."""
    run = Run(run.config, copy.folder, run.lock, remote=copy)
    names = names or run.config.stages
    preflight.check(run, names)
    runner.take_run(run)
    for name in names:
        runner.run_stage(run, name)
    return run


def toy_run(inputs):
    with artefacts.opened(URL) as copy:
        return execute(make_run("ict_bfs_wlp", inputs, copy.folder, **CHANGES), copy)


@pytest.fixture(scope="module")
def whole(inputs, tmp_path_factory):
    """A run that nothing happens to, what the store has of it in the end, and the arrays that it ends with."""
    place = tmp_path_factory.mktemp("whole")
    bucket = toy_store.bucket(place / "bucket")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lease, "_A_MOMENT", 0)
        patch.setenv("RETRIEVAL_SCRATCH", str(place / "scratch"))
        run = toy_run(inputs)
        return run, bucket, state(run.folder)


DEATHS = [
    ("write", "corpus/vocab.txt"),
    ("write", "checkpoints/2/manifest.json"),
    ("delete", "checkpoints/2/state"),
    ("write", "stages/train.json"),
    ("write", "results.json"),
]


# The second is one of a checkpoint.
@pytest.mark.parametrize("deaths", [DEATHS[1:2], pytest.param(DEATHS, marks=pytest.mark.long)], ids=["one", "all"])
def test_dying_machines_change_nothing_of_a_run(inputs, whole, bucket, machine, deaths):
    """Each with a disk of its own, and all with one store, which has what the folder has."""
    finished, _, arrays = whole
    for number, death in enumerate(deaths):
        machine(f"machine-{number}")
        bucket.fails = dies_at(*death)
        with pytest.raises(UserError, match=r"s3://bucket/run/.* cannot be .*the machine is gone.*the same command"):
            toy_run(inputs)
    machine("last")
    bucket.fails = lambda *_: None
    run = toy_run(inputs)
    tops = ("corpus", "sets", "embeddings", "index", "runs")
    assert contents(run.folder, tops) == contents(finished.folder, tops)
    assert results(run.folder) == results(finished.folder) and metrics(run.folder) == metrics(finished.folder)
    for a, b in zip(state(run.folder), arrays, strict=True):
        np.testing.assert_array_equal(a, b)
    there = {name.removeprefix("bucket/run/"): bucket.path(name).read_bytes() for name in bucket.names()}
    seals = {name for name in there if not name.startswith("checkpoints/") or name.endswith("manifest.json")}
    here = contents(run.folder, ["."])
    assert {name: there[name] for name in seals} == {name: here[name] for name in here if name != files.LOCK}


@pytest.fixture
def copied(whole, tmp_path, machine):
    """The finished run on a store that may be spoilt; no machine has anything of it."""
    return toy_store.bucket(shutil.copytree(whole[1].path(""), tmp_path / "copied"))


def test_a_finished_run_is_current_on_another_machine(inputs, copied, machine, monkeypatch):
    """Although its inputs have other times there; the second time nothing is copied down."""
    os.utime(inputs / "dump.xml")
    before = {name: copied.path(name).read_bytes() for name in copied.names() if "/stages/" in name}
    for first in (True, False):
        copied.log.clear()
        with artefacts.opened(URL) as copy:
            run = make_run("ict_bfs_wlp", inputs, copy.folder, **CHANGES)
            execute(run, copy, [name for name in run.config.stages if name != "report"])
        data = [name for kind, name in copied.log if kind == "read" and not name.endswith("/manifest.json")]
        read = {name.split("/")[2] for name in data}
        assert (read >= {"corpus", "sets", "embeddings", "index"}) == first
        assert first or not read & {"corpus", "sets", "embeddings", "index"}
    assert before == {name: copied.path(name).read_bytes() for name in before}


@pytest.mark.parametrize(
    ("damaged", "stage"),
    [("corpus/vocab.txt", "train"), ("sets/reqa/queries.jsonl", "index"), ("embeddings/", "index")],
)
def test_a_flipped_byte_on_the_store_is_noticed(inputs, copied, damaged, stage):
    path = copied.path(next(name for name in copied.names() if name.startswith(f"bucket/run/{damaged}")))
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
    copied.path(f"bucket/run/stages/{stage}.json").unlink()
    with artefacts.opened(URL) as copy:
        run = make_run("ict_bfs_wlp", inputs, copy.folder, **CHANGES)
        with pytest.raises(UserError, match="damaged, its SHA-256 is not that of what was written"):
            execute(run, copy, [stage])


def test_a_base_may_be_on_a_store(inputs, copied, tmp_path, machine):
    """And starts from its parameters; it writes nothing there, and is up to date on another machine."""
    copied.log.clear()
    changes = CHEAP | {"base": URL, "train.init_from": URL, "train.steps": 2, "stages": ("sets", "pairs", "train")}
    for name in ("one", "other"):
        machine(name)
        run = fine_tuning(inputs, "", tmp_path / "run", **changes)
        preflight.check(run, run.config.stages)
        runner.take_run(run)
        for stage in run.config.stages:
            runner.run_stage(run, stage)
        if name == "one":
            trained = records.read_record(run, "train")
    assert records.read_record(run, "train") == trained
    assert {kind for kind, _ in copied.log} == {"read", "list"}
    assert not [name for _, name in copied.log if "/index/" in name or "/embeddings/" in name]


def test_a_search_brings_down_what_the_shell_alone_named(inputs, copied):
    """Stages that were run with --stage and are not in config.stages."""
    with artefacts.opened(URL) as copy:
        run = make_run("ict_bfs_wlp", inputs, copy.folder, **CHANGES, stages=("prepare", "train"))
        downloads.bring(Run(run.config, copy.folder, run.lock, remote=copy), ["search"])
    assert {"corpus", "sets", "index", "embeddings"} <= {path.name for path in copy.folder.iterdir()}


def test_a_model_is_loaded_from_a_store(whole, copied):
    model = retrieval.load(URL)
    assert repr(model) == f"Model({URL})"
    expected = retrieval.load(whole[0].folder).encode_query(["red fox"])
    np.testing.assert_allclose(model.encode_query(["red fox"]), expected, atol=1e-6)


def test_a_bad_batch_is_copied_to_the_store(inputs, copied, monkeypatch):
    def fail(*given):
        settings = given[4]
        files.write_text(settings.bad_batches / "step-3-host-0.npz", "values")
        raise UserError("step 3: loss or gradient was not finite")

    monkeypatch.setattr(train.loop, "train", fail)
    with artefacts.opened("s3://bucket/other") as copy, pytest.raises(UserError, match="step 3: loss"):
        execute(make_run("ict_bfs_wlp", inputs, copy.folder, **CHANGES, base=URL, stages=("train",)), copy)
    copied.log.clear()
    again = artefacts.Artefacts("s3://bucket/other")
    again.get(STAGES["train"].side_outputs)
    assert (again.folder / "bad_batches" / "step-3-host-0.npz").read_text() == "values"
