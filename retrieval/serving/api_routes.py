"""The API below /api, which the page asks too: search, and answers of a reader.

And what a cluster asks: whether the server lives, and whether it takes requests.
"""

import os
import time
from typing import Any

from retrieval.common.errors import unknown_name
from retrieval.serving import requests
from retrieval.serving.engine import Engine
from retrieval.serving.foreign_routes import HEALTH
from retrieval.serving.requests import Field, Operation, Values
from retrieval.serving.responses import RefusedError
from retrieval.serving.service import Query, Service, answered, systems_of

_ALIVE, _READY = ("/health", "/ping"), "/ready"
_HITS = 10  # of a list, where the request does not say


def operations(engine: Engine) -> tuple[Operation, ...]:
    """What programs may ask for below /api."""
    limits = engine.limits
    query, k = requests.text(limits.characters), requests.whole(1, limits.k)
    one = Field("query", query, "a query, or a question", is_needed=True)
    options = (
        Field("k", k, "hits of a list", min(_HITS, limits.k)),
        Field("systems", {"type": "array", "items": query}, "whose lists, as /api/health names them; or all", ()),
        Field("prompt_name", query, "the prompt of the query, as /api/health names them"),
        Field("details", requests.SWITCH, "whether to mark what matches, and what is nearly the same", False),
    )
    queries = Field("queries", requests.several(query, limits.texts), "several queries at once")
    answer, question = (one, Field("k", k, "answers", 1)), {"query": "how to install", "k": 2}
    hits, read = "the hits of each system", "the best answers, each with its passage"
    several = (one._replace(is_needed=False), queries, *options), ("query", "queries")
    status = "passages, systems, limits, when the index was opened"
    id, whole = one._replace(name="id", what="its own, or that of a passage"), "a document, and its passages in order"
    searched = "what is searched, queries to try, and the scores that queries of random words stay below"
    alive, ready = "whether the server answers at all", "whether requests are taken: 503 from SIGTERM on"
    return (
        Operation("GET", "/api/search", hits, _search, "Found", (one, *options)),
        Operation("POST", "/api/search", hits, _search, "FoundOrResults", *several, example=question),
        Operation("GET", "/api/answer", read, _answers, "Answered", answer),
        Operation("POST", "/api/answer", read, _answers, "Answered", answer, example=question),
        Operation("GET", "/api/documents/{id:path}", whole, _document, "WholeDocument", (id,)),
        Operation("GET", "/api/about", searched, _about, "About"),
        Operation("GET", "/api/health", status, _health, "Health"),
        *(Operation("GET", path, alive, _lives, "Status") for path in _ALIVE),
        *(Operation("GET", path, ready, _ready, "Status") for path in sorted(free() - {*_ALIVE})),
    )


def free() -> frozenset[str]:
    """The addresses that need no key: what a cluster asks every few seconds. No answer needs the device."""
    return frozenset({*_ALIVE, _READY, os.environ.get(HEALTH) or _READY})


async def _search(engine: Engine, values: Values) -> Any:
    service, came = engine.service, time.perf_counter()
    known = tuple(systems_of(service))
    if others := set(values["systems"]) - {*known}:
        raise unknown_name("systems", min(others)[:100], known)
    systems = tuple(name for name in known if name in (values["systems"] or known))
    options = (values["k"], systems, _prompt(service, values["prompt_name"]), values["details"], came)
    answers = await engine.search([Query(text, *options) for text in values.get("queries") or [values["query"]]])
    return b'{"results":[' + b",".join(answers) + b"]}" if values.get("queries") else answers[0]


async def _answers(engine: Engine, values: Values) -> Any:
    service, came = engine.service, time.perf_counter()
    if not service.answer:
        raise RefusedError(404, "the run has no reader: train one (config.recipe=reader), or set config.answer.model")
    return await engine.slowly(lambda: answered(service, values["query"], values["k"], came))


async def _document(engine: Engine, values: Values) -> Any:
    document = await engine.slowly(lambda: engine.service.document(values["id"]))
    if document is None:
        raise RefusedError(404, f"no document and no passage has the id '{values['id']}': take one of a hit")
    parts = [{name: getattr(each, name) for name in ("id", "section", "text")} for each in document.passages]
    return document._asdict() | {"passages": parts}


async def _about(engine: Engine, values: Values) -> Any:
    return {"name": engine.name} | await engine.slowly(lambda: engine.service.about())


async def _health(engine: Engine, values: Values) -> Any:
    service = engine.service
    has = {"encode": bool(service.model), "rerank": bool(service.reranker), "answer": bool(service.answer)}
    health = {"status": "ok", "passages": service.passages, "opened": service.opened, **has}
    health |= {"systems": systems_of(service), "prompts": list(service.model.prompts if service.model else ())}
    return health | {"limits": engine.limits._asdict()}


async def _lives(engine: Engine, values: Values) -> Any:
    return {"status": "ok"}


async def _ready(engine: Engine, values: Values) -> Any:
    if engine.is_ending:
        raise RefusedError(503, "the server is about to end: ask another one")
    return {"status": "ready", "passages": engine.service.passages}


def _prompt(service: Service, name: str | None) -> str | None:
    """The name of the prompt that a request asks for, if it does."""
    if name is not None and not service.model:
        raise RefusedError(404, "the run has no towers that a prompt could be for: leave 'prompt_name' out")
    if name is not None and service.model and name not in service.model.prompts:
        raise unknown_name("prompt", name[:100], service.model.prompts)
    return name
