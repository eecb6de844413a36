"""What `retrieval.load` and a server promise of models that make no embeddings, whichever kind they are."""

import numpy as np
import pytest

import retrieval
from retrieval.api.own_search import OwnSearch
from retrieval.common.errors import UserError
from support.tiny import execute

DOCUMENTS = ["the red fox eats grass", "a whale swims in the sea", "nothing else"]


def same(hits, others):
    """The same documents with the same scores, as far as batches of other sizes round alike."""
    assert [hit.id for hit in hits] == [hit.id for hit in others]
    assert [hit.score for hit in hits] == pytest.approx([hit.score for hit in others], abs=1e-4)


def check_loaded(folder, exported):
    """Own documents are searched, alike by a run's model and by what it exported."""
    model, other = retrieval.load(folder), retrieval.load(exported)
    hits = model.index(DOCUMENTS).search("red fox", 3)
    assert len(hits) > 1 and [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    same(hits, other.index(DOCUMENTS).search("red fox", 3))
    same(hits, model.index(DOCUMENTS).search_batch(["red fox", "sea", "red fox"], 3)[2])
    assert len(model.index(DOCUMENTS, kind="hybrid").search("red fox", 3)) == 3
    system = retrieval.MtebSearch(exported, kind="exact")
    system.index([{"id": str(place), "text": text} for place, text in enumerate(DOCUMENTS)])
    scores = system.search([{"id": "q", "text": "red fox"}], top_k=3)["q"]
    assert list(scores) == [hit.id for hit in hits]
    for wrong, message in (
        (lambda: model.index(DOCUMENTS, kind="quantised"), "the index 'quantised' is of embeddings"),
        (lambda: model.index(DOCUMENTS, precision="int8"), "an index of kind 'exact' has none"),
        (lambda: model.encode_query(["a"], prompt="b"), "has its own markers"),
        (lambda: model.towers, "embeds no text as one vector"),
        (lambda: retrieval.MtebEncoder(exported), "embeds no text as one vector"),
        (lambda: model.index(), "the run has no index 'exact' of its corpus: run the stage"),
        (lambda: retrieval.load(exported, truncate_dim=4), "makes no embeddings"),
        (lambda: retrieval.load(folder, truncate_dim=4), "makes no embeddings"),
    ):
        with pytest.raises(UserError, match=message):
            wrong()
    check_alone(other)
    return model


def check_alone(model):
    """A server of the model without documents gives what Python gives, and says what it has cut."""
    pytest.importorskip("starlette", reason="launch/serve.lock is not installed")
    from retrieval.serving.engine import ENCODED_AT
    from retrieval.serving.service import model_service
    from support import served

    asked, address = served.client(model_service(model, None, "", 8)), ENCODED_AT[model.kind]
    for side, encode in (("query", model.encode_query), ("document", model.encode_document)):
        answer = asked.post(address, json={"inputs": DOCUMENTS, "prompt_name": side}).json()
        for vectors, expected in zip(answer, encode(DOCUMENTS), strict=True):
            if model.kind == "splade":
                terms, weights = zip(*(each.values() for each in vectors))
                np.testing.assert_allclose(weights, expected.toarray().reshape(-1)[list(terms)], atol=1e-5)
                assert len(terms) == expected.nnz
            else:
                np.testing.assert_allclose(vectors, expected, atol=1e-5)
    long = {"inputs": ["fox", "fox " * 400]}
    assert asked.post(address, json=long).status_code == 422
    assert asked.post("/", json={"inputs": "fox"}).json() == asked.post(address, json={"inputs": ["fox"]}).json()
    assert asked.post(address, json=long | {"truncate": True}).headers["x-truncated-inputs"] == "1"
    refused = asked.post("/embed", json={"inputs": "fox"})
    assert refused.status_code == 404 and address in refused.json()["error"]
    assert f"POST {address} " in asked.get("/").text and asked.get("/api/search?query=fox").status_code == 404
    assert asked.get("/ready").json()["status"] == "ready" and address in asked.get("/openapi.json").json()["paths"]


def check_served(run, stage, system):
    """The passages of a run are searched by its own stage's vectors: in Python, and over HTTP as towers are.

    Returns the search.
    """
    pytest.importorskip("starlette", reason="launch/serve.lock is not installed")
    from starlette.testclient import TestClient

    from retrieval.serving import app
    from retrieval.serving.engine import Engine
    from retrieval.serving.requests import Limits
    from retrieval.serving.service import service_of

    execute(run, "index", stage)
    query, own = "what does the red fox eat?", OwnSearch(run, 5)
    service = service_of(own, None, None, 2)
    limits = Limits(k=5, characters=200, texts=2, body=2000, seconds=60, waiting=50, batch=8)
    asked = TestClient(app.make_app(Engine(lambda: service, limits)))
    answer = asked.get("/api/search", params={"query": query, "k": 3, "systems": system}).json()["systems"]
    hits = retrieval.load(run.folder).index().search(query, 3)
    assert list(answer) == [system] and len(own.titles) == 2
    assert [hit["id"] for hit in answer[system]] == [hit.id for hit in hits] and len(hits) == 3
    return own
