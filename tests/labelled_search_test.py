"""A run made of labelled files alone is searched: its collection is the passages of their examples."""

import dataclasses
import json
import os

import pytest
from conftest import REPOSITORY
from support import tiny
from support.tiny import execute

from retrieval.common.errors import UserError
from retrieval.data.labelled import grouping
from retrieval.data.labelled.grouping import Example
from retrieval.data.sets import beir, splits
from retrieval.data.sets.beir import Candidate
from retrieval.data.tokenizers.vocab import SPECIAL_TOKENS, WordPiece
from retrieval.runs.pairs import labelled_groups
from retrieval.runs.pipeline import preflight, runner
from retrieval.runs.pipeline.run import Run
from retrieval.runs.pipeline.work_directory import SearchRequest
from retrieval.runs.ranking.collection import CORPUS
from retrieval.stages import search

ANIMALS = "fox dog owl hen cow pig rat elk emu yak ape bee ant cat fly gnu".split()
CHANGES = tiny.CHEAP | {
    "train.batch_size": 8,
    "train.steps": 2,
    "loop.validate_every": 0,
    "encode.corpus": True,
    "encode.untrained": False,
    "index.dense": "exact",
}
STEPS = ("sets", "pairs", "train", "encode", "index")


def make_run(folder, **changes):
    WordPiece([*SPECIAL_TOKENS, *ANIMALS, "the", "where", "is", "of", "tale", "lives"]).save(folder / "vocab.txt")
    examples = [
        {
            "query": f"where is the {name}",
            "positive_passages": [{"docid": f"p{i}", "title": f"the {name}", "text": f"the {name} lives"}],
            "negative_passages": [{"docid": f"n{i}", "title": "", "text": f"tale of the {ANIMALS[i - 1]}"}],
        }
        for i, name in enumerate(ANIMALS)
    ]
    (folder / "train.jsonl").write_text("".join(json.dumps(example) + "\n" for example in examples))
    files = {"vocab": str(folder / "vocab.txt"), "pairs.files": str(folder / "train.jsonl"), "stages": STEPS}
    config = tiny.make_config("dpr", **CHANGES | files | changes)
    return Run(config, folder / "run", REPOSITORY / "requirements.lock", SearchRequest("where is the owl"))


def test_questions_of_nqs_dev_set_are_not_trained_on(tmp_path, monkeypatch):
    run = make_run(tmp_path)
    monkeypatch.setattr(splits, "_nq_dev_lines", lambda: {splits.nq_dev_line("where is the owl")})
    with labelled_groups.opened(run, tmp_path) as (groups, counts):
        assert sorted(group.query for group in groups) == sorted(f"where is the {a}" for a in ANIMALS if a != "owl")
        assert counts.left_out["queries of NQ's dev set, which everybody tests on"] == 1


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """A run whose passages are indexed, to be asked."""
    run = make_run(tmp_path_factory.mktemp("searched"))
    preflight.check(run, STEPS)
    execute(run)
    return run


def ask(run, capsys, **asked):
    capsys.readouterr()
    runner.run_stage(dataclasses.replace(run, request=SearchRequest(**asked)), "search")
    return capsys.readouterr().out


def test_its_passages_are_found_with_ids_and_texts(searched, capsys):
    run = searched
    preflight.check(run, ["search"])
    told = ask(run, capsys, query="where is the owl")
    assert "\ndense\n" in told and "\nBM25\n" in told and "\nhybrid\n" in told
    words = told.partition("\nBM25\n")[2].splitlines()
    assert "[p2]  the owl" in words[0] and words[1].strip() == "the owl lives"
    assert "[n3]" in words[2] and words[3].strip() == "tale of the owl"
    texts = list(beir.read_candidates(run.passages[0]))
    assert sorted(text.id for text in texts) == sorted(f"{side}{i}" for side in "pn" for i in range(len(ANIMALS)))
    assert (run.embeddings(CORPUS, "trained")).exists() and not (run.folder / "corpus").exists()


def test_each_query_of_a_file_gives_a_json_line(searched, tmp_path, capsys):
    (tmp_path / "queries.txt").write_text("where is the owl\n\n  zebra\n")
    lines = ask(searched, capsys, queries=str(tmp_path / "queries.txt"), as_json=True).splitlines()
    owl, zebra = map(json.loads, lines)
    assert owl["query"] == "where is the owl" and zebra["query"] == "zebra"
    assert list(owl["systems"]) == ["dense", "bm25", "hybrid"]
    assert owl["systems"]["bm25"][0].items() >= {"id": "p2", "title": "the owl", "text": "the owl lives"}.items()
    assert zebra["systems"]["bm25"] == [] and len(zebra["systems"]["dense"]) == 5


@pytest.mark.parametrize("as_json", [True, False])
def test_a_search_ends_quietly_with_its_reader(searched, tmp_path, monkeypatch, as_json):
    (tmp_path / "queries.txt").write_text("the owl\n" * 3)
    reads, writes = os.pipe()
    os.close(reads)
    with open(writes, "w") as gone, monkeypatch.context() as patch:
        patch.setattr(search.sys, "stdout", gone)
        asked = SearchRequest("", str(tmp_path / "queries.txt"), as_json)
        runner.run_stage(dataclasses.replace(searched, request=asked), "search")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({}, "takes one of --query='how do I read a zip archive', --queries=FILE, or --queries=-"),
        ({"query": "a", "queries": "b"}, "--stage=search takes one of"),
        ({"queries": "no/such/file"}, "no/such/file: no such file"),
        ({"queries": "/dev/null"}, "/dev/null: a pipe, a device or a socket"),
    ],
)
def test_mistakes_in_what_is_asked(searched, capsys, asked, message):
    with pytest.raises(UserError, match=message):
        ask(searched, capsys, **asked)


def test_a_passage_is_there_once_and_no_id_twice():
    one, other, nameless = Candidate("1", "", "a"), Candidate("1", "", "b"), Candidate("", "", "c")
    found = list(grouping.passages([Example("q", (one, nameless), (other,)), Example("r", (other,), (one,))]))
    assert [text.text for text in found] == ["a", "c", "b"]
    assert found[0].id == "1" and len({text.id for text in found}) == 3 and all(text.id for text in found)
