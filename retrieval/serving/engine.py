"""What all protocols ask: the service of the moment, behind threads that take together what has come together."""

import asyncio
import functools
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from retrieval.api.answering import system_that_is_read
from retrieval.api.document_texts import candidates
from retrieval.api.loaded_model import Model
from retrieval.api.text_encoders import TextRows
from retrieval.runs.weights.trained_model import PairScorer
from retrieval.serving.batching import Batcher
from retrieval.serving.requests import Limits
from retrieval.serving.responses import MANY, FieldError, RefusedError
from retrieval.serving.service import RERANKED, Query, Service, reranked, searched

T = TypeVar("T")

ROWS = 32  # texts of a batch of the device, as many as a model embeds as one
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
_AHEAD = 2  # batches of a request that wait or are computed: those of other requests come between them


class Measures:
    """Counts of one server."""

    def __init__(self, passages: Callable[[], int], opened: Callable[[], float], waiting: Callable[[], int]):
        self._registry = CollectorRegistry()

        def made(kind: Callable[..., T], name: str, what: str, *labels: str, **options: Any) -> T:
            return kind(f"retrieval_{name}", what, labels, registry=self._registry, **options)

        self._requests = made(Counter, "requests", "Requests.", "path", "status")
        self._seconds = made(Histogram, "request_seconds", "Time to answer.", "path", buckets=_SECONDS)
        why = "Connections that were closed before a request was there."
        self._closed = made(Counter, "connections_closed", why, "reason")
        self._batches = made(Histogram, "batch_queries", "Queries that were searched at once.", buckets=_SIZES)
        when = "When the index that answers was opened."
        made(Gauge, "passages", "Passages that are searched.").set_function(passages)
        made(Gauge, "index_opened_timestamp_seconds", when).set_function(opened)
        made(Gauge, "waiting", "Requests that wait to be computed.").set_function(waiting)

    def answered(self, path: str, status: int, seconds: float) -> None:
        """A request has been answered."""
        self._requests.labels(path, status).inc()
        self._seconds.labels(path).observe(seconds)

    def closed(self, reason: str) -> None:
        """A connection has been closed before a request was there."""
        self._closed.labels(reason).inc()

    def batch(self, size: int) -> None:
        """So many queries were searched at once."""
        self._batches.observe(size)

    def text(self) -> bytes:
        """All counts, as Prometheus reads them."""
        return generate_latest(self._registry)


class _Piece(NamedTuple):
    """Some texts of a request; `written` makes of their embeddings [N, E] what the answer has of each."""

    rows: TextRows
    embed: Callable[[TextRows], np.ndarray]
    written: Callable[[np.ndarray], Sequence[Any]]


class Engine:
    """Answers of a service, which may change between them.

    Attributes:
      name: of the model, for the clients that name one.
      measures: what the server tells of itself.
      is_ending: whether the process is about to end, and takes requests only until those who send them know it.
    """

    is_ending = False

    def __init__(self, service: Callable[[], Service], limits: Limits, name: str = "model"):
        self._service, self.limits, self.name = service, limits, name
        self.measures = Measures(lambda: service().passages, lambda: service().opened, lambda: self.waiting)
        self._quick: Batcher[Query, bytes] = Batcher(
            lambda queries: searched(self.service, queries), limits.batch, limits.waiting, self.measures.batch
        )
        # What takes long has threads of its own, so that no search waits for it.
        self._slow: Batcher[Callable[[], Any], Any] = Batcher(lambda calls: [calls[0]()], 1, limits.waiting)
        self._texts = Batcher(_embedded, ROWS, limits.waiting)

    def end(self) -> None:
        """From now on the server is not ready."""
        self.is_ending = True

    @property
    def service(self) -> Service:
        """The one that answers now."""
        return self._service()

    @property
    def model(self) -> Model:
        """The one that embeds."""
        if not (model := self.service.model):
            raise RefusedError(404, "the run has no towers that encode: serve one that trains them", "model")
        return model

    @property
    def reranker(self) -> PairScorer:
        """The one that scores."""
        if not (reranker := self.service.reranker):
            raise RefusedError(404, "the server has no reranker: start it with --config.serve.reranker")
        return reranker

    @property
    def waiting(self) -> int:
        """How much waits to be computed."""
        return len(self._quick) + len(self._slow) + len(self._texts)

    async def search(self, queries: Sequence[Query]) -> list[bytes]:
        """The answers to queries, which wait as those of other requests do."""
        futures: list[Future[bytes]] = []
        try:
            for query in queries:
                if RERANKED in query.systems:
                    futures.append(self._slow.submit(lambda query=query: reranked(self.service, query)))
                else:
                    futures.append(self._quick.submit(query))
            return await asyncio.gather(*map(asyncio.wrap_future, futures))
        finally:
            for future in futures:
                future.cancel()  # those that nobody waits for any more

    async def best_hits(self, query: str, k: int) -> bytes:
        """The answer to a query by the hybrid, or by the one system that there is."""
        systems = (system_that_is_read(self.service.titles),)
        (answer,) = await self.search([Query(query, k, systems, None, False, time.perf_counter())])
        return answer

    async def slowly(self, call: Callable[[], T]) -> T:
        """What a call gives that takes long."""
        return await asyncio.wrap_future(self._slow.submit(call))

    async def embed(
        self,
        side: str,
        texts: Sequence[Any],
        prompt: str | None,
        written: Callable[[np.ndarray], Sequence[T]],
        field: str,
        truncate: bool = True,
    ) -> tuple[list[T], int]:
        """What an answer has of the embedding of each text, and the tokens of all.

        Args:
          side: whether they are each a query or a document.
          prompt: the name of the one that they have; None for that of their side.
          written: makes something of embeddings [N, E].
          field: the field of the request that has them, for errors.
          truncate: whether the end of long ones is cut; otherwise they are refused.

        Raises:
          RefusedError: the run embeds nothing.
          UserError: they have too many tokens.
        """
        model = self.model
        tokenize = functools.partial(model.rows, side, prompt_name=prompt)
        rows = await asyncio.to_thread(tokenize, texts)
        if not truncate:
            longest = model.card.lengths[side]
            full = [place for place, ids in enumerate(rows.ids) if len(ids) >= longest]
            with_room = await asyncio.to_thread(tokenize, [texts[place] for place in full], room=1) if full else rows
            cut = [place for place, ids in zip(full, with_room.ids) if len(ids) > longest]
            _check_cut(cut, field, f"has more than {longest} tokens")
        count = self._tokens(rows.ids, field)

        def item(places: list[int]) -> _Piece:
            return _Piece(rows._replace(ids=[rows.ids[place] for place in places]), model.embed, written)

        return await self._in_pieces(self._texts, rows.ids, item), count

    async def rerank(
        self, query: str, documents: Sequence[Any], field: str, truncate: bool = True
    ) -> tuple[np.ndarray, int]:
        """The logit of each document, float32 [N], and the tokens of all pairs.

        Raises:
          RefusedError: there is no reranker.
          UserError: as `embed`.
        """
        reranker = self.reranker
        passages = candidates(documents)
        rows = await asyncio.to_thread(reranker.rows_of, query, passages)
        if not truncate:
            with_room = await asyncio.to_thread(reranker.rows_of, query, passages, 1)
            cut = [place for place, (ids, longer) in enumerate(zip(rows, with_room)) if ids != longer]
            _check_cut(cut, field, "has more tokens, with the query, than the reranker takes")
        count = self._tokens(rows, field)

        def item(places: list[int]) -> Callable[[], Sequence[float]]:
            return lambda: reranker.logits([rows[place] for place in places]).tolist()

        return np.asarray(await self._in_pieces(self._slow, rows, item), np.float32), count

    def _tokens(self, rows: Sequence[Sequence[int]], field: str) -> int:
        count, most = sum(map(len, rows)), self.limits.inputs_tokens
        if count > most:
            raise FieldError(
                f"'{field}' has {count} tokens, and at most {most} are read at a time: send less", MANY, field
            )
        return count

    async def _in_pieces(
        self, batcher: Batcher[Any, Any], rows: Sequence[Sequence[int]], item: Callable[[list[int]], Any]
    ) -> list[Any]:
        """A result for each row, of pieces with rows of like length; `item` is what the batcher takes of some rows."""
        order = sorted(range(len(rows)), key=lambda place: len(rows[place]))
        results: list[Any] = [None] * len(rows)
        waiting: deque[tuple[list[int], Future[Any]]] = deque()

        async def take() -> None:
            places, future = waiting[0]
            for place, result in zip(places, await asyncio.wrap_future(future), strict=True):
                results[place] = result
            waiting.popleft()

        try:
            for start in range(0, len(order), ROWS):
                places = order[start : start + ROWS]
                waiting.append((places, batcher.submit(item(places), is_new=start == 0)))
                if len(waiting) == _AHEAD:
                    await take()
            while waiting:
                await take()
        finally:
            for _, future in waiting:
                future.cancel()
        return results


def _embedded(pieces: Sequence[_Piece]) -> list[Sequence[Any]]:
    """What is written of each piece. Rows of one tower are embedded together, as many as a batch has."""
    results: list[Any] = [None] * len(pieces)
    by_tower: dict[Any, list[int]] = {}
    for place, piece in enumerate(pieces):
        by_tower.setdefault(piece.rows.tower, []).append(place)
    for tower, places in by_tower.items():
        rows = [(place, ids) for place in places for ids in pieces[place].rows.ids]
        order = sorted(range(len(rows)), key=lambda row: len(rows[row][1]))
        parts = [order[start : start + ROWS] for start in range(0, len(order), ROWS)]
        embed = pieces[places[0]].embed
        embedded = np.concatenate([embed(TextRows([rows[row][1] for row in part], tower)) for part in parts])
        embeddings_NE = np.empty_like(embedded)
        embeddings_NE[order] = embedded
        start = 0
        for place in places:
            end = start + len(pieces[place].rows.ids)
            results[place] = pieces[place].written(embeddings_NE[start:end])
            start = end
    return results


def _check_cut(places: Sequence[int], field: str, why: str) -> None:
    if places:
        raise FieldError(f"'{field}[{places[0]}]' {why}: shorten it, or send \"truncate\": true", field=field)
