"""The candidates of a set by their rows, as ranked lists name them, without holding their texts."""

import array
import json
from collections.abc import Collection
from pathlib import Path

import numpy as np

from retrieval import text_files
from retrieval.data.labelled import grouping
from retrieval.data.sets.beir import Candidate


class CandidateTexts:
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
        self._path = path
        self.row_of: dict[str, int] = {}
        self.blank: list[int] = []
        keys, places, place = array.array("Q"), array.array("Q"), 0
        for line in text_files.byte_lines(path):
            candidate = _candidate(line)
            if candidate.id in wanted:
                self.row_of[candidate.id] = len(keys)
            if not (candidate.title.strip() or candidate.text.strip()):
                self.blank.append(len(keys))
            keys.append(int.from_bytes(grouping.digest(candidate), "big"))
            places.append(place)
            place += len(line)
        self.keys_N, self._places = np.asarray(keys), np.asarray(places)

    def __enter__(self) -> "CandidateTexts":
        self._file = self._path.open("rb")
        return self

    def __exit__(self, *_) -> None:
        self._file.close()

    def __len__(self) -> int:
        return len(self.keys_N)

    def __getitem__(self, row: int) -> Candidate:
        self._file.seek(int(self._places[row]))
        return _candidate(self._file.readline())


def _candidate(line: bytes) -> Candidate:
    """A line as `beir.write_candidates` writes it."""
    record = json.loads(line)
    return Candidate(record["_id"], record["title"], record["text"])
