"""Pods whose work directory is on a store: the hosts have a disk each. The long ones train whole pods:

.venv/bin/python -m pytest -m long tests/pod_store_test.py
"""

import os
import shutil
import signal

import jax
import numpy as np
import pytest
from conftest import REPOSITORY
from support import toy_store
from support.pods import brought, ending, finish, parameters, processes, runs, wait_for
from support.run_results import metrics
from support.toy_store import URL, contents

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.common.runtime import artefacts, hosts
from retrieval.common.runtime.artefacts import Exchange
from retrieval.common.runtime.signals import EXIT_CODE

pytest_plugins = ["support.machines_of_a_store"]


PROGRAM = "support.on_toy_store"


class Hosts:
    """Hosts of one process, of which one is at work at a time."""

    def __init__(self, monkeypatch):
        self._host, self._sent, self._said = 0, [], None
        monkeypatch.setattr(hosts, "is_first", lambda: self._host == 0)
        for name in ("to_first", "tell_all"):
            monkeypatch.setattr(hosts, name, getattr(self, name))

    def to_first(self, value):
        self._sent.append(value)
        if self._host:
            return []
        values, self._sent = [self._sent.pop(), *self._sent], []
        return values

    def tell_all(self, function):
        self._said = self._said if self._host else function()
        return self._said

    def gather(self, exchanges):
        for self._host in (1, 2, 0):
            exchanges[self._host].gather()

    def spread(self, exchanges):
        for self._host in (0, 1, 2):
            exchanges[self._host].spread()


@pytest.fixture
def copies(bucket, tmp_path, monkeypatch):
    monkeypatch.setenv("RETRIEVAL_SCRATCH", str(tmp_path / "scratch"))
    return [artefacts.Artefacts(URL, f"host-{number}") for number in range(3)]


def write(copy, **texts):
    for name, text in texts.items():
        path = copy.folder / "made" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


def read(copy):
    return {path.name: path.read_text() for path in sorted((copy.folder / "made").glob("*"))}


def test_hosts_with_disks_of_their_own_exchange_what_they_write(bucket, copies, monkeypatch):
    of, exchanges = Hosts(monkeypatch), [Exchange(copy, ["made"]) for copy in copies]
    for number, copy in enumerate(copies):
        write(copy, **{f"part-{number}": f"of {number}", "same": f"by {number}", ".tmp-1": "not yet"})
    of.gather(exchanges)
    assert read(copies[0]).keys() == {".tmp-1", "part-0", "part-1", "part-2", "same"}
    (copies[0].folder / "made" / "part-1").unlink()
    write(copies[0], joined="all")
    of.spread(exchanges)
    for number, copy in enumerate(copies):
        write(copy, **{f"later-{number}": "more"})
    of.gather(exchanges)
    both = {"part-0": "of 0", "part-2": "of 2", "same": "by 0", "joined": "all", ".tmp-1": "not yet"}
    assert read(copies[0]) == both | {f"later-{number}": "more" for number in range(3)}
    assert read(copies[2]) == both | {"later-2": "more"}
    written = [name.rpartition("/")[2] for kind, name in bucket.log if kind == "write"]
    each = ["joined", "later-1", "later-2", "part-0", "part-1", "part-2"]
    assert sorted(set(written) - {"same"}) == each and len(written) - written.count("same") == len(each)  # each once


def test_a_file_that_changes_on_its_way_between_hosts_is_an_error(bucket, copies, monkeypatch):
    write(copies[2], part="of 2")
    bucket.fails = lambda kind, name: bucket.path(name).write_text("another") and None if kind == "read" else None
    with pytest.raises(UserError, match=f"^{URL}/made/part: not what another host wrote"):
        Hosts(monkeypatch).gather([Exchange(copy, ["made"]) for copy in copies])


def train_on(inputs, scratch, workdir=URL, **options):
    with runs(inputs, scratch, workdir, program=PROGRAM, **options) as started:
        codes, said = finish(started)
    assert codes == [0, 0], said


def assert_same(folder, other):
    jax.tree.map(np.testing.assert_array_equal, parameters(folder), parameters(other))
    assert metrics(folder) == metrics(other)
    ours, theirs = (contents(place, ("corpus", "sets", "embeddings")) for place in (folder, other))
    assert ours == theirs


@pytest.fixture(scope="module")
def whole(inputs, tmp_path_factory):
    """What the hosts of a pod write into a folder that they share."""
    place = tmp_path_factory.mktemp("whole")
    toy_store.bucket(place / "bucket")
    train_on(inputs, place, workdir=place / "run")
    return place / "run"


PARTS = """
import jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from support import toy_store
from retrieval.common import files
from retrieval.common.runtime import ending, hosts
from retrieval.common.runtime.store import Store
from retrieval.training.checkpoint import Checkpointer, drop_damaged

class Position:
    def save(self, folder):
        files.write_json(folder / f"{hosts.number()}.json", 7 + hosts.number())

    def restore(self, folder):
        self.value = files.read_json(folder / f"{hosts.number()}.json")

toy_store.bucket()
hosts.connect()
own = NamedSharding(jax.make_mesh((2,), ("data",)), PartitionSpec("data"))
state = {"w": jax.make_array_from_callback((4,), own, lambda index: np.arange(4.0)[index])}
place, position = Store(toy_store.URL).path / "checkpoints", Position()
for step in (1, 2, 3):
    checkpointer = Checkpointer(place)
    checkpointer.save(step, state, position)
    checkpointer.close()
drop_damaged(place)
(part,) = Checkpointer(place).restore(state, position)["w"].addressable_shards
print(part.data.tolist(), position.value, flush=True)
ending.leave(0)
"""


def test_every_host_writes_and_reads_its_part_of_a_checkpoint(bucket, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "tests")]))
    with ending(processes(["-c", PARTS], 2)) as started:
        said = [process.communicate(timeout=200) for process in started]
    assert [out.splitlines()[-1] for out, _ in said] == ["[0.0, 1.0] 7", "[2.0, 3.0] 8"], said
    names = [name.removeprefix("bucket/run/checkpoints/") for name in bucket.names()]
    sealed = set(files.read_json(bucket.path("bucket/run/checkpoints/3/manifest.json")))
    late = {"manifest.json", "commit_success.txt", "_CHECKPOINT_METADATA"}
    assert {name.partition("/")[2] for name in names if name.startswith("3/")} == sealed | late
    assert {name.partition("/")[0] for name in names} == {"2", "3"}
    assert {"data/0.json", "data/1.json"} <= sealed and any("ocdbt.process_1/" in name for name in sealed)


@pytest.mark.long
@pytest.mark.parametrize(
    ("victim", "landmark", "disks"),
    [
        (0, "checkpoints/4/manifest.json", "the same disks"),
        (1, "checkpoints/4/manifest.json", "empty disks"),
        (1, "stages/encode.json", "the same disks"),
    ],
)
def test_a_pod_on_a_store_goes_on_after_a_kill(victim, landmark, disks, inputs, whole, bucket, tmp_path, monkeypatch):
    with runs(inputs, tmp_path / "scratch", URL, program=PROGRAM) as started:
        wait_for(bucket.path(f"bucket/run/{landmark}"), started[victim])
        started[victim].send_signal(signal.SIGKILL)
        codes, said = finish(started)
    assert codes[1 - victim] == EXIT_CODE, said
    if disks == "empty disks":
        shutil.rmtree(tmp_path / "scratch")
    train_on(inputs, tmp_path / "scratch")
    assert_same(brought(URL, tmp_path, monkeypatch), whole)


@pytest.mark.long
def test_a_preempted_pod_on_a_store_saves_there(inputs, whole, bucket, tmp_path, monkeypatch):
    with runs(inputs, tmp_path / "scratch", URL, program=PROGRAM) as started:
        wait_for(bucket.path("bucket/run/checkpoints/4/manifest.json"), started[0])
        for process in started:
            process.terminate()
        codes, said = finish(started)
    assert codes == [EXIT_CODE] * 2 and "is saved: the same command goes on" in said[0], said
    shutil.rmtree(tmp_path / "scratch")
    train_on(inputs, tmp_path / "scratch")
    assert_same(brought(URL, tmp_path, monkeypatch), whole)
