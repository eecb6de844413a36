"""A run's own towers behind the protocols of others: the embeddings are those of the stage `encode`."""

import numpy as np
import pytest
from support import exported
from support.embedder_folders import cross_encoder
from support.exported import DOCUMENTS, QUERIES

pytest.importorskip("starlette", reason="launch/serve.lock is not installed")

from starlette.testclient import TestClient
from support import served

import retrieval
from retrieval import cli
from retrieval.api.document_texts import candidates
from retrieval.common.errors import UserError
from retrieval.runs.pipeline import preflight, runner
from retrieval.runs.pipeline.run import Run
from retrieval.runs.weights.trained_model import TRAINED
from retrieval.serving import server

TEXTS = [query for query in QUERIES if query]
CHANGES = {"model.normalize": True, "train.matryoshka": (2, 8), "data.query_prefix": "fox ", "data.titles": "joined"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return exported.work_directory(tmp_path_factory.mktemp("run") / "run", **CHANGES)


@pytest.fixture(scope="module")
def asked(run):
    return served.client(model=retrieval.load(run.folder))


def embeddings(asked, **body):
    data = asked.post("/v1/embeddings", json={"input": TEXTS} | body).json()["data"]
    return np.asarray([each["embedding"] for each in data])


def test_embeddings_are_those_of_the_run(run, asked):
    queries, _ = exported.embed(run, TEXTS)
    np.testing.assert_allclose(embeddings(asked, model="guide:query"), queries, atol=1e-6)
    _, documents = exported.embed(run, documents=[type(DOCUMENTS[0])("", "", text) for text in TEXTS])
    np.testing.assert_allclose(embeddings(asked, model="guide"), documents, atol=1e-6)
    tei = asked.post("/embed", json={"inputs": TEXTS, "prompt_name": "query", "truncate": True}).json()
    np.testing.assert_allclose(tei, queries, atol=1e-6)
    cut = queries[:, :2] / np.linalg.norm(queries[:, :2], axis=1, keepdims=True)
    np.testing.assert_allclose(embeddings(asked, model="guide:query", dimensions=2), cut, atol=1e-6)
    assert asked.post("/v1/embeddings", json={"input": "a", "model": "guide", "dimensions": 4}).status_code == 400


def test_many_texts_are_embedded_as_one_by_one_is(asked):
    texts = [" ".join(["fox", "the", "dog"][: 1 + place % 3] * (1 + place % 5)) for place in range(70)]
    vectors = embeddings(asked, model="guide", input=texts)
    for place in (0, 37, 69):
        np.testing.assert_allclose(vectors[place], embeddings(asked, model="guide", input=texts[place])[0], atol=1e-6)


def test_texts_are_cut_only_where_they_are_too_long(run, asked):
    """With [CLS], [SEP] and the prefix there is room for 13 of 16 tokens of a query, and for 38 of 40 of a document."""
    specials, vocabulary = 2, run.load_vocabulary()
    for prompt, room in (("query", 13), ("document", 38)):
        for count, status in ((room, 200), (room + 1, 422)):
            text = " ".join(["dog"] * count)
            assert len(vocabulary.encode(text)) == count
            answer = asked.post("/embed", json={"inputs": ["a", text], "prompt_name": prompt})
            assert answer.status_code == status, (prompt, count)
        assert "'inputs[1]' has more tokens" in answer.json()["error"]
        used = asked.post("/v1/embeddings", json={"model": f"guide:{prompt}", "input": text}).json()["usage"]
        assert used["total_tokens"] == room + specials + (prompt == "query")


def test_models_are_served_without_documents(run, tmp_path, monkeypatch):
    """An encoder and a reranker, of which there may be one each; no work directory is made."""
    applications, (judge, _) = [], cross_encoder(tmp_path / "judge", run.load_vocabulary())
    monkeypatch.setattr(server, "run", lambda application, *_: applications.append(application))

    def served_by(*models):
        config = cli.load_config(f"served:{','.join(map(str, models))}")
        config.serve.port = 0
        return Run(config, tmp_path / "none", run.lock)

    both = served_by(run.folder, judge)
    preflight.check(both, ["serve_models"])
    runner.run_stage(both, "serve_models")
    asked = TestClient(applications[0], base_url="http://127.0.0.1")
    assert [each["id"] for each in asked.get("/v1/models").json()["data"]][:2] == ["run", "judge"]
    np.testing.assert_allclose(embeddings(asked, model="run:query"), exported.embed(run, TEXTS)[0], atol=1e-6)
    scores = asked.post("/rerank", json={"query": "fox", "texts": TEXTS, "model": "judge", "raw_scores": True}).json()
    scorer = TRAINED["reranker"].open(both, str(judge), "")
    expected = scorer.logits(scorer.rows_of("fox", candidates(TEXTS)))
    np.testing.assert_allclose([each["score"] for each in scores], np.sort(expected)[::-1], atol=1e-5)
    assert not (tmp_path / "none").exists()
    for models, message in (((), "is empty"), ((run.folder, exported.export(run)), "leave one out")):
        with pytest.raises(UserError, match=message):
            preflight.check(served_by(*models), ["serve_models"])
