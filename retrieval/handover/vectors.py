"""What is handed over: vectors with their ids and texts, a block of rows at a time.

Shape letters: N rows, S stored numbers of a row: its D dimensions, or of bits D / 8 bytes.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

FLOAT32, FLOAT16, INT8, BIT = DTYPES = ("float32", "float16", "int8", "bit")
BLOCK = 65_536  # rows that are in memory at a time, and those of a row group

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
      dimension: D.
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
