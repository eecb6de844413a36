"""Late interaction from labelled pairs to a report, on the toy corpus."""

import json

import numpy as np
import pytest
from support.tiny import complete, execute, make_run
from support.vector_models import check_loaded, check_served, same

from retrieval.api.own_search import OwnSearch
from retrieval.common.errors import UserError
from retrieval.data.sets.beir import Candidate
from retrieval.evaluation import result_files
from retrieval.methods.late_interaction.token_store import TokenStore
from retrieval.methods.late_interaction.tokens_stage import tokens
from retrieval.methods.late_interaction.trained import LATE_MODELS
from retrieval.runs.pipeline import records


@pytest.fixture(scope="module")
def trained(inputs, tmp_path_factory):
    """Half of the toy questions to train on, an eighth to validate on; documents are packed."""
    changes = {
        "stages": ("prepare", "sets", "index", "mine", "pairs", "train", "evaluate", "tokens", "maxsim", "report"),
        "split.set": "reqa",
        "split.ratio": 0.5,
        "split.validation": 0.25,
        "mine.last": 20,
        "data.pack.document": 1.0,
        "data.query_prefix": "",
        "data.document_prefix": "",
        "train.batch_size": 8,
        "loop.validate_every": 2,
        "late.depth": 5,
        "late.exact": True,
        "encode.shard_size": 20,
        "encode.corpus": False,
    }
    return complete(make_run("colbert", inputs, tmp_path_factory.mktemp("late") / "run", **changes))


def test_it_is_trained_validated_and_among_the_results(trained):
    lines = [json.loads(line) for line in (trained.folder / "metrics" / "train.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    validations = [line["validation/RR"] for line in lines if "validation/RR" in line]
    assert len(losses) == len(validations) == 2 and np.isfinite(losses).all()
    assert all(0 <= value <= 1 for value in validations)
    rows = result_files.rows(result_files.folders(trained.folder))
    assert {row["system"] for row in rows} == {"bm25", "bm25+maxsim@5", "maxsim"}
    report = (trained.folder / "report.md").read_text()
    assert "bm25+maxsim@5" in report and "## Vectors of tokens" in report and "bytes a passage" in report


def test_scores_are_those_of_the_model(trained):
    folder = trained.folder / "tokens" / "reqa"
    queries, candidates = TokenStore(folder, "queries"), TokenStore(folder, "candidates")
    assert len(list(folder.glob("candidates-*.npy"))) > 1
    counts = records.details(trained, "tokens")["reqa"]
    assert counts["bytes a passage"] == round(2 * 8 * candidates.sizes.mean(), 1)
    model = LATE_MODELS.open(trained, "", "config.late.model")
    texts = [json.loads(line) for line in (trained.sets / "reqa" / "queries.jsonl").open()]
    vectors, counts = model.queries([text["text"] for text in texts])
    for number in range(3):
        np.testing.assert_allclose(queries[number], vectors[number][counts[number]], atol=1e-3)
    lines = [line.split() for line in (trained.folder / "late" / "runs" / "reqa" / "maxsim.trec").open()]
    rows = {id: row for row, id in enumerate(candidates.ids)}
    for query, _, id, _, score, _ in lines[:20]:
        place = queries.ids.index(query)
        expected = (queries[place].astype(float) @ candidates[rows[id]].T.astype(float)).max(axis=1).sum()
        assert float(score) == pytest.approx(expected, abs=1e-3)


def test_encoding_goes_on_after_a_kill(trained):
    folder = trained.folder / "tokens" / "reqa"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    gone = sorted(folder.glob("candidates-*.npy"))[1]
    times = {path: path.stat().st_mtime_ns for path in folder.glob("*.npy") if path != gone}
    gone.unlink()
    with pytest.raises(UserError, match="not all that there should be; --stage=tokens makes it again"):
        TokenStore(folder, "candidates")
    tokens(trained)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert all(path.stat().st_mtime_ns == time for path, time in times.items())


def test_it_is_exported_and_read_back(trained):
    execute(trained, "export")
    folder = trained.folder / "export"
    card = (folder / "README.md").read_text()
    assert "models.ColBERT(" in card and "ColBERT" in card and "encode_query" not in card
    theirs, ours = LATE_MODELS.read_folder(trained.config, folder), LATE_MODELS.open(trained, "", "config.late.model")
    candidate = Candidate("a", "Fox", "the red fox eats grass, and nothing else.")
    found, expected = (model.encode_document([candidate])[0] for model in (theirs, ours))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(theirs.queries(["red fox"]).vectors, ours.queries(["red fox"]).vectors, atol=1e-5)
    (vectors,) = check_loaded(trained.folder, folder).encode_query(["red fox"])
    np.testing.assert_allclose(vectors, ours.queries(["red fox"]).vectors[0], atol=1e-5)


def test_own_passages_are_served(trained, inputs, tmp_path):
    changes = {"base": str(trained.folder), "corpus": "", "encode.corpus": True, "stages": ("index", "tokens")}
    run = make_run("colbert", inputs, tmp_path / "run", **changes | {"late.exact": True})
    own, query = check_served(run, "tokens", "maxsim"), "what does the red fox eat?"
    (whole,) = own.search([query], len(own.texts), ["maxsim"])
    run.config.late.update(exact=False, depth=100)  # as many as share a word
    own = OwnSearch(run, 5)
    assert list(own.titles) == ["bm25", "maxsim"]
    (lists,) = own.search([query], len(own.texts))
    sharing = {hit.id for hit in lists["bm25"]}
    expected = [hit for hit in whole["maxsim"] if hit.id in sharing]
    assert 0 < len(expected) < len(whole["maxsim"])
    same(lists["maxsim"], expected)


@pytest.mark.long
def test_few_bytes_and_muvera(trained, inputs, tmp_path):
    changes = {"base": str(trained.folder), "corpus": "", "stages": ("tokens", "maxsim", "report"), "late.depth": 10}
    changes |= {"late.stored": "residual2", "late.exact": True, "late.fde": ("4x2x8", "20x3x8")}
    run = complete(make_run("colbert", inputs, tmp_path / "run", **changes))
    sizes = TokenStore(run.folder / "tokens" / "reqa", "candidates").sizes
    counts = records.details(run, "tokens")["reqa"]
    assert counts["bytes a passage"] == pytest.approx(6 * sizes.mean(), abs=0.1) and counts["dimensions"] == 8
    systems = {row["system"] for row in result_files.rows([run.folder / "late"])}
    assert systems == {"bm25+maxsim@10", "maxsim", "muvera-4x2x8+maxsim@10", "muvera-20x3x8+maxsim@10"}
    told = records.details(run, "maxsim")["reqa, muvera-20x3x8+maxsim@10"]
    assert told["bytes a passage"] == pytest.approx(6 * sizes.mean() + 4 * 20 * 8 * 8, abs=0.2)
    assert 0 < told["recall of the exact 10"] <= 1
    assert "## Searches by MaxSim" in (run.folder / "report.md").read_text()
