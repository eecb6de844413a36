"""Runs on several hosts: processes with fake CPU devices, joined as on a pod. The long ones train whole pods:

.venv/bin/python -m pytest -m long tests/pod_test.py
"""

import json
import os
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
import toy_corpus
from conftest import REPOSITORY
from ml_collections import ConfigDict

from retrieval.stages import model as models
from retrieval.stages import train

SMALL = {
    "prepare": dict(shards=8, vocab_size=300, longest_passage=40, shortest_paragraph=10, least_passage=5),
    "data": dict(query_length=16, document_length=48, lanes=8, shuffle_buffer=64, held_out=0.1),
    "model": dict(num_layers=2, unroll=2, hidden_size=16, num_heads=2, mlp_size=32, embed_dim=8, dropout=0.1),
    "train": dict(steps=12, batch_size=16),
    "loop": dict(log_every=2, checkpoint_every=4, validate_every=6, validate_queries=8, validate_candidates=16),
    "encode": dict(batch_tokens=1024, shard_size=50),
}


def pod(hosts, devices, folder, inputs, *arguments, stages="prepare,sets,train"):
    """A started pod on the toy corpus."""
    settings = [f"--config.{group}.{name}={value}" for group, fields in SMALL.items() for name, value in fields.items()]
    settings += [f"--config.corpus={inputs / 'dump.xml'}", f"--config.sets.reqa={inputs / 'squad.json'}"]
    command = ["launch/local_pod.sh", str(hosts), str(devices), *arguments, "--", f"--workdir={folder}"]
    command += [f"--stage={stages}", "--config=configs/ict_bfs_wlp.py:local", "--config.sets.pydocs=False", *settings]
    environment = os.environ | {"XLA_FLAGS": "--xla_backend_optimization_level=0"}
    return subprocess.Popen(command, cwd=REPOSITORY, env=environment, stderr=subprocess.PIPE, text=True)


def finish(process):
    _, said = process.communicate(timeout=600)
    return process.returncode, said


def metrics(folder):
    lines = [json.loads(line) for line in (folder / "metrics" / "train.jsonl").read_text().splitlines()]
    speed = ("_per_second", "input_wait")
    return [{n: v for n, v in line.items() if not n.endswith(speed)} for line in lines]


def parameters(folder):
    size = len((folder / "corpus" / "vocab.txt").read_text().splitlines())
    config = ConfigDict(json.loads((folder / "config.json").read_text()))
    return models.parameters(train.load_parameters(folder, size, config.mesh)[1])


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    toy_corpus.write_dump(folder / "dump.xml")
    toy_corpus.write_squad(folder / "squad.json")
    return folder


@pytest.fixture(scope="module")
def one_host(inputs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pods") / "1x8"
    assert finish(pod(1, 8, folder, inputs, stages="prepare,sets,train,encode"))[0] == 0
    return folder


def assert_same_training(folder, other):
    assert len(metrics(folder)) == len(metrics(other)) == 8
    for ours, theirs in zip(metrics(folder), metrics(other)):
        assert ours == pytest.approx(theirs, abs=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), parameters(folder), parameters(other))


@pytest.mark.long
@pytest.mark.parametrize("hosts, devices", [(2, 4), (4, 2)])
def test_any_number_of_hosts_trains_and_encodes_the_same(hosts, devices, inputs, one_host, tmp_path):
    folder = tmp_path / "run"
    code, said = finish(pod(hosts, devices, folder, inputs, stages="prepare,sets,train,encode"))
    assert code == 0, said
    assert said.count("train: done") == 1  # the other hosts are silent
    assert_same_training(folder, one_host)
    for path in one_host.rglob("*.npy"):
        np.testing.assert_allclose(np.load(folder / path.relative_to(one_host)), np.load(path), atol=1e-4)
    assert len(list(folder.rglob("*.npy"))) == len(list(one_host.rglob("*.npy"))) > 4


@pytest.mark.long
def test_a_process_that_is_killed_costs_no_step(inputs, one_host, tmp_path):
    folder = tmp_path / "run"
    process = pod(2, 4, folder, inputs, "--retries=1")
    wait_for(folder / "checkpoints" / "4", process)
    (victim,) = hosts_of(process, JAX_PROCESS_ID="1")
    os.kill(victim, signal.SIGKILL)
    code, said = finish(process)
    assert code == 0 and "a process ended with 137: starting again" in said and "restored step" in said
    assert_same_training(folder, one_host)


@pytest.mark.long
def test_a_preempted_pod_saves_the_same_step_everywhere_and_goes_on(inputs, one_host, tmp_path):
    folder = tmp_path / "run"
    process = pod(2, 4, folder, inputs)
    wait_for(folder / "checkpoints" / "4", process)
    process.terminate()
    code, said = finish(process)
    assert code == 75 and "is saved: the same command goes on" in said
    code, said = finish(pod(4, 2, folder, inputs))
    assert code == 0 and "restored step" in said
    assert_same_training(folder, one_host)


def wait_for(path, process):
    while not path.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


def hosts_of(process, **environment):
    """The processes of retrieval.main that a pod started, by what is in their environment."""
    wanted = {f"{name}={value}".encode() for name, value in environment.items()}
    children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
    return [int(c) for c in children if wanted <= set(open(f"/proc/{c}/environ", "rb").read().split(b"\0"))]


SCRIPT = """
import sys
from retrieval import hosts
from retrieval.errors import UserError

hosts.connect()
print("first" if hosts.is_first() else "other", hosts.on_first(lambda: {"a": [1, 2]}), flush=True)
def fail():
    raise UserError("no such file")
try:
    hosts.on_first(fail)
except UserError as error:
    print(error, flush=True)
    hosts.leave(2)
"""


def test_what_the_first_does_and_how_it_fails_reaches_the_others():
    port = subprocess.run(
        [sys.executable, "-c", "import socket; s = socket.socket(); s.bind(('', 0)); print(s.getsockname()[1])"],
        capture_output=True,
        text=True,
    ).stdout.strip()
    variables = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}", "JAX_NUM_PROCESSES": "2"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT],
            cwd=REPOSITORY,
            env=os.environ | variables | {"JAX_PROCESS_ID": str(i)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for i in range(2)
    ]
    said = [process.communicate(timeout=100)[0].splitlines() for process in processes]
    assert said[0] == ["first {'a': [1, 2]}", "no such file"]
    assert said[1] == ["other {'a': [1, 2]}", "the first host stopped: no such file"]
    assert [process.returncode for process in processes] == [2, 2]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["2"], "N processes and M devices"),
        (["0", "4", "--", "--workdir=x"], "N processes and M devices"),
        (["2", "4", "--retries=many", "--", "--workdir=x"], "--retries='many': a whole number"),
        (["2", "4", "--workdir=x"], "the arguments of retrieval.main are missing, after --"),
    ],
)
def test_a_pod_with_wrong_arguments(arguments, message):
    done = subprocess.run(["launch/local_pod.sh", *arguments], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("error: ") and message in done.stderr


def test_a_host_that_cannot_find_the_others():
    command = [sys.executable, "-m", "retrieval.main", "--multihost", "--workdir=x", "--config=configs/bm25.py"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")} | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert done.returncode == 2 and "error: --multihost: the hosts cannot be joined" in done.stderr
    environment["JAX_PROCESS_ID"] = "one"
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert done.returncode == 2 and "JAX_PROCESS_ID='one': not a number" in done.stderr
