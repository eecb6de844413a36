"""Collections made larger, and stages that are killed once and resumed."""

import sys

import pytest

from benchmarks import enlarge_collection, rehearsal
from retrieval import files
from retrieval.data.sets import trec
from retrieval.data.sets.beir import Candidate
from retrieval.errors import UserError

CANDIDATES = [Candidate("a", "", "one two three four"), Candidate("b", "Title", "five six seven")]

# Sleeps where it finds no mark of an earlier start.
SLOW_ONCE = """
import pathlib, sys, time
mark = pathlib.Path(sys.argv[1])
if not mark.exists():
    mark.touch()
    time.sleep(60)
"""


def test_new_candidates_are_halves_of_the_old_ones():
    found = dict(enlarge_collection.enlarge(CANDIDATES, 50))
    assert len(found) == 50 and found.pop("a") == "one two three four" and found.pop("b") == "Title five six seven"
    halves = {f"{first} {last}" for first in ("one two", "Title five") for last in ("three four", "six seven")}
    assert set(found.values()) == halves
    assert list(enlarge_collection.enlarge(CANDIDATES, 50)) == list(enlarge_collection.enlarge(CANDIDATES, 50))


def test_a_collection_cannot_be_made_smaller():
    with pytest.raises(UserError, match="2 candidates cannot become 1"):
        list(enlarge_collection.enlarge(CANDIDATES, 1))


def test_a_larger_collection_is_read_as_ms_marcos(tmp_path):
    files.write_text(tmp_path / "set/corpus.jsonl", '{"_id": "a", "text": "a b"}\n{"_id": "b", "text": "c d"}\n')
    files.write_text(tmp_path / "set/queries.jsonl", '{"_id": "q", "text": "what"}\n')
    files.write_text(tmp_path / "set/qrels/test.tsv", "query-id\tcorpus-id\tscore\nq\tb\t2\n")
    enlarge_collection.write(tmp_path / "set", 20, tmp_path / "large")
    large = (tmp_path / "large" / name for name in ("collection.tsv", "queries.tsv", "qrels.tsv"))
    found = trec.read_set("msmarco", *large)
    assert len(found.candidates) == 20 and found.qrels == {"test": {"q": {"b": 2}}}


def test_a_stage_is_killed_once_and_resumed(tmp_path):
    found = rehearsal.rehearse([sys.executable, "-c", SLOW_ONCE, str(tmp_path / "mark")], 2)
    assert 2 <= found["killed"] < 30 and found["resumed"] < 30 and found["peak_mib"] > 0
    assert "| encode | after 2 s |" in rehearsal.table({"encode": found | {"killed": 2.0}})[2]


def test_a_stage_that_ends_before_is_not_killed(tmp_path):
    (tmp_path / "mark").touch()
    found = rehearsal.rehearse([sys.executable, "-c", SLOW_ONCE, str(tmp_path / "mark")], 60)
    assert "killed" not in found and found["whole"] < 30
    assert "| sets | no |" in rehearsal.table({"sets": found})[2]


def test_a_command_that_fails_ends_the_rehearsal():
    with pytest.raises(UserError, match="ended with status 3"):
        rehearsal.rehearse([sys.executable, "-c", "raise SystemExit(3)"], 0)
