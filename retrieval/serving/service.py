"""What a server answers with: functions over one state of a run, the JSON of hits and answers, and the next state."""

import dataclasses
import functools
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from retrieval.api.answering import Answer, Answerer, system_that_is_read
from retrieval.api.document_index import Hit
from retrieval.api.document_texts import WholeDocument, candidates
from retrieval.api.loaded_model import Model
from retrieval.api.own_search import OwnSearch
from retrieval.api.text_encoders import EMBEDDER
from retrieval.common.errors import UserError
from retrieval.data.sets.beir import Candidate
from retrieval.runs.weights.pair_scorer import PairScorer
from retrieval.search.hit_texts import first_duplicates, marked
from retrieval.serving import about
from retrieval.serving.responses import written

RERANKED = "reranked"
_WORD = "warm"
RERANKED_DEPTH = 20  # hits of another list that are put in the order of the reranker's scores, at least

_log = logging.getLogger(__name__)


def _absent(*_: Any) -> Any:
    raise NotImplementedError("there are no passages")


@dataclasses.dataclass(frozen=True)
class Service:
    """One state of a run. What is None the run does not have. Threads may call the functions together.

    Attributes:
      titles: of the systems that search, by their names.
      passages: how many are searched; 0 where there are models alone.
      search: queries, hits of each list, systems and perhaps the name of a prompt to the lists of each query.
      marked: a query and texts to the pieces of each text, with whether the query has matched them.
      passage: that has an id; None where none has.
      document: that has an id, or of which a passage has it; None where there is none.
      about: what the page says before anybody has asked, as `about.about` gives it; called once.
      model: embeds texts.
      reranker: scores a query with documents.
      reranker_name: for clients, where it is not the server's.
      answer: a question, hits and a number to the best answers in these, best first.
      paragraphs: hits that are read for an answer.
      programs: compiles what answers need, a part at each turn; whoever asks for what is not compiled yet waits for it.
      opened: when, in seconds since 1970.
    """

    titles: Mapping[str, str] = dataclasses.field(default_factory=dict)
    passages: int = 0
    search: Callable[[Sequence[str], int, Collection[str], str | None], list[dict[str, list[Hit]]]] = _absent
    marked: Callable[[str, Sequence[str]], list[list[tuple[str, bool]]]] = _absent
    passage: Callable[[str], Candidate | None] = lambda id: None
    document: Callable[[str], WholeDocument | None] = lambda id: None
    about: Callable[[], dict[str, Any]] = lambda: {}
    model: Model | None = None
    reranker: PairScorer | None = None
    reranker_name: str = ""
    answer: Callable[[str, Sequence[Hit], int], list[Answer]] | None = None
    paragraphs: int = 0
    programs: Iterator[None] = dataclasses.field(default_factory=lambda: iter(()))
    opened: float = dataclasses.field(default_factory=time.time)


def service_of(own: OwnSearch, reranker: PairScorer | None, answerer: Answerer | None, batch: int) -> Service:
    """The service, of which nothing is compiled yet.

    Args:
      batch: queries that are searched at once, at most.
    """

    def marked_pieces(query: str, texts: Sequence[str]) -> list[list[tuple[str, bool]]]:
        wanted = {word for words in own.words.of([query]) for word in words}
        return marked(texts, wanted, own.words)

    def programs() -> Iterator[None]:
        yield from own.compile(batch)
        if answerer:
            answerer.answers(_WORD, [Hit("", "", _WORD, 0.0)])
            yield from answerer.compile()
        if reranker:
            yield from reranker.compile(min(RERANKED_DEPTH, len(own.texts)))

    parts: dict[str, Any] = {"passage": own.texts.find, "model": own.model, "reranker": reranker}
    parts |= {"document": own.texts.document, "about": functools.cache(lambda: about.about(own))}
    if answerer:
        parts |= {"answer": answerer.answers, "paragraphs": answerer.paragraphs}
    return Service(own.titles, len(own.texts), own.search, marked_pieces, **parts, programs=programs())


def model_service(model: Model | None, reranker: PairScorer | None, reranker_name: str, batch: int) -> Service:
    """The service of models alone, of which nothing is compiled yet; else as `service_of`."""

    def programs() -> Iterator[None]:
        if model and model.kind == EMBEDDER:
            yield from model.towers.compile_queries(batch)
        if reranker:
            yield from reranker.compile(RERANKED_DEPTH)

    return Service(model=model, reranker=reranker, reranker_name=reranker_name, programs=programs())


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
        hits = service.search([queries[place].text for place in places], deepest, systems, prompt)
        lists |= dict(zip(places, hits))
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
        {"answer": each.text, "score": each.score, "start": each.start, "end": each.end} | {"hit": each.hit.fields()}
        for each in service.answer(query, lists[system], k)
    ]
    return _written(query, came, system=system, answers=answers)


def _answer(service: Service, query: Query, lists: dict[str, list[Hit]]) -> bytes:
    systems = {name: [hit.fields() for hit in lists[name][: query.k]] for name in query.systems}
    if query.details:
        _add_details(service, query.text, systems.values())
    return _written(query.text, query.came, systems=systems)


def _written(query: str, came: float, **rest: Any) -> bytes:
    return written({"query": query, "milliseconds": round((time.perf_counter() - came) * 1000, 2), **rest})


def _add_details(service: Service, query: str, lists: Collection[list[dict[str, Any]]]) -> None:
    parts = ("title", "section", "text")
    texts = list(dict.fromkeys(hit[part] for hits in lists for hit in hits for part in parts))  # lists share hits
    marked = dict(zip(texts, service.marked(query, texts)))
    for hits in lists:
        for hit, first in zip(hits, first_duplicates([hit["text"] for hit in hits])):
            hit["marked"] = {part: marked[hit[part]] for part in parts}
            hit["alike"] = first


class Current:
    """The service that answers now. Where there is a newer state, that is opened whole before it takes over."""

    def __init__(self, open: Callable[[], Service], version: Callable[[], str | None]):
        """Args:
          open: opens what there is.
          version: of what there is; None while it is being made.

        Raises:
          UserError: there is nothing to serve.
        """
        self._open, self._version = open, version
        self._at, self.service = version(), open()
        self.compile_next()

    def compile_next(self) -> None:
        """Compiles a further part of what answers need, where anything is left."""
        next(self.service.programs, None)

    def refresh(self) -> bool:
        """Opens a newer state where there is one, and says whether it did.

        One that cannot be read is told once. After an error of another kind, such as too little memory for both, it is
        tried again.
        """
        before = self._at
        try:
            version = self._version()
            if version is None or version == before:
                return False
            self._at = version
            service = self._open()
            for _ in service.programs:  # before it takes over: the older one answers meanwhile
                pass
            self.service = service
        except Exception as error:
            if not isinstance(error, UserError):
                self._at = before
            _log.warning("a newer index is there and cannot be served, so the older one still is: %s", error)
            return False
        _log.info("a newer index is served now: %s passages", f"{self.service.passages:,}")
        return True
