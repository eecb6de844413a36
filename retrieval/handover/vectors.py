"""What is handed over: vectors with their ids and texts, a block of rows at a time, and the best of them for queries.

Shape letters: N rows, E dimensions of an embedding, S stored numbers of a row: E, or of bits E / 8 bytes; Q queries,
K results.
"""

import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from retrieval.errors import UserError
from retrieval.search.vector_codes import Rows, blocks

FLOAT32, FLOAT16, INT8, BIT = DTYPES = ("float32", "float16", "int8", "bit")
BLOCK = 65_536  # rows that are in memory at a time, and those of a row group

_UNIT = 1e-5  # how far the square of a length is from 1 by float32's rounding
_HITS = 10  # of a query in `check.jsonl`
_WHOLE_ZERO = re.compile("(?<![^,])-0(?![^,])")

# In metadata: the id of the text that a row is a window of, and that of the document that the text is from.
PARENT, DOCUMENT = "parent", "document"
# Kinds of metadata.
TEXT, TEXTS, INTEGER, NUMBER, SWITCH = "text", "texts", "integer", "number", "switch"


class Block(NamedTuple):
    """Some rows.

    Attributes:
      vectors: [N, S] of `Vectors.dtype`; bits as uint8, the first dimension in the highest bit (`np.packbits`).
      metadata: of each row its values by name, each of the kind that `Vectors.kinds` has.
    """

    ids: list[str]
    vectors: np.ndarray
    titles: list[str]
    texts: list[str]
    metadata: list[dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Vectors:
    """The vectors of one side.

    Attributes:
      side: 'document' or 'query'.
      model: what tells the model that made them from others.
      dimension: E.
      dtype: one of DTYPES.
      normalised: whether every vector has length 1, before it was rounded to `dtype`.
      scale: of int8: a value is about this times what is stored.
      prompt: what stood before each text.
      rows: how many there are.
      kinds: of all metadata, by name: TEXT, TEXTS (a list), INTEGER (of 64 bits), NUMBER or SWITCH.
      columns: those of them that searches filter by.
      blocks: reads the rows, in order; it can be called again.
    """

    side: str
    model: str
    dimension: int
    dtype: str
    normalised: bool
    scale: float | None
    prompt: str
    rows: int
    kinds: Mapping[str, str]
    columns: tuple[str, ...]
    blocks: Callable[[], Iterator[Block]]

    @property
    def described(self) -> dict[str, Any]:
        """What others need to know, for JSON."""
        names = ("side", "model", "dimension", "dtype", "normalised", "scale", "prompt", "rows")
        similarity = {"similarity": "hamming" if self.dtype == BIT else "dot"}
        return {"format": 1} | {name: getattr(self, name) for name in names} | similarity


def measured(rows_NE: Rows) -> tuple[float, bool]:
    """The largest absolute value of all rows, and whether every row has length 1; reads them once."""
    largest, normalised = 0.0, True
    for block_NE in blocks(rows_NE):
        largest = max(largest, float(np.abs(block_NE).max(initial=0)))
        normalised &= bool((np.abs(np.einsum("ne,ne->n", block_NE, block_NE) - 1) <= _UNIT).all())
    return largest, normalised


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
        if dtype == BIT and dimension % 8:
            raise UserError(
                f"config.handover.dtype=bit has 8 dimensions a byte, and embeddings have {dimension}: take int8, or "
                "cut them to a multiple of 8 with config.encode.truncate"
            )
        self._dtype, self._factor = dtype, np.float32(127 / (largest or 1.0))
        self.scale = (largest or 1.0) / 127 if dtype == INT8 else None

    def encode(self, vectors_NE: np.ndarray) -> np.ndarray:
        """The codes [N, S]; of bits eight a byte."""
        if self._dtype == INT8:
            return np.clip(np.rint(vectors_NE * self._factor), -127, 127).astype(np.int8)
        if self._dtype == BIT:
            return np.packbits(vectors_NE > 0, axis=-1)
        return vectors_NE.astype(np.float16) if self._dtype == FLOAT16 else vectors_NE


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


def numbers(vectors_NS: np.ndarray) -> Iterator[str]:
    """Each vector as decimal numbers with commas between them: nine digits tell every float32 from all others."""
    form = ",".join(["%d" if vectors_NS.dtype.kind in "iu" else "%.9g"] * vectors_NS.shape[1])
    for vector_S in vectors_NS:
        text = form % tuple(vector_S.tolist())
        # Read as a whole number, -0 has no sign any more.
        yield _WHOLE_ZERO.sub("-0.0", text) if "-0" in text else text
