"""A run's own search as a service."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from retrieval.api.document_index import Hit
from retrieval.api.document_texts import Document, candidates
from retrieval.api.own_search import OwnSearch
from retrieval.methods.reader.answering import Answerer, system_that_is_read
from retrieval.methods.reranker.reranking import PairReranker
from retrieval.search.marks import marked
from retrieval.serving.service import RERANKED_DEPTH, Service

_WORD = "warm"


def service_of(own: OwnSearch, reranker: PairReranker | None, answerer: Answerer | None, batch: int) -> Service:
    """The service, with all compiled that queries need.

    Args:
      batch: queries that are searched at once, at most.
    """

    def marked_pieces(query: str, texts: Sequence[str]) -> list[list[tuple[str, bool]]]:
        wanted = {word for words in own.words.of([query]) for word in words}
        return marked(texts, wanted, own.words)

    def scores(query: str, documents: Sequence[Document]) -> np.ndarray:
        assert reranker, "otherwise nobody asks"
        return reranker.scores(query, candidates(documents))

    encode = {"query": own.model.encode_queries, "document": own.model.encode_documents} if own.model else {}
    own.compile(batch)
    parts: dict[str, Any] = {"rerank": scores if reranker else None}
    if reranker:
        reranker.compile(min(RERANKED_DEPTH, len(own.texts)))
    if answerer:
        answerer.compile()
        answer = functools.partial(answerer.answers, system=system_that_is_read(own.titles))
        answer(_WORD, [Hit("", "", _WORD, 0.0)])
        parts |= {"answer": answer, "paragraphs": answerer.paragraphs}
    return Service(own.titles, len(own.texts), own.search, marked_pieces, encode, **parts)
