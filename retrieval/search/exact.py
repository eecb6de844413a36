"""Exact search: the candidates with the largest inner products, by matrix multiplication on the accelerator.

Shape letters: Q queries of a call, B queries of a batch, N candidates, E embedding, K results, P candidates padded to
M blocks of W, C blocks that can hold a result.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from retrieval.errors import UserError

# A TPU's lane width; on a CPU 128 is also the fastest of 16, 32, 64 and 128.
_BLOCK = 128


class ExactIndex:
    """Every candidate's embedding on the default device, compared with every query in float32.

    Besides the embeddings a search needs `batch_size` x N x 4 bytes, however many queries there are.
    On 2 CPU cores, 97,888 queries x 102,000 candidates x 128 dimensions, the best 100: about 40 s.
    """

    def __init__(self, embeddings_NE: np.ndarray, batch_size: int = 256):
        """Args: embeddings_NE: float32; batch_size: queries that are scored at once.

        Raises:
          UserError: there are no candidates, or an embedding holds NaN or infinity.
        """
        embeddings_NE = finite_embeddings(embeddings_NE, "candidate")
        if not len(embeddings_NE):
            raise UserError("there are no candidates to search: the list of embeddings is empty")
        self._candidates, self._dimensions = embeddings_NE.shape
        self._batch_size = batch_size
        padding = -self._candidates % _BLOCK
        self._embeddings = jnp.asarray(np.pad(embeddings_NE, ((0, padding), (0, 0))) if padding else embeddings_NE)

    def search(self, queries_QE: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The `k` candidates with the largest inner product for each query, ties to the smaller row.

        Returns:
          scores [Q, k] float32, best first, and rows [Q, k] int32; -inf and -1 beyond the number of candidates.

        Raises:
          UserError: a query holds NaN or infinity, has another size than the candidates, or an inner product
            is too large for float32.
        """
        queries_QE = matching_queries(queries_QE, self._dimensions)
        scores_QK, rows_QK = no_results(len(queries_QE), k)
        found = min(k, self._candidates)
        batch_BE = np.zeros((self._batch_size, self._dimensions), np.float32)
        for start in range(0, len(queries_QE), self._batch_size):
            part = slice(start, min(start + self._batch_size, len(queries_QE)))
            size = part.stop - start
            batch_BE[:size] = queries_QE[part]
            scores_BK, rows_BK = _search_batch(jnp.array(batch_BE), self._embeddings, self._candidates, found)
            scores_QK[part, :found] = scores_BK[:size]
            rows_QK[part, :found] = rows_BK[:size]
        if not np.isfinite(scores_QK[:, :found]).all():
            raise UserError("an inner product is too large for float32: the embeddings grew without bound")
        return scores_QK, rows_QK


def finite_embeddings(embeddings: np.ndarray, what: str) -> np.ndarray:
    """`embeddings` as float32; `what` ('query', 'candidate') names them in the error.

    Raises:
      UserError: one holds NaN or infinity.
    """
    embeddings = np.asarray(embeddings, np.float32)
    if embeddings.ndim != 2:
        raise ValueError(f"{what} embeddings have shape {embeddings.shape}, not [number, dimensions]")
    # NaN and infinity survive min and max, which unlike isfinite need no memory.
    if embeddings.size and not np.isfinite([embeddings.min(), embeddings.max()]).all():
        bad = np.flatnonzero(~np.isfinite(embeddings).all(axis=1))
        raise UserError(
            f"{len(bad)} of {len(embeddings)} {what} embeddings hold NaN or infinity, the first in row {bad[0]}: "
            "the model diverged or the file is damaged; encode again from a good checkpoint"
        )
    return embeddings


def matching_queries(queries_QE: np.ndarray, dimensions: int) -> np.ndarray:
    """`finite_embeddings` of queries that must have as many dimensions as the candidates."""
    queries_QE = finite_embeddings(queries_QE, "query")
    if queries_QE.shape[1] != dimensions:
        raise UserError(
            f"the queries have {queries_QE.shape[1]} dimensions and the candidates {dimensions}: "
            "encode both with the same model"
        )
    return queries_QE


def no_results(queries: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores of -inf and rows of -1, [queries, k]: what an index returns where it found nothing."""
    if k < 1:
        raise ValueError(f"k must be at least 1, not {k}")
    return np.full((queries, k), -np.inf, np.float32), np.full((queries, k), -1, np.int32)


@functools.partial(jax.jit, static_argnames=("candidates", "k"))
def _search_batch(queries_BE: jax.Array, embeddings_PE: jax.Array, candidates: int, k: int):
    """Top k in two levels: first the blocks with the largest maxima, then the candidates of those blocks.

    Sorting is what top_k costs, and this sorts M + C * W numbers instead of P. It is exact: a candidate of a block
    outside of the best k is beaten by the maxima of k blocks, in a tie by their smaller rows. On a CPU it takes no
    longer than one top_k over everything, and a sixth of that where the better candidates come last.
    """
    scores_BP = jnp.einsum("be,pe->bp", queries_BE, embeddings_PE, precision=jax.lax.Precision.HIGHEST)
    scores_BP = jnp.where(scores_BP == 0, 0, scores_BP)  # top_k ranks 0.0 above -0.0
    scores_BP = jnp.where(jnp.arange(scores_BP.shape[1]) < candidates, scores_BP, -jnp.inf)
    scores_BMW = scores_BP.reshape(len(queries_BE), -1, _BLOCK)
    _, blocks_BC = jax.lax.top_k(scores_BMW.max(axis=-1), min(k, scores_BMW.shape[1]))
    blocks_BC1 = jnp.sort(blocks_BC, axis=-1)[:, :, None]  # top_k breaks ties by position: keep the rows in order
    scores_BCW = jnp.take_along_axis(scores_BMW, blocks_BC1, axis=1)
    rows_BCW = blocks_BC1 * _BLOCK + jnp.arange(_BLOCK)
    scores_BK, places_BK = jax.lax.top_k(scores_BCW.reshape(len(queries_BE), -1), k)
    return scores_BK, jnp.take_along_axis(rows_BCW.reshape(len(queries_BE), -1), places_BK, axis=1)
