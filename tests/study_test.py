"""A study: the order of its runs, what is skipped, what a failure stops, and folders of another table."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import REPOSITORY
from ml_collections import ConfigDict

from configs import bm25
from retrieval import cli, study
from retrieval.common.errors import UserError
from retrieval.runs.pipeline.records import fingerprint, read_record, write_record
from retrieval.studies import run_table
from retrieval.studies.claims import Cell, Report, Row, Table

pytestmark = pytest.mark.usefixtures("one_device")

# Stands for retrieval.main: writes down that it ran, and fails where the config says so.
WORKER = """
import json, os, pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
corpus = json.loads((folder / "config.json").read_text())["corpus"]
with open(folder.parent / "order.txt", "a") as file:
    file.write(folder.name + "\\n")
if corpus == "broken":
    sys.exit("error: no such corpus")
if corpus == "killed":
    os.kill(os.getpid(), 9)
if corpus == "slow":
    signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.5), sys.exit(75)))
    pathlib.Path(folder.parent / "began").touch()
    time.sleep(60)
"""

start_run = study._start


@pytest.fixture(autouse=True)
def worker(monkeypatch):
    def start(entry, compiled):
        log = open(entry.run.folder / "log.txt", "w")  # noqa: SIM115
        for stage in entry.run.config.stages if entry.run.config.corpus not in ("broken", "killed", "slow") else ():
            record = {"done": True, "inputs": fingerprint(entry.run, stage), "seconds": 0, "outputs": {}}
            write_record(entry.run, stage, record)
        command = [sys.executable, "-c", WORKER, str(entry.run.folder)]
        return subprocess.Popen(command, cwd=REPOSITORY, stdout=log, stderr=subprocess.STDOUT)

    monkeypatch.setattr(study, "_start", start)


def make_study(**runs):
    """Name -> (base, init_from) or (base, init_from, corpus); with a table that has a row for each run."""
    config, rows = ConfigDict({"runs": {}}), []
    for name, (base, init_from, *corpus) in runs.items():
        settings = bm25.get_config("local")
        settings.stages, settings.base, settings.train.init_from = ("sets", "index"), base, init_from
        settings.corpus = corpus[0] if corpus else "pydocs"
        config.runs[name] = settings
        rows.append(Row([name], [Cell((name,), "bm25", "reqa", "pair", "RR")]))
    config.report = Report("S", "", [Table("T", ["run", "RR"], rows)], [])
    return config


def do(config, folder, only=("*",)):
    table = run_table.read_table(config, folder)
    run_table.take_table(table, folder)
    reports, path = [], folder / "order.txt"
    failed = study.do_runs(run_table.select(table, only), run_table.finished(table), lambda: reports.append(1))
    order = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    assert len(reports) == len([name for name in order if name not in failed])
    return order, failed


def run_program(config, folder, only=("*",), shown=False):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli, "config", lambda: config)
        flags = {(cli, "WORKDIR"): str(folder), (study, "_ONLY"): list(only), (study, "_LIST"): shown}
        for (module, name), value in flags.items():
            patch.setattr(module, name, SimpleNamespace(value=value))
        return study.main(["study"])


CHAIN = dict(a=("b", "c"), b=("d", ""), c=("d", ""), d=("", ""))


def test_a_run_comes_after_those_that_it_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    order, failed = do(make_study(**CHAIN), Path("study"))
    assert not failed and sorted(order) == ["a", "b", "c", "d"]
    assert order[0] == "d" and order[-1] == "a"
    folder = tmp_path / "study"  # the same, written otherwise
    assert run_table.finished(run_table.read_table(make_study(**CHAIN), folder)) == set(CHAIN)
    config = json.loads((folder / "a" / "config.json").read_text())
    assert (config["base"], config["train"]["init_from"]) == (str(folder / "b"), str(folder / "c"))


def test_finished_runs_are_skipped_and_new_ones_done(tmp_path, capsys):
    do(make_study(**CHAIN), tmp_path)
    assert do(make_study(**CHAIN), tmp_path) == ([], {})
    assert do(make_study(**CHAIN, e=("a", "")), tmp_path) == (["e"], {})
    c = run_table.read_table(make_study(**CHAIN), tmp_path)["c"].run
    write_record(c, "index", {"done": False, "inputs": {"fields": {}}})
    assert run_program(make_study(**CHAIN), tmp_path, ["b", "c"], shown=True) == 0
    assert capsys.readouterr().out == "done\td\ndone\tb\nto do\tc\n"
    assert do(make_study(**CHAIN, e=("a", "")), tmp_path) == (["c", "a", "e"], {})


def test_runs_on_a_remade_run_are_remade(tmp_path):
    """Its own config says nothing of what has changed there."""
    squad, folder, config = tmp_path / "squad.json", tmp_path / "study", make_study(a=("", ""), b=("a", ""), c=("", ""))
    config.runs.b.stages = ("index",)
    do(config, folder)
    squad.write_text("{}")
    config.runs.a.sets.reqa = str(squad)
    assert do(config, folder) == (["a", "b"], {})
    squad.write_text("{ }")
    assert do(config, folder) == (["a", "b"], {})
    os.utime(squad, (1, 1))  # a new date is nothing new
    assert do(config, folder) == ([], {})
    a = run_table.read_table(config, folder)["a"].run
    write_record(a, "sets", read_record(a, "sets") | {"outputs": {"corpus.jsonl": "made anew, by newer code"}})
    assert do(config, folder) == (["a", "b"], {})


WRONG = {
    "config.report is missing": lambda config: config.__delitem__("report"),
    r"runs that need each other: \w -> \w -> \w": lambda config: config.runs.a.update(base="b"),
    r"run 'a' of the study: config\.base is missing": lambda config: config.runs.a.__delitem__("base"),
    r"unknown run in cell bm25, reqa, pair, RR of the report 'aa': did you mean a": lambda config: config.update(
        report=make_study(a=("", ""), aa=("", "")).report
    ),
}


@pytest.mark.parametrize("said", WRONG)
def test_a_wrong_study_is_refused_before_any_run(said, tmp_path):
    config = make_study(a=("", ""), b=("a", ""))
    WRONG[said](config)
    with pytest.raises(UserError, match=said):
        run_program(config, tmp_path / "study")
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize(("corpus", "reason"), [("broken", "error: no such corpus"), ("killed", "killed by signal 9")])
def test_a_failure_stops_only_what_needs_it(corpus, reason, tmp_path):
    runs = dict(a=("", "", corpus), b=("a", ""), c=("", "b"), d=("", ""))
    order, failed = do(make_study(**runs), tmp_path)
    assert order == ["a", "d"] and set(failed) == {"a", "b", "c"}
    assert failed["a"].startswith(reason) and "log.txt" in failed["a"]
    assert failed["b"] == "not started, it needs a" and failed["c"] == "not started, it needs b"
    order, failed = do(make_study(**(runs | {"a": ("", "")})), tmp_path)
    assert order == ["a", "b", "c"] and not failed


def test_an_interrupted_study_ends_when_its_runs_are_gone(tmp_path):
    table = run_table.read_table(make_study(a=("", "", "slow")), tmp_path)
    run_table.take_table(table, tmp_path)
    process = study._start(table["a"], "")
    while not (tmp_path / "began").exists():
        time.sleep(0.01)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    threading.Timer(0.1, lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        study._finish(process)
    assert process.returncode == 75


def test_a_run_ends_with_its_study(tmp_path):
    """Of one that is killed nothing is left but pipes that are closed."""
    table = run_table.read_table(make_study(a=("", "")), tmp_path)
    run_table.take_table(table, tmp_path)
    with start_run(table["a"], str(tmp_path / "compiled")) as process:
        process.stdin.close()
        assert process.wait(60) == 1
    assert not (tmp_path / "a" / "log.txt").read_text()


def test_shared_pre_trainings_follow_from_the_starts_of_runs(tmp_path):
    """By way of other runs, a base, and a model from outside. BM25's runs and those from scratch share nothing."""
    runs = dict(corpus=("", ""), pre=("corpus", ""), split=("corpus", ""), scratch=("split", ""))
    runs |= dict(tuned=("split", "pre"), mined=("split", "tuned"), open=("mined", ""), bert=("split", "/models/bert"))
    config = make_study(**runs, opened=("/runs/old", ""))
    for name in ("pre", "scratch", "tuned", "mined", "bert"):
        config.runs[name].stages = ("train",)
    found = run_table.pretrainings(run_table.read_table(config, tmp_path))
    assert {name: origin for name, origin in found.items() if name != origin} == {
        **dict.fromkeys(("tuned", "mined", "open"), "pre"),
        **{"bert": "/models/bert", "opened": "/runs/old"},
    }
