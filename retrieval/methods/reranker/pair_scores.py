"""Pairs of a query and a document to scores, by rerankers of one config."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from retrieval.data.sets.beir import Candidate
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.methods.reranker.model import CrossEncoder
from retrieval.recipes.on_mesh import OnMesh


class Lengths(NamedTuple):
    """The tokens of a query, of a row with its document, and the separators between the two: a RoBERTa has two."""

    query: int
    row: int
    separators: int = 1


class PairScorer:
    """Rows `[CLS] query [SEP] document [SEP]` to scores; compiled once per shape."""

    def __init__(self, config: ConfigDict, model: CrossEncoder, sep_id: int, mesh: jax.sharding.Mesh):
        """Args are those of `OnMesh`."""
        on_mesh = OnMesh(config, model, sep_id, mesh)
        self._score = on_mesh.compiled(lambda model, pairs: model.scores(pairs)[:, None])

    def of(self, params: Any) -> Callable[[np.ndarray], np.ndarray]:
        """Ids [B, L] to scores [B, 1], with the rows spread over the mesh."""
        return self._score(params)


def query_beginnings(vocabulary: Vocabulary, texts: Sequence[str], lengths: Lengths) -> list[list[int]]:
    """`[CLS] query [SEP]` of each query."""
    return [vocabulary.single(ids, lengths.query) for ids in vocabulary.encode_batch(texts)]


def document_bodies(vocabulary: Vocabulary, items: Sequence[Candidate], lengths: Lengths) -> list[list[int]]:
    """The tokens of each document: of its title, then of its text."""
    titles = vocabulary.encode_batch([item.title for item in items])
    texts = vocabulary.encode_batch([item.text for item in items])
    pairs = (vocabulary.pair(title, text, lengths.row) for title, text in zip(titles, texts))
    return [[id for id in pair[1:] if id != vocabulary.sep_id] for pair in pairs]


def joined(query: Sequence[int], body: Sequence[int], sep_id: int, lengths: Lengths) -> list[int]:
    """`[CLS] query [SEP] document [SEP]`, as `features.JoinedConverter` makes it: the document is cut."""
    beginning = [*query, *[sep_id] * (lengths.separators - 1)]
    return [*beginning, *body[: lengths.row - len(beginning) - 1], sep_id]
