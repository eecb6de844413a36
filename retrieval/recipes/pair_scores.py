"""Pairs of a query and a document to scores, by rerankers of one config."""

import contextlib
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from retrieval.data.sets.beir import Candidate
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.models.cross_encoder import CrossEncoder
from retrieval.models.text import Text
from retrieval.recipes.placement import bind, gather, shardings_of
from retrieval.recipes.towers import token_types
from retrieval.training import sharding


class Lengths(NamedTuple):
    """The tokens of a query, and of a row with its document."""

    query: int
    row: int


class PairScorer:
    """Rows `[CLS] query [SEP] document [SEP]` to scores; compiled once per shape.

    As in `towers.Embedder`, the parameters are arguments of what is compiled.
    """

    def __init__(self, config: ConfigDict, model: CrossEncoder, sep_id: int, mesh: jax.sharding.Mesh):
        """Args are the config that says where parameters lie, and a model of these sizes, which may be abstract."""
        bound = bind(model)
        everywhere = sharding.replicated(mesh)

        def score(params: Any, pairs: Text) -> jax.Array:
            return jax.reshard(bound(gather(params)).scores(pairs)[:, None], everywhere)

        self._score = jax.jit(score)
        self._config = config
        self._sep_id = sep_id
        self._mesh = mesh
        self._turn = threading.Lock() if sharding.runs_one_at_a_time() else contextlib.nullcontext()

    def of(self, params: Any) -> Callable[[np.ndarray], np.ndarray]:
        """Ids [B, L] to scores [B, 1], with the rows spread over the mesh."""
        with jax.set_mesh(self._mesh):  # once for all batches: a large model takes long to send
            placed = jax.device_put(params, shardings_of(params, self._config, self._mesh))
        return functools.partial(self._of, placed)

    def _of(self, params: Any, ids_BL: np.ndarray) -> np.ndarray:
        rows = sharding.batch_sharding(self._mesh)
        pairs = (sharding.place(x, rows) for x in (ids_BL, token_types(ids_BL, self._sep_id)))
        with jax.set_mesh(self._mesh), self._turn:
            return np.asarray(self._score(params, Text.from_ids(*pairs)))


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
    return [*query, *body[: lengths.row - len(query) - 1], sep_id]
