"""The candidates of a set by their rows, as ranked lists name them, without holding their texts."""

import array
from collections.abc import Collection
from pathlib import Path

import numpy as np

from retrieval.data.labelled import grouping
from retrieval.data.sets.row_texts import RowTexts


class CandidateTexts(RowTexts):
    """A corpus.jsonl that is read where it is asked for; to be used in a `with` statement.

    Attributes:
      keys_N: uint64, the same for the same title and text; with a place in the file, 16 bytes for every candidate.
      row_of: id -> row, of the ids that were wanted and are there.
      blank: rows without title and text.
    """

    def __init__(self, path: Path, wanted: Collection[str] = ()):
        """Raises:
        UserError: the file is missing or unreadable.
        """
        super().__init__([path])
        self.row_of: dict[str, int] = {}
        self.blank: list[int] = []
        keys = array.array("Q")
        for row, candidate in enumerate(self):
            if candidate.id in wanted:
                self.row_of[candidate.id] = row
            if not (candidate.title.strip() or candidate.text.strip()):
                self.blank.append(row)
            keys.append(int.from_bytes(grouping.digest(candidate), "big"))
        self.keys_N = np.asarray(keys)
