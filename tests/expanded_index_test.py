"""BM25 over passages with queries that a model wrote of them, and over words that a model weighed."""

import json
from pathlib import Path

import numpy as np
import pytest

from retrieval.common.errors import UserError
from retrieval.data.sets.beir import Candidate
from retrieval.methods.writer import expanded_index
from retrieval.search.bm25 import Bm25Index
from retrieval.search.index_kind import INDEXES, Texts

PASSAGES = [
    Candidate("d0", "Lynx", "A cat of the north."),
    Candidate("d1", "", "It swims far."),
    Candidate("d2", "Owls", "They hunt at night."),
]
WORDS = {"index.bm25_stop_words": "english", "index.bm25_stemmer": "none"}
SETTINGS = WORDS | {"index.bm25_k1": 0.9, "index.bm25_b": 0.4}


def texts(passages=PASSAGES):
    return Texts("toy", lambda: iter(passages), lambda: False, Path("generated/toy.jsonl"))


def write(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def written(*pairs):
    return [{"_id": id, "text": text, "log_probability": -1.5} for id, text in pairs]


@pytest.mark.parametrize("in_folder", [False, True])
def test_written_queries_are_appended(tmp_path, in_folder, caplog, monkeypatch):
    """The first two of each, in the order of the file; those of no passage are counted."""
    monkeypatch.setattr(expanded_index, "MOST", 2)
    pairs = [("d1", "whale speed"), ("d9", "whale"), ("d0", "wild cat"), ("d1", "blue whale"), ("d1", "dolphin")]
    path = write(tmp_path / "toy.jsonl", written(*pairs))
    options = SETTINGS | {"index.expansions": str(tmp_path if in_folder else path)}
    kind = INDEXES["doc2query"]
    kind.check(options)
    assert kind.inputs(options) == [path]
    index = kind.build(texts(), options)
    expanded = ["Lynx A cat of the north. wild cat", "It swims far. whale speed blue whale", "Owls They hunt at night."]
    expected = Bm25Index.build(expanded, "", 0.9, 0.4)
    for query in ("whale", "cat", "dolphin", "night owls", "speed of a wild whale"):
        for ours, theirs in zip(index.search([query], 3), expected.search([query], 3)):
            np.testing.assert_array_equal(ours, theirs)
    assert "up to 2 written queries (2 of 3 passages, 1 lines of no passage), 3 documents" in index.description
    assert "about 2 of 3 passages and has 1 lines of no passage of 'toy'" in caplog.text
    index.save(tmp_path / "index")
    assert kind.load(tmp_path / "index").description == index.description


def test_weighed_words_are_term_frequencies(tmp_path):
    """In the form of this project, and in the authors', where words stand so many times."""
    records = [
        {"_id": "d1", "frequencies": {"whale": 80, "swims": 20, "the": 9}},
        {"id": "d0", "contents": "cat cat cat lynx"},
        {"_id": "d8", "frequencies": {"whale": 1}},
    ]
    path = write(tmp_path / "weights.jsonl", records)
    index = INDEXES["deepct"].build(texts(), WORDS | {"index.term_weights": str(path)})
    frequencies = [{"cat": 3, "lynx": 1}, {"whale": 80, "swims": 20}, {}]
    expected = Bm25Index.from_frequencies(frequencies, "", 10, 0.9)
    for query in ("whale cat", "lynx", "owls"):
        for ours, theirs in zip(index.search([query], 3), expected.search([query], 3)):
            np.testing.assert_array_equal(ours, theirs)
    assert "weighted words (2 of 3 passages, 1 lines of no passage), " in index.description
    assert "k1 10" in index.description


@pytest.mark.parametrize(
    ("kind", "lines", "message"),
    [
        ("doc2query", ['{"_id": "d0", "text": "x"}', "whale"], r"toy\.jsonl, line 2: not valid JSON .*; a line such"),
        ("doc2query", ['{"_id": "d0", "text": 1}'], r"line 1: the field 'text'"),
        ("doc2query", [], r"none of its 0 lines is of a passage of 'toy'"),
        ("doc2query", ['{"_id": "e0", "text": "x"}'], r"none of its 1 lines is of a passage of 'toy'"),
        ("deepct", ['{"_id": "d0", "frequencies": [["x", 2]]}'], r"toy\.jsonl, line 1: not the words of a passage"),
        ("deepct", ['{"_id": "d0", "frequencies": {"x": 3000000000}}'], r"the word 'x' counts 3000000000 times"),
        (
            "deepct",
            ['{"_id": "d0", "frequencies": {"bomb": 2147483647, "Bomb": 1}}'],
            r"toy\.jsonl: BM25: forms of 'bomb' in passage 0 count 2147483648 times; 2147483647 is the most",
        ),
        ("deepct", ['{"_id": "d0", "contents": "x"}', '{"_id": "d0", "contents": "y"}'], r"'d0' has 2 lines that"),
        ("deepct", ["\udcff"], r"toy\.jsonl, line 1: not UTF-8 .*; convert the file to UTF-8"),
    ],
)
def test_files_that_cannot_be_right(tmp_path, kind, lines, message):
    path = tmp_path / "toy.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8", errors="surrogateescape")
    options = SETTINGS | {"index.expansions": str(path), "index.term_weights": str(path)}
    with pytest.raises(UserError, match=message):
        INDEXES[kind].build(texts(), options)


def test_weighted_words_need_a_file_written_queries_do_not(tmp_path):
    with pytest.raises(UserError, match=r"config\.index\.term_weights=: a file is needed"):
        INDEXES["deepct"].inputs(WORDS | {"index.term_weights": ""})
    kind, options = INDEXES["doc2query"], SETTINGS | {"index.expansions": ""}
    assert kind.stages(options) == ("generate",) and kind.inputs(options) == []
    path = write(tmp_path / "own.jsonl", written(("d2", "whale")))
    index = kind.build(texts()._replace(generated=path), options)
    assert index.search(["whale"], 1)[1].tolist() == [[2]]
