"""The whole line on a toy dump: towers; `faults_test` cuts runs off."""

import dataclasses
import importlib
import json
import shutil

import numpy as np
import pytest
from support.run_results import values
from support.tiny import CHEAP, execute, make_run

from retrieval.common.errors import UserError
from retrieval.runs.pipeline import preflight, records
from retrieval.runs.pipeline.run import Run
from retrieval.runs.pipeline.work_directory import SearchRequest
from retrieval.search import encoding, scann
from retrieval.stages import export


@pytest.fixture(scope="module")
def finished(inputs, prepared, tmp_path_factory):
    """A whole run; a test that changes something copies it."""
    run = make_run("ict_bfs_wlp", inputs, shutil.copytree(prepared, tmp_path_factory.mktemp("finished") / "run"))
    execute(run)
    return run


def test_from_the_shards_to_the_report(finished):
    folder = finished.folder
    systems = {system for system, _, _ in values(folder)}
    assert systems == {"bm25", "untrained", "dense", "hybrid"} | (
        {"dense (ScaNN)"} if scann.Scann().available() else set()
    )
    assert all(0 <= value <= 1 for value in values(folder).values())
    report = (folder / "report.md").read_text()
    assert "| dense |" in report and "Corpus: pairs to train on" in report
    assert report.startswith("# run: two_tower after 4 steps on ") and " passages of dump.xml\n\n**reqa, " in report
    assert "fails most\n\n| question | found | right | RR |" in report and "(config.fuse.dense_weight) |" in report
    assert (folder / "runs" / "reqa" / "bm25.trec").exists()
    lines = [json.loads(line) for line in (folder / "metrics" / "train.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [2, 4] and all(np.isfinite(line["loss"]) for line in lines)


def test_more_candidates_from_the_corpus_of_the_base(inputs, finished, tmp_path):
    changes = {"base": str(finished.folder), "stages": ("sets", "encode", "index", "evaluate", "report")}
    run = make_run("ict_bfs_wlp", inputs, tmp_path, **changes, **{"sets.distractors": 100})
    execute(run)
    count = len((run.sets / "reqa" / "corpus.jsonl").read_text().splitlines())
    assert count == 100 + len((finished.sets / "reqa" / "corpus.jsonl").read_text().splitlines())
    assert not (run.folder / "checkpoints").exists()
    ours, theirs = values(run.folder), values(finished.folder)
    for metric in ("Success@1", "Success@10", "RR"):  # other candidates can only come before the right one
        assert ours["dense", "pair", metric] <= theirs["dense", "pair", metric]
    assert ours["dense", "pair", "RR"] < theirs["dense", "pair", "RR"]
    assert "more candidates from the corpus" in (run.folder / "report.md").read_text()
    assert records.details(run, "sets")["reqa"]["more candidates from the corpus"] == 100


def test_one_command_evaluates_new_sets_alone(finished, tmp_path, monkeypatch):
    """The second has the passages of the first: their embeddings are copied."""
    new = shutil.copytree(finished.sets / "reqa", tmp_path / "new")
    again = shutil.copytree(new, tmp_path / "other")
    copied, copy = [], encoding.copy
    monkeypatch.setattr(encoding, "copy", lambda *args: copied.append(args[:2]) or copy(*args))
    before = {path: path.stat().st_mtime_ns for path in finished.folder.rglob("*")}
    config = importlib.import_module("configs.evaluate").get_config()
    config.base, config.sets.beir = str(finished.folder), f"{new},{again}"
    run = Run(config, tmp_path / "run", finished.lock)
    preflight.check(run, config.stages)
    execute(run)
    assert copied == [tuple(run.embeddings(name, "trained") for name in ("new", "other"))]
    assert sorted(path.name for path in (run.folder / "embeddings").iterdir()) == ["new", "other"]
    of_new, of_other = ({p.name: p.read_bytes() for p in folder.iterdir()} for folder in copied[0])
    assert of_new == of_other
    assert [path.name for path in (run.folder / "embeddings" / "new").iterdir()] == ["trained"]
    assert not {"corpus", "checkpoints"} & {path.name for path in run.folder.iterdir()}
    assert {path: path.stat().st_mtime_ns for path in finished.folder.rglob("*")} == before
    ours, theirs = values(run.folder), values(finished.folder)
    assert ours["dense", "pair", "RR"] == pytest.approx(theirs["dense", "pair", "RR"])
    assert "| dense |" in (run.folder / "report.md").read_text()


def test_the_bases_towers_encode_as_they_were_trained(inputs, finished, tmp_path):
    """Whatever the run's own config says of them, which nothing has to repeat."""
    other = {"model.pooling": "mean", "data.query_length": 8, "data.document_length": 96, "model.num_heads": 1}
    run = make_run("ict", inputs, tmp_path, base=str(finished.folder), stages=("encode",), **other)
    execute(run)
    ours, theirs = (sorted((each.folder / "embeddings").rglob("*.npy")) for each in (run, finished))
    assert [path.read_bytes() for path in ours] == [path.read_bytes() for path in theirs]


def test_outputs_of_two_models_do_not_mix(inputs, finished, tmp_path):
    run = make_run("ict", inputs, tmp_path, base=str(finished.folder), stages=("train", "evaluate"), **CHEAP)
    execute(run, "train")
    mixed = r"stage '{}' would read what stage '\w+' of .* made of another 'train' than that of "
    with pytest.raises(UserError, match=mixed.format("evaluate")):
        preflight.check(run, ["evaluate"])
    run.config.stages = ("train", "search")
    with pytest.raises(UserError, match=mixed.format("search")):
        preflight.check(dataclasses.replace(run, request=SearchRequest("What?")), ["search"])
    assert not export.results(run)
