"""The hits of queries and the answers to questions, searched for together and written as JSON."""

import json
import time
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from retrieval.api.answering import system_that_is_read
from retrieval.api.document_index import Hit
from retrieval.api.document_texts import candidates
from retrieval.search.near_duplicates import first_duplicates
from retrieval.serving.service import RERANKED_DEPTH, Service

RERANKED = "reranked"


class Query(NamedTuple):
    """Attributes:
    prompt: the name of the one that it is embedded with; None for that of queries.
    details: whether the matched pieces are told, and which hits are nearly the same.
    came: when, by `time.perf_counter`.
    """

    text: str
    k: int
    systems: tuple[str, ...]
    prompt: str | None
    details: bool
    came: float


def systems_of(service: Service) -> dict[str, str]:
    """The titles of all systems whose lists may be asked for, by their names."""
    return {**service.titles, **({RERANKED: RERANKED} if service.reranker else {})}


def searched(service: Service, queries: Sequence[Query]) -> list[bytes]:
    """The answers to queries that wait together: those of the same systems and prompt are searched at once."""
    lists: dict[int, dict[str, list[Hit]]] = {}
    for systems, prompt in dict.fromkeys((query.systems, query.prompt) for query in queries):
        places = [place for place, query in enumerate(queries) if (query.systems, query.prompt) == (systems, prompt)]
        deepest = max(queries[place].k for place in places)
        found = service.search([queries[place].text for place in places], deepest, systems, prompt)
        lists |= dict(zip(places, found))
    return [_answer(service, query, lists[place]) for place, query in enumerate(queries)]


def reranked(service: Service, query: Query) -> bytes:
    """The answer to a query whose hits a reranker is asked about, too."""
    depth, source = max(query.k, RERANKED_DEPTH), system_that_is_read(service.titles)
    systems = dict.fromkeys((*(name for name in query.systems if name != RERANKED), source))
    (lists,) = service.search([query.text], depth, tuple(systems), query.prompt)
    hits = lists[source]
    if service.reranker and hits:
        documents = candidates([{"title": hit.title, "text": hit.text} for hit in hits])
        scores = service.reranker.scores_of(query.text, documents)
        order = sorted(zip(scores.tolist(), hits), key=lambda scored: -scored[0])
        hits = [hit._replace(score=score) for score, hit in order]
    return _answer(service, query, {name: lists.get(name, hits) for name in query.systems})


def answered(service: Service, query: str, k: int, came: float) -> bytes:
    """The best answers to a question, with the passages that they stand in."""
    assert service.answer, "otherwise nobody asks"
    system = system_that_is_read(service.titles)
    (lists,) = service.search([query], service.paragraphs, (system,), None)
    answers = [
        {"answer": each.text, "score": each.score, "start": each.start, "end": each.end} | {"hit": each.hit._asdict()}
        for each in service.answer(query, lists[system], k)
    ]
    milliseconds = round((time.perf_counter() - came) * 1000, 2)
    return written({"query": query, "milliseconds": milliseconds, "system": system, "answers": answers})


def written(value: Any) -> bytes:
    """A value as JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def _answer(service: Service, query: Query, lists: dict[str, list[Hit]]) -> bytes:
    systems = {name: [hit._asdict() for hit in lists[name][: query.k]] for name in query.systems}
    if query.details:
        _add_details(service, query.text, systems.values())
    milliseconds = round((time.perf_counter() - query.came) * 1000, 2)
    return written({"query": query.text, "milliseconds": milliseconds, "systems": systems})


def _add_details(service: Service, query: str, lists: Collection[list[dict[str, Any]]]) -> None:
    parts = ("title", "section", "text")
    texts = list(dict.fromkeys(hit[part] for hits in lists for hit in hits for part in parts))  # lists share hits
    marked = dict(zip(texts, service.marked(query, texts)))
    for hits in lists:
        for hit, first in zip(hits, first_duplicates([hit["text"] for hit in hits])):
            hit["marked"] = {part: marked[hit[part]] for part in parts}
            hit["alike"] = first
