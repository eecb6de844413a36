"""The stage `inspect`: mistakes in texts and labelled examples are counted, told in the log, and written down."""

import json

import numpy as np
import pytest
from conftest import REPOSITORY
from support import tiny
from support.tiny import execute

from retrieval.data.corpora import corpus_kind
from retrieval.data.corpora.passages import Limits
from retrieval.data.sets.beir import Candidate
from retrieval.data.shards import prepared_corpus
from retrieval.data.tokenizers.vocab import SPECIAL_TOKENS, WordPiece
from retrieval.runs.fitting import data_warnings
from retrieval.runs.pipeline.run import Run

WORDS = [f"word{number}" for number in range(60)]
TEXT = "the owl sees at night and sleeps by day in the old oak tree of the park"
RNG = np.random.default_rng(0)


def found(run):
    lines = json.loads((run.folder / "inspect.json").read_text())
    return {(line["about"], line["what"]): (line["count"], line["of"], line["is_warning"]) for line in lines}


@pytest.fixture(scope="module")
def labelled(tmp_path_factory):
    """Four labelled queries, of which one is a test question, and one has a positive among its negatives."""
    folder = tmp_path_factory.mktemp("labelled")
    vocabulary = WordPiece([*SPECIAL_TOKENS, *sorted({*TEXT.split(), *WORDS, "where", "is"})])
    vocabulary.save(folder / "vocab.txt")
    lines = [
        {"query": "Where is the  owl", "positives": [TEXT], "negatives": [f"{TEXT} word1", "word2 word3"]},
        {"query": "where is word4", "positives": ["word4 is here"], "negatives": ["word5"]},
        {"query": "where is word5 " * 9, "positives": ["word5 " * 80]},
        {"query": "word6", "positives": [TEXT]},
    ]
    (folder / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    test = [{"query": "where is the owl", "positives": [TEXT]}, {"query": "where is word9", "positives": ["word9"]}]
    (folder / "test.jsonl").write_text("".join(json.dumps(line) + "\n" for line in test))
    places = {"vocab": "vocab.txt", "pairs.files": "train.jsonl", "sets.labelled": "test.jsonl"}
    changes = {field: str(folder / name) for field, name in places.items()} | {"data.lanes": 1, "split.shards": 1}
    changes |= {"data.query_length": 16, "data.document_length": 48, "stages": ("sets", "pairs", "inspect", "train")}
    run = Run(tiny.make_config("dpr", **changes), folder / "run", REPOSITORY / "requirements.lock")
    execute(run, "sets")
    return run


def test_labelled_examples_are_looked_at_before_training(labelled, capsys, caplog):
    execute(labelled, "inspect")
    seen, said = found(labelled), capsys.readouterr().out
    likely = "hard negatives nearly the same as a positive of their query: likely no negatives"
    assert seen["labelled examples", "queries looked at"] == (4, None, False)
    assert seen["labelled examples", "pairs of a query and a positive"] == (4, None, False)
    assert seen["labelled examples", likely] == (1, 3, True)
    assert seen["labelled queries", "cut to 16 tokens"] == (1, 4, True)
    assert seen["labelled positives", "cut to 48 tokens"] == (1, 4, True)
    assert seen["labelled positives", "tokens behind the first 48"] == (34, 2 * 19 + 5 + 82, True)
    assert seen["set test", "queries that are trained on"] == (1, 2, True)
    assert seen["set test", "relevant passages that are positives of training"] == (1, 2, False)
    assert f"| labelled examples | {likely} | 1 | 3 | 33.3 | look | Where is the owl |" in said
    assert "inspect: set test: queries that are trained on: 1 of 2 (where is the owl)" in caplog.text
    execute(labelled, "pairs")
    assert f"pairs: labelled examples: {likely}: 1 of 3" in caplog.text


def test_what_is_likely_to_be_a_mistake_is_named(tmp_path):
    """A page to print, in which the others stand again, and pages that were left out."""
    pages = {name: f"<h1>{name}</h1>" + "<p>".join(" ".join(RNG.choice(WORDS, 30)) for _ in range(2)) for name in "ab"}
    pages["all"] = "<title>All</title>" + "".join(pages.values())
    pages |= {name: f"<meta http-equiv=refresh content='0; url=a.html'>{name}" for name in ("old", "older")}
    for name, page_text in pages.items():
        (tmp_path / f"{name}.html").write_text(page_text)
    options = dict.fromkeys(("documents.id", "documents.title", "documents.text", "documents.url"), "")
    source = corpus_kind.open_source(str(tmp_path), options, tmp_path / "no.lock")
    settings = tiny.SETTINGS._replace(limits=Limits(64, 1, 1))
    statistics = prepared_corpus.prepare(source, tmp_path / "corpus", settings)
    assert statistics["examples"] == {"pages dropped: redirects to other pages": "old.html"}
    texts = [Candidate(id, "", pages[id[0]]) for id in ("a:0", "b:0")] + [Candidate("all:3", "", pages["b"])]
    found = {count.what: count for count in data_warnings.of_corpus(statistics, texts, None)}
    same = found["the same as an earlier one"]
    assert (same.count, same.is_warning, same.example) == (1, True, "all:3, as b:0")
    assert (found["pairs of WLP"].of, found["pairs of WLP"].example) == (8, "fewer than 50%, mostly no link")
