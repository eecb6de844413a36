"""Run files of other systems: read for a set, evaluated beside its own systems, and fused."""

import dataclasses
import json
import shutil

import pytest
from conftest import REPOSITORY
from support import toy_corpus
from support.tiny import execute

from configs import bm25, run_files
from retrieval.common.errors import UserError
from retrieval.data.sets.beir import Judged
from retrieval.runs.pipeline import preflight
from retrieval.runs.pipeline.run import Run
from retrieval.runs.ranking import ranked_lists as reader

VALUE = Judged("toy", {"q0": "red fox", "q1": "whale"}, ["d0", "d1", "d2"], {}, {"test": {"q0": {"d0": 1}}})


def write(path, *results, tag="x"):
    """(query, candidate, rank, score) of each line."""
    path.write_text("".join(f"{query} Q0 {id} {rank} {score} {tag}\n" for query, id, rank, score in results))
    return path


@pytest.fixture
def folder(tmp_path):
    """A BEIR folder of five passages and two questions."""
    texts = ["the red fox sleeps", "an owl", "the blue whale swims", "a red owl", "a whale, a whale"]
    passages = {f"d{row}": text for row, text in enumerate(texts)}
    queries, answers = {"q0": "red fox", "q1": "blue whale"}, {"q0": "d3", "q1": "d2"}
    return toy_corpus.write_set(tmp_path / "toy", passages, queries, answers)


def make_run(place, folder, config, **changes):
    config.sets.beir = str(folder)
    config.update_from_flattened_dict(changes)
    return Run(config, place, REPOSITORY / "requirements.lock")


def values(run, metric):
    """System -> its value of a metric."""
    rows = json.loads((run.folder / "results.json").read_text())
    return {row["system"]: row["value"] for row in rows if row["metric"] == metric}


def test_names_of_systems(tmp_path):
    paths = [tmp_path / name for name in ("bm25.trec", "bert.tsv.gz")]
    for path in paths:
        path.touch()
    read = reader.run_files([f"BM25 (tuned)={paths[0]}", str(paths[1])])
    assert [file.system for file in read] == ["BM25 (tuned)", "bert"]
    for wrong, message in (
        ([f"a={paths[0]}", f"a={paths[1]}"], "two systems are named 'a'"),
        ([f"a b={paths[0]}", f"a_b={paths[1]}"], "the systems 'a b' and 'a_b' would have one run file, a_b.trec"),
        ([f"={paths[0]}"], "'' cannot name a system"),
        ([f"a/b={paths[0]}"], "'a/b' cannot name a system"),
        (["a=absent.trec"], "absent.trec: no such file"),
    ):
        with pytest.raises(UserError, match=message):
            reader.run_files(wrong)


def test_unknown_ids_are_refused_or_counted(tmp_path, caplog):
    path = write(tmp_path / "x.trec", ("q9", "d1", 1, 3), ("q0", "d8", 1, 9.5), ("q0", "d0", 2, 4), ("q0", "d7", 3, 4))
    files = [reader.RunFile("x", path)]
    with pytest.raises(UserError, match=r"x.trec, line 1: the query 'q9' is unknown.*config.runs.unknown=allow"):
        reader.read(files, VALUE, "refuse")
    value, (lists,) = reader.read(files, VALUE, "allow")
    assert value.candidates == ["d0", "d1", "d2", "d8", "d7"] and VALUE.candidates == ["d0", "d1", "d2"]
    assert lists.rows.tolist() == [[3, 0, 4], [-1, -1, -1]] and lists.scores[0].tolist() == [9.5, 4, 4]
    assert lists.notes == {reader.LEFT_OUT: 1, reader.WITHOUT: 1} and "names 2 candidates" not in caplog.text
    assert "name 2 candidates that it has not" in caplog.text and "1 queries have no result" in caplog.text
    of_articles = dataclasses.replace(VALUE, articles=["A", "", "B"])
    assert reader.read(files, of_articles, "allow")[0].articles == ["A", "", "B", "", ""]
    other = write(tmp_path / "y.trec", ("q9", "d1", 1, 3))
    with pytest.raises(UserError, match=r"y\.trec: no result for any query of set 'toy'"):
        reader.read([reader.RunFile("y", other)], VALUE, "allow")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([("q0", "d0", 1, 3), ("q0", "d1", 3, 2)], r"bad.trec, line 2: query 'q0' has a rank that is not the next one"),
        ([("q0", "d0", 1, 3), ("q0", "d77", 2, 2)], r"bad.trec, line 2: the candidate 'd77' is unknown"),
        ([("q0", "d0", 1, 3), ("q0", "d0", 2, 2)], r"bad.trec, line 2: query 'q0' has this candidate twice"),
    ],
)
def test_a_bad_file_leaves_nothing_half_written(tmp_path, folder, lines, message):
    path = write(tmp_path / "bad.trec", *lines)
    run = make_run(tmp_path / "run", folder, bm25.get_config(), **{"runs.files": (f"other={path}",)})
    with pytest.raises(UserError, match=message):
        execute(run)
    assert not (run.folder / "results.json").exists() and not (run.folder / "runs").exists()


def test_a_run_file_is_fused_with_own_systems(tmp_path, folder):
    """BM25 has d0 and d3 for q0, d2 and d4 for q1; the other system has d1, d3, d0 and d4."""
    lines = [("q0", "d1", 1, 9), ("q0", "d3", 2, 8), ("q0", "d0", 3, 1), ("q1", "d4", 1, 0.5)]
    path = write(tmp_path / "other.trec", *lines)
    changes = {"runs.files": (str(path),), "fuse.systems": ("bm25", "other"), "evaluate.metrics": ("RR",)}
    run = make_run(tmp_path / "run", folder, bm25.get_config(), **changes)
    execute(run)
    found = values(run, "RR")
    assert found == {
        "bm25": 0.75,
        "other": 0.25,
        "interleave(bm25+other)": 0.666667,  # d0 d1 d3, and d2 d4
        "reciprocal_rank(bm25+other)": 0.5,  # d0 has 1/61 + 1/63, d3 2/62; d4 is in both lists, d2 in one
        "weighted_sum(bm25+other)": 0.666667,  # d0 1/2, d1 1/2, d3 7/16; d2 1/2, d4 1/2
    }
    runs = run.folder / "runs" / "toy"
    assert {path.stem for path in runs.iterdir()} == set(found)
    for name, ranked in (("bm25", "d0 d3"), ("interleave(bm25+other)", "d0 d1 d3"), ("other", "d1 d3 d0")):
        lines = (runs / f"{name}.trec").read_text().splitlines()
        assert [line.split()[2] for line in lines if line.startswith("q0 ")] == ranked.split()
    report = (run.folder / "report.md").read_text()
    assert "| weighted_sum(bm25+other) |" in report.replace("\\_", "_") and "0.5, 0.5 (0 validation" in report
    assert "On the same 2 questions" in report and "interleave(bm25+other) over other" in report.replace("\\_", "_")
    rows = json.loads((run.folder / "results.json").read_text())
    assert [row["seconds"] is None for row in rows] == [False, True, True, True, True]
    path.write_text(path.read_text().replace("d1 1 9", "d4 1 9"))
    execute(run, "evaluate")  # the file has changed
    assert values(run, "RR")["other"] == found["other"] and "d4 1 9" in (runs / "other.trec").read_text()
    run.config.fuse.update(methods=("interleave",), pairs=True)
    execute(run, "evaluate")
    both = {"interleave(bm25+other)": 0.666667, "interleave(other+bm25)": 0.416667}
    assert values(run, "RR") == {"bm25": 0.75, "other": 0.25} | both


def test_what_cannot_be_evaluated_is_said_before_the_run(tmp_path, folder):
    sets = f"{folder},{shutil.copytree(folder, tmp_path / 'two')}"
    path = str(write(tmp_path / "x.trec", ("q0", "d1", 1, 3)))
    for changes, message in (
        ({"sets.beir": sets, "runs.files": (path,)}, "config.runs.files are of one set, and there are "),
        ({"fuse.methods": ("average",)}, "some of interleave, reciprocal_rank, weighted_sum"),
    ):
        run = make_run(tmp_path / "run", folder, bm25.get_config(), **changes)
        with pytest.raises(UserError, match=message):
            preflight.check(run, run.config.stages)


def test_an_unknown_system_and_no_system(tmp_path, folder):
    run = make_run(tmp_path / "run", folder, bm25.get_config(), **{"fuse.systems": ("bm25", "dense")})
    with pytest.raises(UserError, match=r"unknown system of set 'toy' in config\.fuse\.systems 'dense'.* bm25"):
        execute(run)
    run = make_run(tmp_path / "none", folder, run_files.get_config())
    with pytest.raises(UserError, match="set 'toy': there is no index and no run file to evaluate"):
        execute(run)


@pytest.mark.parametrize("name, ndcg", [("BM25", 0.5058), ("D_BERT_KD_TASB", 0.7210)])
def test_published_numbers_of_dl_2019(tmp_path, shared_data, name, ndcg):
    place = shared_data / "msmarco"
    changes = {
        "sets.judgements": f"{place}/topics.dl19-passage.txt,{place}/qrels.dl19-passage.txt",
        "runs.files": (f"{place}/passage_pool/runs/{name}.dl19.trec",),
    }
    run = make_run(tmp_path / "run", "", run_files.get_config(), **changes)
    execute(run, "sets", "evaluate")
    (value,) = values(run, "nDCG@10").values()
    assert round(value, 4) == ndcg
