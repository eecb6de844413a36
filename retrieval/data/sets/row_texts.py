"""The texts of a collection by their rows, read from its files where they are asked for: no more is held in memory."""

import array
import bisect
import dataclasses
import json
import mmap
import operator
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Self

import numpy as np

from retrieval.common.errors import UserError
from retrieval.data.labelled import grouping
from retrieval.data.sets import beir
from retrieval.data.sets.beir import Candidate

_CHUNK = 1 << 24  # bytes that are looked through for the ends of lines at a time


class RowTexts(Sequence[Candidate]):
    """Files like BEIR's corpus.jsonl, one after the other, as one list. Threads may read from it together.

    It goes on to read what it has opened, whatever takes the place of the files. A line takes 8 bytes.
    """

    def __init__(self, paths: Sequence[Path], url_of: Callable[[Candidate], str] = operator.attrgetter("url")):
        """Args:
          url_of: the address that a text has on the web, '' for none.

        Raises:
          UserError: a file is missing, or cannot be read.
        """
        self._url_of = url_of
        self._files = [(path, *_mapped(path)) for path in paths]
        self._starts = np.cumsum([0, *(len(ends) - 1 for *_, ends in self._files)]).tolist()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """Closes the files, which otherwise the last reference does."""
        for _, data, _ in self._files:
            if isinstance(data, mmap.mmap):
                data.close()

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, row: int) -> Candidate:  # pyright: ignore[reportIncompatibleMethodOverride]
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        number = bisect.bisect_right(self._starts, row) - 1
        (path, data, ends), line = self._files[number], row - self._starts[number]
        candidate = beir.parse_candidate(data[ends[line] : ends[line + 1]], f"{path}, line {line + 1}")
        url = self._url_of(candidate)
        return candidate if url == candidate.url else dataclasses.replace(candidate, url=url)

    def find(self, id: str) -> Candidate | None:
        """The text that has an id; None where none has."""
        return next((self[row] for row in self._rows(id, '"')), None)

    def numbered(self, id: str) -> list[Candidate]:
        """The texts with the ids `ID:NUMBER`, in the order of these numbers."""
        begin = f"{id}:"
        texts = [text for row in self._rows(begin) if (text := self[row]).id.removeprefix(begin).isdecimal()]
        return sorted(texts, key=lambda text: int(text.id.removeprefix(begin)))

    def _rows(self, begin: str, behind: str = "") -> Iterator[int]:
        """The rows whose id begins so, as JSON has it. The files are looked through: no list of ids is kept."""
        ids = dict.fromkeys(json.dumps(begin, ensure_ascii=is_ascii)[:-1] for is_ascii in (False, True))
        for first, (_, data, ends) in zip(self._starts, self._files):
            for pattern in (f'"_id": {id}{behind}'.encode() for id in ids):
                for start in range(0, len(data), _CHUNK):  # other threads go on between two of them
                    place, stop = start - 1, start + _CHUNK + len(pattern) - 1
                    while (place := data.find(pattern, place + 1, stop)) >= 0:
                        yield first + int(np.searchsorted(ends, place, side="right")) - 1


def _mapped(path: Path) -> tuple[mmap.mmap | bytes, np.ndarray]:
    """The bytes of a file, and where its lines begin and the last one ends."""
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if file.seek(0, 2) else b""
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    ends = [
        np.flatnonzero(np.frombuffer(data[start : start + _CHUNK], np.uint8) == ord("\n")) + start + 1
        for start in range(0, len(data), _CHUNK)
    ]
    return data, np.concatenate([np.zeros(1, np.int64), *ends])


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
