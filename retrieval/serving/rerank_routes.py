"""Rerankers as others ask for them, at /rerank, /v1/rerank and /v2/rerank: TEI's clients send `texts`; those of Cohere,
Jina and vLLM send `documents`."""

import functools
import itertools

import numpy as np
from starlette.responses import Response

from retrieval.serving import requests
from retrieval.serving.answers import written
from retrieval.serving.engine import Engine
from retrieval.serving.errors import RefusedError
from retrieval.serving.requests import SWITCH, Field, Given, Operation
from retrieval.serving.responses import json_response

_PATHS = ("/rerank", "/v1/rerank", "/v2/rerank")
_numbers = itertools.count(1)


def operations(engine: Engine) -> tuple[Operation, ...]:
    """What clients of rerankers may ask for."""
    limits = engine.limits
    text, document = requests.text(limits.inputs_body), requests.document(limits.inputs_body)
    fields = (
        Field("query", text, "a query", is_needed=True),
        Field(
            "documents", requests.several(document, limits.inputs), "of Cohere's clients: texts, or records with one"
        ),
        Field("texts", requests.several(text, limits.inputs), "of TEI's clients"),
        Field("model", requests.text(1000), "documents: as /v1/models names it; by default the one that there is"),
        Field("top_n", requests.whole(1), "documents: how many results there are; by default all"),
        Field("return_documents", SWITCH, "documents: whether results have their text", False),
        Field("raw_scores", SWITCH, "texts: whether scores are logits, or probabilities", False),
        Field("return_text", SWITCH, "texts: whether results have their text", False),
        Field("truncate", SWITCH, "texts: whether long ones are cut; otherwise they are refused", False),
    )
    rerank, what = functools.partial(_rerank, engine), "how well each document answers a query, best first"
    example = {"query": "how to install", "documents": ["It is red.", "Install it with pip."], "top_n": 1}
    each = (what, rerank, "ForeignReranked", fields, ("documents", "texts"), "reranker", True, example)
    at_root = ("/",) if engine.service.reranker and not engine.service.model else ()
    return tuple(Operation("POST", path, *each) for path in (*_PATHS, *at_root))


async def _rerank(engine: Engine, given: Given) -> Response:
    if given["model"] not in (None, engine.name):
        message = f"there is no model '{given['model'][:100]}': known: {engine.name}"
        raise RefusedError(404, message, "model", "model_not_found")
    if given["texts"]:
        return json_response(await _of_texts(engine, given))
    documents = [{"text": each} if isinstance(each, str) else each for each in given["documents"]]
    logits_N, tokens = await engine.rerank(given["query"], documents, "documents")
    results = [
        {"index": place, "relevance_score": score}
        | ({"document": documents[place]} if given["return_documents"] else {})
        for place, score in best_first(logits_N, _probabilities(logits_N))[: given["top_n"]]
    ]
    about = {"id": f"r-{next(_numbers)}", "model": engine.name, "results": results}
    meta = {"usage": {"total_tokens": tokens}, "meta": {"api_version": {"version": "2"}}}
    return json_response(written(about | meta))


async def _of_texts(engine: Engine, given: Given) -> bytes:
    texts = given["texts"]
    logits_N, _ = await engine.rerank(given["query"], texts, "texts", given["truncate"])
    shown_N = logits_N if given["raw_scores"] else _probabilities(logits_N)
    return written(
        [
            {"index": place, "score": score} | ({"text": texts[place]} if given["return_text"] else {})
            for place, score in best_first(logits_N, shown_N)
        ]
    )


def best_first(logits_N: np.ndarray, shown_N: np.ndarray) -> list[tuple[int, float]]:
    """The places of documents in the order of their logits, of equals the first, with what is shown of each."""
    return [(place, shown_N[place].item()) for place in np.argsort(-logits_N, kind="stable").tolist()]


def _probabilities(logits_N: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0, -logits_N))
