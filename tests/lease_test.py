"""One run at a time writes to a work directory on a store, and to nothing else."""

import os
import re
import time

import pytest
from support.toy_store import URL

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.common.runtime import artefacts, lease
from retrieval.common.runtime.lease import Lease
from retrieval.common.runtime.store import Store

pytest_plugins = ["support.machines_of_a_store"]
pytestmark = pytest.mark.usefixtures("free_leases")


def test_a_second_run_is_refused(bucket, machine, monkeypatch):
    monkeypatch.setattr(lease, "_VALID", 60)
    monkeypatch.setattr(lease, "_RENEWED_AFTER", 0.01)
    monkeypatch.setattr(lease.ending, "end", lambda *_: None)  # of the first, if it were not refused
    with artefacts.opened(URL):
        machine("second")
        who = rf"{URL}: another run writes to it \(process {os.getpid()} on .*; wait for"
        with pytest.raises(UserError, match=who):
            Lease(Store(URL))
    machine("third")
    with artefacts.opened(URL):  # given back, it is free at once
        pass


def test_a_dead_run_loses_its_lease_and_writes_nothing(bucket, machine, monkeypatch):
    monkeypatch.setattr(lease, "_VALID", 0.5)
    dead = artefacts.Artefacts(URL)
    dead.lease = Lease(dead.store)
    machine("second")
    began = time.monotonic()
    with artefacts.opened(URL) as copy:
        assert time.monotonic() - began > 0.3
        with pytest.raises(UserError, match="another run has taken it over"):
            dead.put(["metrics"])
        copy.put(["metrics"])


def test_of_two_runs_that_take_over_one_does(bucket, monkeypatch):
    """Both have seen the lease of the dead one."""
    Lease(Store(URL))
    wait, second = Lease._wait, []

    def take_meanwhile(self):
        wait(self)
        monkeypatch.setattr(Lease, "_wait", wait)
        second.append(Lease(Store(URL)))

    monkeypatch.setattr(Lease, "_wait", take_meanwhile)
    with pytest.raises(UserError, match="another run writes to it"):
        Lease(Store(URL))
    second[0].renew()


def test_a_failed_renewal_does_not_prolong_a_lease(bucket):
    held = Lease(Store(URL))
    before = held._renewed
    bucket.fails = lambda kind, name: OSError("quota") if kind == "write" else None
    with pytest.raises(UserError, match="quota"):
        held.renew()
    assert held._renewed == before


def test_a_run_whose_lease_is_taken_ends(bucket, machine, monkeypatch):
    said = []
    monkeypatch.setattr(lease, "_RENEWED_AFTER", 0.02)
    monkeypatch.setattr(lease.ending, "end", lambda code, why: said.append((code, why)))
    machine("first")
    with artefacts.opened(URL):
        while not said:  # it may be about to write its own
            Store(URL).write(files.LOCK, b"another run")
            time.sleep(0.05)
    assert said[0][0] == 2 and f"error: {URL}: another run has taken it over" in said[0][1]


def test_what_is_not_a_work_directory_is_left_alone(bucket, machine, monkeypatch):
    bucket.path("bucket/run/thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match=f"{URL} is not empty and not a work directory"), artefacts.opened(URL):
        pass
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(UserError, match=r"--scratch=.* belongs to somebody else"):
        artefacts.Artefacts(URL)


def test_addresses_that_cannot_be_are_refused(bucket):
    """With a character that stands for others, objects of other runs would count as this one's."""
    with pytest.raises(UserError, match=rf"{re.escape(URL)}\*1: no address on a store without wildcards"):
        Store(f"{URL}*1")
    with pytest.raises(UserError, match="scheme of az://bucket/run"):
        Store("az://bucket/run")
    bucket.fails = lambda *_: PermissionError("no permission to list\nstack\ntrace")
    with pytest.raises(UserError) as error:
        Store(URL).sums()
    assert str(error.value).startswith(f"{URL}: cannot be listed (no permission to list); give us access")
