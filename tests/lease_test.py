"""One run at a time writes to a work directory on a store, and to nothing else."""

import os
import re
import subprocess
import sys
import time

import pytest
from conftest import REPOSITORY
from support.toy_store import URL

from retrieval import files
from retrieval.errors import UserError
from retrieval.runtime import lease, mirror
from retrieval.runtime.store import Store
from retrieval.stages.train import FOLLOWED

pytest_plugins = ["support.machines_of_a_store"]
pytestmark = pytest.mark.usefixtures("free_leases")


def test_a_second_run_is_refused(bucket, machine, monkeypatch):
    monkeypatch.setattr(lease, "_VALID", 60)
    monkeypatch.setattr(lease, "_RENEWED_AFTER", 0.01)
    monkeypatch.setattr(lease.ending, "end", lambda *_: None)  # of the first, if it were not refused
    with mirror.opened(URL):
        machine("second")
        with pytest.raises(
            UserError, match=rf"{URL}: another run writes to it \(process {os.getpid()} on .*; wait for"
        ):
            mirror.Mirror(URL)
    machine("third")
    with mirror.opened(URL):  # given back, it is free at once
        pass


def test_a_dead_run_loses_its_lease_and_writes_nothing(bucket, machine, monkeypatch):
    monkeypatch.setattr(lease, "_VALID", 0.5)
    dead = mirror.Mirror(URL)
    machine("second")
    began = time.monotonic()
    with mirror.opened(URL) as copy:
        assert time.monotonic() - began > 0.3
        for function in (lambda: dead.up(FOLLOWED), lambda: dead.put("config.json")):
            with pytest.raises(UserError, match="another run has taken it over"):
                function()
        copy.up(FOLLOWED)


def test_a_failed_renewal_does_not_prolong_a_lease(bucket, machine, monkeypatch):
    monkeypatch.setattr(lease, "_VALID", 60)
    held = mirror.Mirror(URL).lease
    before = held._until

    def refuse(kind, name):
        if kind == "write":
            raise OSError("quota")

    bucket.fails = refuse
    with pytest.raises(UserError, match="quota"):
        held.renew()
    assert held._until == before


def test_a_killed_run_resumes_at_once_on_its_machine(bucket, machine, monkeypatch):
    monkeypatch.setattr(lease, "_VALID", 60)
    killed = mirror.Mirror(URL)
    with mirror.opened(URL) as copy:
        assert copy.folder == killed.folder


LOSES = """
import sys, time
from pathlib import Path
from support import toy_store
from retrieval.runtime import lease, mirror, store_copy
lease._A_MOMENT, lease._RENEWED_AFTER = 0, 0.05
store_copy.set_scratch(Path(sys.argv[1]))
with mirror.opened("toy://bucket/run"):
    print(flush=True)
    time.sleep(60)
"""


def test_a_run_whose_lease_is_taken_ends(bucket, tmp_path):
    environment = os.environ | {"PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'tests'}"}
    command = [sys.executable, "-c", LOSES, str(tmp_path / "scratch")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, text=True, **pipes) as process:
        process.stdout.readline()
        for _ in range(100):  # it may be about to write its own
            Store(URL).write(files.LOCK, b'{"owner": "another", "who": "process 1 on x", "until": 0}')
            if process.poll() is not None:
                break
            time.sleep(0.1)
        assert process.wait() == 2 and "error: toy://bucket/run: another run has taken it over" in process.stderr.read()


def test_what_is_not_a_work_directory_is_left_alone(bucket, machine, monkeypatch):
    bucket.path("bucket/run/thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match="toy://bucket/run is not empty and not a work directory"), mirror.opened(URL):
        pass
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(UserError, match=r"--scratch=.* belongs to somebody else"):
        mirror.Mirror(URL)


@pytest.mark.parametrize("character", "*?[")
def test_an_address_with_a_pattern_is_refused(character):
    """Objects of other runs would count as this one's."""
    with pytest.raises(UserError, match=rf"toy://bucket/run{re.escape(character)}1\]: '\{character}' stands for other"):
        Store(f"toy://bucket/run{character}1]")


def test_a_store_that_cannot_be_listed_is_named(bucket):
    bucket.path("bucket/run/corpus/../../../.bashrc").write_text("")
    with pytest.raises(UserError, match="its name leads out of a folder"):
        Store(URL).names()
    bucket.fails = lambda *_: PermissionError("no permission to list\nstack\ntrace")
    with pytest.raises(UserError) as error:
        Store(URL).names()
    assert str(error.value).startswith(f"{URL}: cannot be listed (no permission to list); see that the bucket")
