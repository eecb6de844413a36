"""Pods of processes on this machine, with fake CPU devices."""

import contextlib
import json
import os
import socket
import subprocess
import sys

from conftest import REPOSITORY
from ml_collections import ConfigDict

from retrieval.recipes import initial_parameters
from retrieval.recipes.placement import parameters_of
from support import children

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
    return parameters_of(initial_parameters.load_parameters(folder, size, config.mesh)[1])
