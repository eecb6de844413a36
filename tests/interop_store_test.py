"""Work directories on S3, as moto's server has it: objects, leases, checkpoints, and a pod.

Skipped where moto or s3fs is not installed. Nothing outside this machine is reached.
"""

import contextlib
import os
import signal
import sys
import time

import jax
import numpy as np
import pytest
from conftest import REPOSITORY
from support import tiny
from support.pods import SMALL, ending, parameters, processes
from support.run_results import metrics

from retrieval import files
from retrieval.errors import UserError
from retrieval.runtime import artefacts, lease
from retrieval.runtime.lease import Lease
from retrieval.runtime.signals import EXIT_CODE
from retrieval.runtime.store import Store
from retrieval.training import checkpoint
from retrieval.training.checkpoint import Checkpointer

pytest.importorskip("s3fs", reason="s3fs is not installed: launch/interop.sh has it")
server = pytest.importorskip("moto.server", reason="moto is not installed: launch/interop.sh has it")

URL = "s3://bucket/runs/one"
STAGES = "prepare,sets,train,encode"
TOPS = ("config.json", "stages", "corpus", "sets", "embeddings", "checkpoints", "metrics")


@pytest.fixture(scope="module")
def moto():
    """A server, and what tells processes where it is."""
    process = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    process.start()
    host, port = process.get_host_and_port()
    variables = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield
    process.stop()


@pytest.fixture
def bucket(moto):
    """The client of an empty bucket, which sees what is there without the project."""
    import boto3

    client = boto3.client("s3")
    client.create_bucket(Bucket="bucket")
    yield client
    listed = client.list_objects_v2(Bucket="bucket").get("Contents", [])
    for item in listed:
        client.delete_object(Bucket="bucket", Key=item["Key"])
    client.delete_bucket(Bucket="bucket")


def test_objects_are_seen_at_once_and_whole(bucket, tmp_path):
    """What another process writes or deletes, too: nothing is listed from a cache."""
    store = Store(URL)
    assert store.names() == set() and store.read("a") is None
    content = os.urandom(20_000_000)  # more than one part of an upload
    (tmp_path / "large").write_bytes(content)
    store.upload("deep/er/large file ä", tmp_path / "large")
    assert store.create("a", b"1") and not store.create("a", b"2")
    bucket.put_object(Bucket="bucket", Key="runs/one/of another", Body=b"2")
    bucket.put_object(Bucket="bucket", Key="runs/one more/not ours", Body=b"3")
    assert store.names() == {"a", "deep/er/large file ä", "of another"} and store.read("of another") == b"2"
    store.download("deep/er/large file ä", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == content
    bucket.put_object(Bucket="bucket", Key="runs/one/a", Body=b"another")
    assert store.read("a") == b"another"
    for _ in range(2):
        store.delete("a")
    assert store.names() == {"deep/er/large file ä", "of another"}


def test_a_bucket_that_is_not_there_is_named(moto):
    with pytest.raises(UserError, match=r"s3://nowhere/run/a: cannot be written .*see that the bucket is there"):
        Store("s3://nowhere/run").write("a", b"1")


class Position:
    """A data iterator that remembers nothing but where it is."""

    def __init__(self, value=0):
        self.value = value

    def save(self, folder):
        files.write_json(folder / "position.json", self.value)

    def restore(self, folder):
        self.value = files.read_json(folder / "position.json")


def test_checkpoints_are_written_to_the_store_and_a_changed_byte_is_noticed(bucket):
    place, state = Store(URL).path / "checkpoints", {"w": jax.numpy.arange(4.0)}
    checkpointer = Checkpointer(place)
    for step in (1, 2, 3):
        checkpointer.save(step, jax.tree.map(lambda leaf, step=step: leaf * step, state), Position(step))
    checkpointer.close()
    bucket.put_object(Bucket="bucket", Key="runs/one/checkpoints/4/state/half", Body=b"of a machine that died")
    keys = [item["Key"] for item in bucket.list_objects_v2(Bucket="bucket")["Contents"]]
    assert checkpoint.steps_in(place) == [2, 3] and not [key for key in keys if "/1/" in key]
    bucket.put_object(Bucket="bucket", Key=next(key for key in keys if "3/state/d/" in key), Body=b"another")
    with pytest.raises(UserError, match=r"3/state/d/.*: damaged or missing"):
        Checkpointer(place).restore(state)
    checkpoint.drop_damaged(place)
    position = Position()
    restored = Checkpointer(place).restore(state, position)
    np.testing.assert_array_equal(restored["w"], 2 * state["w"])
    assert position.value == 2 and checkpoint.steps_in(place) == [2]


def test_a_second_run_is_refused(bucket, tmp_path, monkeypatch):
    monkeypatch.setattr(lease, "_A_MOMENT", 0.1)
    monkeypatch.setattr(lease, "_RENEWED_AFTER", 0.01)
    monkeypatch.setattr(lease.ending, "end", lambda *_: None)
    monkeypatch.setenv("RETRIEVAL_SCRATCH", str(tmp_path))
    with artefacts.opened(URL), pytest.raises(UserError, match=rf"{URL}: another run writes to it"):
        Lease(Store(URL))


@contextlib.contextmanager
def pod(inputs, scratch, workdir=URL, stages=STAGES, devices=4, **changes):
    """Two processes with a disk each."""
    sources = {"corpus": inputs / "dump.xml", "sets.reqa": inputs / "squad.json", "sets.pydocs": False}
    flags = tiny.as_flags(**SMALL | sources | changes)
    command = ["-m", "retrieval.main", f"--workdir={workdir}", f"--stage={stages}", f"--scratch={scratch}"]
    command += ["--config=configs/ict_bfs_wlp.py:local", f"--config.stages={tuple(stages.split(','))}", *flags]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(REPOSITORY), *filter(None, sys.path)]))
        started = processes([*command, "--multihost"], 2, devices)
    with ending(started):
        yield started


def finish(started):
    said = [process.communicate(timeout=600)[1] for process in started]
    assert [process.returncode for process in started] == [0, 0], said


def brought(tmp_path, monkeypatch, stages):
    """What the store has of finished stages, as a new machine gets it."""
    monkeypatch.setenv("RETRIEVAL_SCRATCH", str(tmp_path / "another"))
    copy = artefacts.Artefacts(URL)
    copy.get(TOPS)
    for name in stages.split(","):
        record = files.read_json(copy.folder / "stages" / f"{name}.json")
        assert record["done"]
        files.verify_checksums(copy.folder, record["outputs"], "none")
    return copy.folder


def test_a_pod_of_two_processes_trains(inputs, bucket, tmp_path, monkeypatch):
    changes = {"train.steps": 2, "loop.validate_every": 0, "loop.checkpoint_every": 2, "model.num_layers": 1}
    with pod(inputs, tmp_path / "scratch", stages="prepare,train", devices=1, **changes) as started:
        finish(started)
    folder = brought(tmp_path, monkeypatch, "prepare,train")
    checkpoint.verify(artefacts.checkpoints(folder) / "2", "none")
    assert [line["step"] for line in metrics(folder)] == [1, 2]


@pytest.mark.long
def test_a_pod_goes_on_after_a_kill_and_ends_as_in_a_folder(inputs, bucket, tmp_path, monkeypatch):
    """One of two processes is killed in training; two new machines have empty disks."""
    with pod(inputs, tmp_path / "shared", workdir=tmp_path / "run") as started:
        finish(started)
    with pod(inputs, tmp_path / "scratch") as started:
        store = Store(URL)
        while store.read("checkpoints/4/manifest.json") is None:
            assert started[1].poll() is None, started[1].communicate()[1]
            time.sleep(0.1)
        started[1].send_signal(signal.SIGKILL)
        assert started[0].wait(600) == EXIT_CODE, started[0].communicate()[1]
    with pod(inputs, tmp_path / "empty") as started:
        finish(started)
    folder = brought(tmp_path, monkeypatch, STAGES)
    assert metrics(folder) == metrics(tmp_path / "run")
    jax.tree.map(np.testing.assert_array_equal, parameters(folder), parameters(tmp_path / "run"))
