"""XTR's search (Lee et al. 2023): each token of a query retrieves tokens, and documents are scored by these alone.

Where a token of the query has retrieved none of a document's, its part of the score is the smallest product that it has
retrieved: the true one is no greater.

Letters of shapes: A tokens of a query, X tokens that each retrieves, D documents of which some were retrieved.
"""

import numpy as np

from retrieval.methods.late_interaction.exact import Documents, best
from retrieval.methods.late_interaction.token_encoder import Queries
from retrieval.search.exact import no_results
from retrieval.search.index_kind import IndexKind, Options


class TokenIndex:
    """An index of embeddings over the tokens of all documents."""

    def __init__(self, documents: Documents, kind: IndexKind, options: Options):
        vectors = [np.asarray(documents[number], np.float32) for number in range(len(documents))]
        self._owners = np.repeat(np.arange(len(vectors)), list(map(len, vectors)))
        self._index = kind.build(np.concatenate([each for each in vectors if len(each)]), options)

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
