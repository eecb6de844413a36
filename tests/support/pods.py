"""Pods of processes on this machine, with fake CPU devices."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time

import pytest
from conftest import REPOSITORY
from ml_collections import ConfigDict

from retrieval.common.runtime import artefacts
from retrieval.recipes.parameters import parameters_of
from retrieval.runs.weights import trained_run
from support import children, tiny

SMALL = {
    "prepare.shards": 8,
    "data.lanes": 8,
    "data.held_out": 0.1,
    "model.dropout": 0.1,
    "train.steps": 12,
    "loop.log_every": 1,
    "loop.checkpoint_every": 4,
    "loop.validate_every": 6,
    "loop.validate_queries": 8,
    "loop.validate_candidates": 16,
}

STAGES = "prepare,sets,train,encode"
TOPS = ("config.json", "stages", "corpus", "sets", "embeddings", "checkpoints", "metrics")


def environment(**variables):
    return os.environ | {"XLA_FLAGS": children.XLA_FLAGS} | variables


def processes(command, hosts, devices=1):
    """The processes of a pod, started by nobody who would kill the others when one fails."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    flags = f"{children.XLA_FLAGS} --xla_force_host_platform_device_count={devices}"
    place = dict(JAX_PLATFORMS="cpu", JAX_COORDINATOR_ADDRESS=address, JAX_NUM_PROCESSES=str(hosts), XLA_FLAGS=flags)
    return [
        subprocess.Popen(
            [sys.executable, *command],
            cwd=REPOSITORY,
            env=environment(**place, JAX_PROCESS_ID=str(i)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(hosts)
    ]


@contextlib.contextmanager
def ending(started):
    """None of them outlives the test."""
    try:
        yield started
    finally:
        for process in started:
            process.kill()


def parameters(folder):
    size = len((folder / "corpus" / "vocab.txt").read_text().splitlines())
    config = ConfigDict(json.loads((folder / "config.json").read_text()))
    return parameters_of(trained_run.load_parameters(folder, size, config.mesh)[1])


@contextlib.contextmanager
def runs(inputs, scratch, workdir, hosts=2, stages=STAGES, devices=4, program="retrieval.main", config="", **changes):
    """The started processes of a run, with a disk each: folders in `scratch`, by their numbers."""
    sources = {"corpus": inputs / "dump.xml", "sets.reqa": inputs / "squad.json", "sets.pydocs": False}
    command = ["-m", program, f"--workdir={workdir}", f"--stage={stages}", f"--scratch={scratch}"]
    command += [f"--config=configs/{config or 'ict_bfs_wlp'}.py:local", f"--config.stages={tuple(stages.split(','))}"]
    command += [*tiny.as_flags(**SMALL | sources | changes), *["--multihost"] * (hosts > 1)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(REPOSITORY), *filter(None, sys.path)]))
        started = processes(command, hosts, devices)
    with ending(started):
        yield started


def finish(started):
    """Exit codes, and what each process said."""
    said = [process.communicate(timeout=600)[1] for process in started]
    return [process.returncode for process in started], said


def wait_for(path, process):
    """Returns when a process has made a file."""
    while not path.exists():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)


def brought(url, tmp_path, monkeypatch, tops=TOPS):
    """What the store has, as a new machine gets it."""
    monkeypatch.setenv("RETRIEVAL_SCRATCH", str(tmp_path / f"scratch-{time.monotonic_ns()}"))
    copy = artefacts.Artefacts(url)
    copy.get(tops)
    return copy.folder
