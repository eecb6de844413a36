"""Runs on several hosts: processes with fake CPU devices, joined as on a pod. The long ones train whole pods:

.venv/bin/python -m pytest -m long tests/pod_test.py
"""

import functools
import shutil
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from conftest import REPOSITORY
from support import tiny
from support.pods import SMALL, ending, environment, parameters, processes, wait_for
from support.run_results import metrics

from retrieval.common.runtime.signals import EXIT_CODE


def settings(folder, inputs, stages):
    """The arguments of retrieval.main for a run on the toy corpus."""
    sources = {"corpus": inputs / "dump.xml", "sets.reqa": inputs / "squad.json", "sets.pydocs": False}
    config = ["--config=configs/ict_bfs_wlp.py:local", *tiny.as_flags(**SMALL, **sources)]
    return [f"--workdir={folder}", f"--stage={stages}", *config]


def pod(hosts, devices, folder, inputs, *arguments, stages="train", more=()):
    """A started pod."""
    of_pod = [str(hosts), str(devices), *arguments]
    command = ["launch/local_pod.sh", *of_pod, "--", *settings(folder, inputs, stages), *more]
    return subprocess.Popen(command, cwd=REPOSITORY, env=environment(), stderr=subprocess.PIPE, text=True)


def finish(process, timeout=600):
    _, said = process.communicate(timeout=timeout)
    return process.returncode, said


@pytest.fixture(scope="module")
def prepared(inputs, tmp_path_factory):
    """A work directory that lacks the training."""
    folder = tmp_path_factory.mktemp("pods") / "prepared"
    command = [sys.executable, "-m", "retrieval.main", *settings(folder, inputs, "prepare,sets")]
    subprocess.run(command, cwd=REPOSITORY, env=environment(), check=True)
    return folder


@pytest.fixture
def folder(prepared, tmp_path):
    return shutil.copytree(prepared, tmp_path / "run")


@pytest.fixture(scope="module")
def one_host(inputs, prepared, tmp_path_factory):
    folder = shutil.copytree(prepared, tmp_path_factory.mktemp("pods") / "1x8")
    assert finish(pod(1, 8, folder, inputs, stages="train,encode"))[0] == 0
    return folder


@pytest.fixture(scope="module")
def two_hosts(inputs, prepared, tmp_path_factory):
    folder = shutil.copytree(prepared, tmp_path_factory.mktemp("pods") / "2x4")
    assert finish(pod(2, 4, folder, inputs))[0] == 0
    return folder


def assert_same_training(folder, other, tolerance=1e-6):
    """Parameters within the tolerance, which is 0 where the mesh is the same, the log within ten times it."""
    assert len(metrics(folder)) == len(metrics(other)) == 14
    for ours, theirs in zip(metrics(folder), metrics(other)):
        assert ours == pytest.approx(theirs, rel=0, abs=10 * tolerance)
    compare = functools.partial(np.testing.assert_allclose, rtol=0, atol=tolerance)
    jax.tree.map(compare, parameters(folder), parameters(other))


@pytest.mark.long
def test_any_number_of_hosts_trains_and_encodes_the_same(inputs, one_host, folder):
    code, said = finish(pod(4, 2, folder, inputs, stages="train,encode"))
    assert code == 0, said
    assert said.count("train: done") == 1  # the other hosts are silent
    assert_same_training(folder, one_host)
    for path in one_host.rglob("*.npy"):
        ours, theirs = np.load(folder / path.relative_to(one_host)), np.load(path)
        assert np.allclose(ours, theirs, atol=1e-4) if theirs.dtype.kind == "f" else (ours == theirs).all(), path
    assert len(list(folder.rglob("*.npy"))) == len(list(one_host.rglob("*.npy"))) > 4


LOST = "error: another host is gone ("
AGAIN = "): start all of them again, the same command goes on from what is finished"


@pytest.mark.long
@pytest.mark.parametrize("victim", [0, 1])
def test_a_process_lost_in_training_ends_a_resumable_pod(victim, inputs, two_hosts, folder):
    command = ["-m", "retrieval.main", *settings(folder, inputs, "train"), "--multihost"]
    with ending(processes(command, 2, devices=4)) as started:
        wait_for(folder / "checkpoints" / "4", started[victim])
        started[victim].kill()
        code, said = finish(started[1 - victim], timeout=60)
    assert code == EXIT_CODE and LOST in said and AGAIN in said and "Traceback" not in said, said
    code, said = finish(pod(2, 4, folder, inputs))
    assert code == 0 and "restored step" in said, said
    assert_same_training(folder, two_hosts, tolerance=0)


@pytest.mark.long
@pytest.mark.parametrize("told", [0, 1])
def test_a_signal_to_one_process_stops_all(told, inputs, two_hosts, folder):
    command = ["-m", "retrieval.main", *settings(folder, inputs, "train"), "--multihost"]
    with ending(processes(command, 2, devices=4)) as started:
        wait_for(folder / "checkpoints" / "4", started[told])
        for _ in range(2):
            started[told].terminate()
        ended = [finish(process, timeout=30) for process in started]
    for code, said in ended:
        assert code == EXIT_CODE and "which is saved: the same command goes on" in said and LOST not in said, said
    code, said = finish(pod(2, 4, folder, inputs))
    assert code == 0 and "restored step" in said, said
    assert_same_training(folder, two_hosts, tolerance=0)


LAST_STEP = """
import time
from retrieval import cli
from retrieval.common.runtime import ending, hosts
from retrieval.common.runtime.signals import PreemptedError

def main(_):
    hosts.connect()
    with ending.watch() as stops_at:
        for step in (1, 2):
            assert not stops_at(step)
        print("trained", flush=True)
        time.sleep(3)
        if hosts.is_anywhere(stops_at.received.is_set()):
            raise PreemptedError("after the last step")

cli.run(main)
"""


@pytest.mark.long
@pytest.mark.parametrize("signalled", [0, 1])
def test_a_signal_after_the_last_step_stops_all(signalled):
    """JAX's sync point lies behind that step, where nobody asks for it."""
    with ending(processes(["-c", LAST_STEP], 2)) as started:
        assert [process.stdout.readline() for process in started] == ["trained\n"] * 2
        started[signalled].terminate()
        ended = [finish(process, timeout=60) for process in started]
    assert all(code == EXIT_CODE and "after the last step" in said for code, said in ended), ended


# Without a model: pods whose first process is at work, while the others wait.

WAITING = """
import sys, time
from retrieval import cli
from retrieval.common.runtime import hosts
from retrieval.common.errors import UserError

def work():
    print("at work", flush=True)
    time.sleep(300)

def main(_):
    hosts.connect()
    print("joined", flush=True)
    if task == "other" and not hosts.is_first():
        raise UserError("a setting of this host alone")
    hosts.on_first(work)

task = sys.argv.pop(1)
cli.run(main)
"""


JOINING = """
import os, jax
from retrieval import cli
from retrieval.common.runtime import hosts
index, number = jax.process_index, 15 if os.environ["JAX_PROCESS_ID"] == "0" else 0
jax.process_index = lambda: (os.kill(os.getpid(), number), index())[1]
cli.run(lambda _: (hosts.connect(), hosts.tell_all(int)))
"""


@pytest.mark.long
def test_a_signal_while_hosts_join_stops_all():
    """The devices of one are not known to the others yet, and JAX would end them in its own way."""
    with ending(processes(["-c", JOINING], 2)) as started:
        assert [finish(process, timeout=24)[0] for process in started] == [EXIT_CODE] * 2


def waiting(hosts, task="sleep"):
    """A pod whose first process has begun its work."""
    started = processes(["-c", WAITING, task], hosts)
    assert started[0].stdout.readline() == "joined\n" == started[1].stdout.readline()
    return started


@pytest.mark.long
@pytest.mark.parametrize("victim, seconds", [(0, 20), (1, 60)])
def test_a_process_ends_when_it_loses_another(victim, seconds):
    with ending(waiting(3)) as started:
        assert started[0].stdout.readline() == "at work\n"
        started.pop(victim).kill()
        began = time.monotonic()
        for process in started:
            code, said = finish(process, timeout=seconds)
            assert code == EXIT_CODE and LOST in said and AGAIN in said and "Traceback" not in said, said
        assert time.monotonic() - began < seconds


def test_one_processs_error_ends_the_others_with_its_message():
    with ending(waiting(2, "other")) as started:
        codes, said = zip(*(finish(process, timeout=30) for process in started))
    assert codes == (2, 2)
    assert "error: host 1 stopped: a setting of this host alone" in said[0]
    assert "error: a setting of this host alone" in said[1] and "host 0 stopped" not in said[1]


@pytest.mark.long
def test_the_first_host_reads_a_checkpoint_while_the_others_wait(inputs, two_hosts, folder):
    shutil.copytree(two_hosts / "checkpoints", folder / "checkpoints")
    shutil.copy(two_hosts / "stages" / "train.json", folder / "stages")
    stages = "sets,encode,index,mine,search"
    query = ["--query=a river", "--config.split.set=reqa", "--config.mine.system=exact"]
    code, said = finish(pod(2, 4, folder, inputs, stages=stages, more=query))
    assert code == 0 and said.count("mine: done") == 1, said
    assert (folder / "negatives/negatives.jsonl").is_file()
