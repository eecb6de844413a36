"""Faults, and what is left of a run after them.

    .venv/bin/python -m pytest -m long tests/faults_test.py

kills a run a hundred times.
"""

import contextlib
import dataclasses
import functools
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from random import Random

import numpy as np
import pytest
from conftest import REPOSITORY
from ml_collections import ConfigDict
from support import children, tiny
from support.run_results import metrics, results, state

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.common.runtime import signals
from retrieval.runs.pipeline import protected, records, runner
from retrieval.runs.pipeline.run import Run
from retrieval.training.checkpoint import Checkpointer

SMALL = {
    "model.dropout": 0.1,
    "train.steps": 24,
    "train.batch_size": 8,
    "loop.checkpoint_every": 4,
    "loop.validate_every": 8,
    "loop.validate_queries": 8,
    "loop.validate_candidates": 16,
    "encode.batch_tokens": 512,
    "encode.shard_size": 20,
    "encode.untrained": False,
    "encode.corpus": False,
}


@pytest.fixture(scope="module")
def command(inputs):
    """Makes the command of a whole run on the toy corpus in a folder, from dump to results."""
    stages = "('prepare', 'sets', 'train', 'encode', 'index', 'evaluate', 'export')"
    given = ["--config=configs/ict_bfs_wlp.py:local", f"--config.corpus={inputs}/dump.xml", f"--config.stages={stages}"]
    given += ["--config.sets.pydocs=False", "--config.data.held_out=0.1", "--config.index.dense=exact"]
    given += [*tiny.as_flags(**SMALL), f"--config.sets.reqa={inputs / 'squad.json'}"]
    return lambda folder: [f"--workdir={folder}", *given]


@pytest.fixture(scope="module")
def whole(command, prepared, tmp_path_factory):
    """The work directory of a run that nothing happened to."""
    folder = shutil.copytree(prepared, tmp_path_factory.mktemp("whole") / "run")
    assert children.run(command(folder), folder.with_suffix(".log")) == 0, folder.with_suffix(".log").read_text()
    return folder


def saved(step):
    """Folders of which one is there as soon as this step is saved, however fast the machine is."""
    return [f"checkpoints/{later}" for later in range(step, SMALL["train.steps"] + 1)]


# What a run has finished or saved before it is killed, and the most seconds until then.
IN_TRAINING = (saved(4), 1.0)
MOMENTS = [((), 6.0), IN_TRAINING, (["stages/train.json"], 1.0), (["stages/evaluate.json"], 0.3)]
MOMENTS += [(["stages/sets.json"], 0.3), (["stages/encode.json"], 0.3), (["stages/index.json"], 0.5)]


def survive(command, folder, moments, kills, seed):
    """Kills the run again and again, and lets it end."""
    random, log, hits = Random(seed), folder.with_suffix(".log"), 0
    for kill in range(kills):
        landmarks, most = moments[kill * len(moments) // kills]
        strike = children.Strike([folder / landmark for landmark in landmarks], random.uniform(0, most))
        code = children.run(command(folder), log, strike)
        assert code in (0, -signal.SIGKILL), log.read_text()
        hits += code != 0
    assert hits >= kills / 2
    assert children.run(command(folder), log) == 0, log.read_text()


def assert_same_outcome(folder, other):
    """Corpus, parameters, optimizer state, position, metrics, embeddings, index and results, to the last bit."""
    for name in ("corpus", "sets", "embeddings", "index", "runs", "export"):
        ours, theirs = ({p.relative_to(f): p for p in (f / name).rglob("*") if p.is_file()} for f in (folder, other))
        assert ours.keys() == theirs.keys() and ours
        for path in ours:
            assert ours[path].read_bytes() == theirs[path].read_bytes(), path
    assert results(folder) == results(other)
    assert metrics(folder) == metrics(other)
    assert Checkpointer(folder / "checkpoints").latest_step() == Checkpointer(other / "checkpoints").latest_step()
    for a, b in zip(state(folder), state(other), strict=True):
        np.testing.assert_array_equal(a, b)
    for position in (other / "checkpoints").rglob("data/*"):
        if position.suffix == ".json":
            assert (folder / position.relative_to(other)).read_bytes() == position.read_bytes()


def test_a_killed_run_ends_as_a_whole_one(command, whole, tmp_path):
    """Killed in training, which its corpus and sets come before; the long tests kill it everywhere."""
    others = {path.name for path in whole.iterdir()} - {"corpus", "sets", "stages", "config.json"}
    later = ("train.json", "encode.json", "index.json", "evaluate.json", "export.json")
    shutil.copytree(whole, tmp_path / "run", ignore=shutil.ignore_patterns(*others, *later))
    survive(command, tmp_path / "run", [IN_TRAINING], kills=1, seed=0)
    assert_same_outcome(tmp_path / "run", whole)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 5))
def test_a_run_that_is_killed_over_and_over(command, whole, seed, tmp_path):
    survive(command, tmp_path / "run", MOMENTS, kills=25, seed=seed)
    assert_same_outcome(tmp_path / "run", whole)


@pytest.mark.parametrize("when", ["start", pytest.param("training", marks=pytest.mark.long)])
def test_sigterm_ends_a_run_with_the_restart_code(command, whole, tmp_path, when):
    folder, log = tmp_path / "run", tmp_path / "log.txt"
    if when == "training":  # with nothing left to do before it
        shutil.copytree(whole, folder, ignore=shutil.ignore_patterns("train.json", "checkpoints", "metrics"))
    landmarks, after = {"start": (["config.json"], 0.3), "training": (saved(4), 0.0)}[when]
    strike = children.Strike([folder / landmark for landmark in landmarks], after, signal.SIGTERM)
    code = children.run(command(folder), log, strike)
    ended, said = time.monotonic(), log.read_text()
    assert code == signals.EXIT_CODE and ended - float(re.search(r"struck at (\S+)", said)[1]) < 30, said
    assert "the same command goes on from there" in said and "Traceback" not in said


def test_a_process_that_hears_nothing_is_gone_in_time():
    code = "import hashlib; from retrieval.common.runtime import signals; signals.grace = 1; "
    code += "signals.heed(lambda: None); print(flush=True); "
    busy = "hashlib.pbkdf2_hmac('sha256', b'', b'', 2 * 10**8)"  # Python hears no signal before it is through
    with subprocess.Popen([sys.executable, "-c", code + busy], cwd=REPOSITORY, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        time.sleep(0.5)
        process.terminate()
        assert process.wait(timeout=20) == signals.EXIT_CODE


def make_run(folder):
    return Run(ConfigDict(json.loads((folder / "config.json").read_text())), folder, REPOSITORY / "requirements.lock")


@pytest.fixture
def copy(whole, tmp_path):
    """A run that nothing has happened to yet."""
    return make_run(shutil.copytree(whole, tmp_path / "run"))


def guards(run):
    """Every file that has a checksum somewhere, and what verifies it."""
    found = {}
    for name in run.config.stages:
        sums = records.read_record(run, name)["outputs"]
        verify = functools.partial(files.verify_checksums, run.folder)
        found |= {run.folder / path: functools.partial(verify, {path: sum}, "") for path, sum in sums.items()}
    for manifest in run.folder.rglob("manifest.json"):
        verify = functools.partial(files.verify_manifest, manifest.parent, "")
        found |= {manifest.parent / path: verify for path in json.loads(manifest.read_text())} | {manifest: verify}
    for name in run.config.stages:
        found[run.record(name)] = functools.partial(records.read_record, run, name)
    return found


def test_every_artefact_has_a_checksum(copy):
    without = {path.relative_to(copy.folder).as_posix() for path in copy.folder.rglob("*") if path.is_file()}
    without -= {path.relative_to(copy.folder).as_posix() for path in guards(copy)}
    # For people, and for the next run: none of it is read as a result.
    known = re.compile(
        r".*/_CHECKPOINT_METADATA|.*/commit_success\.txt|\.lock|config\.json|report\..*|metrics/.*|plots/.*|stages/report\.json"
    )
    assert not [path for path in without if not known.fullmatch(path)]


def damage(random, path, others):
    """Flips a bit, cuts off an end, deletes, or puts another file in its place; None where nothing would change."""
    before = path.read_bytes()
    kinds = ["flip", "cut", "swap"] + ["delete"] * (path.parent.name != "stages")  # without a record it has not run
    kind = random.choice(kinds)
    if kind == "delete":
        path.unlink()
        return before
    other = random.choice(others)
    if kind == "flip" and before:
        place = random.randrange(len(before))
        after = before[:place] + bytes([before[place] ^ 1 << random.randrange(8)]) + before[place + 1 :]
    else:
        after = before[: random.randrange(len(before) + 1)] if kind == "cut" else other.read_bytes()
    path.write_bytes(after)
    return before if meaning(path, after) != meaning(path, before) else None


def meaning(path, content):
    """White space between the values of a manifest or a record says nothing; of other files every byte counts."""
    if path.name == "manifest.json" or path.parent.name == "stages":
        with contextlib.suppress(ValueError):
            return json.loads(content)
    return content


def test_a_thousand_damages_are_all_seen(copy):
    random, guarded, seen = Random(0), guards(copy), 0
    paths = sorted(guarded)
    while seen < 1000:
        path = random.choice(paths)
        before = damage(random, path, paths)
        if before is None:
            continue
        with pytest.raises(UserError):
            guarded[path]()
            raise AssertionError(f"damage {seen} to {path} was not seen")
        path.write_bytes(before)
        seen += 1
    for verify in guarded.values():  # all is whole again
        verify()


@pytest.mark.parametrize(
    "artefact, stage, message",
    [
        ("corpus/passages-00000*.tfrecord", "train", "--stage=prepare makes it again"),
        ("embeddings/reqa/*/candidates-00000*.npy", "evaluate", "--stage=encode makes it again"),
        ("index/reqa/bm25/*", "evaluate", "--stage=index makes it again"),
        ("checkpoints/*/state/d/*", "encode", "delete .* and train again"),
    ],
)
def test_what_is_damaged_is_not_read(copy, artefact, stage, message):
    for path in [path for path in copy.folder.glob(artefact) if path.is_file() and path.name != "manifest.json"]:
        path.write_bytes(path.read_bytes()[:-1])
    copy.record(stage).unlink()
    with pytest.raises(UserError, match=rf"damaged, its SHA-256 is not that of what was written; .*{message}"):
        runner.run_stage(copy, stage)


@pytest.mark.parametrize(
    "stage, name", [("sets", "sets/reqa/corpus.jsonl"), ("index", "index/reqa/bm25/manifest.json"), ("index", "index")]
)
def test_a_damaged_stage_is_made_again(copy, whole, stage, name):
    path = copy.folder / name
    for file in [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]:
        file.write_text("")
    runner.run_stage(copy, stage)
    for file in [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]:
        assert file.read_bytes() == (whole / file.relative_to(copy.folder)).read_bytes()


def test_a_damaged_score_chooses_no_other_checkpoint(copy):
    step = str(records.details(copy, "train")["step"])
    path = copy.folder / "checkpoints" / step / "metrics" / "metrics"
    path.write_text(json.dumps(dict.fromkeys(json.loads(path.read_text()), 0.0)))
    copy.record("encode").unlink()
    with pytest.raises(UserError, match=rf"{step}/metrics/metrics: damaged"):
        runner.run_stage(copy, "encode")


def test_nothing_is_kept_of_a_stage_without_record(copy, whole):
    """Nobody knows what it was made from."""
    path = next((copy.folder / "embeddings" / "reqa").rglob("candidates-*-of-?????.npy"))
    np.save(path, np.zeros_like(np.load(path)))
    copy.record("encode").unlink()
    runner.run_stage(copy, "encode")
    np.testing.assert_allclose(np.load(path), np.load(whole / path.relative_to(copy.folder)), atol=1e-5)
    copy.record("train").unlink()
    with pytest.raises(UserError, match=r"work directory of another config:\n  config\.train\.learning_rate: "):
        protected.check_run(other_settings(copy))


def other_settings(run):
    config = run.config.copy_and_resolve_references()
    config.train.learning_rate, config.encode.shard_size = 1.0, 19
    return dataclasses.replace(run, config=config)


def test_a_second_run_in_the_same_folder_is_refused(copy):
    code = "import sys; from pathlib import Path; from retrieval.common import files; files.lock(Path(sys.argv[1]))"
    wait = "; print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code + wait, str(copy.folder)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        with pytest.raises(UserError, match=rf"another run writes to it \(process {other.pid} on .*\); wait for it"):
            runner.take_run(copy)
        other.kill()
    runner.take_run(copy)
