"""The whole line on a toy dump: every config trains and is evaluated, and a cut-off run ends as if it had not been."""

import importlib
import json
import shutil
import time

import jax
import numpy as np
import pytest
import toy_corpus
from conftest import REPOSITORY

from retrieval.data.vocab import WordPiece
from retrieval.errors import UserError
from retrieval.search import scann
from retrieval.stages import run as runs
from retrieval.stages import train
from retrieval.stages.run import Run
from retrieval.stages.table import STAGES

TINY = dict(
    prepare=dict(shards=4, vocab_size=300, longest_passage=40, shortest_paragraph=10, least_passage=5),
    data=dict(query_length=16, document_length=48, lanes=4, shuffle_buffer=64),
    model=dict(num_layers=1, hidden_size=16, num_heads=2, mlp_size=32, embed_dim=8),
    train=dict(steps=4, batch_size=16),
    loop=dict(log_every=2, checkpoint_every=2),
    encode=dict(batch_tokens=1024, shard_size=50),
)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    toy_corpus.write_dump(folder / "dump.xml")
    toy_corpus.write_squad(folder / "squad.json")
    return folder


@pytest.fixture(scope="module")
def prepared(inputs, tmp_path_factory):
    """A work directory whose corpus and sets are made, to be copied."""
    folder = tmp_path_factory.mktemp("prepared") / "run"
    execute(make_run("ict_bfs_wlp", inputs, folder), "prepare", "sets")
    return folder


def make_run(name, inputs, folder, **changes):
    config = importlib.import_module(f"configs.{name}").get_config("local")
    for group, values in TINY.items():
        config[group].update(values)
    config.corpus = str(inputs / "dump.xml")
    config.sets.update(pydocs=False, reqa=str(inputs / "squad.json"))
    config.update_from_flattened_dict(changes)
    return Run(config, folder, REPOSITORY / "requirements.lock")


def execute(run, *names):
    runs.open_run(run, STAGES)
    for name in names or run.config.stages:
        runs.run_stage(run, name, STAGES)


def results(folder):
    rows = json.loads((folder / "results.json").read_text())
    return {(row["system"], row["split"], row["metric"]): row["value"] for row in rows}


@pytest.mark.parametrize("name", ["ict", "bfs", "wlp", "bow_mlp"])
def test_every_config_trains(name, inputs, prepared, tmp_path):
    folder = shutil.copytree(prepared, tmp_path / "run")
    changes = {"train.steps": 1, "train.temperature": 1.0, "train.log_q": False}
    execute(make_run(name, inputs, folder, **changes), "train")
    (line,) = (folder / "metrics" / "train.jsonl").read_text().splitlines()
    assert json.loads(line)["loss"] == pytest.approx(np.log(16), abs=1)  # chance, among 16 documents


@pytest.mark.parametrize("name", ["ict_bfs_wlp", "mlm"])
def test_from_the_shards_to_the_report(name, inputs, prepared, tmp_path):
    folder = shutil.copytree(prepared, tmp_path / "run")
    execute(make_run(name, inputs, folder))
    systems = {system for system, _, _ in results(folder)}
    assert systems == {"bm25", "untrained", "dense", "hybrid"} | ({"dense (ScaNN)"} if scann.available() else set())
    assert all(0 <= value <= 1 for value in results(folder).values())
    report = (folder / "report.md").read_text()
    assert "| dense |" in report and "Table 1" in report and (folder / "runs" / "reqa" / "bm25.trec").exists()
    lines = [json.loads(line) for line in (folder / "metrics" / "train.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [2, 4] and all(np.isfinite(line["loss"]) for line in lines)


def test_bm25_needs_no_training(inputs, tmp_path):
    execute(make_run("bm25", inputs, tmp_path))
    found = results(tmp_path)
    assert {system for system, _, _ in found} == {"bm25"}
    assert found["bm25", "pair", "Success@5"] == 1.0  # each question names the animal of its own passage


def test_a_run_without_an_evaluation_set_says_so_and_ends(inputs, prepared, tmp_path, caplog):
    folder = shutil.copytree(prepared, tmp_path / "run")
    execute(make_run("bm25", inputs, folder, **{"sets.reqa": ""}))
    assert "names no evaluation set" in caplog.text
    assert json.loads((folder / "results.json").read_text()) == [] and (folder / "report.md").exists()


def test_training_learns_to_tell_documents_apart(inputs, prepared, tmp_path):
    folder = shutil.copytree(prepared, tmp_path / "run")
    changes = {"train.steps": 60, "train.learning_rate": 1e-2, "model.hidden_size": 32, "model.embed_dim": 32}
    execute(make_run("ict", inputs, folder, **changes), "train")
    lines = [json.loads(line) for line in (folder / "metrics" / "train.jsonl").read_text().splitlines()]
    assert np.mean([line["recall@1"] for line in lines[-5:]]) > 0.5  # chance is 1 in 16
    assert lines[-1]["loss"] < 0.5 * lines[0]["loss"]


def parameters(run):
    vocabulary = WordPiece.load(run.corpus / "vocab.txt")
    return jax.tree.leaves(train.models.parameters(train.load_towers(run, len(vocabulary))))


def test_a_run_that_is_cut_off_ends_as_if_it_had_not_been(inputs, prepared, tmp_path, monkeypatch):
    whole = make_run("ict_bfs_wlp", inputs, shutil.copytree(prepared, tmp_path / "whole"), **{"train.steps": 6})
    execute(whole, "train")
    cut = make_run("ict_bfs_wlp", inputs, shutil.copytree(prepared, tmp_path / "cut"), **{"train.steps": 6})
    real_next = train.Batches.__next__
    served = iter(range(5))

    def cut_off(batches):
        if next(served, None) is None:
            raise KeyboardInterrupt
        return real_next(batches)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(train.Batches, "__next__", cut_off)
        execute(cut, "train")
    wait_for(cut.checkpoints / "4")
    execute(cut, "train")
    for left, right in zip(parameters(whole), parameters(cut), strict=True):
        np.testing.assert_array_equal(left, right)
    metrics = [(r.folder / "metrics" / "train.jsonl").read_text().splitlines() for r in (whole, cut)]
    without_speed = [[{**json.loads(line), "examples_per_second": 0} for line in lines] for lines in metrics]
    assert without_speed[0] == without_speed[1]


def wait_for(path):
    for _ in range(100):
        if path.exists():
            return
        time.sleep(0.1)
    raise AssertionError(f"{path} was not written")


def test_mlm_initialises_both_towers(inputs, prepared, tmp_path):
    mlm = make_run("mlm", inputs, shutil.copytree(prepared, tmp_path / "mlm"))
    execute(mlm, "train")
    folder = shutil.copytree(prepared, tmp_path / "ict")
    run = make_run("ict", inputs, folder, **{"train.init_from": str(tmp_path / "mlm"), "model.tied": False})
    vocab_size = len(WordPiece.load(run.corpus / "vocab.txt"))
    _, trained = train.load_parameters(mlm.folder, vocab_size)
    towers = train.models.build(run.config, vocab_size)
    train.init_from(towers, tmp_path / "mlm", vocab_size)
    table = np.asarray(trained.encoder.token_embedding.embedding[...])
    for tower in (towers.query_tower, towers.document_tower):
        np.testing.assert_array_equal(tower.encoder.token_embedding.embedding[...], table)
    execute(run, "train")


def test_a_corpus_smaller_than_the_batch(inputs, prepared, tmp_path):
    folder = shutil.copytree(prepared, tmp_path / "run")
    with pytest.raises(UserError, match=r"fewer than train\.batch_size=1024"):
        execute(make_run("ict_bfs_wlp", inputs, folder, **{"train.batch_size": 1024}), "train")


def test_an_unknown_index(inputs, prepared, tmp_path):
    folder = shutil.copytree(prepared, tmp_path / "run")
    run = make_run("bm25", inputs, folder, **{"index.dense": "scan"})
    with pytest.raises(UserError, match="unknown index 'scan': did you mean scann"):
        execute(run, "index")


def test_a_query_of_ones_own(inputs, prepared, tmp_path, capsys):
    folder = shutil.copytree(prepared, tmp_path / "run")
    run = make_run("ict_bfs_wlp", inputs, folder)
    execute(run, "train", "encode", "index")
    execute(Run(run.config, folder, run.lock, query="What does the Red fox eat?"), "search")
    output = capsys.readouterr().out
    assert [line for line in output.splitlines() if line in ("dense", "BM25", "merged")] == ["dense", "BM25", "merged"]
    first = output.split("\nBM25\n")[1].splitlines()
    assert first[0].startswith("  1.") and "Red fox" in first[0] + first[1]
    with pytest.raises(UserError, match="needs a query"):
        execute(run, "search")


def test_a_second_call_skips_everything(inputs, prepared, tmp_path, monkeypatch):
    folder = shutil.copytree(prepared, tmp_path / "run")
    execute(make_run("ict_bfs_wlp", inputs, folder))
    written = [p for p in folder.rglob("*") if p.is_file() and p.suffix != ".png" and p.name != "config.json"]
    before = {path: path.stat().st_mtime_ns for path in written if "report" not in path.name}
    execute(make_run("ict_bfs_wlp", inputs, folder))
    assert before == {path: path.stat().st_mtime_ns for path in before}
