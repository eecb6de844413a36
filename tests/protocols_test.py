"""What clients of other servers ask: OpenAI's, TEI's, Cohere's and Vertex AI's protocols, keys, and readiness."""

import asyncio
import base64
import json
import threading

import numpy as np
import pytest

pytest.importorskip("starlette", reason="launch/serve.lock is not installed")
pytest.importorskip("uvicorn", reason="launch/serve.lock is not installed")

from support import served
from support.served import Reranker, Towers

from retrieval.common.errors import UserError
from retrieval.config.experiment import defaults
from retrieval.serving import foreign_routes, mcp_server
from retrieval.serving.engine import ROWS, Engine
from retrieval.serving.guard import Keys
from retrieval.serving.requests import Limits
from retrieval.serving.service import Service

LIMITS = Limits(inputs=100, inputs_tokens=1000, inputs_body=20_000, seconds=5, inputs_seconds=5)


class Counting(Towers):
    """A text's embedding is (its words, its letters, 0, 0): 3 words of 12 letters are (3, 12, 0, 0)."""

    def __init__(self, **options):
        super().__init__(**{"sizes": (1, 4)} | options)
        self.batches = []

    def embed(self, rows):
        self.batches.append([len(ids) for ids in rows.ids])
        return super().embed(rows)

    def vector(self, ids):
        return [len(ids), sum(ids), 0, 0]


def made(**changes):
    values = {"titles": {"bm25": "BM25"}, "passages": 7, "search": None, "marked": None, "model": Counting()}
    return Service(**values | {"reranker": Reranker(score=lambda row: row[1] - 5)} | changes)


def client(service=None, limits=LIMITS, **options):
    return served.client(service or made(), limits, **options)


@pytest.fixture(scope="module")
def asked():
    return client()


def test_openai_gets_embeddings_as_numbers_or_bytes(asked):
    body = {"model": "guide", "input": ["a bc", "def"], "user": "someone", "dimensions": None}
    answer = asked.post("/v1/embeddings", json=body).json()
    rows, usage = ([2.0, 3.0, 0.0, 0.0], [1.0, 3.0, 0.0, 0.0]), {"prompt_tokens": 3, "total_tokens": 3}
    data = [{"object": "embedding", "index": place, "embedding": row} for place, row in enumerate(rows)]
    assert answer == {"object": "list", "data": data, "model": "guide", "usage": usage}
    one = asked.post("/v1/embeddings", json={"model": "guide:query", "input": "a bc", "encoding_format": "base64"})
    numbers = np.frombuffer(base64.b64decode(one.json()["data"][0]["embedding"]), "<f4")
    assert numbers.tolist() == [2, 3, 0, 0] and one.json()["model"] == "guide:query"


@pytest.mark.parametrize(
    ("asks", "side", "prompt"),
    [
        ({"model": "guide"}, "document", None),
        ({"model": "guide:document"}, "document", "document"),
        ({"model": "guide:query"}, "query", "query"),
        ({"model": "guide", "input": [{"text": "x", "title": "t"}]}, "document", None),
        ({"model": "guide:nq"}, "document", "nq"),
        ({"model": "guide:nq-query"}, "query", "nq-query"),
    ],
)
def test_the_name_of_a_model_says_what_texts_are(asks, side, prompt):
    towers = Counting(prompts=("query", "document", "nq", "nq-query"))
    assert client(made(model=towers)).post("/v1/embeddings", json={"input": "x"} | asks).status_code == 200
    assert towers.asked == [(side, prompt, 1)]


def test_dimensions_are_cut_of_a_model_that_was_trained_for_them(asked):
    body = {"model": "guide", "input": "a bc"}
    assert asked.post("/v1/embeddings", json=body | {"dimensions": 1}).json()["data"][0]["embedding"] == [1.0]
    assert asked.post("/v1/embeddings", json=body | {"dimensions": 4}).json()["data"][0]["embedding"][0] == 2.0
    refused = asked.post("/v1/embeddings", json=body | {"dimensions": 2})
    error = {"message": "'dimensions' is 2: the model gives embeddings of 1, 4", "type": "invalid_request_error"}
    assert refused.status_code == 400 and refused.json() == {"error": error | {"param": "dimensions", "code": None}}
    untrained = client(made(model=Counting(sizes=(4,)))).post("/v1/embeddings", json=body | {"dimensions": 1})
    assert "was trained for no others" in untrained.json()["error"]["message"]


def test_openai_is_told_how_many_texts_were_cut_or_refused_them(asked):
    body = {"model": "guide", "input": ["a " * 8, "b " * 9, "c", "d " * 20]}
    usage = asked.post("/v1/embeddings", json=body).json()["usage"]
    assert usage == {"prompt_tokens": 25, "total_tokens": 25, "truncated_inputs": 2}
    strict = client(limits=LIMITS._replace(truncate=False))
    refused = strict.post("/v1/embeddings", json=body)
    assert refused.status_code == 413 and "config.serve.truncate=True" in refused.json()["error"]["message"]
    assert "'input[1]' has more tokens" in refused.json()["error"]["message"]
    assert strict.post("/v1/embeddings", json=body | {"input": "a " * 8}).status_code == 200
    assert strict.post("/embed", json={"inputs": "a " * 9, "truncate": True}).status_code == 200


def test_models_are_listed(asked):
    listed = asked.get("/v1/models").json()
    assert [each["id"] for each in listed["data"]] == ["guide", "guide:query", "guide:document", "guide:nq"]
    assert listed["data"][1] == {"id": "guide:query", "object": "model", "created": 0, "owned_by": "local"}
    assert all(asked.get(f"/v1/models/{each['id']}").json() == each for each in listed["data"])
    unknown = asked.get("/v1/models/guide:other")
    assert unknown.status_code == 404 and unknown.json()["error"]["code"] == "model_not_found"
    assert client(made(model=None, reranker=None)).get("/v1/models").json() == {"object": "list", "data": []}


@pytest.mark.parametrize(
    ("body", "status", "code", "param", "message"),
    [
        ({"input": [[1, 2]]}, 400, None, "input", "check_embedding_ctx_length=False"),
        ({"input": ""}, 400, None, "input", "'input' is missing"),
        ({}, 400, None, "input", "'input' is missing"),
        ({"input": [{"text": "x"}], "model": "guide:query"}, 400, None, "input", "queries are texts"),
        ({"input": ["x"] * 101}, 400, None, "input", "101 texts, and at most 100"),
        ({"input": "x", "encoding_format": "hex"}, 400, None, "encoding_format", "'hex'"),
        ({"input": "x", "model": "gpt"}, 404, "model_not_found", "model", "known: guide, guide:"),
        ({"input": "x " * 10_001}, 413, None, None, "more than 20000 bytes"),
        (b"{", 400, None, None, "not valid JSON"),
        ({"input": [1, 2]}, 400, None, "input", "send text, not token numbers"),
    ],
)
def test_errors_are_openais(asked, body, status, code, param, message):
    content = body if isinstance(body, bytes) else json.dumps({"model": "guide"} | body).encode()
    answer = asked.post("/v1/embeddings", content=content, headers={"content-type": "application/json"})
    error = answer.json()["error"]
    has_numbers = isinstance(body, dict) and body.get("input") in ([1, 2], [[1, 2]])
    assert answer.status_code == status and ("token numbers" in error["message"]) == has_numbers
    assert message in error.pop("message")
    assert error == {"type": "invalid_request_error", "param": param, "code": code}


def test_texts_are_embedded_in_batches_of_like_length_and_too_many_tokens_not_at_all():
    towers, words = Counting(length=100), list(range(1, 61))
    body = {"model": "guide", "input": [" ".join(["x"] * count) for count in reversed(words)]}
    answer = client(made(model=towers)).post("/v1/embeddings", json=body)
    assert answer.status_code == 400 and "1830 tokens, and at most 1000" in answer.json()["error"]["message"]
    assert not towers.batches
    answer = client(made(model=towers), LIMITS._replace(inputs_tokens=10_000)).post("/v1/embeddings", json=body)
    assert [each["embedding"][0] for each in answer.json()["data"]] == words[::-1]
    assert sorted(map(sorted, towers.batches)) == [words[:ROWS], words[ROWS:]]


class Gate(Counting):
    """Embeds nothing until it is opened."""

    def __init__(self):
        super().__init__()
        self.began, self.open = threading.Event(), threading.Event()

    def embed(self, rows):
        self.began.set()
        assert self.open.wait(10)
        return super().embed(rows)


def test_texts_of_requests_that_come_together_are_embedded_together():
    towers, requests = Gate(), [["x"], ["a b c"], ["d e"], ["f g h i", "j"]]
    engine = Engine(lambda: made(model=towers), LIMITS)

    async def ask():
        first, *others = [
            engine.embed("document", texts, None, lambda found: np.stack(found).tolist(), "input") for texts in requests
        ]
        running = [asyncio.ensure_future(first)]
        await asyncio.to_thread(towers.began.wait, 10)
        running += map(asyncio.ensure_future, others)
        async with asyncio.timeout(10):
            while engine.waiting < len(others):
                await asyncio.sleep(0.01)
        towers.open.set()
        return await asyncio.gather(*running)

    answers = asyncio.run(ask())
    assert [[each[0] for each in embeddings] for embeddings, *_ in answers] == [[1], [3], [2], [4, 1]]
    assert sorted(len(batch) for batch in towers.batches) == [1, 4]


@pytest.mark.parametrize(
    ("path", "limit", "status"),
    [
        ("/v1/embeddings", {"waiting": 0}, 503),
        ("/embed", {"waiting": 0}, 429),
        ("/embed", {"inputs_seconds": 0.05}, 503),
    ],
)
def test_who_comes_when_too_many_wait_or_waits_too_long_is_told_to_come_again(path, limit, status):
    towers = Gate()
    body = {"model": "guide", "input": "x", "inputs": "x"}
    answer = client(made(model=towers), LIMITS._replace(**limit)).post(path, json=body)
    towers.open.set()
    assert answer.status_code == status and answer.headers["retry-after"] == "1"
    assert "error_type" in answer.json() or answer.json()["error"]["type"] == "server_error"


def test_tei_gets_vectors(asked):
    unit = (np.asarray([2, 3, 0, 0], np.float32) / np.float32(np.sqrt(13))).tolist()
    assert asked.post("/embed", json={"inputs": "a bc"}).json() == [pytest.approx(unit)]
    plain = asked.post("/embed", json={"inputs": ["a bc", "x"], "normalize": False, "dimensions": None}).json()
    assert plain == [[2.0, 3.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0]]
    info = {"model_id": "guide", "max_client_batch_size": 100, "max_concurrent_requests": 256}
    info |= {"model_dtype": "float32", "model_type": {"embedding": {"pooling": "mean"}}, "max_input_length": 8}
    assert asked.get("/info").json() == info
    assert "reranker" in client(made(model=None)).get("/info").json()["model_type"]
    assert asked.get("/health").status_code == asked.get("/ping").status_code == 200


def test_tei_embeds_with_the_prompt_that_it_is_told():
    towers = Counting(default_prompt="nq")
    asking = client(made(model=towers))
    for prompt in (None, "query", "document"):
        asking.post("/embed", json={"inputs": "x", "prompt_name": prompt})
    asking.post("/embed?prompt_name=query&other=1", json={"inputs": "x"})
    assert towers.asked == [("document", "nq", 1), ("query", "query", 1), ("document", "document", 1), towers.asked[1]]


LONG, FULL = "a b c d e f g h i", "a b c d e f g h"  # of 9 and of 8 tokens, where 8 are read


@pytest.mark.parametrize(
    ("path", "body", "status", "kind", "message"),
    [
        ("/embed", {"inputs": ""}, 400, "Empty", "'inputs' is missing"),
        ("/embed", {}, 422, "Validation", "'inputs' is missing"),
        ("/embed", {"inputs": 3}, 422, "Validation", "'inputs' is missing"),
        ("/embed", {"inputs": ["x"] * 101}, 413, "Validation", "101 texts"),
        ("/embed", {"inputs": ["x", LONG]}, 422, "Validation", "'inputs[1]' has more tokens"),
        ("/embed", {"inputs": ["x", LONG], "truncate": True}, 200, "", ""),
        ("/embed", {"inputs": ["x", FULL]}, 200, "", ""),
        ("/embed", {"inputs": "x", "prompt_name": "no"}, 422, "Validation", "unknown prompt 'no'"),
        ("/embed", {"inputs": "x" * 20_001}, 413, "Validation", "more than 20000 bytes"),
        ("/rerank", {"query": "q", "texts": []}, 400, "Empty", "'texts' is missing"),
        ("/rerank", {"query": "q"}, 422, "Validation", "'documents' is missing"),
        ("/rerank", {"query": "q", "texts": ["a"], "documents": ["a"]}, 422, "Validation", "both there"),
        ("/rerank", {"query": "q", "texts": ["a", LONG]}, 422, "Validation", "'texts[1]' has more tokens"),
        ("/rerank", {"query": "q", "texts": ["a", LONG], "truncate": True}, 200, "", ""),
        ("/v2/rerank", {"query": "q", "documents": ["a"], "model": "rerank-v3"}, 404, "Validation", "known: guide"),
    ],
)
def test_errors_are_teis(asked, path, body, status, kind, message):
    answer = asked.post(path, json=body)
    assert answer.status_code == status
    if status != 200:
        assert answer.json()["error_type"] == kind and message in answer.json()["error"]
        assert path == "/embed" or answer.json()["message"] == answer.json()["error"]


def test_what_fails_is_told_in_the_words_of_each_protocol():
    towers = Towers()
    towers.vector = lambda ids: 1 / 0
    asking = client(made(model=towers))
    answer = asking.post("/embed", json={"inputs": "x"})
    assert answer.status_code == 424 and answer.json()["error_type"] == "Backend"
    answer = asking.post("/v1/embeddings", json={"input": "x", "model": "guide"})
    assert answer.status_code == 500 and answer.json()["error"]["type"] == "server_error"
    nothing = client(made(model=None, reranker=None))
    for path, body in (("/embed", {"inputs": "x"}), ("/rerank", {"query": "q", "texts": ["a"]})):
        assert nothing.post(path, json=body).status_code == 404
    answer = nothing.post("/v1/rerank", json={"query": "q", "documents": ["a"]})
    assert answer.status_code == 404 and "--config.serve.reranker" in answer.json()["message"]
    answer = nothing.post("/v1/embeddings", json={"input": "x", "model": "guide"})
    assert answer.status_code == 404 and "embeds nothing" in answer.json()["error"]["message"]
    assert asking.get("/v1/engines").json()["error"]["type"] == "invalid_request_error"


def sigmoid(number):
    return 1 / (1 + np.exp(-number))


def test_texts_are_reranked_for_tei(asked):
    body = {"query": "q", "texts": ["abc", "abcdefg", "abcd"]}  # logits 3 - 5, 7 - 5 and 4 - 5
    answer = asked.post("/rerank", json=body).json()
    assert [each["index"] for each in answer] == [1, 2, 0] and set(answer[0]) == {"index", "score"}
    assert [each["score"] for each in answer] == pytest.approx([sigmoid(2), sigmoid(-1), sigmoid(-2)])
    alone = client(made(model=None))  # POST / does what the model is for
    assert alone.post("/", json=body).json() == answer
    assert asked.post("/", json={"inputs": "a"}).json() == asked.post("/embed", json={"inputs": "a"}).json()
    raw = asked.post("/rerank", json=body | {"raw_scores": True, "return_text": True}).json()
    assert raw[0] == {"index": 1, "score": 2.0, "text": "abcdefg"}


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_documents_are_reranked_for_cohere(asked, path):
    body = {"model": "guide", "query": "q", "documents": ["abc", {"text": "abcdefg"}, LONG], "top_n": 1}
    answer = asked.post(path, json=body | {"return_documents": True, "max_tokens_per_doc": 512}).json()
    assert answer["results"] == [
        {"index": 1, "relevance_score": pytest.approx(sigmoid(2)), "document": {"text": "abcdefg"}}
    ]
    assert answer["model"] == "guide" and answer["usage"] == {"total_tokens": 12} and answer["id"].startswith("r-")
    assert len(asked.post(path, json=body | {"top_n": None}).json()["results"]) == 3


def test_scores_that_are_near_one_keep_their_order():
    """As probabilities in float32 both are 1."""
    asking = client(made(reranker=Reranker(score=lambda row: row[1] * 100)))
    answer = asking.post("/rerank", json={"query": "q", "texts": ["a", "abc"]}).json()
    assert [each["index"] for each in answer] == [1, 0]


def test_vertex_asks_where_its_variables_say(monkeypatch):
    monkeypatch.setenv("AIP_PREDICT_ROUTE", "/predict")
    monkeypatch.setenv("AIP_HEALTH_ROUTE", "/alive")
    towers = Counting()
    asking = client(made(model=towers))
    answer = asking.post("/predict", json={"instances": ["a bc", {"text": "x", "title": "t"}]})
    assert answer.json() == {"predictions": [[2.0, 3.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0]]}
    body = {"instances": ["x"], "parameters": {"prompt_name": "query", "dimensions": 1}}
    assert asking.post("/predict", json=body).json() == {"predictions": [[1.0]]}
    assert towers.asked == [("document", "document", 2), ("query", "query", 1)]
    assert asking.get("/alive").status_code == 200 and foreign_routes.PORT == "AIP_HTTP_PORT"
    described = asking.get("/openapi.json").json()["paths"]
    example = described["/predict"]["post"]["requestBody"]["content"]["application/json"]["example"]
    assert asking.post("/predict", json=example).status_code == 200 and "/alive" in described
    assert asking.post("/predict", json={"instances": ["x"], "parameters": {"prompt_name": []}}).status_code == 400


@pytest.fixture
def keys_file(tmp_path):
    path = tmp_path / "keys"
    path.write_text("first-key\n\nsecond-key\n")
    return path


def test_a_key_is_needed_where_there_is_a_file_of_them(keys_file):
    asking = client(keys=Keys(keys_file))
    refused = asking.get("/v1/models")
    assert refused.status_code == 401 and refused.headers["www-authenticate"] == "Bearer"
    assert refused.json()["error"]["code"] == "invalid_api_key"
    for name, value in (("authorization", "Bearer first-key"), ("authorization", "bearer second-key")):
        assert asking.get("/v1/models", headers={name: value}).status_code == 200
    for value in ("Bearer first-ke", "Bearer ", "Basic first-key", "first-key"):
        assert asking.get("/v1/models", headers={"authorization": value}).status_code == 401, value
    for value, status in (("first-key", 200), ("", 401), ("first-key\tsecond-key", 401)):
        assert asking.get("/v1/models", headers={"x-api-key": value}).status_code == status, value
    for path in ("/", "/api/search", "/metrics", "/openapi.json", "/mcp", "/no/such"):
        assert asking.get(path).status_code == 401
    assert all(asking.get(path).status_code == 200 for path in ("/health", "/ping", "/ready"))
    assert 'path="/v1/models",status="401"' in asking.get("/metrics", headers={"x-api-key": "first-key"}).text


def test_keys_are_read_again_when_their_file_changes(keys_file, caplog):
    keys = Keys(keys_file)
    asking = client(keys=keys)

    def status(key):
        return asking.get("/v1/models", headers={"x-api-key": key}).status_code

    keys_file.write_text("third-key\n")
    assert (status("first-key"), status("third-key")) == (401, 200)
    keys_file.write_text("a key of words\n")
    assert status("third-key") == 200
    assert sum("still hold" in record.message and "line 1" in record.message for record in caplog.records) == 1
    keys_file.write_text("\n")
    assert status("third-key") == 401 and status("") == 401
    keys_file.unlink()
    assert status("third-key") == 401


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot be read"), ("\n", "no key in it"), ("a b\n", "line 1: a key is"), ("a\nö\n", "line 2: a key is")],
)
def test_a_file_without_keys_is_refused(tmp_path, content, message):
    path = tmp_path / "keys"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        Keys(path)


def test_the_package_for_agents_is_asked_for_where_it_is_missing(monkeypatch):
    from retrieval.stages import serve

    monkeypatch.setattr(mcp_server, "is_installed", lambda: False)
    with pytest.raises(UserError, match=r"--stage=mcp needs the package mcp 2, .*\[mcp\]"):
        serve.check_mcp(defaults())
    absent = client().post("/mcp", json={})
    assert absent.status_code == 404 and "/mcp needs the package mcp 2" in absent.json()["error"]


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("https://evil.example", 403),
        ("://testserver", 403),
        (r"http://a\@testserver", 403),
        ("http://testserver:80", 404),
        ("", 404),
    ],
)
def test_pages_of_other_sites_ask_for_no_tools(monkeypatch, origin, status):
    monkeypatch.setattr(mcp_server, "is_installed", lambda: False)  # 404 is behind the guard
    assert client(hosts=("testserver",)).post("/mcp", json={}, headers={"origin": origin}).status_code == status
