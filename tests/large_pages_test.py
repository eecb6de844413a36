"""The program starts itself once more to have large pages of memory, and only where that is of use."""

import os
import subprocess
import sys

import pytest

from retrieval.runtime import large_pages

PROGRAM = """
import os, sys
print("begins", os.getpid(), sys.argv[1:], os.environ.get("GLIBC_TUNABLES"), flush=True)
from retrieval.runtime import large_pages
large_pages.restart_with()
print("goes on", os.getpid(), input(), flush=True)
"""

glibc = pytest.mark.skipif(not large_pages._is_glibc(), reason="the C library is not glibc")


def ran(*words, **environment):
    """The lines that the program prints."""
    inherited = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    command = [sys.executable, "-c", PROGRAM, *words]
    result = subprocess.run(
        command, input="what it is asked\n", env=inherited | environment, text=True, capture_output=True, check=True
    )
    return [line.split(maxsplit=2) for line in result.stdout.splitlines()]


@glibc
def test_it_restarts_once_in_its_own_process():
    first, second, end = ran("a word", "--flag=1")
    assert first[0] == second[0] == "begins" and end[0] == "goes"
    assert first[1] == second[1]  # whoever waits for the process waits on
    assert first[2] == "['a word', '--flag=1'] None"
    assert second[2] == "['a word', '--flag=1'] glibc.malloc.hugetlb=1"
    assert end[2].endswith("what it is asked")  # the input is still there


@glibc
@pytest.mark.parametrize("setting", ["", "glibc.malloc.hugetlb=0"])
def test_a_setting_of_the_user_stays(setting):
    first, end = ran(GLIBC_TUNABLES=setting)
    assert first[2].rstrip() == f"[] {setting}".rstrip() and end[0] == "goes"


def test_no_restart_where_the_program_itself_comes_from_the_input(monkeypatch):
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    monkeypatch.setattr(os, "execv", lambda *_: pytest.fail("it restarted"))
    monkeypatch.setattr(sys, "orig_argv", ["python", "-"])
    large_pages.restart_with()
