"""Exact search by MaxSim, a block of stored documents at a time.

Letters of shapes: Q queries, A tokens of a query, J documents of a block, L tokens of a document, E size of a vector.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

from retrieval.common.runtime import devices
from retrieval.methods.late_interaction.maxsim import maxsim
from retrieval.methods.late_interaction.plaid import CentroidLists
from retrieval.methods.late_interaction.token_encoder import Queries
from retrieval.search import text_batches

_BLOCK, _QUERIES = 128, 64
_CANDIDATES = 32  # of a query, whose vectors stay in a processor's cache: twice as fast as 400 together
_maxsim = jax.jit(maxsim)


class Documents(Protocol):
    """The vectors of documents by their numbers.

    Attributes:
      sizes: how many each has, int64 [N].
    """

    sizes: np.ndarray

    def gather(self, numbers: Sequence[int], /) -> np.ndarray:
        """Those of some documents, one after the other, float32 or float16 [T, E]."""
        ...


class InMemory:
    """The vectors [T, E] of each document."""

    def __init__(self, vectors: Sequence[np.ndarray]):
        self._vectors, self.sizes = vectors, np.array(list(map(len, vectors)), np.int64)

    def gather(self, numbers: Sequence[int], /) -> np.ndarray:
        """As `Documents.gather`."""
        return np.concatenate([self._vectors[number] for number in numbers])


def ranked(queries: Queries, documents: Documents, longest: int, depth: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores and rows of the best documents of all, [Q, depth or all], best first, ties to the smaller row.

    Args:
      longest: no document has more tokens.

    Returns:
      -inf and -1 where there are fewer; a query without a token finds nothing, nor is a document without one found.
    """
    scores_QN = np.full((len(queries.mask), len(documents.sizes)), -np.inf, np.float32)
    for numbers, block in _blocks(documents, np.arange(len(documents.sizes)), longest):
        for start in range(0, len(scores_QN), _QUERIES):
            part = slice(start, start + _QUERIES)
            scores_QN[part, numbers] = _scores(queries, part, block)[:, : len(numbers)]
    return best(scores_QN, np.broadcast_to(np.arange(scores_QN.shape[1]), scores_QN.shape), depth)


def of_candidates(queries: Queries, documents: Documents, rows_QK: np.ndarray) -> np.ndarray:
    """The scores of each query's candidates, float32 [Q, K]; -inf for a row of -1, and as `ranked`.

    They are few for each query, and computed by NumPy.
    """
    scores_QK = np.full(rows_QK.shape, -np.inf, np.float32)
    for vectors_AE, mask_A, rows_K, scores_K in zip(*queries, rows_QK, scores_QK):
        candidates = np.flatnonzero((rows_K >= 0) & (documents.sizes[rows_K] > 0) & mask_A.any())
        for start in range(0, len(candidates), _CANDIDATES):
            places = candidates[start : start + _CANDIDATES]
            sizes = documents.sizes[rows_K[places]]
            vectors_TE = documents.gather(rows_K[places].tolist()).astype(np.float32, copy=False)
            products_AT = vectors_AE[mask_A] @ vectors_TE.T
            scores_K[places] = np.maximum.reduceat(products_AT, np.cumsum(sizes) - sizes, axis=1).sum(axis=0)
    return scores_QK


def probe_centroids(lists: CentroidLists, queries: Queries, probes: int, depth: int) -> np.ndarray:
    """PLAID's candidates: the documents with the best centroids, [Q, depth]; -1 where there are fewer."""
    rows_QK = np.full((len(queries.mask), depth), -1)
    for rows_K, vectors, mask in zip(rows_QK, *queries):
        candidates = lists.candidates(vectors[mask], probes, depth)
        rows_K[: len(candidates)] = candidates
    return rows_QK


def best(scores_QN: np.ndarray, rows_QN: np.ndarray, depth: int) -> tuple[np.ndarray, np.ndarray]:
    """The first of some scores with their rows, [Q, depth]; equal ones keep their order, and -inf is no result."""
    order_QK = np.argsort(-scores_QN, axis=1, kind="stable")[:, :depth]
    scores_QK, rows_QK = (np.take_along_axis(x, order_QK, axis=1) for x in (scores_QN, rows_QN))
    return scores_QK, np.where(scores_QK == -np.inf, -1, rows_QK)


def _blocks(
    documents: Documents, numbers: np.ndarray, longest: int
) -> Iterator[tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]]:
    """Documents of like length: their places among `numbers`, and their vectors [J, L, E] with their mask [J, L].

    L is one of few lengths, so few shapes compile.
    """
    sizes, lengths = documents.sizes[numbers], text_batches.lengths_up_to(longest)
    order = np.argsort(sizes, kind="stable")
    order = order[sizes[order] > 0]
    for start in range(0, len(order), _BLOCK):
        some = order[start : start + _BLOCK]
        L = next(length for length in lengths if length >= sizes[some].max())
        sizes_J = np.zeros(_BLOCK, np.int64)
        sizes_J[: len(some)] = sizes[some]
        mask_JL, vectors_TE = np.arange(L) < sizes_J[:, None], documents.gather(numbers[some].tolist())
        vectors_JLE = np.zeros((_BLOCK, L, vectors_TE.shape[1]), np.float32)
        vectors_JLE[mask_JL] = vectors_TE
        yield some, (vectors_JLE, mask_JL)


def _scores(queries: Queries, part: slice, block: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """The scores of some queries with a block, [Q, J]; -inf for a query without a token."""
    mask_QA = queries.mask[part]
    with devices.alone():
        scores_QJ = np.array(_maxsim(*map(jnp.asarray, (queries.vectors[part], mask_QA, *block))))
    scores_QJ[~mask_QA.any(axis=1)] = -np.inf
    return scores_QJ
