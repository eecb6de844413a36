"""The server's answers: an API of JSON below /api, counts for Prometheus at /metrics, and a page at /."""

import asyncio
import functools
import json
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from retrieval.api.answering import system_that_is_read
from retrieval.api.document_index import Hit
from retrieval.errors import UserError, unknown_name
from retrieval.search.near_duplicates import first_duplicates
from retrieval.search.side_by_side import DENSE, HYBRID
from retrieval.serving import openapi, page, requests
from retrieval.serving.batching import Batcher, BusyError
from retrieval.serving.guard import Guard
from retrieval.serving.measures import KIND, Measures
from retrieval.serving.requests import Field, Limits, Operation, RefusedError
from retrieval.serving.service import RERANKED_DEPTH, Service

RERANKED = "reranked"
_HITS = 10  # of a list, where the request does not say
_SIDES = ("query", "document")

Given = dict[str, Any]
"""The values of a request's fields."""


class _Query(NamedTuple):
    """Attributes:
    prompt: the name of the one that it is embedded with; None for that of queries.
    details: whether the matched pieces are told, and which hits are nearly the same.
    """

    text: str
    k: int
    systems: tuple[str, ...]
    prompt: str | None
    details: bool
    came: float


def make_app(
    service: Callable[[], Service], limits: Limits, hosts: Sequence[str], origins: Sequence[str] = ()
) -> "Guard | _CrossOrigin":
    """The application.

    Args:
      service: gives the one that answers now.
      hosts: names that requests may ask for, so that no other site's page reaches this one; none for any.
      origins: of other sites whose pages may read what is answered; '*' for any.
    """
    guarded = _Server(service, limits).app(hosts)
    return _CrossOrigin(guarded, origins) if origins else guarded


class _CrossOrigin(CORSMiddleware):
    """Lets pages of other sites read what is behind it, errors of the guard too."""

    def __init__(self, guarded: Guard, origins: Sequence[str]):
        super().__init__(guarded, origins, ["GET", "POST"], ["content-type"])  # the header is that of a POST
        self.measures = guarded.measures


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
        by_path: dict[str, dict[str, Operation]] = {}
        for each in self._operations:
            by_path.setdefault(each.path, {})[each.method] = each
        routes = [
            *(Route(path, self._endpoint(of), methods=list(of)) for path, of in by_path.items()),
            *(Route(path, functools.partial(_file, file), methods=["GET"]) for path, file in page.files().items()),
        ]
        handlers: Any = {UserError: _refuse, RefusedError: _refuse, BusyError: _busy, HTTPException: _http}
        app = Starlette(routes=routes, exception_handlers=handlers | {Exception: _failed})
        paths = frozenset(route.path for route in routes)
        # Around all of it: what Starlette has for middleware does not see the answer to an error of the server.
        return Guard(app, hosts, self._limits.seconds, paths, self.measures)

    def _endpoint(self, by_method: Mapping[str, Operation]) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            operation = by_method["GET" if request.method == "HEAD" else request.method]
            return await operation.answer(await operation.read(request, self._limits.body))

        return answer

    @functools.cached_property
    def _operations(self) -> tuple[Operation, ...]:
        """All that programs may ask for: what is read, what `/api` lists and what `/openapi.json` describes."""
        limits = self._limits
        query, k = requests.text(limits.characters), {"type": "integer", "minimum": 1, "maximum": limits.k}
        documents = requests.several(requests.document(limits.body), limits.texts)
        asked = (Field("query", query, "a query, or a question"), Field("q", query, "the same, in short"))
        prompt = Field("prompt_name", query, "the prompt that texts are embedded with, as /api/health names them")
        search = (
            *asked,
            Field("k", k, "hits of a list", min(_HITS, limits.k)),
            Field("systems", {"type": "array", "items": query}, "whose lists, as /api/health names them; or all", ()),
            prompt,
            Field("details", {"type": "boolean"}, "whether to mark what matches, and what is nearly the same", False),
        )
        queries = Field("queries", requests.several(query, limits.texts), "several queries at once")
        kinds = {"type": "string", "enum": list(_SIDES)}
        side = Field("kind", kinds, "'document' reads titles, and texts as documents", _SIDES[0])
        answer = (*asked, Field("k", k, "answers", 1))
        one = ("query", "q")
        found, answered, reader = "the hits of each system", "the best answers, each with its passage", "reader"
        return (
            Operation("GET", "/api", "these routes", self._routes, "Routes"),
            Operation("GET", "/api/search", found, self._search, "Found", search, one),
            Operation(
                "POST", "/api/search", found, self._search, "FoundOrResults", (*search, queries), (*one, "queries")
            ),
            Operation(
                "POST",
                "/api/encode",
                "an embedding of each text",
                self._encode,
                "Encoded",
                (
                    Field("texts", documents, "texts, or records with a 'text' and a 'title'", is_needed=True),
                    side,
                    prompt,
                ),
                lacks="towers",
            ),
            Operation(
                "POST",
                "/api/rerank",
                "the reranker's score of each document, best first",
                self._rerank,
                "Reranked",
                (
                    Field("query", query, "a query", is_needed=True),
                    Field("documents", documents, "texts, or hits", is_needed=True),
                ),
                lacks="reranker",
            ),
            Operation("GET", "/api/answer", answered, self._answers, "Answered", answer, one, reader),
            Operation("POST", "/api/answer", answered, self._answers, "Answered", answer, one, reader),
            Operation(
                "GET", "/api/health", "passages, systems, limits, when the index was opened", self._health, "Health"
            ),
            Operation("GET", "/openapi.json", "the API in OpenAPI 3.1", self._description, "OpenApi"),
            Operation("GET", "/metrics", "counts for Prometheus", self._metrics),
        )

    async def _routes(self, given: Given) -> Response:
        return _json(_written(openapi.routes(self._operations)))

    async def _description(self, given: Given) -> Response:
        return _json(_written(openapi.description(self._operations)))

    async def _search(self, given: Given) -> Response:
        known, came = tuple(self._systems(self._service())), time.perf_counter()
        if others := set(given["systems"]) - {*known}:
            raise unknown_name("systems", min(others)[:100], known)
        systems = tuple(name for name in known if name in (given["systems"] or known))
        prompt = _prompt(self._service(), given)
        several: Sequence[str] | None = given.get("queries")
        queries = [
            _Query(text, given["k"], systems, prompt, given["details"], came)
            for text in several or [given["query"] or given["q"]]
        ]
        answers = await self._found(queries)
        return _json(b'{"results":[' + b",".join(answers) + b"]}" if several else answers[0])

    async def _found(self, queries: Sequence[_Query]) -> list[bytes]:
        """The answers to queries, which wait as those of other requests do."""
        futures: list[Future[bytes]] = []
        try:
            for query in queries:
                is_slow = RERANKED in query.systems
                reranked = functools.partial(self._with_reranked, query)
                futures.append(self._slow.submit(reranked) if is_slow else self._quick.submit(query))
            return await asyncio.gather(*map(asyncio.wrap_future, futures))
        finally:
            for future in futures:
                future.cancel()  # those that nobody waits for any more

    async def _encode(self, given: Given) -> Response:
        encode, texts, kind = self._service().encode, given["texts"], given["kind"]
        if not encode:
            raise RefusedError(404, "the run has no towers that encode: serve one that trains them")
        if kind == _SIDES[0] and not all(isinstance(each, str) for each in texts):
            raise UserError("'texts' holds records, and queries are texts: send texts, or the kind 'document'")
        prompt = _prompt(self._service(), given)
        embeddings_NE = await _of(self._slow.submit(lambda: encode[kind](texts, prompt)))
        return _json(_written({"dimensions": embeddings_NE.shape[1], "embeddings": embeddings_NE.tolist()}))

    async def _rerank(self, given: Given) -> Response:
        rerank = self._service().rerank
        if not rerank:
            raise RefusedError(404, "the server has no reranker: start it with --config.serve.reranker")
        scores = (await _of(self._slow.submit(lambda: rerank(given["query"], given["documents"])))).tolist()
        best = sorted(range(len(scores)), key=lambda place: -scores[place])
        return _json(_written({"results": [{"index": place, "score": scores[place]} for place in best]}))

    async def _answers(self, given: Given) -> Response:
        service, query, came = self._service(), given["query"] or given["q"], time.perf_counter()
        if not service.answer:
            raise RefusedError(
                404, "the run has no reader: train one (config.recipe=reader), or set config.answer.model"
            )
        return _json(await _of(self._slow.submit(lambda: _answered(service, query, given["k"], came))))

    async def _health(self, given: Given) -> Response:
        service = self._service()
        has = {"encode": bool(service.encode), "rerank": bool(service.rerank), "answer": bool(service.answer)}
        told = {"status": "ok", "passages": service.passages, "opened": service.opened, **has}
        told |= {"systems": self._systems(service), "prompts": list(service.prompts)}
        return _json(_written(told | {"limits": self._limits._asdict()}))

    async def _metrics(self, given: Given) -> Response:
        return Response(self.measures.text(), media_type=KIND)

    def _systems(self, service: Service) -> dict[str, str]:
        return {**service.titles, **({RERANKED: RERANKED} if service.rerank else {})}

    def _searched(self, queries: list[_Query]) -> list[bytes]:
        """The answers to queries that wait together: those of the same systems and prompt are searched at once."""
        service = self._service()
        lists: dict[int, dict[str, list[Hit]]] = {}
        for systems, prompt in dict.fromkeys((query.systems, query.prompt) for query in queries):
            places = [
                place for place, query in enumerate(queries) if (query.systems, query.prompt) == (systems, prompt)
            ]
            deepest = max(queries[place].k for place in places)
            found = service.search([queries[place].text for place in places], deepest, systems, prompt)
            lists |= dict(zip(places, found))
        return [_answer(service, query, lists[place]) for place, query in enumerate(queries)]

    def _with_reranked(self, query: _Query) -> bytes:
        """The answer to a query whose hits a reranker is asked about, too."""
        service, depth = self._service(), max(query.k, RERANKED_DEPTH)
        source = next(name for name in (HYBRID, DENSE, *service.titles) if name in service.titles)
        systems = dict.fromkeys((*(name for name in query.systems if name != RERANKED), source))
        (lists,) = service.search([query.text], depth, tuple(systems), query.prompt)
        hits = lists[source]
        if service.rerank and hits:
            scores = service.rerank(query.text, [{"title": hit.title, "text": hit.text} for hit in hits])
            order = sorted(zip(scores.tolist(), hits), key=lambda scored: -scored[0])
            hits = [hit._replace(score=score) for score, hit in order]
        return _answer(service, query, {name: lists.get(name, hits) for name in query.systems})


def _prompt(service: Service, given: Given) -> str | None:
    """The name of the prompt that a request asks for, if it does."""
    name = given["prompt_name"]
    if name is not None and name not in service.prompts:
        if not service.prompts:
            raise RefusedError(404, "the run has no towers that a prompt could be for: leave 'prompt_name' out")
        raise unknown_name("prompt", name[:100], service.prompts)
    return name


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
    (lists,) = service.search([query], service.paragraphs, (system,), None)
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
        for hit, first in zip(hits, first_duplicates([hit["text"] for hit in hits])):
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
    told = {404: "there is no such address: see /api", 405: "this address takes another method"}
    return _error(error.status_code, told.get(error.status_code, error.detail), dict(error.headers or {}))


async def _failed(request: Request, error: Exception) -> Response:
    return _error(500, "the server could not answer; its log says why")
