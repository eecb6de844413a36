"""What must hold on a server of any store: objects, leases, checkpoints, and runs that are killed.

A test file imports these tests, and has a fixture `bucket`: the address `url` of a work directory in an empty bucket,
and by a client of others than the project's `put(key, content)` and `names()`, of objects below that address.
"""

import os
import signal
import time

import jax
import numpy as np
import pytest

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.common.runtime import artefacts, lease
from retrieval.common.runtime.lease import Lease
from retrieval.common.runtime.signals import EXIT_CODE
from retrieval.common.runtime.store import Store
from retrieval.training import checkpoint
from retrieval.training.checkpoint import Checkpointer
from support.pods import STAGES, brought, finish, parameters, runs
from support.run_results import metrics


def test_objects_are_seen_at_once_and_whole(bucket, tmp_path):
    """What another process writes or deletes, too: nothing is listed from a cache."""
    store = Store(bucket.url)
    assert set(store.sums()) == set() and store.read("a") is None
    content = os.urandom(20_000_000)  # more than one part of an upload
    (tmp_path / "large").write_bytes(content)
    store.upload("deep/er/large file ä", tmp_path / "large")
    store.write("a", b"1")
    bucket.put("of another", b"2")
    bucket.put("../one more/not ours", b"3")
    assert set(store.sums()) == {"a", "deep/er/large file ä", "of another"} and store.read("of another") == b"2"
    store.download("deep/er/large file ä", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == content
    bucket.put("a", b"another")
    assert store.read("a") == b"another"
    for _ in range(2):
        store.delete("a")
    assert set(store.sums()) == {"deep/er/large file ä", "of another"}


def test_of_several_who_replace_an_object_one_succeeds(bucket):
    store = Store(bucket.url)
    first = store.replace("a", b"1", None)
    assert first and first == store.tag("a") and not store.replace("a", b"2", None)
    second = store.replace("a", b"2", first)
    assert second == store.tag("a") != first and not store.replace("a", b"3", first) and store.read("a") == b"2"
    assert store.tag("b") is None and not store.replace("b", b"1", first) and store.read("b") is None


def test_a_bucket_that_is_not_there_is_named(bucket):
    scheme = bucket.url.partition("://")[0]
    for ask in (lambda store: store.write("a", b"1"), lambda store: store.replace("a", b"1", None), Store.sums):
        with pytest.raises(UserError, match=rf"^{scheme}://nowhere/run.*: cannot be .*give us access"):
            ask(Store(f"{scheme}://nowhere/run"))


class Position:
    """A data iterator that remembers nothing but where it is."""

    def __init__(self, value=0):
        self.value = value

    def save(self, folder):
        files.write_json(folder / "position.json", self.value)

    def restore(self, folder):
        self.value = files.read_json(folder / "position.json")


def test_checkpoints_are_written_to_the_store_and_a_changed_byte_is_noticed(bucket):
    place, state = Store(bucket.url).path / "checkpoints", {"w": jax.numpy.arange(4.0)}
    checkpointer = Checkpointer(place)
    for step in (1, 2, 3):
        checkpointer.save(step, jax.tree.map(lambda leaf, step=step: leaf * step, state), Position(step))
    checkpointer.close()
    bucket.put("checkpoints/4/state/half", b"of a machine that died")
    assert checkpoint.steps_in(place) == [2, 3] and not [key for key in bucket.names() if "/1/" in key]
    bucket.put(next(key for key in bucket.names() if "3/state/d/" in key), b"another")
    with pytest.raises(UserError, match=r"3/state/d/.*: damaged or missing"):
        Checkpointer(place).restore(state)
    checkpoint.drop_damaged(place)
    position = Position()
    restored = Checkpointer(place).restore(state, position)
    np.testing.assert_array_equal(restored["w"], 2 * state["w"])
    assert position.value == 2 and checkpoint.steps_in(place) == [2]


def test_a_second_run_is_refused_and_a_dead_one_is_followed(bucket, tmp_path, monkeypatch):
    monkeypatch.setattr(lease, "_A_MOMENT", 0.1)
    monkeypatch.setattr(lease, "_RENEWED_AFTER", 0.01)
    monkeypatch.setattr(lease.ending, "end", lambda *_: None)
    monkeypatch.setenv("RETRIEVAL_SCRATCH", str(tmp_path))
    with artefacts.opened(bucket.url), pytest.raises(UserError, match=rf"{bucket.url}: another run writes to it"):
        Lease(Store(bucket.url))
    assert not Store(bucket.url).sums()
    monkeypatch.setattr(lease, "_VALID", 0.2)
    dead = Lease(Store(bucket.url))
    Lease(Store(bucket.url)).renew()
    with pytest.raises(lease.TakenError):
        dead.renew()


def test_a_growing_file_can_be_followed(bucket, tmp_path, monkeypatch):
    monkeypatch.setattr(artefacts, "_EVERY", 0.05)
    monkeypatch.setenv("RETRIEVAL_SCRATCH", str(tmp_path))
    with artefacts.opened(bucket.url) as copy, artefacts.followed(copy, "metrics"):
        for step in range(2):
            files.write_text(copy.folder / "metrics" / "train.jsonl", f"{step}\n" * (step + 1))
            while copy.store.read("metrics/train.jsonl") != f"{step}\n".encode() * (step + 1):
                time.sleep(0.05)


def test_compiled_programs_are_kept_on_the_store(bucket, monkeypatch):
    """Those of an accelerator, which a CPU plays here: it can read them back itself."""
    from jax.experimental.compilation_cache import compilation_cache

    from retrieval.common.runtime import devices

    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    asked = {"jax_enable_compilation_cache": True, "jax_persistent_cache_min_compile_time_secs": 0.0}
    fields = ("jax_compilation_cache_dir", "jax_compilation_cache_max_size", *asked)
    before = {name: getattr(jax.config, name) for name in fields}
    hits = []
    jax.monitoring.register_event_listener(lambda event, **_: hits.append(event) if "cache_hits" in event else None)
    try:
        Store(bucket.url)  # sets what the clients need
        devices.keep_programs_at(f"{bucket.url}/cache/xla")
        for name, value in asked.items():
            jax.config.update(name, value)
        for _ in range(2):
            jax.clear_caches()
            np.testing.assert_array_equal(jax.jit(lambda x: x * 2 + 1)(np.arange(3)), [1, 3, 5])
    finally:
        compilation_cache.reset_cache()
        for name, value in before.items():
            jax.config.update(name, value)
    assert any(name.startswith("cache/xla/jit_") for name in bucket.names()) and hits


def assert_finish(started):
    codes, said = finish(started)
    assert codes == [0] * len(started), said


def finished(url, tmp_path, monkeypatch, stages):
    """What the store has, whose stages are done, and as they left it."""
    folder = brought(url, tmp_path, monkeypatch)
    for name in stages.split(","):
        record = files.read_json(folder / "stages" / f"{name}.json")
        assert record["done"]
        files.verify_checksums(folder, record["outputs"], "none")
    return folder


def test_a_pod_of_two_processes_trains(inputs, bucket, tmp_path, monkeypatch):
    changes = {"train.steps": 2, "loop.validate_every": 0, "loop.checkpoint_every": 2, "model.num_layers": 1}
    with runs(inputs, tmp_path / "scratch", bucket.url, stages="prepare,train", devices=1, **changes) as started:
        assert_finish(started)
    folder = finished(bucket.url, tmp_path, monkeypatch, "prepare,train")
    checkpoint.verify(artefacts.checkpoints(folder) / "2", "none")
    assert [line["step"] for line in metrics(folder)] == [1, 2]
    logs = {name: Store(bucket.url).read(name).decode() for name in Store(bucket.url).sums() if "logs/" in name}
    assert sorted(name[:11] for name in logs) == ["logs/host-0", "logs/host-1"]
    assert any("train: done" in text for text in logs.values())


@pytest.mark.long
@pytest.mark.parametrize("hosts", [1, 2])
def test_a_run_goes_on_after_a_kill_and_ends_as_in_a_folder(hosts, inputs, bucket, tmp_path, monkeypatch):
    """A process is killed in training; new machines have empty disks."""
    with runs(inputs, tmp_path / "shared", tmp_path / "run", hosts) as started:
        assert_finish(started)
    with runs(inputs, tmp_path / "scratch", bucket.url, hosts) as started:
        store = Store(bucket.url)
        while store.read("checkpoints/4/manifest.json") is None:
            assert started[-1].poll() is None, started[-1].communicate()[1]
            time.sleep(0.1)
        started[-1].send_signal(signal.SIGKILL)
        assert hosts == 1 or started[0].wait(600) == EXIT_CODE, started[0].communicate()[1]
    with runs(inputs, tmp_path / "empty", bucket.url, hosts) as started:
        assert_finish(started)
    folder = finished(bucket.url, tmp_path, monkeypatch, STAGES)
    assert metrics(folder) == metrics(tmp_path / "run")
    jax.tree.map(np.testing.assert_array_equal, parameters(folder), parameters(tmp_path / "run"))
