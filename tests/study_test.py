"""A study: the order of its runs, what is skipped, what a failure stops, and folders of another table."""

import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import REPOSITORY
from ml_collections import ConfigDict
from support import toy_corpus

from configs import bm25
from configs.studies import (
    pretraining_curves,
    pretraining_tasks,
)
from retrieval import files, study
from retrieval.cli import command_line
from retrieval.data.corpora import tfds_source
from retrieval.errors import UserError
from retrieval.pipeline.records import made_from, read_record, write_record
from retrieval.studies import run_table
from retrieval.studies.claims import Cell
from retrieval.studies.study_results import Results

pytestmark = pytest.mark.usefixtures("one_device")

# Stands for retrieval.main: writes down that it ran, and fails where the config says so.
WORKER = """
import json, pathlib, sys
folder = pathlib.Path(sys.argv[1])
config = json.loads((folder / "config.json").read_text())
with open(folder.parent / "order.txt", "a") as file:
    file.write(folder.name + "\\n")
if config["corpus"] == "broken":
    sys.exit("error: no such corpus")
if config["corpus"] == "killed":
    import os
    os.kill(os.getpid(), 9)
if config["corpus"] == "slow":  # to end, as a run that saves
    import signal, time
    signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.5), sys.exit(75)))
    pathlib.Path(folder.parent / "began").touch()
    time.sleep(60)
"""


def finish(run, stage):
    inputs = made_from(run, stage)
    write_record(run, stage, {"done": True, "inputs": inputs, "seconds": 0, "outputs": {}})


start_run = study._start


@pytest.fixture(autouse=True)
def worker(monkeypatch):
    def start(entry, cores):
        log = open(entry.run.folder / "log.txt", "a")  # noqa: SIM115
        for stage in entry.run.config.stages if entry.run.config.corpus not in ("broken", "killed", "slow") else ():
            finish(entry.run, stage)
        return subprocess.Popen(
            [sys.executable, "-c", WORKER, str(entry.run.folder)],
            cwd=REPOSITORY,
            stdout=log,
            stderr=subprocess.STDOUT,
        )

    monkeypatch.setattr(study, "_start", start)
    monkeypatch.setattr(study, "_POLL_SECONDS", 0.01)


def make_study(**runs):
    """Name -> (base, init_from) or (base, init_from, corpus)."""
    config = ConfigDict({"runs": {}})
    for name, (base, init_from, *corpus) in runs.items():
        settings = bm25.get_config("local")
        settings.stages, settings.base, settings.train.init_from = ("sets", "index"), base, init_from
        settings.corpus = corpus[0] if corpus else "pydocs"
        config.runs[name] = settings
    return config


def do(config, folder, parallel=2, only=("*",)):
    table = run_table.read_table(config, folder)
    run_table.take_table(table, folder)
    reports = []
    execution = study.Execution(run_table.select(table, only), parallel)
    execution.run(lambda: reports.append(1))
    path = folder / "order.txt"
    order = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    assert len(reports) >= len(order)
    return order, execution.failed


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


def test_finished_runs_are_skipped_and_new_ones_done(tmp_path):
    do(make_study(**CHAIN), tmp_path)
    assert do(make_study(**CHAIN), tmp_path) == ([], {})
    assert do(make_study(**CHAIN, e=("a", "")), tmp_path) == (["e"], {})
    write_record(run_table.read_table(make_study(**CHAIN), tmp_path)["c"].run, "index", {"done": False, "inputs": {}})
    assert do(make_study(**CHAIN, e=("a", "")), tmp_path) == (["c", "a", "e"], {})


def test_runs_on_a_remade_run_are_remade(tmp_path):
    """Its own config says nothing of what has changed there."""
    squad = tmp_path / "squad.json"
    squad.write_text("{}")
    config = make_study(a=("", ""), b=("a", ""), c=("", ""))
    config.runs.b.stages = ("index",)
    do(config, tmp_path / "study")
    config.runs.a.sets.reqa = str(squad)
    assert do(config, tmp_path / "study", parallel=1) == (["a", "b"], {})
    squad.write_text("{ }")
    assert do(config, tmp_path / "study", parallel=1) == (["a", "b"], {})
    a = run_table.read_table(config, tmp_path / "study")["a"].run
    write_record(a, "sets", read_record(a, "sets") | {"outputs": {"corpus.jsonl": "made anew, by newer code"}})
    assert do(config, tmp_path / "study", parallel=1) == (["a", "b"], {})
    assert do(config, tmp_path / "study", parallel=1) == ([], {})


def test_questions_that_runs_were_trained_on_are_fixed(tmp_path):
    """Those of another table would be measured beside them."""
    for name in ("one", "two"):
        (tmp_path / f"{name}.json").write_text("{}")
    config = make_study(a=("", ""), b=("a", ""), c=("", ""))
    for name, run in config.runs.items():
        run.sets.reqa = str(tmp_path / "one.json")
        run.stages = ("train", "evaluate") if name == "b" else ("sets", "index")
    folder = tmp_path / "study"
    do(config, folder)
    records = {path: path.read_bytes() for path in folder.rglob("*.json")}
    for run in config.runs.values():
        run.sets.reqa = str(tmp_path / "two.json")
    with pytest.raises(UserError, match=r"another table:\n  a: .*config\.sets\.reqa: '.*one\.json' there, '.*two"):
        do(config, folder)
    assert records == {path: path.read_bytes() for path in folder.rglob("*.json")}
    config.runs.a.sets.reqa = str(tmp_path / "one.json")  # nothing stands on c
    assert do(config, folder) == (["c"], {})


def test_an_equal_remake_leaves_dependent_runs_alone(tmp_path):
    squad = tmp_path / "squad.json"
    squad.write_text("{}")
    config = make_study(a=("", ""), b=("a", ""))
    config.runs.a.sets.reqa, config.runs.b.stages = str(squad), ("train",)
    table = run_table.read_table(config, tmp_path / "study")
    do(config, tmp_path / "study")
    made = read_record(table["a"].run, "sets") | {"outputs": {"sets/reqa/corpus.jsonl": "the same bytes"}}
    write_record(table["a"].run, "sets", made)
    (table["a"].run.sets / "reqa").mkdir(parents=True)
    (table["a"].run.sets / "reqa" / "corpus.jsonl").write_text("")
    finish(table["a"].run, "index")
    finish(table["b"].run, "train")
    os.utime(squad, (1, 1))  # a new date is nothing new
    assert run_table.finished(table) == {"a", "b"}
    squad.write_text("{ }")
    assert run_table.finished(table) == set()
    write_record(table["a"].run, "sets", made | {"inputs": made_from(table["a"].run, "sets")})
    assert run_table.finished(table) == {"a", "b"}
    (table["a"].run.sets / "reqa" / "corpus.jsonl").unlink()
    assert run_table.finished(table) == set()  # it is done again, as the run by itself would be


@pytest.mark.parametrize(
    ("reqa", "nq", "message"),
    [
        ("none.json", "", r".*none\.json: no such file .*config\.sets\.reqa"),
        ("bad.json", "", r".*bad\.json"),
        ("", "bad.json", r".*bad\.json, line 1"),
        ("", "tfds:natural_questions?data_dir=.", r"tfds:natural_questions.*nothing is prepared"),
    ],
)
def test_all_sources_are_checked_before_the_first_run(tmp_path, monkeypatch, reqa, nq, message):
    monkeypatch.chdir(tmp_path)
    Path("bad.json").write_text('{"data": 3}')
    config = make_study(a=("", ""), b=("a", ""))
    config.runs.b.sets.update(reqa=reqa, nq=nq)
    table = run_table.read_table(config, tmp_path)
    with pytest.raises(UserError, match=f"run 'b' of the study: {message}"):
        study.check_sources(config, table.values())
    study.check_sources(config, [table["a"]])


def test_too_large_a_batch_is_found_before_any_run(tmp_path, monkeypatch):
    config, squad = make_study(a=("", ""), b=("a", "")), tmp_path / "squad.json"
    toy_corpus.write_squad(squad)
    config.runs.a.stages, config.runs.a.sets.reqa, config.runs.a.split.set = ("sets", "pairs"), str(squad), "reqa"
    config.runs.b.stages = ("train",)
    config.runs.b.data.rates.update(dict.fromkeys(config.runs.b.data.rates, 0.0) | dict(pairs=1.0))
    config.runs.b.train.batch_size = 2
    study.check_sources(config, run_table.read_table(config, tmp_path / "study").values())
    config.runs.b.train.batch_size = 2000
    with pytest.raises(UserError, match=r"run 'b' of the study: config\.split\.ratio=.* leaves \d+ labelled pairs to"):
        study.check_sources(config, run_table.read_table(config, tmp_path / "study").values())
    opened = []
    monkeypatch.setattr(tfds_source, "open_all", lambda sources, name: opened.append(sources))
    config.runs.a.sets.reqa = f"{squad},tfds:squad"  # which has more of them
    study.check_sources(config, run_table.read_table(config, tmp_path / "study").values())
    assert len(opened) == 1


def make_report(names):
    """A table with a row for each run."""
    cells = [dict(runs=[name], system="bm25", metric="RR", dataset="reqa", split="pair") for name in names]
    rows = [dict(labels=[name], cells=[one]) for name, one in zip(names, cells)]
    tables = [dict(title="T", header=["run", "RR"], rows=rows, notes="")]
    return ConfigDict(dict(title="S", preamble=[], tables=tables, plots=[], claims=[]))


def run_program(config, folder, only=("*",)):
    with pytest.MonkeyPatch.context() as patch:
        for module, flag, value in (
            (command_line, "CONFIG", config),
            (command_line, "WORKDIR", str(folder)),
            (study, "_ONLY", list(only)),
        ):
            patch.setattr(module, flag, SimpleNamespace(value=value))
        return study.main(["study"])


def make_program(**runs):
    config = make_study(**runs)
    config.parallel, config.report = 1, make_report(runs)
    return config


def without(config, field):
    del config[field]


WRONG = {
    "config.parallel=None": lambda config: without(config, "parallel"),
    "config.report is missing": lambda config: without(config, "report"),
    "not that of a study": lambda config: without(config, "runs"),
    r"run 'a' of the study: config\.base is missing": lambda config: without(config.runs.a, "base"),
    "config.report has no plots": lambda config: without(config.report, "plots"),
    "header 3 columns": lambda config: config.report.tables[0].update(header=["run", "RR", "R@1"]),
    r"unknown run in cell bm25, reqa, pair, RR of config\.report 'aa': did you mean a": lambda config: config.update(
        report=make_report(["a", "aa"])
    ),
    "two tables or two plots of the study are named 'T'": lambda config: config.report.update(
        tables=2 * list(config.report.tables)
    ),
}


@pytest.mark.parametrize("said", WRONG)
def test_a_wrong_study_is_refused_before_any_run(said, tmp_path):
    config = make_program(a=("", ""), b=("a", ""))
    WRONG[said](config)
    with pytest.raises(UserError, match=said):
        run_program(config, tmp_path / "study")
    assert not (tmp_path / "study").exists()


def test_a_choice_of_no_runs_is_refused(tmp_path):
    with pytest.raises(UserError, match="--only is empty"):
        run_program(make_program(a=("", "")), tmp_path / "study", only=())
    assert not (tmp_path / "study").exists()


def test_a_finished_study_does_without_its_sources(tmp_path):
    squad, folder = tmp_path / "squad.json", tmp_path / "study"
    toy_corpus.write_squad(squad)
    config = make_program(a=("", ""), b=("a", ""))
    config.runs.a.sets.reqa = str(squad)
    assert run_program(config, folder) == 0
    squad.unlink()
    for name in ("study.md", "order.txt"):
        (folder / name).unlink()
    assert run_program(config, folder) == 0
    assert (folder / "study.md").exists() and not (folder / "order.txt").exists()
    a = run_table.read_table(config, folder)["a"].run
    write_record(a, "sets", read_record(a, "sets") | {"outputs": {"corpus.jsonl": "made anew"}})
    with pytest.raises(UserError, match=r"run 'a' of the study: .*squad\.json: no such file"):
        run_program(config, folder)


def test_unfinished_runs_show_no_results(tmp_path):
    config = make_study(a=("", ""), b=("", ""))
    config.report = make_report("ab")
    for name in "ab":
        (tmp_path / name).mkdir()
        row = dict(system="bm25", metric="RR", dataset="reqa", split="pair", value=0.5)
        (tmp_path / name / "results.json").write_text(json.dumps([row]))
    study.write_report(config, tmp_path, {"a"})
    text = (tmp_path / "study.md").read_text()
    assert "| a | 50.00 |" in text and "| b | – |" in text and "- b: not done" in text

    # What cannot be shown ends no run that goes on.
    (tmp_path / "a" / "results.json").write_text("[")
    study._try_report(config, tmp_path, {"a"})
    with pytest.raises(UserError):
        study.write_report(config, tmp_path, {"a"})


def test_a_second_study_in_a_busy_folder_changes_nothing(tmp_path):
    code = "import pathlib, sys; from retrieval import files; files.lock(pathlib.Path(sys.argv[1])); print(); input()"
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        with pytest.raises(UserError, match=f"another run writes to it .process {other.pid} "):
            do(make_study(**CHAIN), tmp_path)
        other.communicate(b"\n")
    assert not list(tmp_path.rglob("config.json"))


@pytest.mark.parametrize(("corpus", "reason"), [("broken", "error: no such corpus"), ("killed", "killed by signal 9")])
def test_a_failure_stops_only_what_needs_it(corpus, reason, tmp_path):
    runs = dict(a=("", "", corpus), b=("a", ""), c=("", "b"), d=("", ""))
    order, failed = do(make_study(**runs), tmp_path, parallel=1)
    assert order == ["a", "d"] and set(failed) == {"a", "b", "c"}
    assert failed["a"].startswith(reason) and "log.txt" in failed["a"]
    assert failed["b"] == "not started, it needs a" and failed["c"] == "not started, it needs b"
    # What it says is of the last attempt, not of one before.
    other = {"broken": "killed", "killed": "broken"}[corpus]
    _, failed = do(make_study(**(runs | {"a": ("", "", other)})), tmp_path, parallel=1)
    assert not failed["a"].startswith(reason)
    order, failed = do(make_study(**(runs | {"a": ("", "")})), tmp_path, parallel=1)
    assert order == ["a", "b", "c"] and not failed


def test_an_interrupted_study_ends_when_its_runs_are_gone(tmp_path):
    table = run_table.read_table(make_study(a=("", "", "slow"), b=("", "")), tmp_path)
    run_table.take_table(table, tmp_path)
    execution = study.Execution(table, 2)

    def interrupt():
        while not (tmp_path / "began").exists():
            time.sleep(0.01)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execution.run(interrupt)
    (slow,) = execution._running
    assert slow.name == "a" and slow.process.returncode == 75


def test_a_run_ends_with_its_study(tmp_path):
    """Of one that is killed nothing is left but pipes that are closed."""
    table = run_table.read_table(make_study(a=("", "")), tmp_path)
    run_table.take_table(table, tmp_path)
    with start_run(table["a"], os.sched_getaffinity(0)) as process:
        process.stdin.close()
        assert process.wait(60) == 1
    assert not (tmp_path / "a" / "log.txt").read_text()


def test_only_some_runs_and_what_they_need(tmp_path):
    order, _ = do(make_study(**CHAIN, e=("", "")), tmp_path, only=["b*"])
    assert order == ["d", "b"]
    with pytest.raises(UserError, match="unknown run 'f'"):
        do(make_study(**CHAIN, e=("", "")), tmp_path, only=["f"])


def test_a_circle():
    with pytest.raises(UserError, match="runs that need each other: a -> b -> a"):
        run_table.read_table(make_study(a=("b", ""), b=("", "a")), Path("x"))


def test_a_folder_of_another_table_is_left_alone(tmp_path):
    do(make_study(**CHAIN), tmp_path)
    run = run_table.read_table(make_study(**CHAIN), tmp_path)["d"].run
    write_record(run, "prepare", {"done": True, "inputs": {}, "outputs": {}})
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.json")}
    changed = make_study(**(CHAIN | {"d": ("", "", "dump.xml")}))
    with pytest.raises(
        UserError, match=r"another table:\n  d: .*(\n.*)*config\.corpus: 'pydocs' there, 'dump\.xml' now"
    ):
        do(changed, tmp_path)
    with pytest.raises(UserError, match="b: not a run of this study"):
        do(make_study(a=("", "")), tmp_path)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*.json")}


def test_a_study_shows_consistency_factors(tmp_path):
    (tmp_path / "run" / "stages").mkdir(parents=True)
    factors = {"set": "pool", "system": "dense", "trained on": "bm25", "factors": {"5": 0.25, "10": 0.125}}
    record = {"done": True, "details": {"consistency": [factors]}}
    record["sum"] = files.fingerprint(["rerank", record])
    (tmp_path / "run" / "stages" / "rerank.json").write_text(json.dumps(record))
    cell = Cell(("run",), "dense", "consistency with bm25@10", "pool", "test")
    assert Results(tmp_path, ["run"]).measure(cell).mean == 12.5


def test_a_study_shows_what_training_logged(tmp_path):
    (tmp_path / "run" / "metrics").mkdir(parents=True)
    lines = [{"step": 20, "loss": 3.5, "accuracy": 0.25}, {"step": 40, "validation/RR": 0.5}]
    (tmp_path / "run" / "metrics" / "train.jsonl").write_text("\n".join(map(json.dumps, lines)))
    results = Results(tmp_path, ["run"])
    cell = Cell(("run",), "training", "accuracy", "batch", "step 20")
    assert results.measure(cell).values == (25.0,)
    assert results.measure(dataclasses.replace(cell, split="step 40")).values == (None,)
    with pytest.raises(UserError, match=r"step 20, training, batch, step 20, loss: 3\.5 is not a fraction"):
        results.measure(dataclasses.replace(cell, metric="loss"))


def test_validation_chooses_among_rivals_and_the_test_does_not(tmp_path):
    place = {"system": "dense", "dataset": "reqa", "split": "pair", "metric": "R@10", "queries": 9}
    for name, chosen, value in (("a", 0.5, 0.9), ("b", 0.75, 0.125)):
        (tmp_path / name / "metrics").mkdir(parents=True)
        line = {"step": 1, "validation/Success@10": chosen}
        (tmp_path / name / "metrics" / "train.jsonl").write_text(json.dumps(line))
        (tmp_path / name / "results.json").write_text(json.dumps([place | {"value": value}]))
    cell = Cell(("a",), "dense", "R@10", "reqa", "pair", rivals=(("b",),), chosen_by="Success@10")
    assert Results(tmp_path, ["a", "b"]).measure(cell).values == (12.5,)
    assert Results(tmp_path, ["a"]).measure(cell).values == (None,)  # not all are done


def test_an_unfit_start_is_noticed_before_any_run():
    config = pretraining_tasks.get_config("paper")
    config.corpus, config.questions = "dump.xml", "squad.json"
    config.runs["s2-80-transformer-ict-l12-e512"].model.mlp_size = 640
    with pytest.raises(UserError, match=r"run 's2-80-tr.*\.mlp_size is 3072 there and 640 here"):
        run_table.check_table(run_table.read_table(config, Path("x")))


def test_a_step_not_kept_is_noticed_before_any_run():
    config = pretraining_curves.get_config("local")
    config.corpus, config.questions = "dump.xml", "squad.json"
    config.runs["tuned-all-2000-s1"].train.init_step = 3000
    with pytest.raises(UserError, match=r"'tuned-all-2000-s1'.* keeps no checkpoint of that step, but of 1000, 2000"):
        run_table.check_table(run_table.read_table(config, Path("x")))


def test_shared_pre_trainings_follow_from_the_starts_of_runs(tmp_path):
    """By way of other runs, a base, and a model from outside. BM25's runs and those from scratch share nothing."""
    runs = dict(corpus=("", ""), pre=("corpus", ""), split=("corpus", ""), scratch=("split", ""))
    runs |= dict(tuned=("split", "pre"), mined=("split", "tuned"), open=("mined", ""), bert=("split", "/models/bert"))
    config = make_study(**runs, opened=("/runs/old", ""))
    for name in ("pre", "scratch", "tuned", "mined", "bert"):
        config.runs[name].stages = ("train",)
    found = run_table.pretrainings(run_table.read_table(config, tmp_path))
    assert found.pop("opened") == "/runs/old"
    assert {name: origin for name, origin in found.items() if name != origin} == {
        "tuned": "pre",
        "mined": "pre",
        "open": "pre",
        "bert": "/models/bert",
    }
