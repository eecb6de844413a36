"""What a server answers with: functions over one state of a run, and the place where the next state takes over."""

import dataclasses
import functools
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from retrieval.api.answering import Answer, Answerer, system_that_is_read
from retrieval.api.document_index import Hit
from retrieval.api.loaded_model import Model
from retrieval.api.own_search import OwnSearch
from retrieval.data.sets.beir import Candidate
from retrieval.errors import UserError
from retrieval.recipes.trained_model import PairScorer
from retrieval.search.marks import marked

_WORD = "warm"
RERANKED_DEPTH = 20  # hits of another list that are put in the order of the reranker's scores, at least

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Service:
    """One state of a run. What is None the run does not have. Threads may call the functions together.

    Attributes:
      titles: of the systems that search, by their names.
      passages: how many are searched.
      search: queries, hits of each list, systems and perhaps the name of a prompt to the lists of each query.
      marked: a query and texts to the pieces of each text, with whether the query has matched them.
      passage: that has an id; None where none has.
      model: embeds texts.
      reranker: scores a query with documents.
      answer: a question, hits and a number to the best answers in these, best first.
      paragraphs: hits that are read for an answer.
      opened: when, in seconds since 1970.
    """

    titles: Mapping[str, str]
    passages: int
    search: Callable[[Sequence[str], int, Collection[str], str | None], list[dict[str, list[Hit]]]]
    marked: Callable[[str, Sequence[str]], list[list[tuple[str, bool]]]]
    passage: Callable[[str], Candidate | None] = lambda id: None
    model: Model | None = None
    reranker: PairScorer | None = None
    answer: Callable[[str, Sequence[Hit], int], list[Answer]] | None = None
    paragraphs: int = 0
    opened: float = dataclasses.field(default_factory=time.time)


def service_of(own: OwnSearch, reranker: PairScorer | None, answerer: Answerer | None, batch: int) -> Service:
    """The service, with all compiled that queries need.

    Args:
      batch: queries that are searched at once, at most.
    """

    def marked_pieces(query: str, texts: Sequence[str]) -> list[list[tuple[str, bool]]]:
        wanted = {word for words in own.words.of([query]) for word in words}
        return marked(texts, wanted, own.words)

    own.compile(batch)
    parts: dict[str, Any] = {"passage": own.texts.find, "model": own.model, "reranker": reranker}
    if reranker:
        reranker.compile(min(RERANKED_DEPTH, len(own.texts)))
    if answerer:
        answerer.compile()
        answer = functools.partial(answerer.answers, system=system_that_is_read(own.titles))
        answer(_WORD, [Hit("", "", _WORD, 0.0)])
        parts |= {"answer": answer, "paragraphs": answerer.paragraphs}
    return Service(own.titles, len(own.texts), own.search, marked_pieces, **parts)


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
        self._ended = threading.Event()

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
            self.service = self._open()
        except Exception as error:
            if not isinstance(error, UserError):
                self._at = before
            _log.warning("a newer index is there and cannot be served, so the older one still is: %s", error)
            return False
        _log.info("a newer index is served now: %s passages", f"{self.service.passages:,}")
        return True

    def watch(self, seconds: float) -> None:
        """Looks for a newer state from time to time, in a thread, until `close`."""

        def look() -> None:
            while not self._ended.wait(seconds):
                self.refresh()

        threading.Thread(target=look, daemon=True).start()

    def close(self) -> None:
        """Looks no more."""
        self._ended.set()
