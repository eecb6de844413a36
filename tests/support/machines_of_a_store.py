"""Fixtures of the tests of work directories on a store: a bucket, which is a folder here, and machines that die."""

import pytest

from retrieval.common.runtime import artefacts, lease
from support import toy_store


@pytest.fixture
def free_leases(monkeypatch):
    """Nobody lives to renew a lease, and those of dead machines have run out."""
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
        artefacts.copy_of.cache_clear()

    start("first")
    return start
