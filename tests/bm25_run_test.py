"""Runs of BM25 alone: their words follow the config and the vocabulary, and a second one stands beside."""

import json

import pytest
from conftest import REPOSITORY
from support import toy_corpus
from support.tiny import execute

from configs import bm25
from retrieval.data.tokenizers.vocab import SPECIAL_TOKENS
from retrieval.runs.pipeline.run import Run
from retrieval.search.bm25 import Bm25Index


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A BEIR folder: accents are in its texts alone."""
    texts = ["la forêt brûlée", "le café fermé", "les cafés ouverts", "the fox", "une île " * 20]
    passages = {f"d{i}": text for i, text in enumerate(texts)}
    queries = {"q0": "foret brulee", "q1": "cafe ferme", "q2": "the ile"}
    answers = {"q0": "d0", "q1": "d1", "q2": "d4"}
    return toy_corpus.write_set(tmp_path_factory.mktemp("sets") / "accents", passages, queries, answers)


def make_run(place, folder, **changes):
    config = bm25.get_config()
    config.sets.beir = str(folder)
    config.update_from_flattened_dict(changes)
    return Run(config, place, REPOSITORY / "requirements.lock")


def found(run):
    """System -> the share of questions whose passage comes first."""
    rows = json.loads((run.folder / "results.json").read_text())
    return {row["system"]: row["value"] for row in rows if row["metric"] == "Success@1"}


def description(run):
    return Bm25Index.load(run.index("accents", "bm25")).description


def test_both_settings_of_the_field_are_in_one_table(tmp_path, folder):
    run = make_run(tmp_path, folder, **{"index.bm25_also": (0.9, 0.4)})
    execute(run)
    assert found(run) == {"bm25": 1, "bm25 (0.9, 0.4)": 1}
    texts = [json.loads(line)["text"] for line in (folder / "corpus.jsonl").read_text().splitlines()]
    scores, rows = Bm25Index.build(texts, "text", 0.9, 0.4).search(["foret brulee", "cafe ferme", "the ile"], 5)
    lines = (tmp_path / "runs" / "accents" / "bm25_(0.9,_0.4).trec").read_text().splitlines()
    assert [float(line.split()[4]) for line in lines] == pytest.approx(scores[rows >= 0].tolist())
    report = (tmp_path / "report.md").read_text()
    assert "| bm25 (0.9, 0.4) |" in report and "k1 0.9, b 0.4" in report and "k1 1.5, b 0.75" in report


def test_accents_are_folded_as_the_vocabulary_folds_them(tmp_path, folder):
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, "cafe"]))
    keeping, folding = str(REPOSITORY / "tests" / "golden" / "byte_pairs"), str(tmp_path / "vocab.txt")
    for vocab, folded in ((folding, True), (keeping, False)):
        run = make_run(tmp_path / "run", folder, vocab=vocab)
        execute(run)
        assert ("accents folded" in description(run)) == folded
        assert found(run)["bm25"] == (1 if folded else 0), vocab
