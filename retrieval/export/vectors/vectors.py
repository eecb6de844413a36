"""What is handed over: vectors with their ids and texts, a block of rows at a time, and the best of them for queries.

Shape letters: N rows, E dimensions of an embedding, Q queries, K results.
"""

import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from retrieval.search.vector_codes import Rows, blocks

BLOCK = 65_536  # rows that are in memory at a time, and those of a row group

_UNIT = 1e-5  # how far the square of a length is from 1 by float32's rounding
_HITS = 10  # of a query in `check.jsonl`
_WHOLE_ZERO = re.compile("(?<![^,])-0(?![^,])")

COLUMNS = ("id", "vector", "title", "text", "metadata")  # that every table has

# In metadata: the id of the document that a text is from, and that of the text that a row is a window of.
DOCUMENT, PARENT = "document", "parent"
METADATA = (DOCUMENT, PARENT, "section", "article", "url")


class Block(NamedTuple):
    """Some rows.

    Attributes:
      vectors: float32 [N, E].
      metadata: of each row the texts that there are, by a name in `METADATA`.
    """

    ids: list[str]
    vectors: np.ndarray
    titles: list[str]
    texts: list[str]
    metadata: list[dict[str, str]]


@dataclasses.dataclass(frozen=True)
class Vectors:
    """The vectors of one side.

    Attributes:
      side: 'document' or 'query'.
      model: what tells the model that made them from others.
      dimension: E.
      normalised: whether every vector has length 1.
      prompt: what stood before each text.
      rows: how many there are.
      blocks: reads the rows, in order; it can be called again.
    """

    side: str
    model: str
    dimension: int
    normalised: bool
    prompt: str
    rows: int
    blocks: Callable[[], Iterator[Block]]
    dtype, scale, similarity = "float32", None, "dot"  # of all that is handed over

    @property
    def described(self) -> dict[str, Any]:
        """What others need to know, for JSON."""
        names = ("side", "model", "dimension", "dtype", "normalised", "scale", "prompt", "rows", "similarity")
        return {"format": 1} | {name: getattr(self, name) for name in names}


def are_normalised(rows_NE: Rows) -> bool:
    """Whether every row has length 1; reads them once."""
    return all((np.abs(np.einsum("ne,ne->n", block_NE, block_NE) - 1) <= _UNIT).all() for block_NE in blocks(rows_NE))


def nearest(queries_QE: np.ndarray, vectors: Vectors, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The best rows for each query, by exact search; ties to the row that comes first.

    Returns:
      scores [Q, K], inner products, and ids [Q, K], best first.
    """
    scores_QK, ids_QK = np.zeros((len(queries_QE), 0), np.float32), np.zeros((len(queries_QE), 0), object)
    for block in vectors.blocks():
        scores_QN = np.concatenate([scores_QK, queries_QE @ block.vectors.T], axis=1)
        ids_N = np.broadcast_to(np.array(block.ids, object), (len(queries_QE), len(block.ids)))
        best_QK = np.argsort(-scores_QN, axis=1, kind="stable")[:, :k]
        scores_QK = np.take_along_axis(scores_QN, best_QK, axis=1)
        ids_QK = np.take_along_axis(np.concatenate([ids_QK, ids_N], axis=1), best_QK, axis=1)
    return scores_QK, ids_QK


def check_lines(texts: Sequence[str], queries_QE: np.ndarray, vectors: Vectors) -> Iterator[str]:
    """The lines of `check.jsonl`: queries, their vectors, and their ten best rows."""
    scores_QK, ids_QK = nearest(queries_QE, vectors, _HITS)
    for text, vector, ids, scores in zip(texts, numbers(queries_QE), ids_QK.tolist(), numbers(scores_QK), strict=True):
        query, expected = (json.dumps(each, ensure_ascii=False) for each in (text, ids))
        yield f'{{"query": {query}, "vector": [{vector}], "expected": {expected}, "scores": [{scores}]}}'


def numbers(vectors_NE: np.ndarray) -> Iterator[str]:
    """Each vector as decimal numbers with commas between them: nine digits tell every float32 from all others."""
    form = ",".join(["%.9g"] * vectors_NE.shape[1])
    for vector_E in vectors_NE:
        text = form % tuple(vector_E.tolist())
        # Read as a whole number, -0 has no sign any more.
        yield _WHOLE_ZERO.sub("-0.0", text) if "-0" in text else text
