"""The server's answers, asked of a made-up run: what it promises to programs, to browsers and about strangers."""

import json
import re
import signal
import socket
import threading
import time
import urllib.request

import pytest
from support import children

pytest.importorskip("starlette", reason="launch/serve.lock is not installed")
pytest.importorskip("uvicorn", reason="launch/serve.lock is not installed")

from support import served
from support.served import Reranker, Towers

from retrieval.api.answering import Answer
from retrieval.api.document_index import Hit
from retrieval.api.document_texts import WholeDocument
from retrieval.common.errors import UserError
from retrieval.data.sets.candidate import Candidate
from retrieval.serving import app, guard, server
from retrieval.serving.batching import Batcher
from retrieval.serving.engine import Engine
from retrieval.serving.requests import Limits
from retrieval.serving.service import Current, Service

NASTY = "<script>alert(1)</script>\u202e"
SMALL = Limits(k=5, characters=20, texts=2, body=200, seconds=5, waiting=50, batch=8)


def found(queries, k, systems, prompt_name):
    hits = [Hit(f"p{rank}", "Owls", f"{rank} {NASTY} the owl", 1.0 - rank, "Life", "/owls") for rank in range(k)]
    return [{name: [] if query == "nothing" else hits for name in systems} for query in queries]


def marked(query, texts):
    return [[(text, "owl" in text)] for text in texts]


def made(search=found, **changes):
    values = {"titles": {"dense": "dense", "bm25": "BM25"}, "passages": 7, "model": Towers(("query", "nq"))} | changes
    return Service(search=search, marked=marked, **values)


def client(service=None, limits=SMALL, **options):
    return served.client(service or made(), limits, name="model", **options)


@pytest.fixture(scope="module")
def asked():
    return client()


def test_a_search_gives_the_hits_of_each_system(asked):
    query = {"query": "an owl", "k": 2}
    for answer in (asked.get("/api/search", params=query).json(), asked.post("/api/search", json=query).json()):
        assert answer["query"] == "an owl" and answer["milliseconds"] >= 0
        assert list(answer["systems"]) == ["dense", "bm25"] and len(answer["systems"]["bm25"]) == 2
        assert answer["systems"]["dense"][0] == found(["an owl"], 1, ["x"], None)[0]["x"][0].fields()


def test_a_request_names_the_prompt_of_its_texts():
    def search(queries, k, systems, prompt_name):
        return [{name: [Hit(str(prompt_name), "", "", 1.0)] for name in systems} for _ in queries]

    asked = client(made(search))
    several = {"queries": ["a", "b"], "k": 1, "systems": ["dense"]}
    for named, expected in (({"prompt_name": "nq"}, "nq"), ({}, "None")):
        answer = asked.post("/api/search", json=several | named).json()["results"]
        assert [each["systems"]["dense"][0]["id"] for each in answer] == [expected] * 2
    assert asked.get("/api/search?query=a&prompt_name=nq").json()["systems"]["dense"][0]["id"] == "nq"
    assert asked.get("/api/health").json()["prompts"] == ["query", "nq"]
    answer = client(made(model=None)).get("/api/search?query=a&prompt_name=nq")
    assert answer.status_code == 404 and "leave 'prompt_name' out" in answer.json()["error"]


def test_several_queries_are_answered_at_once_and_in_order(asked):
    rest = {"k": 2, "systems": ["bm25"]}
    answers = asked.post("/api/search", json={"queries": ["an owl", "nothing"]} | rest).json()["results"]
    alone = [asked.post("/api/search", json={"query": query} | rest).json() for query in ("an owl", "nothing")]
    assert [each | {"milliseconds": 0} for each in answers] == [each | {"milliseconds": 0} for each in alone]
    assert len(asked.post("/api/search", json={"queries": ["an owl"]}).json()["results"]) == 1
    reranks = client(made(reranker=Reranker()))
    lists = reranks.post("/api/search", json={"queries": ["a", "b"], "k": 1, "systems": ["reranked"]}).json()["results"]
    assert [each["systems"]["reranked"][0]["id"] for each in lists] == ["p19", "p19"]


def test_systems_are_chosen_and_details_asked_for(asked):
    answer = asked.get("/api/search", params={"query": "owl", "k": 3, "systems": "bm25", "details": 1}).json()
    (hits,) = answer["systems"].values()
    assert [hit["alike"] for hit in hits] == [0, 1, 2]
    assert hits[0]["marked"]["text"] == [[f"0 {NASTY} the owl", True]]
    assert hits[0]["marked"]["title"] == [["Owls", False]]


def test_hits_are_reranked_where_there_is_a_reranker():
    lists = client(made(reranker=Reranker())).get("/api/search?query=owl&k=2&systems=bm25,reranked").json()["systems"]
    assert [hit["id"] for hit in lists["bm25"]] == ["p0", "p1"]
    assert [hit["id"] for hit in lists["reranked"]] == ["p19", "p18"]


def test_a_reader_answers_in_the_first_hits():
    def answers(query, hits, k):
        return [Answer("owl", 2.0 - rank, hit, 4, 7) for rank, hit in enumerate(hits[:k])]

    with_reader = client(made(answer=answers, paragraphs=3))
    told = with_reader.get("/api/answer?query=who&k=2").json()
    posted = with_reader.post("/api/answer", json={"query": "who", "k": 2}).json()
    assert told == posted | {"milliseconds": told["milliseconds"]}
    expected = [("owl", 2.0, "p0"), ("owl", 1.0, "p1")]
    assert [(each["answer"], each["score"], each["hit"]["id"]) for each in told["answers"]] == expected
    assert told["system"] == "dense" and len(with_reader.get("/api/answer?query=who&k=5").json()["answers"]) == 3
    assert with_reader.get("/api/answer?query=nothing").json()["answers"] == []
    assert with_reader.get("/api/health").json()["answer"] is True


def test_a_document_is_given_as_a_whole_and_what_is_searched_is_told():
    passages = [Candidate(f"a/d:{n}", "Owls", text, "Life", url="/owls") for n, text in enumerate((NASTY, "two"))]
    whole = WholeDocument("a/d", "Owls", "/owls", passages)
    service = made(document={"a/d": whole, "a/d:1": whole}.get, about=lambda: {"examples": ["an owl"]})
    parts = [{"id": each.id, "section": "Life", "text": each.text} for each in passages]
    for id in ("a/d", "a%2Fd%3A1"):
        given = client(service).get(f"/api/documents/{id}").json()
        assert given == {"id": "a/d", "title": "Owls", "url": "/owls", "passages": parts}
    unknown = client(service).get("/api/documents/no")
    assert unknown.status_code == 404 and "no document and no passage has the id 'no'" in unknown.json()["error"]
    assert client(service).get("/api/about").json() == {"name": "model", "examples": ["an owl"]}


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/api/search", {}, 400, "'query' is missing or no text"),
        ("/api/search", {"query": "x" * 21}, 400, "'query' has 21 characters, and at most 20 are read"),
        ("/api/search", b'{"query": "\\ud800"}', 400, "half of a surrogate pair"),
        ("/api/search", {"query": "a", "k": 6}, 400, "'k' is 6: a whole number from 1 to 5 is needed"),
        ("/api/search", {"query": "a", "k": True}, 400, "'k' is True"),
        ("/api/search", {"query": "a", "systems": ["bm52"]}, 400, "unknown systems 'bm52': did you mean bm25"),
        ("/api/search", {"query": "a", "prompt_name": "nqq"}, 400, "unknown prompt 'nqq': did you mean nq"),
        ("/api/search", {"qeury": "a"}, 400, "unknown field 'qeury': did you mean query"),
        ("/api/search", b"{", 400, "the body: not valid JSON"),
        ("/api/search", b"[" * 150, 400, "the body: not valid JSON"),
        ("/api/search", {"queries": ["a"] * 3}, 400, "'queries' has 3 texts, and at most 2"),
        ("/api/search", {"query": "a" * 300}, 413, "more than 200 bytes"),
        ("/api/answer", {"query": "a"}, 404, r"no reader: .*config\.answer\.model"),
        ("/api/serach", {}, 404, "there is no such address"),
        ("/api/health", {}, 405, "takes another method"),
    ],
)
def test_what_cannot_be_answered_is_one_sentence(asked, path, body, status, message):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = asked.post(path, content=content, headers={"content-type": "application/json"})
    assert answer.status_code == status and re.search(message, answer.json()["error"])
    assert "\n" not in answer.json()["error"] and "default-src 'none'" in answer.headers["content-security-policy"]


def test_a_form_of_another_site_is_not_read(asked):
    """A browser sends such a body without asking first."""
    answer = asked.post("/api/search", content=b'{"query": "a"}', headers={"content-type": "text/plain"})
    assert answer.status_code == 415 and "application/json" in answer.json()["error"]
    assert "access-control-allow-origin" not in answer.headers


def test_the_description_has_every_address_with_an_example():
    answers = lambda query, hits, k: [Answer("owl", 2.0, hits[0], 4, 7)]  # noqa: E731
    asked = client(made(answer=answers, paragraphs=1, reranker=Reranker()))
    described = asked.get("/openapi.json").json()
    gets = {path for path, ways in described["paths"].items() if "get" in ways}
    own = {f"/api/{name}" for name in ("about", "answer", "documents/{id}", "health", "search")}
    own |= {"/openapi.json", "/metrics", "/health", "/ping", "/ready"}
    assert gets == own | {"/v1/models", "/v1/models/{name}", "/info"}
    posts = {path: ways["post"] for path, ways in described["paths"].items() if "post" in ways}
    assert posts.keys() > {"/", "/v1/embeddings", "/embed", "/rerank", "/v1/rerank", "/v2/rerank", "/api/search"}
    for path, operation in posts.items():
        content = operation["requestBody"]["content"]["application/json"]
        assert asked.post(path, json=content["example"]).status_code == 200, path
        assert content["example"].keys() <= content["schema"]["properties"].keys(), path
        is_passed_over = asked.post(path, json=content["example"] | {"no": 1}).status_code == 200
        assert is_passed_over == content["schema"]["additionalProperties"] == ("/api" not in path), path
        refused = asked.post(path, json={"no": 1}).json()
        wrong = operation["responses"]["default"]["content"]["application/json"]["schema"]
        assert refused.keys() == wrong["properties"].keys(), path


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost:8080", 200), ("127.0.0.1", 200), ("[::1]:80", 200), ("evil.example", 421), ("", 421)],
)
def test_other_names_of_this_machine_are_refused(host, status):
    asked = client(hosts=guard.local_names("127.0.0.1"))
    assert asked.get("/api/health", headers={"host": host}).status_code == status


def test_the_page_loads_nothing_and_sets_no_html(asked):
    for path in ("/", "/page.css", "/page.js"):
        answer = asked.get(path)
        assert answer.status_code == 200 and answer.headers["x-content-type-options"] == "nosniff"
        assert not re.search(r"https?:|//[a-z]|innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", answer.text)
        assert not re.search(r"\son\w+=|style=", answer.text.partition("<body>")[2])
    assert asked.get("/").headers["content-type"].startswith("text/html")


def test_what_fails_is_told_to_the_log_alone(caplog):
    def search(queries, k, systems, prompt_name):
        raise RuntimeError("a secret")

    asked = client(made(search))
    answer = asked.get("/api/search?query=a")
    assert answer.status_code == 500 and "secret" not in answer.text
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert 'retrieval_requests_total{path="/api/search",status="500"} 1.0' in asked.get("/metrics").text


def test_prometheus_is_told_what_was_answered():
    asked = client()
    for path in ("/api/search?query=a", "/api/search?query=a&k=0", "/no/such"):
        asked.get(path)
    counted = [f'requests_total{{path="/api/search",status="{status}"}} 1.0' for status in (200, 400)]
    counted += ['requests_total{path="other",status="404"} 1.0', "index_opened_timestamp_seconds 1."]
    for line in (*counted, "passages 7.0", "batch_queries_count 1.0"):
        assert f"retrieval_{line}" in asked.get("/metrics").text


class Gate:
    """A function of lists that waits until it is let through."""

    def __init__(self):
        self.open, self.batches = threading.Event(), []

    def __call__(self, items):
        assert self.open.wait(10)
        self.batches.append(list(items))
        return [1 / item for item in items]


def test_calls_that_come_together_are_made_together_and_fail_alone():
    gate, sizes = Gate(), []
    batcher = Batcher(gate, most=4, waiting=10, on_batch=sizes.append)
    first = batcher.submit(1)
    while len(batcher):
        time.sleep(0.001)
    cancelled, *others = [batcher.submit(item) for item in (2, 3, 4, 0, 5, 6, 7)]
    cancelled.cancel()
    gate.open.set()
    with pytest.raises(ZeroDivisionError):
        others.pop(2).result(5)
    assert [each.result(5) for each in (first, *others)] == [1 / item for item in (1, 3, 4, 5, 6, 7)]
    assert gate.batches == [[1], [3, 4, 0], [3], [4], [0], [5, 6, 7]] and sizes == [1, 3, 3]


def test_a_newer_state_takes_over_once_it_is_whole(caplog):
    versions, compiled = iter(["1", "1", None, "2", "2", "3", "3"]), []
    first, newer = (map(compiled.append, names) for names in (["a0", "a1", "a2"], ["b0", "b1", "b2"]))
    states = iter([made(programs=first), made(passages=8, programs=newer)])

    def open_next():
        for state in states:
            return state
        raise UserError("damaged")

    current = Current(open_next, lambda: next(versions))
    assert compiled == ["a0"]  # what the first search needs; the rest while it answers
    current.compile_next()
    assert [current.refresh() for _ in range(3)] == [False, False, True]
    assert current.service.passages == 8 and compiled == ["a0", "a1", "b0", "b1", "b2"]
    current.compile_next()
    assert [current.refresh() for _ in range(3)] == [False, False, False] and current.service.passages == 8
    assert sum("damaged" in record.message for record in caplog.records) <= 1


def test_a_port_that_is_taken_is_one_sentence():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"127\.0\.0\.1, port {port} \(it is taken\): .*config\.serve\.port"):
            server.listen("127.0.0.1", port)
    with pytest.raises(UserError, match=r"cannot listen at 203\.0\.113\.7, port 0 .*config\.serve\.host"):
        server.listen("203.0.113.7", 0)


def serve(port, idle=20, notice=0):
    def slow(queries, k, systems, prompt_name):
        time.sleep(0.5)
        return found(queries, k, systems, prompt_name)

    server._IDLE, server._NOTICE = idle, notice
    listening = server.listen("127.0.0.1", 0)
    port.send(listening.getsockname()[1])
    engine = Engine(lambda: made(slow), SMALL)
    server.run(app.make_app(engine), listening, engine.measures.closed, engine.end)


def test_sigterm_lets_answers_end():
    ours, theirs = children.FORK_SERVER.Pipe()
    child = children.FORK_SERVER.Process(target=serve, args=(theirs,))
    child.start()
    port, answers = ours.recv(), []

    def ask():
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/search?query=owl", timeout=20) as answer:
            answers.append(json.load(answer)["query"])

    asking = threading.Thread(target=ask)
    asking.start()
    while "retrieval_batch_queries_count 1.0" not in _metrics(port):
        time.sleep(0.01)
    child.terminate()
    asking.join(20)
    child.join(20)
    assert answers == ["owl"] and child.exitcode == 0 and child.exitcode != -signal.SIGTERM
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), 1)


@pytest.mark.long
def test_sigterm_is_told_before_no_connection_is_taken():
    ours, theirs = children.FORK_SERVER.Pipe()
    child = children.FORK_SERVER.Process(target=serve, args=(theirs, 20, 1))
    child.start()
    port = ours.recv()

    def status(path):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
                return answer.status
        except OSError as error:
            return getattr(error, "code", 0)

    assert (status("/ready"), status("/health")) == (200, 200)
    child.terminate()
    while (seen := status("/ready")) == 200:
        time.sleep(0.01)
    assert seen == 503 and status("/health") == 200 and status("/v1/models") == 200
    child.join(20)
    assert child.exitcode == 0 and status("/ready") == 0


def talk(port, text):
    """What the server says until it closes the connection."""
    with socket.create_connection(("127.0.0.1", port), 10) as ours:
        ours.sendall(text.encode())
        return b"".join(iter(lambda: ours.recv(1 << 16), b"")).decode()


POST = "POST /api/search HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"


def test_nobody_is_waited_for(capfd):
    """Silence, half a request, one cut off in its body, and what is none: closed, counted, and without a traceback."""
    ours, theirs = children.FORK_SERVER.Pipe()
    child = children.FORK_SERVER.Process(target=serve, args=(theirs, 1))
    child.start()
    port = ours.recv()
    began = time.monotonic()
    assert talk(port, "") == "" and talk(port, "GET /api/health HTTP/1.1\r\nHo") == ""
    health = "GET /api/health HTTP/1.1\r\nHost: a\r\n\r\n"
    assert talk(port, health).startswith("HTTP/1.1 200") and talk(port, health + "GET /").count("HTTP/1.1") == 1
    # An answer that comes before the body, and no rest of that.
    assert "415" in talk(port, "POST /api/search HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{")
    assert time.monotonic() - began < 9
    assert "400" in talk(port, "no request\r\n\r\n") and "400" in talk(port, f"{POST}Content-Length: -1\r\n\r\n")
    assert "400" in talk(port, f"{POST}Transfer-Encoding: chunked\r\n\r\nzz\r\n")
    with socket.create_connection(("127.0.0.1", port), 10) as cut:
        cut.sendall(f'{POST}Content-Length: 99\r\n\r\n{{"query'.encode())
        time.sleep(0.2)
    counted = {
        'retrieval_connections_closed_total{reason="late"} 3.0',
        'retrieval_connections_closed_total{reason="invalid"} 3.0',
        'retrieval_requests_total{path="/api/search",status="400"} 2.0',
    }
    while counted - set(told := _metrics(port).splitlines()):
        assert time.monotonic() - began < 20, told
        time.sleep(0.1)
    assert 'status="500"' not in "".join(told)
    child.terminate()
    child.join(20)
    assert child.exitcode == 0 and "Traceback" not in capfd.readouterr().err


def _metrics(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        return answer.read().decode()
