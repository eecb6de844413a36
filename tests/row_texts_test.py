"""Passages by their rows, and lists of several systems side by side."""

import json

import numpy as np
import pytest

from retrieval.common.errors import UserError
from retrieval.data.sets import beir
from retrieval.data.sets.beir import Candidate
from retrieval.data.sets.row_texts import CandidateTexts, RowTexts
from retrieval.search.exact import no_results
from retrieval.search.hit_texts import first_duplicates
from retrieval.search.side_by_side import SideBySide

CANDIDATES = [
    Candidate(str(row), f"t{row}", "käse\n" * row, "Life" if row % 2 else "", url="/a" * row) for row in range(7)
]


def test_rows_are_those_of_all_files(tmp_path):
    paths = [tmp_path / f"{name}.jsonl" for name in "abc"]
    for path, part in zip(paths, (CANDIDATES[:3], [], CANDIDATES[3:])):
        beir.write_candidates(path, part)
    texts = RowTexts(paths)
    assert list(texts) == CANDIDATES == [c for path in paths for c in beir.read_candidates(path)]
    with pytest.raises(IndexError):
        texts[7]
    named = RowTexts(paths, lambda text: f"/{text.id}")
    assert [text.url for text in named] == [f"/{row}" for row in range(7)] and named[6].text == CANDIDATES[6].text
    beir.write_candidates(paths[0], [Candidate("other", "", "x")])
    assert texts[0] == CANDIDATES[0]


def test_equal_texts_have_one_key(tmp_path):
    texts = [("Köln", 'a "quoted"\ntext'), ("", "no title"), ("Köln", 'a "quoted"\ntext'), ("no title", "")]
    written = [Candidate(id, *text) for id, text in zip("abcd", texts)]
    beir.write_candidates(tmp_path / "corpus.jsonl", written)
    with CandidateTexts(tmp_path / "corpus.jsonl", {"d", "a", "missing"}) as rows:
        assert list(rows) == written and rows.row_of == {"a": 0, "d": 3}
        assert rows.keys_N[0] == rows.keys_N[2] and len(set(rows.keys_N.tolist())) == 3


def test_a_line_that_is_no_passage_is_named(tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps({"_id": "a", "text": "x"}) + "\nnonsense\n")
    with pytest.raises(UserError, match=r"a\.jsonl, line 2: not valid JSON"):
        RowTexts([tmp_path / "a.jsonl"])[1]
    with pytest.raises(UserError, match="cannot be read"):
        RowTexts([tmp_path / "missing.jsonl"])


class Counted:
    """A search that always finds the same rows, and counts its calls."""

    def __init__(self, *rows):
        self.rows, self.calls = rows, []

    def __call__(self, queries, k):
        self.calls.append((len(queries), k))
        scores_QK, rows_QK = no_results(len(queries), k)
        found = self.rows[:k]
        rows_QK[:, : len(found)], scores_QK[:, : len(found)] = found, np.arange(len(found), 0, -1)
        return scores_QK, rows_QK


def test_each_index_is_asked_once():
    words, other, dense = Counted(3, 1), Counted(2), Counted(1, 0)
    systems = SideBySide({"words": words, "other": other}, dense, weight=0.9, depth=5)
    assert systems.systems == ("dense", "words", "other", "hybrid")
    found = systems.search(["a", "b"], 2)
    assert {name: rows_QK.tolist() for name, (_, rows_QK) in found.items()} == {
        "dense": [[1, 0]] * 2,
        "words": [[3, 1]] * 2,
        "other": [[2, -1]] * 2,
        "hybrid": [[1, 3]] * 2,
    }
    assert words.calls == dense.calls == [(2, 5)] and other.calls == [(2, 2)]
    assert list(systems.search(["a"], 2, ["words"])) == ["words"] and len(dense.calls) == 1
    with pytest.raises(UserError, match="unknown system 'wrods': did you mean words"):
        systems.search(["a"], 2, ["wrods"])
    assert SideBySide({"words": Counted(1)}).systems == ("words",)  # without embeddings there is no hybrid


def test_texts_that_are_nearly_the_same_are_told():
    long = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
    texts = [long, "other words altogether", long + " sixteen", "x", long.upper(), "X", ""]
    assert first_duplicates(texts) == [0, 1, 0, 3, 0, 3, 6]


def test_a_passage_is_found_by_its_id(tmp_path):
    names = ["a", 'q"uote', "ünï", "long/" + "x" * 300, "a:10", "a:1", "a:b:2", "ü:0"]
    lines = [json.dumps({"_id": id, "title": "a", "text": f'"_id": "a" {id}'}, ensure_ascii=False) for id in names]
    path = tmp_path / "corpus.jsonl"
    path.write_text("\n".join([*lines, json.dumps({"_id": "ö\u2028", "text": "escaped"})]) + "\n", encoding="utf-8")
    with RowTexts([path]) as texts:
        assert [texts.find(name).id for name in [*names, "ö\u2028"]] == [*names, "ö\u2028"]
        assert [[each.id for each in texts.numbered(of)] for of in "aü"] == [["a:1", "a:10"], ["ü:0"]]
        assert texts.find("a:") is None and texts.find("") is None and isinstance(texts.find("a"), Candidate)
