"""Work directories on an object store, which here is a folder that behaves like one, with machines that die."""

import itertools
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from conftest import REPOSITORY
from support import toy_store
from support.command_flags import forget_flags
from support.run_results import metrics, results, state
from support.tiny import CHEAP, fine_tuning, make_run

import retrieval
from retrieval import files, main
from retrieval.cli import command_line
from retrieval.errors import UserError
from retrieval.pipeline import downloads, preflight, records, runner
from retrieval.pipeline.stage import STAGES
from retrieval.recipes import initial_parameters
from retrieval.recipes.placement import local_mesh, parameters_of
from retrieval.recipes.towers import Embedder, query_tokens
from retrieval.runtime import ending, lease, mirror, store_copy
from retrieval.runtime.mirror import Follower
from retrieval.runtime.store import Store
from retrieval.stage_outputs import Run
from retrieval.stages import train
from retrieval.stages.train import FOLLOWED

pytestmark = pytest.mark.usefixtures("one_device")

URL = "toy://bucket/run"
CHANGES = CHEAP | {"train.steps": 6, "index.dense": "exact", "encode.corpus": False}


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Nobody else takes a lease, and those of dead machines have run out."""
    monkeypatch.setattr(lease, "_A_MOMENT", 0)
    monkeypatch.setattr(lease, "_VALID", 0)
    monkeypatch.setattr(lease, "_RENEWED_AFTER", 3600)


@pytest.fixture
def bucket(tmp_path):
    return toy_store.bucket(tmp_path / "bucket")


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Makes another machine this one: an empty disk, and nothing is known of any store."""

    def start(name):
        monkeypatch.setenv("RETRIEVAL_SCRATCH", str(tmp_path / name))
        store_copy.copy_of.cache_clear()

    start("first")
    return start


def execute(run, copy, names=()):
    """What `retrieval.main` does with a work directory on a store."""
    run = Run(run.config, copy.folder, run.lock, copy=copy)
    names = names or run.config.stages
    preflight.check(run, names)
    runner.take_run(run)
    for name in names:
        runner.run_stage(run, name)
    return run


def toy_run(inputs):
    with mirror.opened(URL) as copy:
        return execute(make_run("ict_bfs_wlp", inputs, copy.folder, **CHANGES), copy)


@pytest.fixture(scope="module")
def whole(inputs, tmp_path_factory):
    """A run that nothing happens to, in a folder, and what the store has of it in the end."""
    place = tmp_path_factory.mktemp("whole")
    bucket = toy_store.bucket(place / "bucket")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lease, "_A_MOMENT", 0)
        patch.setenv("RETRIEVAL_SCRATCH", str(place / "scratch"))
        return toy_run(inputs), bucket


def contents(folder, tops):
    """Every file of these, by its path."""
    paths = (path for top in tops for path in (folder / top).rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def dies_at(kind, name):
    """From the first such operation on, nothing can be done any more."""
    dead = []

    def fails(now, on):
        if dead or (now == kind and name in on):
            dead.append(on)
            return OSError("the machine is gone")

    return fails


DEATHS = [
    ("write", "corpus/vocab.txt"),
    ("write", "checkpoints/2/manifest.json"),
    ("delete", "checkpoints/2/manifest.json"),
    ("write", "stages/train.json"),
    ("write", "results.json"),
]


# The second is one of a checkpoint.
@pytest.mark.parametrize("deaths", [DEATHS[1:2], pytest.param(DEATHS, marks=pytest.mark.long)], ids=["one", "all"])
def test_dying_machines_change_nothing_of_a_run(inputs, whole, bucket, machine, deaths):
    """Each with a disk of its own, and all with one store, which has what the folder has."""
    finished, _ = whole
    for number, death in enumerate(deaths):
        machine(f"machine-{number}")
        bucket.fails = dies_at(*death)
        with pytest.raises(UserError, match=r"toy://bucket/run/.* cannot be .*the machine is gone.*the same command"):
            toy_run(inputs)
    machine("last")
    bucket.fails = lambda *_: None
    run = toy_run(inputs)
    tops = ("corpus", "sets", "embeddings", "index", "runs")
    assert contents(run.folder, tops) == contents(finished.folder, tops)
    assert results(run.folder) == results(finished.folder) and metrics(run.folder) == metrics(finished.folder)
    for a, b in zip(state(run.folder), state(finished.folder), strict=True):
        np.testing.assert_array_equal(a, b)
    there = {name.removeprefix("bucket/run/"): bucket.path(name).read_bytes() for name in bucket.names()}
    here = contents(run.folder, ["."])
    assert there.keys() - {files.LOCK} == here.keys() - {files.LOCK, files.MIRROR}
    assert all(here[name] == content for name, content in there.items() if name != files.LOCK)


@pytest.fixture
def copied(whole, tmp_path, machine):
    """The finished run on a store that may be spoilt; no machine has anything of it."""
    return toy_store.bucket(shutil.copytree(whole[1].path(""), tmp_path / "copied"))


def test_a_finished_run_is_current_on_another_machine(inputs, copied, machine, monkeypatch):
    """Although its inputs have other times there; the second time nothing is copied down."""
    os.utime(inputs / "dump.xml")
    before = {name: copied.path(name).read_bytes() for name in copied.names() if "/stages/" in name}
    for reads in (50, 0):
        copied.log.clear()
        with mirror.opened(URL) as copy:
            run = make_run("ict_bfs_wlp", inputs, copy.folder, **CHANGES)
            execute(run, copy, [name for name in run.config.stages if name != "report"])
        assert sum(kind == "read" and files.LOCK not in name for kind, name in copied.log) >= reads
        assert reads or not [name for kind, name in copied.log if kind == "read" and files.LOCK not in name]
    assert before == {name: copied.path(name).read_bytes() for name in before}


@pytest.mark.parametrize(
    ("damaged", "stage"),
    [("corpus/vocab.txt", "train"), ("sets/reqa/queries.jsonl", "index"), ("embeddings/", "index")],
)
def test_a_flipped_byte_on_the_store_is_noticed(inputs, copied, damaged, stage):
    path = copied.path(next(name for name in copied.names() if name.startswith(f"bucket/run/{damaged}")))
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
    copied.path(f"bucket/run/stages/{stage}.json").unlink()
    with mirror.opened(URL) as copy:
        run = make_run("ict_bfs_wlp", inputs, copy.folder, **CHANGES)
        with pytest.raises(UserError, match="damaged, its SHA-256 is not that of what was written"):
            execute(run, copy, [stage])


def test_a_damaged_checkpoint_on_a_store_costs_its_steps(inputs, whole, copied):
    path = copied.path(next(name for name in copied.names() if "checkpoints/6/state/d/" in name))
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
    copied.path("bucket/run/stages/train.json").unlink()
    with mirror.opened(URL) as copy:
        run = execute(make_run("ict_bfs_wlp", inputs, copy.folder, **CHANGES), copy, ["train"])
    assert (run.folder / "damaged" / "6").exists()
    for a, b in zip(state(run.folder), state(whole[0].folder), strict=True):
        np.testing.assert_array_equal(a, b)
    for name, content in contents(run.folder, ["checkpoints/6"]).items():
        assert copied.path(f"bucket/run/{name}").read_bytes() == content


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


def test_child_processes_have_the_same_scratch_folder(bucket, machine, tmp_path):
    store_copy.set_scratch(tmp_path / "given")
    code = "from support import toy_store; from retrieval.runtime import store_copy; print(store_copy.Copy('toy://bucket/run').folder)"
    path = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "tests")])
    said = subprocess.check_output([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path}, text=True)
    assert said.strip() == str(store_copy.Copy(URL).folder) and said.startswith(str(tmp_path / "given"))


def test_a_search_brings_down_what_is_of_the_model(inputs, copied):
    """Of a run whose index was made before it was trained, and does not read the embeddings."""
    stages = ("prepare", "sets", "index", "train", "encode")
    with mirror.opened(URL) as copy:
        run = make_run("ict_bfs_wlp", inputs, copy.folder, **CHANGES, stages=stages)
        downloads.bring(Run(run.config, copy.folder, run.lock, copy=copy), ["search"])
    assert {"corpus", "index", "embeddings", "checkpoints"} <= {path.name for path in copy.folder.iterdir()}


def test_a_model_is_loaded_from_a_store(inputs, copied):
    model = retrieval.load(URL)
    assert repr(model) == f"Model({URL})"
    with mirror.opened(URL) as copy:
        run = make_run("ict_bfs_wlp", inputs, copy.folder, **CHANGES)
        run = Run(run.config, copy.folder, run.lock, copy=copy)
        downloads.bring(run, ["export"])
        vocabulary, mesh = run.load_vocabulary(), local_mesh(run.config)
        embedder = Embedder(run.config, vocabulary, mesh)
        params = parameters_of(initial_parameters.load_towers(run, len(vocabulary)))
        tokens = query_tokens(run.config, vocabulary, ["red fox"])
        expected = embedder.embed_rows(embedder.queries(params), tokens)
    np.testing.assert_allclose(model.encode_queries(["red fox"]), expected, atol=1e-6)


def test_a_preempted_runs_last_checkpoint_is_on_the_store(inputs, copied):
    copied.path("bucket/run/stages/train.json").unlink()
    for name in [name for name in copied.names() if "/checkpoints/" in name or "/metrics/" in name]:
        copied.path(name).unlink()
    told = []

    def preempt(kind, name):
        if kind == "write" and name.endswith("checkpoints/2/manifest.json"):
            told.append(name)
            os.kill(os.getpid(), signal.SIGTERM)

    copied.fails = preempt
    with mirror.opened(URL) as copy:
        run = make_run("ict_bfs_wlp", inputs, copy.folder, **CHANGES | {"train.steps": 500})
        with pytest.raises(ending.PreemptedError, match="which is saved"):
            execute(run, copy, ["train"])
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    newest = max(int(name.split("/")[3]) for name in copied.names() if "/checkpoints/" in name)
    assert told and f"bucket/run/checkpoints/{newest}/manifest.json" in copied.names()
    assert newest == max(int(path.name) for path in (copy.folder / "checkpoints").iterdir() if path.name.isdecimal())


def test_a_command_on_a_store_needs_no_config_later(inputs, bucket, tmp_path, monkeypatch, caplog):
    sets = ["--config.sets.pydocs=False", f"--config.sets.reqa={inputs / 'squad.json'}"]
    stages = "--config.stages=('sets', 'index', 'evaluate', 'report')"
    monkeypatch.setattr(ending, "heed_sigterm", lambda: None)
    monkeypatch.setattr(command_line, "_set_up_logging", lambda: None)
    monkeypatch.chdir(REPOSITORY)
    caplog.set_level(logging.INFO, "retrieval")
    turns = (
        ["--config=configs/bm25.py", *sets, stages],
        [],
        ["--config.evaluate.metrics=('RR@10',)", "--stage=evaluate"],
    )
    for number, given in enumerate(turns):
        forget_flags()
        argv = ["command", f"--workdir={URL}", f"--scratch={tmp_path / str(number)}", *given]
        monkeypatch.setenv("RETRIEVAL_SCRATCH", "")
        monkeypatch.setattr(sys, "argv", argv)
        with pytest.raises(SystemExit) as end:
            command_line.run(main.main)
        assert not end.value.code
    forget_flags()
    up_to_date = {name for name in ("sets", "index", "evaluate") if f"{name}: up to date" in caplog.text}
    assert up_to_date == {"sets", "index", "evaluate"} and "bucket/run/report.md" in bucket.names()
    kept = json.loads(bucket.path("bucket/run/config.json").read_text())
    assert kept["evaluate"]["metrics"] == ["RR@10"] and kept["sets"]["reqa"] == str(inputs / "squad.json")
    assert json.loads(bucket.path(f"bucket/run/{files.LOCK}").read_text())["until"] <= time.time()


def small_run(copy, last):
    """Training in small: step n adds n, every second step is saved with the version of its data, two are kept."""
    copy.bring(FOLLOWED)
    folder, checkpoints = copy.folder, copy.folder / "checkpoints"
    steps = sorted(int(path.name) for path in checkpoints.glob("*"))
    for step in steps:
        files.verify_manifest(checkpoints / str(step), "")
    first, total = (steps[-1], int((checkpoints / str(steps[-1]) / "state").read_text())) if steps else (0, 0)
    keep_two(checkpoints)
    keep_two(folder / "refreshed")
    log = folder / "metrics" / "train.jsonl"
    log.parent.mkdir(exist_ok=True)
    lines = log.read_text().splitlines() if log.exists() else []
    log.write_text("".join(f"{line}\n" for line in lines[:first]))
    assert len(lines) >= first
    follower = Follower(copy, FOLLOWED)
    follower.wait()
    for step in range(first + 1, last + 1):
        version, total = folder / "refreshed" / str(step // 4), total + step
        if not version.exists():
            sealed(version, f"of step {step // 4 * 4}")
        assert json.loads((version / "manifest.json").read_text())
        with log.open("a") as file:
            file.write(f"{step} {total}\n")
        if step % 2 == 0:
            follower.wait()
            sealed(checkpoints / str(step), str(total))
            keep_two(checkpoints)
            keep_two(version.parent)
    follower.wait()
    return first


def keep_two(folder):
    for old in sorted(folder.glob("*"), key=lambda path: int(path.name))[:-2]:
        files.remove(old)


def sealed(folder, content):
    with files.atomic(folder) as part:
        part.mkdir()
        (part / "state").write_text(content)
        files.write_manifest(part)


def small_run_on(name, machine, last=8):
    machine(name)
    with mirror.opened(URL) as copy:
        files.write_json(copy.folder / "config.json", {})
        copy.put("config.json")
        first = small_run(copy, last)
    return copy.folder, first


@pytest.fixture
def unsynced(monkeypatch):
    """Hundreds of small runs, in none of which the power fails."""
    monkeypatch.setattr(files, "_sync", lambda path: None)


@pytest.mark.parametrize("disk", ["new", "old", "same"])
def test_a_machine_may_die_at_any_store_operation(disk, tmp_path, machine, unsynced):
    """At every single operation; the next machine has an empty disk, one with an older state, or the same."""
    toy_store.bucket(tmp_path / "whole")
    wanted = contents(small_run_on("whole", machine)[0], FOLLOWED)
    deaths = 0
    for count in itertools.count(step=1 if disk == "new" else 3):
        bucket = toy_store.bucket(tmp_path / f"bucket-{count}")
        if disk == "old":
            small_run_on(f"{count}-new", machine, last=4)
        left = iter(range(count))
        bucket.fails = lambda *_, left=left: OSError("the machine is gone") if next(left, None) is None else None
        try:
            small_run_on(f"{count}-dies", machine)
        except UserError as error:
            assert "the machine is gone" in str(error)
            deaths += 1
        bucket.fails = lambda *_: None
        if next(left, None):
            break
        sealing = re.compile(r"bucket/run/checkpoints/(\d+)/manifest.json")
        copied = [int(found[1]) for kind, name in bucket.log if kind == "write" and (found := sealing.fullmatch(name))]
        folder, first = small_run_on(f"{count}-{'dies' if disk == 'same' else 'new'}", machine)
        assert first >= max(copied, default=0)
        assert contents(folder, FOLLOWED) == wanted, count
        there = {name.removeprefix("bucket/run/"): bucket.path(name).read_bytes() for name in bucket.names()}
        assert {name: there[name] for name in there if name.startswith(FOLLOWED)} == wanted, count
    assert deaths > (35 if disk == "new" else 8)


def test_what_is_half_copied_is_left_out_and_removed(bucket, machine):
    small_run_on("one", machine, last=4)
    bucket.path("bucket/run/checkpoints/6/state").write_text("half")
    folder, first = small_run_on("two", machine, last=4)
    assert first == 4 and not (folder / "checkpoints" / "6").exists()
    assert not [name for name in bucket.names() if "checkpoints/6" in name]


@pytest.mark.parametrize("damaged", ["state", "manifest.json"])
@pytest.mark.parametrize("folder", ["refreshed/1", "checkpoints/2"])
def test_a_damaged_copy_is_replaced_when_made_again(folder, damaged, bucket, machine):
    """Not before; and where it is not made again, nothing of it stays."""
    disk, _ = small_run_on("one", machine, last=4)
    there, state = bucket.path(f"bucket/run/{folder}/{damaged}"), (disk / folder / "state").read_text()
    good = there.read_bytes()
    there.write_bytes(b"[")
    for again, step in ((True, "6"), (False, "8")):
        machine(f"to-{step}")
        bucket.log.clear()
        with mirror.opened(URL) as copy:
            copy.bring(FOLLOWED)
            with copy.following(FOLLOWED) as follower:
                assert not [name for kind, name in bucket.log if kind == "write" and f"/{folder}/" in name]
                if again:
                    sealed(copy.folder / folder, state)
                else:
                    files.remove(copy.folder / folder)
                sealed(copy.folder / "checkpoints" / step, "the next")
                follower.wait()
        if again:
            assert there.read_bytes() == good
            there.write_bytes(b"[")
    assert not [name for name in bucket.names() if f"/{folder}/" in name]


@pytest.mark.parametrize("also_there", [False, True])
def test_a_checkpoint_damaged_on_the_disk_is_restored(bucket, machine, also_there):
    disk, _ = small_run_on("one", machine, last=4)
    path, there = disk / "checkpoints" / "4" / "state", bucket.path("bucket/run/checkpoints/4/state")
    good = path.read_text()
    path.write_text("damaged")
    if also_there:
        there.write_text("damaged")
    with mirror.opened(URL) as copy:
        copy.bring(FOLLOWED)
    assert path.read_text() == there.read_text() == ("damaged" if also_there else good)


def test_an_older_disk_gets_only_what_differs(bucket, machine):
    small_run_on("one", machine, last=6)
    small_run_on("two", machine, last=8)
    bucket.log.clear()
    folder, first = small_run_on("one", machine, last=8)
    assert first == 8 and sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["6", "8"]
    read = [name for kind, name in bucket.log if kind == "read"]
    assert "bucket/run/checkpoints/8/state" in read and "bucket/run/checkpoints/6/state" not in read


def test_what_hosts_have_exchanged_goes_up_once(bucket, machine):
    with mirror.opened(URL) as copy:
        for name, text in {"one": "1", "two": "2", "three": "3"}.items():
            files.write_json(copy.folder / "made" / name, text)
        copy.give(["made/one", "made/two"])
        files.write_json(copy.folder / "made" / "two", "anew")
        copy.up(["made"])
        (copy.folder / "made" / "one").unlink()
        copy.up(["made"])
    written = [name.rpartition("/")[2] for kind, name in bucket.log if kind == "write" and "/made/" in name]
    assert sorted(written) == ["one", "three", "three", "two", "two", "two"]
    assert [name for name in bucket.names() if "/made/" in name] == ["bucket/run/made/three", "bucket/run/made/two"]


def test_newer_records_of_another_machine_stay(bucket, machine):
    """A disk with the newest checkpoint has older records than the store all the same."""
    for name, value in (("one", 1), ("two", 2)):
        folder, _ = small_run_on(name, machine)
        with mirror.opened(URL) as copy:
            copy.bring(FOLLOWED)
            (folder / "stages").mkdir(exist_ok=True)
            files.write_json(folder / "stages" / "evaluate.json", value)
            copy.put("stages/evaluate.json")
    folder, first = small_run_on("one", machine)
    assert first == 8 and files.read_json(folder / "stages" / "evaluate.json") == 2
    with bucket.path("bucket/run/stages/evaluate.json").open() as file:
        assert json.load(file) == 2


def test_an_old_disk_overwrites_nothing_newer_on_the_store(bucket, machine):
    """From a snapshot of the machine that went on afterwards."""
    folder, _ = small_run_on("one", machine, last=4)
    before = shutil.copytree(folder, folder.with_name("snapshot"))
    small_run_on("one", machine, last=8)
    shutil.rmtree(folder)
    before.rename(folder)
    folder, first = small_run_on("one", machine, last=8)
    assert first == 8 and sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["6", "8"]
    assert bucket.path("bucket/run/checkpoints/8/manifest.json").exists()


def test_a_failed_background_copy_ends_the_run(bucket, machine, tmp_path, monkeypatch):
    monkeypatch.setattr(mirror, "_POLL", 0.01)
    with mirror.opened(URL) as copy, copy.following(FOLLOWED) as follower:
        bucket.fails = dies_at("write", "checkpoints/2/")
        sealed(copy.folder / "checkpoints" / "2", "1")
        with pytest.raises(UserError, match=r"checkpoints/2/state: cannot be written \(the machine is gone\)"):
            for _ in range(1000):
                follower.check()
                time.sleep(0.01)
        with pytest.raises(UserError, match="the machine is gone"):
            follower.wait()


def test_a_bad_batch_is_copied_to_the_store(inputs, copied, monkeypatch):
    def fail(state, step_fn, batches, checkpointer, writer, settings, **_):
        files.write_text(settings.bad_batches / "step-3-host-0.npz", "values")
        raise UserError("step 3: loss or gradient was not finite")

    monkeypatch.setattr(train.loop, "train", fail)
    with mirror.opened("toy://bucket/other") as copy, pytest.raises(UserError, match="step 3: loss"):
        execute(make_run("ict_bfs_wlp", inputs, copy.folder, **CHANGES, base=URL, stages=("train",)), copy)
    copied.log.clear()
    again = store_copy.Copy("toy://bucket/other")
    again.bring(STAGES["train"].leaves)
    assert (again.folder / "bad_batches" / "step-3-host-0.npz").read_text() == "values"


def test_a_second_run_is_refused(bucket, machine, monkeypatch):
    monkeypatch.setattr(lease, "_VALID", 60)
    monkeypatch.setattr(lease, "_RENEWED_AFTER", 0.01)
    monkeypatch.setattr(lease.ending, "end", lambda *_: None)  # of the first, if it were not refused
    with mirror.opened(URL):
        machine("second")
        with pytest.raises(
            UserError, match=rf"{URL}: another run writes to it \(process {os.getpid()} on .*; wait for"
        ):
            mirror.Mirror(URL)
    machine("third")
    with mirror.opened(URL):  # given back, it is free at once
        pass


def test_a_dead_run_loses_its_lease_and_writes_nothing(bucket, machine, monkeypatch):
    monkeypatch.setattr(lease, "_VALID", 0.5)
    dead = mirror.Mirror(URL)
    machine("second")
    began = time.monotonic()
    with mirror.opened(URL) as copy:
        assert time.monotonic() - began > 0.3
        for function in (lambda: dead.up(FOLLOWED), lambda: dead.put("config.json")):
            with pytest.raises(UserError, match="another run has taken it over"):
                function()
        copy.up(FOLLOWED)


def test_a_failed_renewal_does_not_prolong_a_lease(bucket, machine, monkeypatch):
    monkeypatch.setattr(lease, "_VALID", 60)
    held = mirror.Mirror(URL).lease
    before = held._until

    def refuse(kind, name):
        if kind == "write":
            raise OSError("quota")

    bucket.fails = refuse
    with pytest.raises(UserError, match="quota"):
        held.renew()
    assert held._until == before


def test_a_killed_run_resumes_at_once_on_its_machine(bucket, machine, monkeypatch):
    monkeypatch.setattr(lease, "_VALID", 60)
    killed = mirror.Mirror(URL)
    with mirror.opened(URL) as copy:
        assert copy.folder == killed.folder


LOSES = """
import sys, time
from pathlib import Path
from support import toy_store
from retrieval.runtime import lease, mirror, store_copy
lease._A_MOMENT, lease._RENEWED_AFTER = 0, 0.05
store_copy.set_scratch(Path(sys.argv[1]))
with mirror.opened("toy://bucket/run"):
    print(flush=True)
    time.sleep(60)
"""


def test_a_run_whose_lease_is_taken_ends(bucket, tmp_path):
    environment = os.environ | {"PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'tests'}"}
    command = [sys.executable, "-c", LOSES, str(tmp_path / "scratch")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, text=True, **pipes) as process:
        process.stdout.readline()
        for _ in range(100):  # it may be about to write its own
            Store(URL).write(files.LOCK, b'{"owner": "another", "who": "process 1 on x", "until": 0}')
            if process.poll() is not None:
                break
            time.sleep(0.1)
        assert process.wait() == 2 and "error: toy://bucket/run: another run has taken it over" in process.stderr.read()


def test_what_is_not_a_work_directory_is_left_alone(bucket, machine, monkeypatch):
    bucket.path("bucket/run/thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match="toy://bucket/run is not empty and not a work directory"), mirror.opened(URL):
        pass
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(UserError, match=r"--scratch=.* belongs to somebody else"):
        mirror.Mirror(URL)


def test_a_store_that_cannot_be_listed_is_named(bucket):
    bucket.path("bucket/run/corpus/../../../.bashrc").write_text("")
    with pytest.raises(UserError, match="its name leads out of a folder"):
        Store(URL).names()
    bucket.fails = lambda *_: PermissionError("no permission to list\nstack\ntrace")
    with pytest.raises(UserError) as error:
        Store(URL).names()
    assert str(error.value).startswith(f"{URL}: cannot be listed (no permission to list); see that the bucket")
