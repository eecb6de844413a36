"""Search by MaxSim: exact, a block of stored documents at a time, or by the tokens that an index retrieves (XTR).

Letters of shapes: Q queries, A tokens of a query, J documents of a block, L tokens of a document, E size of a vector,
X tokens that a query's token retrieves, D documents of which some were retrieved.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

from retrieval.common.runtime import devices
from retrieval.methods.late_interaction.maxsim import maxsim
from retrieval.methods.late_interaction.token_encoder import Queries
from retrieval.search import text_batches
from retrieval.search.exact import ExactIndex, no_results

_BLOCK, _QUERIES = 128, 64
_maxsim = jax.jit(maxsim)


class Documents(Protocol):
    """The vectors of documents by their numbers, float32 or float16 [T, E] of each."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> np.ndarray: ...


def ranked(queries: Queries, documents: Documents, longest: int, depth: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores and rows of the best documents of all, [Q, depth], best first, ties to the smaller row.

    Args:
      longest: no document has more tokens.

    Returns:
      -inf and -1 where there are fewer; a query without a token finds nothing, nor is a document without one found.
    """
    scores_QN = np.full((len(queries.counts), len(documents)), -np.inf, np.float32)
    for numbers, block in _blocks(documents, range(len(documents)), longest):
        for start in range(0, len(scores_QN), _QUERIES):
            part = slice(start, start + _QUERIES)
            scores_QN[part, numbers] = _scores(queries, part, block)[:, : len(numbers)]
    return best(scores_QN, np.broadcast_to(np.arange(len(documents)), scores_QN.shape), depth)


def of_candidates(queries: Queries, documents: Documents, rows_QK: np.ndarray, longest: int) -> np.ndarray:
    """The scores of each query's candidates, float32 [Q, K]; -inf for a row of -1, and as `ranked`."""
    scores_QK = np.full(rows_QK.shape, -np.inf, np.float32)
    for number, rows_K in enumerate(rows_QK):
        places = np.flatnonzero(rows_K >= 0)
        for some, block in _blocks(documents, rows_K[places].tolist(), longest):
            scores_QK[number, places[some]] = _scores(queries, slice(number, number + 1), block)[0, : len(some)]
    return scores_QK


def best(scores_QN: np.ndarray, rows_QN: np.ndarray, depth: int) -> tuple[np.ndarray, np.ndarray]:
    """The first of some scores with their rows, [Q, depth]; equal ones keep their order, and -inf is no result."""
    order_QK = np.argsort(-scores_QN, axis=1, kind="stable")[:, :depth]
    scores_QK, rows_QK = (np.take_along_axis(x, order_QK, axis=1) for x in (scores_QN, rows_QN))
    return scores_QK, np.where(scores_QK == -np.inf, -1, rows_QK)


def _blocks(
    documents: Documents, numbers: Sequence[int], longest: int
) -> Iterator[tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]]:
    """Documents of like length: their places among `numbers`, and their vectors [J, L, E] with what counts [J, L].

    L is one of few lengths, so few shapes compile.
    """
    sizes, lengths = np.array([len(documents[number]) for number in numbers]), text_batches.lengths_up_to(longest)
    order = np.argsort(sizes, kind="stable")
    order = order[sizes[order] > 0]
    for start in range(0, len(order), _BLOCK):
        some = order[start : start + _BLOCK]
        L = next(length for length in lengths if length >= sizes[some].max())
        vectors_JLE = np.zeros((_BLOCK, L, documents[numbers[some[0]]].shape[1]), np.float32)
        for row, place in enumerate(some):
            vectors_JLE[row, : sizes[place]] = documents[numbers[place]]
        counts_J = np.zeros(_BLOCK, np.int64)
        counts_J[: len(some)] = sizes[some]
        yield some, (vectors_JLE, np.arange(L) < counts_J[:, None])


def _scores(queries: Queries, part: slice, block: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """The scores of some queries with a block, [Q, J]; -inf for a query without a token."""
    counts_QA = queries.counts[part]
    with devices.alone():
        scores_QJ = np.array(_maxsim(*map(jnp.asarray, (queries.vectors[part], counts_QA, *block))))
    scores_QJ[~counts_QA.any(axis=1)] = -np.inf
    return scores_QJ


class TokenIndex:
    """XTR's search (Lee et al. 2023): each token of a query retrieves tokens, and documents are scored by these alone.

    Where a token of the query has retrieved none of a document's, its part of the score is the smallest product that it
    has retrieved: the true one is no greater.
    """

    def __init__(self, documents: Documents):
        vectors = [np.asarray(documents[number], np.float32) for number in range(len(documents))]
        self._owners = np.repeat(np.arange(len(vectors)), list(map(len, vectors)))
        self._index = ExactIndex(np.concatenate([each for each in vectors if len(each)]))

    def search(self, queries: Queries, retrieved: int, depth: int) -> tuple[np.ndarray, np.ndarray]:
        """Scores and rows [Q, depth], best first; -inf and -1 where fewer were found."""
        scores_QK, rows_QK = no_results(len(queries.counts), depth)
        for query, (vectors_AE, counts_A) in enumerate(zip(*queries)):
            if not counts_A.any():
                continue
            products_AX, tokens_AX = self._index.search(vectors_AE[counts_A], min(retrieved, len(self._owners)))
            owners_AX = np.where(tokens_AX < 0, -1, self._owners[tokens_AX])
            scores_D, rows_D = imputed(products_AX, owners_AX)
            scores_K, rows_K = (x[0] for x in best(scores_D[None], rows_D[None], depth))
            scores_QK[query, : len(rows_K)], rows_QK[query, : len(rows_K)] = scores_K, rows_K
        return scores_QK, rows_QK


def imputed(products_AX: np.ndarray, owners_AX: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The scores [D] of all documents of which a token was retrieved, and their rows, ascending.

    Args:
      products_AX: of each query's token with those that it has retrieved.
      owners_AX: their documents; -1 where there was none.
    """
    is_there_AX = owners_AX >= 0
    rows_D = np.unique(owners_AX[is_there_AX])
    least_A = np.where(is_there_AX, products_AX, np.inf).min(axis=1)
    best_AD = np.repeat(least_A[:, None], len(rows_D), axis=1)
    tokens, places = np.nonzero(is_there_AX)
    columns = np.searchsorted(rows_D, owners_AX[tokens, places])
    np.maximum.at(best_AD, (tokens, columns), products_AX[tokens, places])
    return best_AD.sum(axis=0).astype(np.float32), rows_D
