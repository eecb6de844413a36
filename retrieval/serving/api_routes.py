"""The API below /api, which the page asks too: search, embeddings, scores of a reranker, and answers of a reader.

And what a cluster asks: whether the server lives, and whether it takes requests.
"""

import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from retrieval.common.errors import UserError, unknown_name
from retrieval.common.runtime.model_folder import DOCUMENT, QUERY
from retrieval.serving import requests
from retrieval.serving.engine import Engine
from retrieval.serving.foreign_routes import HEALTH, best_first
from retrieval.serving.requests import Field, Operation, Values
from retrieval.serving.responses import RefusedError
from retrieval.serving.service import Query, Service, answered, systems_of

_ALIVE, _READY = ("/health", "/ping"), "/ready"
_HITS = 10  # of a list, where the request does not say


def operations(engine: Engine) -> tuple[Operation, ...]:
    """What programs may ask for below /api."""
    limits = engine.limits
    query, k = requests.text(limits.characters), requests.whole(1, limits.k)
    documents = requests.several(requests.document(limits.body), limits.texts)
    of_query = (Field("query", query, "a query, or a question"), Field("q", query, "the same, in short"))
    prompt = Field("prompt_name", query, "the prompt that texts are embedded with, as /api/health names them")
    search = (
        *of_query,
        Field("k", k, "hits of a list", min(_HITS, limits.k)),
        Field("systems", {"type": "array", "items": query}, "whose lists, as /api/health names them; or all", ()),
        prompt,
        Field("details", requests.SWITCH, "whether to mark what matches, and what is nearly the same", False),
    )
    queries = Field("queries", requests.several(query, limits.texts), "several queries at once")
    kinds = {"type": "string", "enum": [QUERY, DOCUMENT]}
    encode = (
        Field("texts", documents, "texts, or records with a 'text' and a 'title'", is_needed=True),
        Field("kind", kinds, "'document' reads titles, and texts as documents", QUERY),
        prompt,
    )
    rerank = (
        Field("query", query, "a query", is_needed=True),
        Field("documents", documents, "texts, or hits", is_needed=True),
    )
    answer = (*of_query, Field("k", k, "answers", 1))
    one, question = ("query", "q"), {"query": "how to install", "k": 2}
    pair = {"query": "how to install", "documents": ["Install it with pip.", {"text": "It is red."}]}
    answers, read, reader = "the hits of each system", "the best answers, each with its passage", "reader"
    embedded, reranked = "an embedding of each text", "the reranker's score of each document, best first"
    red = {"texts": ["red"]}
    status = "passages, systems, limits, when the index was opened"
    alive, ready = "whether the server answers at all", "whether requests are taken: 503 from SIGTERM on"

    every = (*search, queries), (*one, "queries")
    return (
        Operation("GET", "/api/search", answers, _search, "Found", search, one),
        Operation("POST", "/api/search", answers, _search, "FoundOrResults", *every, example=question),
        Operation("POST", "/api/encode", embedded, _encode, "Encoded", encode, lacks="towers", example=red),
        Operation("POST", "/api/rerank", reranked, _rerank, "Reranked", rerank, lacks="reranker", example=pair),
        Operation("GET", "/api/answer", read, _answers, "Answered", answer, one, reader),
        Operation("POST", "/api/answer", read, _answers, "Answered", answer, one, reader, example=question),
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
    prompt = _prompt(service, values)
    several: Sequence[str] | None = values.get("queries")
    texts, options = several or [values["query"] or values["q"]], (systems, prompt, values["details"], came)
    answers = await engine.search([Query(text, values["k"], *options) for text in texts])
    return b'{"results":[' + b",".join(answers) + b"]}" if several else answers[0]


async def _encode(engine: Engine, values: Values) -> Any:
    texts, kind = values["texts"], values["kind"]
    if kind == QUERY and not all(isinstance(each, str) for each in texts):
        raise UserError("'texts' holds records, and queries are texts: send texts, or the kind 'document'")
    prompt = _prompt(engine.service, values)
    embeddings, _ = await engine.embed(kind, texts, prompt, np.ndarray.tolist, "texts")
    return {"dimensions": len(embeddings[0]), "embeddings": embeddings}


async def _rerank(engine: Engine, values: Values) -> Any:
    logits_N, _ = await engine.rerank(values["query"], values["documents"], "documents")
    scores_N = engine.reranker.scores_of_logits(logits_N)
    results = [{"index": place, "score": score} for place, score in best_first(logits_N, scores_N)]
    return {"results": results}


async def _answers(engine: Engine, values: Values) -> Any:
    service, query, came = engine.service, values["query"] or values["q"], time.perf_counter()
    if not service.answer:
        raise RefusedError(404, "the run has no reader: train one (config.recipe=reader), or set config.answer.model")
    return await engine.slowly(lambda: answered(service, query, values["k"], came))


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


def _prompt(service: Service, values: Values) -> str | None:
    """The name of the prompt that a request asks for, if it does."""
    name, known = values["prompt_name"], service.model.prompts if service.model else ()
    if name is not None and name not in known:
        if not known:
            raise RefusedError(404, "the run has no towers that a prompt could be for: leave 'prompt_name' out")
        raise unknown_name("prompt", name[:100], known)
    return name
