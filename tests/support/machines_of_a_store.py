"""Fixtures of the tests of work directories on a store: a bucket, which is a folder here, and machines that die."""

import pytest

from retrieval.runtime import lease, store_copy
from support import toy_store

URL = "toy://bucket/run"


@pytest.fixture
def free_leases(monkeypatch):
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


def copy_up(bucket, folder):
    """Puts a work directory of the disk on the store, under `URL`."""
    for name, content in contents(folder, ["."]).items():
        bucket.path(f"{URL.removeprefix('toy://')}/{name}").write_bytes(content)
