"""Signals that come where Python or a library drops what their handler raises: each ends the process all the same."""

import gc
import signal
import subprocess
import sys
import time

import pytest
from conftest import REPOSITORY

from retrieval.common.parsing.foreign_text import TooSlowError, time_limit
from retrieval.common.runtime import signals

PROGRAM = """
import gc, hashlib, os, sys, time
from retrieval import cli

PLACE, NUMBER = sys.argv[1], int(sys.argv[2])

def strike(*_):
    os.kill(os.getpid(), NUMBER)

class Dies:
    __del__ = strike

def collected(phase, counts):
    gc.callbacks.remove(collected)
    strike()

def main(argv):
    if PLACE == "callback":
        gc.callbacks.append(collected)
        gc.collect()
    elif PLACE == "del":
        Dies()
    elif PLACE == "library":
        try:
            strike()
        except BaseException:
            pass
    elif PLACE == "worker":
        try:
            strike()
        except KeyboardInterrupt:
            raise OSError("its files are gone")
    elif PLACE == "clean-up":
        try:
            strike()
        finally:
            time.sleep(0.5)  # in which the handler is called again
            print("clean")
    time.sleep(30)

cli.run(main)
"""


def run(code, *arguments, ignored=()):
    def ignore():
        for number in signals.STATUS:
            signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)

    began = time.monotonic()
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, preexec_fn=ignore)
    assert time.monotonic() - began < 20
    return done


@pytest.mark.parametrize(
    "place, number", [("callback", signal.SIGTERM), ("library", signal.SIGINT), ("worker", signal.SIGTERM)]
)
def test_what_is_dropped_comes_again(place, number):
    done = run(PROGRAM, place, number)
    assert (done.returncode, done.stderr) == (signals.STATUS[number], f"{signals.INTERRUPTED}\n")


def test_what_is_done_about_a_signal_is_not_interrupted():
    done = run(PROGRAM, "clean-up", signal.SIGTERM)
    assert (done.returncode, done.stdout) == (signals.STATUS[signal.SIGTERM], "clean\n")


def test_a_second_ctrl_c_ends_at_once():
    twice = PROGRAM.replace("time.sleep(0.5)", "strike(); time.sleep(30)")
    done = run(twice, "clean-up", signal.SIGINT)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", f"{signals.INTERRUPTED}\n")


def test_what_is_ignored_stays_so():
    done = run(
        PROGRAM.replace("time.sleep(30)", "print('went on')"), "callback", signal.SIGHUP, ignored=[signal.SIGHUP]
    )
    assert (done.returncode, done.stdout) == (0, "went on\n")


def test_a_signal_waits_for_the_program_that_takes_this_ones_place():
    held = "import os, sys; from retrieval.common.runtime import signals; signals.hold(); os.kill(os.getpid(), 15); "
    done = run(f"{held}os.execv(sys.executable, [sys.executable, '-c', {PROGRAM!r}, 'nowhere', '15'])")
    assert (done.returncode, done.stderr) == (75, f"{signals.INTERRUPTED}\n")


def test_a_limit_of_time_holds_in_a_collection_too(monkeypatch):
    monkeypatch.setattr(sys, "unraisablehook", lambda dropped: None)

    def slow(phase, counts):
        gc.callbacks.remove(slow)
        time.sleep(0.1)

    gc.callbacks.append(slow)
    began = time.monotonic()
    with pytest.raises(TooSlowError, match="too slow"), time_limit(0.05, "too slow"):
        gc.collect()
        time.sleep(60)
    assert time.monotonic() - began < 30  # a busy machine takes seconds to collect
