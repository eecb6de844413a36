"""A reranker from BM25's negatives to a folder of Hugging Face's, on the toy corpus."""

import json

import jax
import numpy as np
import pytest
from flax import nnx
from support.tiny import execute, make_run

import retrieval
from retrieval.common.errors import UserError
from retrieval.data.sets.beir import Candidate
from retrieval.evaluation import result_files
from retrieval.methods.reranker.model import load_cross_encoder
from retrieval.models.encoder_folder import EncoderFolder
from retrieval.models.text import Text
from retrieval.recipes.inference import token_types
from retrieval.recipes.parameters import parameters_of
from retrieval.recipes.recipe import build_model
from retrieval.runs.pipeline import preflight, records
from retrieval.runs.weights import initial_parameters, trained_run
from retrieval.runs.weights.pair_scorer import JoinedRows
from retrieval.runs.weights.trained_model import TRAINED


@pytest.fixture(scope="module")
def trained(inputs, tmp_path_factory):
    """Half of the toy questions to train on, an eighth to validate on."""
    changes = {
        "stages": ("prepare", "sets", "index", "mine", "pairs", "train", "evaluate", "rerank", "report"),
        "split.set": "reqa",
        "split.ratio": 0.5,
        "split.validation": 0.25,
        "data.negatives": 2,
        "mine.last": 20,
        "train.batch_size": 8,
        "loop.validate_every": 2,
        "encode.corpus": False,
        "rerank.depths": (5, 10),
    }
    run = make_run("monobert", inputs, tmp_path_factory.mktemp("reranker") / "run", **changes)
    preflight.check(run, run.config.stages)
    execute(run)
    return run


def test_it_is_trained_validated_and_among_the_results(trained):
    lines = [json.loads(line) for line in (trained.folder / "metrics" / "train.jsonl").read_text().splitlines()]
    losses = [line for line in lines if "loss" in line]
    validations = [line["validation/RR"] for line in lines if "validation/RR" in line]
    assert len(losses) == len(validations) == 2
    assert losses[0]["loss"] == pytest.approx(np.log(2), abs=0.05) and losses[0]["spread"] > 0
    assert all(1 / 21 <= value <= 1 for value in validations)  # one positive and twenty others
    rows = result_files.rows(result_files.folders(trained.folder))
    assert {row["system"] for row in rows} == {"bm25", "bm25+rerank@5", "bm25+rerank@10"}
    assert {len(row) for row in rows} == {8}
    report = (trained.folder / "report.md").read_text()
    assert "bm25+rerank@10" in report and "## Reranking by depth" in report and "## Consistency factor" in report


@pytest.fixture(scope="module")
def exported(trained):
    execute(trained, "export")
    return trained.folder / "export"


def test_it_is_exported_and_read_back(trained, exported):
    config, size = trained.config, len(trained.load_vocabulary())
    _, model = trained_run.load_parameters(trained.folder, size, config.mesh)
    params = parameters_of(load_cross_encoder(EncoderFolder.open(exported), model.encoder.config))
    jax.tree.map(np.testing.assert_array_equal, params["encoder"], parameters_of(model)["encoder"])
    card = (exported / "README.md").read_text()
    assert "pipeline_tag: text-ranking" in card and "CrossEncoder(" in card and "encode_query" not in card
    settings = json.loads((exported / "tokenizer_config.json").read_text())
    assert settings["model_max_length"] == config.data.document_length
    assert records.details(trained, "export")["classes"] == 2


def test_its_model_reranks_from_python(trained):
    model, texts = retrieval.load(trained.folder), ["the red fox eats grass", "nothing", "red fox " * 30]
    hits = model.rerank("what does the red fox eat?", [*texts, {"id": "a", "title": "Fox", "text": "grass", "n": 1}])
    vocabulary, data = trained.load_vocabulary(), trained.config.data
    documents = [Candidate(str(place), "", text) for place, text in enumerate(texts)] + [Candidate("a", "Fox", "grass")]
    ours = JoinedRows(vocabulary, data.document_length, data.query_length)
    _, reranker = trained_run.load_parameters(trained.folder, len(vocabulary), trained.config.mesh)
    expected, scores_of = {}, nnx.jit(lambda model, text: model.scores(text))
    for document, ids in zip(documents, ours.of(ours.begin(["what does the red fox eat?"]) * 4, documents)):
        ids_1L = np.array([ids], np.int32)
        text = Text.from_ids(ids_1L, token_types(ids_1L, vocabulary.sep_id))
        expected[document.id] = scores_of(reranker, text).item()
    assert [hit.id for hit in hits] == sorted(expected, key=lambda id: -expected[id])
    np.testing.assert_allclose([hit.score for hit in hits], [expected[hit.id] for hit in hits], atol=1e-5)
    assert {hit.id for hit in model.rerank("fox", hits)} == set(expected) and model.rerank("fox", []) == []
    assert {hit.id: hit.metadata for hit in model.rerank("fox", hits)}["a"] == {"n": 1}
    scorer = TRAINED["reranker"].open(trained, "", "")
    rows, scores = scorer.rows_of("what does the red fox eat?", documents), [expected[each.id] for each in documents]
    logits = scorer.logits(rows)
    np.testing.assert_allclose(scorer.scores_of_logits(logits), scores, atol=1e-5)
    np.testing.assert_allclose(1 / (1 + np.exp(-logits)), np.exp(scores), atol=1e-5)
    with_room = scorer.rows_of("what does the red fox eat?", documents, 1)
    assert [ids != longer for ids, longer in zip(rows, with_room)] == [False, False, True, False]
    with pytest.raises(UserError, match="the model embeds nothing: call rerank or answer"):
        model.encode_query(["a"])


def test_another_run_starts_from_the_export(trained, exported, inputs, tmp_path):
    """Of two classes, which the one that a folder has becomes."""
    changes = {"base": str(trained.folder), "corpus": "", "stages": ("train",), "train.batch_size": 8}
    changes |= {"train.init_from": str(exported), "vocab": str(exported), "data.negatives": 2}
    changes |= {"model.classes": 2, "train.loss": "class_cross_entropy"}
    run = make_run("monobert", inputs, tmp_path / "again", **changes)
    preflight.check(run, ("train",))
    model = build_model(run.config, size := len(run.load_vocabulary()))
    initial_parameters.start_of(run.config).init(model, run.config, size)
    params = parameters_of(load_cross_encoder(EncoderFolder.open(exported), model.encoder.config))
    jax.tree.map(np.testing.assert_array_equal, parameters_of(model), params)
