"""Embeddings as the dtypes that are handed over, and the best of them for a query.

Shape letters: N rows, E dimensions, S stored numbers of a row, Q queries, K results.
"""

import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from retrieval.errors import UserError
from retrieval.handover.number_text import numbers
from retrieval.handover.vectors import BIT, FLOAT16, FLOAT32, INT8, Vectors
from retrieval.search import row_views
from retrieval.search.exact import Rows
from retrieval.search.vector_codes import BINARY, Form

_HITS = 10
_UNIT = 1e-5  # how far the square of a length is from 1 by float32's rounding


class Measured(NamedTuple):
    """What is known of all rows together.

    Attributes:
      largest: the largest absolute value.
      normalised: whether every row has length 1.
    """

    largest: float
    normalised: bool


def measured(rows_NE: Rows) -> Measured:
    """Reads all rows once."""
    largest, normalised = 0.0, True
    for block_NE in row_views.blocks(rows_NE):
        largest = max(largest, float(np.abs(block_NE).max(initial=0)))
        normalised &= bool((np.abs(np.einsum("ne,ne->n", block_NE, block_NE) - 1) <= _UNIT).all())
    return Measured(largest, normalised)


class Codes:
    """What float32 embeddings become.

    Attributes:
      scale: of int8: a value is about this times its code.
    """

    def __init__(self, dtype: str, dimension: int, largest: float):
        """Args:
          largest: no value is further from 0.

        Raises:
          UserError: a value is too large for float16, or the dimensions do not fill whole bytes.
        """
        if dtype == FLOAT16 and largest > 65504:
            raise UserError(
                f"config.handover.dtype=float16: an embedding has the value {largest:g}, and float16 ends at 65504: "
                "take float32, or train with config.model.normalize=True"
            )
        self._dtype, largest = dtype, largest or 1.0
        precision = {INT8: INT8, BIT: BINARY}.get(dtype, FLOAT32)
        self._form = Form(precision, dimension, symmetric=largest if dtype == INT8 else None)
        self.scale = largest / 127 if dtype == INT8 else None

    def encode(self, vectors_NE: np.ndarray) -> np.ndarray:
        """The codes [N, S]; of bits eight a byte."""
        return vectors_NE.astype(np.float16) if self._dtype == FLOAT16 else self._form.encode(vectors_NE)[0]


def of_queries(dtype: str, queries_QE: np.ndarray) -> np.ndarray:
    """Queries [Q, S] as what is searched has its rows; of int8 each with a scale of its own, which changes no order."""
    each = (
        Codes(dtype, len(query_E), float(np.abs(query_E).max(initial=0))).encode(query_E[None])
        for query_E in queries_QE
    )
    return np.concatenate(list(each))


def nearest(queries_QS: np.ndarray, vectors: Vectors, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The best rows for each query, by exact search; ties to the row that comes first.

    Returns:
      scores [Q, K] and ids [Q, K], best first: inner products of the codes, of bits Hamming distances.
    """
    queries_QE, are_bits = _numbers(queries_QS, vectors), vectors.dtype == BIT
    scores_QK, ids_QK = np.zeros((len(queries_QE), 0), np.float32), np.zeros((len(queries_QE), 0), object)
    for block in vectors.blocks():
        scores_QN = np.concatenate([scores_QK, queries_QE @ _numbers(block.vectors, vectors).T], axis=1)
        ids_N = np.broadcast_to(np.array(block.ids, object), (len(queries_QE), len(block.ids)))
        best_QK = np.argsort(-scores_QN, axis=1, kind="stable")[:, :k]
        scores_QK = np.take_along_axis(scores_QN, best_QK, axis=1)
        ids_QK = np.take_along_axis(np.concatenate([ids_QK, ids_N], axis=1), best_QK, axis=1)
    return ((vectors.dimension - scores_QK) / 2 if are_bits else scores_QK), ids_QK


def _numbers(codes_NS: np.ndarray, vectors: Vectors) -> np.ndarray:
    """Codes as float32, of bits 1 and -1."""
    if vectors.dtype != BIT:
        return codes_NS.astype(np.float32)
    return 2 * np.unpackbits(codes_NS, axis=1).astype(np.float32) - 1


def check_lines(texts: Sequence[str], queries_QE: np.ndarray, vectors: Vectors) -> Iterator[str]:
    """The lines of `check.jsonl`: queries, their vectors as they are asked with, and their ten best rows."""
    codes_QS = of_queries(vectors.dtype, queries_QE)
    if vectors.dtype == BIT:
        shown = ('"' + "".join(map(str, bits_E)) + '"' for bits_E in np.unpackbits(codes_QS, axis=1).tolist())
    else:
        shown = (f"[{vector}]" for vector in numbers(codes_QS))
    scores_QK, ids_QK = nearest(codes_QS, vectors, _HITS)
    for text, vector, ids_K, scores in zip(texts, shown, ids_QK.tolist(), numbers(scores_QK), strict=True):
        query, expected = (json.dumps(each, ensure_ascii=False) for each in (text, ids_K))
        yield f'{{"query": {query}, "vector": {vector}, "expected": {expected}, "scores": [{scores}]}}'
