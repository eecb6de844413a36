"""What all protocols ask: the service of the moment, behind threads that take together what has come together."""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from retrieval.api.document_texts import candidates
from retrieval.api.loaded_model import Model
from retrieval.api.text_encoders import EMBEDDER, TextRows
from retrieval.common.runtime.model_folder import QUERY
from retrieval.runs.weights.pair_scorer import PairScorer
from retrieval.serving.batching import Batcher
from retrieval.serving.requests import Limits
from retrieval.serving.responses import LONG, MANY, FieldError, RefusedError
from retrieval.serving.service import RERANKED, Query, Service, reranked, searched

T = TypeVar("T")

ENCODED_AT = {EMBEDDER: "/embed", "late_interaction": "/embed_all", "splade": "/embed_sparse"}  # TEI's addresses
ROWS = 32  # texts of a batch of the device, as many as a model embeds as one
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Measures:
    """Counts of one server, in a registry of Prometheus."""

    def __init__(self, engine: "Engine"):
        self.registry = one = CollectorRegistry()
        self.requests = Counter("retrieval_requests", "Requests.", ["path", "status"], registry=one)
        why = "Connections that were closed before a request was there."
        self.connections = Counter("retrieval_connections_closed", why, ["reason"], registry=one)
        name, what = "retrieval_request_seconds", "Time to answer."
        self.seconds = Histogram(name, what, ["path"], registry=one, buckets=_SECONDS)
        name, what = "retrieval_batch_queries", "Queries that were searched at once."
        self.batches = Histogram(name, what, registry=one, buckets=_SIZES)
        opened = Gauge("retrieval_index_opened_timestamp_seconds", "When the index was opened.", registry=one)
        opened.set_function(lambda: engine.service.opened)
        passages = Gauge("retrieval_passages", "Passages that are searched.", registry=one)
        passages.set_function(lambda: engine.service.passages)
        waiting = Gauge("retrieval_waiting", "Requests that wait to be computed.", registry=one)
        waiting.set_function(lambda: engine.waiting)

    def closed(self, reason: str) -> None:
        """A connection has been closed before a request was there."""
        self.connections.labels(reason).inc()


class _Piece(NamedTuple):
    """Some texts of a request; `written` makes of what the model makes of each what the answer has of it."""

    rows: TextRows
    embed: Callable[[TextRows], Sequence[Any]]
    written: Callable[[Sequence[Any]], Sequence[Any]]


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
        self.measures = Measures(self)
        self._quick: Batcher[Query, bytes] = Batcher(
            lambda queries: searched(self.service, queries), limits.batch, limits.waiting, self.measures.batches.observe
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

    def model(self, kind: str = EMBEDDER) -> Model:
        """The one that encodes, if it is of a kind, by default one that makes one vector of a text."""
        if not (model := self.service.model):
            raise RefusedError(404, "the server has no model that encodes: serve one or a run that trains one", "model")
        if model.kind != kind:
            why = f"the model is of the kind '{model.kind}': ask at {ENCODED_AT[model.kind]}"
            raise RefusedError(404, why, "model")
        return model

    @property
    def reranker(self) -> PairScorer:
        """The one that scores."""
        if not (reranker := self.service.reranker):
            raise RefusedError(404, "the server has no reranker: name one in --config.serve.reranker")
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

    async def slowly(self, call: Callable[[], T]) -> T:
        """What a call gives that takes long."""
        return await asyncio.wrap_future(self._slow.submit(call))

    async def embed(
        self,
        side: str,
        texts: Sequence[Any],
        prompt: str | None,
        written: Callable[[Sequence[Any]], Sequence[T]],
        field: str,
        truncate: bool | None = None,
        kind: str = EMBEDDER,
    ) -> tuple[list[T], int, int]:
        """What an answer has of the embedding of each text, the tokens of all, and how many of them were cut.

        Args:
          side: whether they are each a query or a document.
          prompt: the name of the one that they have; None for that of their side.
          written: makes something of what the model makes of some texts.
          field: the field of the request that has them, for errors.
          truncate: whether the end of long ones is cut, otherwise they are refused; None for what the server does.
          kind: of the model that is asked for.

        Raises:
          RefusedError: there is no model of the kind.
          UserError: they have too many tokens.
        """
        model = self.model(kind)
        if side == QUERY and not all(isinstance(each, str) for each in texts):
            raise FieldError(f"'{field}' holds records, and queries are texts: send texts", field=field)
        rows = await asyncio.to_thread(model.rows, side, texts, prompt)
        full = [place for place, ids in enumerate(rows.ids) if len(ids) >= model.card.lengths[side]]
        if full:
            longer = await asyncio.to_thread(model.rows, side, [texts[place] for place in full], prompt, room=1)
            full = [place for place, ids in zip(full, longer.ids) if len(ids) != len(rows.ids[place])]
        count, way = self._tokens(rows.ids, field), 'send "truncate": true'
        if full and not (self.limits.truncate if truncate is None else truncate):
            raise _too_long(field, full[0], "serve with config.serve.truncate=True" if truncate is None else way)

        def item(places: list[int]) -> _Piece:
            return _Piece(rows._replace(ids=[rows.ids[place] for place in places]), model.embed, written)

        return await self._in_pieces(self._texts, rows.ids, item), count, len(full)

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
        longer = rows if truncate else await asyncio.to_thread(reranker.rows_of, query, passages, 1)
        if cut := [place for place, (ids, more) in enumerate(zip(rows, longer)) if len(ids) != len(more)]:
            raise _too_long(field, cut[0], 'send "truncate": true')
        count = self._tokens(rows, field)

        def item(places: list[int]) -> Callable[[], Sequence[float]]:
            return lambda: reranker.logits([rows[place] for place in places]).tolist()

        return np.asarray(await self._in_pieces(self._slow, rows, item), np.float32), count

    def _tokens(self, rows: Sequence[Sequence[int]], field: str) -> int:
        """How many rows have, of which a call may not have too many."""
        count, most = sum(map(len, rows)), self.limits.inputs_tokens
        if count > most:
            why = f"'{field}' has {count} tokens, and at most {most} are read at a time: send less"
            raise FieldError(why, MANY, field)
        return count

    async def _in_pieces(
        self, batcher: Batcher[Any, Any], rows: Sequence[Sequence[int]], item: Callable[[list[int]], Any]
    ) -> list[Any]:
        """A result for each row, of pieces with rows of like length; `item` is what the batcher takes of some rows."""
        order = sorted(range(len(rows)), key=lambda place: len(rows[place]))
        results: list[Any] = []
        futures: list[Future[Any]] = []
        try:
            for start in range(0, len(order), ROWS):
                futures.append(batcher.submit(item(order[start : start + ROWS]), is_new=start == 0))
                if start:  # the one before: so two wait or are computed, and other requests come between them
                    results += await asyncio.wrap_future(futures[-2])
            results += await asyncio.wrap_future(futures[-1])
        finally:
            for future in futures:
                future.cancel()
        by_place = dict(zip(order, results, strict=True))
        return [by_place[place] for place in range(len(rows))]


def _too_long(field: str, place: int, way: str) -> FieldError:
    return FieldError(f"'{field}[{place}]' has more tokens than are read: shorten it, or {way}", LONG, field)


def _embedded(pieces: Sequence[_Piece]) -> list[Sequence[Any]]:
    """What is written of each piece. Rows of one tower are embedded together, as many as a batch has."""
    results: list[Any] = [None] * len(pieces)
    for tower in dict.fromkeys(piece.rows.tower for piece in pieces):
        places = [place for place, piece in enumerate(pieces) if piece.rows.tower == tower]
        ids = [row for place in places for row in pieces[place].rows.ids]
        order, embed = sorted(range(len(ids)), key=lambda row: len(ids[row])), pieces[places[0]].embed
        parts = [[ids[row] for row in order[start : start + ROWS]] for start in range(0, len(order), ROWS)]
        by_row = dict(zip(order, itertools.chain.from_iterable(embed(TextRows(part, tower)) for part in parts)))
        remaining = map(by_row.pop, range(len(ids)))
        for place in places:
            results[place] = pieces[place].written(list(itertools.islice(remaining, len(pieces[place].rows.ids))))
    return results
