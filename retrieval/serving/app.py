"""The server's answers: an API of JSON below /api, counts for Prometheus at /metrics, and a page at /."""

import asyncio
import functools
import json
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from retrieval.api.answering import system_that_is_read
from retrieval.api.document_index import Hit
from retrieval.errors import UserError
from retrieval.search.alike import first_alike
from retrieval.search.side_by_side import DENSE, HYBRID
from retrieval.serving import page, requests
from retrieval.serving.batching import Batcher, BusyError
from retrieval.serving.guard import Guard
from retrieval.serving.measures import KIND, Measures
from retrieval.serving.requests import Limits, RefusedError
from retrieval.serving.service import RERANKED_DEPTH, Service

RERANKED = "reranked"
_HITS = 10  # of a list, where the request does not say


class _Query(NamedTuple):
    """Attributes:
    details: whether the matched pieces are told, and which hits are nearly the same.
    """

    text: str
    k: int
    systems: tuple[str, ...]
    details: bool
    came: float


def make_app(service: Callable[[], Service], limits: Limits, hosts: Sequence[str]) -> Guard:
    """The application.

    Args:
      service: gives the one that answers now.
      hosts: names that requests may ask for, so that no other site's page reaches this one; none for any.
    """
    return _Server(service, limits).app(hosts)


class _Server:
    def __init__(self, service: Callable[[], Service], limits: Limits):
        self._service, self._limits = service, limits
        self.measures = Measures(
            lambda: service().passages, lambda: service().opened, lambda: len(self._quick) + len(self._slow)
        )
        self._quick = Batcher(self._searched, limits.batch, limits.waiting, self.measures.batch)
        # What takes long has a thread of its own, so that no search waits for it.
        self._slow: Batcher[Callable[[], Any], Any] = Batcher(
            lambda calls: [call() for call in calls], 1, limits.waiting
        )

    def app(self, hosts: Sequence[str]) -> Guard:
        routes = [
            Route("/api/search", self._search, methods=["GET", "POST"]),
            Route("/api/encode", self._encode, methods=["POST"]),
            Route("/api/rerank", self._rerank, methods=["POST"]),
            Route("/api/answer", self._answers, methods=["GET", "POST"]),
            Route("/api/health", self._health, methods=["GET"]),
            Route("/metrics", self._metrics, methods=["GET"]),
            *(Route(path, functools.partial(_file, file), methods=["GET"]) for path, file in page.files().items()),
        ]
        handlers: Any = {UserError: _refuse, RefusedError: _refuse, BusyError: _busy, HTTPException: _http}
        app = Starlette(routes=routes, exception_handlers=handlers | {Exception: _failed})
        paths = frozenset(route.path for route in routes)
        # Around all of it: what Starlette has for middleware does not see the answer to an error of the server.
        return Guard(app, hosts, self._limits.seconds, paths, self.measures)

    async def _search(self, request: Request) -> Response:
        known = {"query": "", "q": "", "k": min(_HITS, self._limits.k), "systems": None, "details": False}
        given, limits, service = await requests.fields_of(request, known, self._limits), self._limits, self._service()
        came = time.perf_counter()
        query = _Query(
            requests.text(given["query"] or given["q"], "query", limits.characters),
            requests.whole(given["k"], "k", limits.k),
            requests.names(given["systems"], "systems", self._systems(service)),
            requests.switch(given["details"], "details"),
            came,
        )
        if RERANKED in query.systems:
            return _json(await _of(self._slow.submit(lambda: self._with_reranked(query))))
        return _json(await _of(self._quick.submit(query)))

    async def _encode(self, request: Request) -> Response:
        given = await requests.fields_of(request, {"texts": None, "kind": "query"}, self._limits)
        texts = requests.texts(given["texts"], "texts", self._limits)
        encode = self._service().encode
        if not encode:
            raise RefusedError(404, "the run has no towers that encode: serve one that trains them")
        (kind,) = requests.names([given["kind"]], "kind", encode)
        if kind == "query" and not all(isinstance(each, str) for each in texts):
            raise UserError("'texts' holds records, and queries are texts: send texts, or the kind 'document'")
        embeddings_NE = await _of(self._slow.submit(lambda: encode[kind](texts)))
        return _json(_written({"dimensions": embeddings_NE.shape[1], "embeddings": embeddings_NE.tolist()}))

    async def _rerank(self, request: Request) -> Response:
        given = await requests.fields_of(request, {"query": "", "documents": None}, self._limits)
        query = requests.text(given["query"], "query", self._limits.characters)
        documents = requests.texts(given["documents"], "documents", self._limits)
        rerank = self._service().rerank
        if not rerank:
            raise RefusedError(404, "the server has no reranker: start it with --config.serve.reranker")
        scores = (await _of(self._slow.submit(lambda: rerank(query, documents)))).tolist()
        best = sorted(range(len(scores)), key=lambda place: -scores[place])
        return _json(_written({"results": [{"index": place, "score": scores[place]} for place in best]}))

    async def _answers(self, request: Request) -> Response:
        known = {"query": "", "q": "", "k": 1}
        given, limits, service = await requests.fields_of(request, known, self._limits), self._limits, self._service()
        query = requests.text(given["query"] or given["q"], "query", limits.characters)
        k, came = requests.whole(given["k"], "k", limits.k), time.perf_counter()
        if not service.answer:
            raise RefusedError(
                404, "the run has no reader: train one (config.recipe=reader), or set config.answer.model"
            )
        return _json(await _of(self._slow.submit(lambda: _answered(service, query, k, came))))

    async def _health(self, request: Request) -> Response:
        service = self._service()
        has = {"encode": bool(service.encode), "rerank": bool(service.rerank), "answer": bool(service.answer)}
        told = {"status": "ok", "passages": service.passages, "opened": service.opened, **has}
        told["systems"] = self._systems(service)
        return _json(_written(told | {"limits": self._limits._asdict()}))

    async def _metrics(self, request: Request) -> Response:
        return Response(self.measures.text(), media_type=KIND)

    def _systems(self, service: Service) -> dict[str, str]:
        return {**service.titles, **({RERANKED: RERANKED} if service.rerank else {})}

    def _searched(self, queries: list[_Query]) -> list[bytes]:
        """The answers to queries that wait together: those of the same systems are searched at once."""
        service = self._service()
        lists: dict[int, dict[str, list[Hit]]] = {}
        for systems in dict.fromkeys(query.systems for query in queries):
            places = [place for place, query in enumerate(queries) if query.systems == systems]
            deepest = max(queries[place].k for place in places)
            found = service.search([queries[place].text for place in places], deepest, systems)
            lists |= dict(zip(places, found))
        return [_answer(service, query, lists[place]) for place, query in enumerate(queries)]

    def _with_reranked(self, query: _Query) -> bytes:
        """The answer to a query whose hits a reranker is asked about, too."""
        service, depth = self._service(), max(query.k, RERANKED_DEPTH)
        source = next(name for name in (HYBRID, DENSE, *service.titles) if name in service.titles)
        systems = dict.fromkeys((*(name for name in query.systems if name != RERANKED), source))
        (lists,) = service.search([query.text], depth, tuple(systems))
        hits = lists[source]
        if service.rerank and hits:
            scores = service.rerank(query.text, [{"title": hit.title, "text": hit.text} for hit in hits])
            order = sorted(zip(scores.tolist(), hits), key=lambda scored: -scored[0])
            hits = [hit._replace(score=score) for score, hit in order]
        return _answer(service, query, {name: lists.get(name, hits) for name in query.systems})


def _answer(service: Service, query: _Query, lists: dict[str, list[Hit]]) -> bytes:
    systems = {name: [hit._asdict() for hit in lists[name][: query.k]] for name in query.systems}
    if query.details:
        _add_details(service, query.text, systems.values())
    milliseconds = round((time.perf_counter() - query.came) * 1000, 2)
    return _written({"query": query.text, "milliseconds": milliseconds, "systems": systems})


def _answered(service: Service, query: str, k: int, came: float) -> bytes:
    """The best answers to a question, with the passages that they stand in."""
    assert service.answer, "otherwise nobody asks"
    system = system_that_is_read(service.titles)
    (lists,) = service.search([query], service.paragraphs, (system,))
    answers = [
        {"answer": each.text, "score": each.score, "start": each.start, "end": each.end} | {"hit": each.hit._asdict()}
        for each in service.answer(query, lists[system], k)
    ]
    milliseconds = round((time.perf_counter() - came) * 1000, 2)
    return _written({"query": query, "milliseconds": milliseconds, "system": system, "answers": answers})


def _add_details(service: Service, query: str, lists: Collection[list[dict[str, Any]]]) -> None:
    parts = ("title", "section", "text")
    texts = list(dict.fromkeys(hit[part] for hits in lists for hit in hits for part in parts))  # lists share hits
    marked = dict(zip(texts, service.marked(query, texts)))
    for hits in lists:
        for hit, first in zip(hits, first_alike([hit["text"] for hit in hits])):
            hit["marked"] = {part: marked[hit[part]] for part in parts}
            hit["alike"] = first


async def _of(future: "Future[Any]") -> Any:
    return await asyncio.wrap_future(future)


def _written(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def _json(body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(body, status, headers, media_type="application/json")


def _error(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    return _json(_written({"error": message}), status, headers)


async def _file(file: page.File, request: Request) -> Response:
    return Response(file.content, media_type=file.kind)


async def _refuse(request: Request, error: Exception) -> Response:
    return _error(error.status if isinstance(error, RefusedError) else 400, str(error))


async def _busy(request: Request, error: Exception) -> Response:
    return _error(503, "too many requests wait already: try again in a second", {"retry-after": "1"})


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    told = {404: "there is no such address: see /api/health", 405: "this address takes another method"}
    return _error(error.status_code, told.get(error.status_code, error.detail), dict(error.headers or {}))


async def _failed(request: Request, error: Exception) -> Response:
    return _error(500, "the server could not answer; its log says why")
