"""The ids of all known positives of every query, once for all records of labelled pairs: a row for each wording.

A record has the number of its query's row. With the ids themselves, n positives of a query would take n^2 numbers.
"""

from pathlib import Path

import numpy as np

from retrieval import files

NAME = "known_positives.npz"


class KnownPositives:
    """The rows, by a hash of the query's wording.

    Attributes:
      most: ids of the longest row.
    """

    def __init__(self, wordings_N: np.ndarray, ids_N: np.ndarray):
        """Args are one for each positive of each query, whichever is there twice; uint64, and ids below 2^31."""
        known_M2 = np.unique(np.stack([wordings_N, ids_N], axis=1), axis=0)
        self._wordings_W, starts_W = np.unique(known_M2[:, 0], return_index=True)
        self._ids_M, self._starts = known_M2[:, 1].astype(np.int32), np.append(starts_W, len(known_M2))
        self.most = int(np.diff(self._starts).max(initial=0))

    def row_of(self, wording: int) -> int:
        """The number of the row of a wording that is there."""
        return int(np.searchsorted(self._wordings_W, np.uint64(wording)))

    def ids_of(self, wording: int) -> set[int]:
        """The ids of the row of a wording that is there."""
        row = self.row_of(wording)
        return set(self._ids_M[self._starts[row] : self._starts[row + 1]].tolist())

    def write(self, folder: Path) -> None:
        """Writes the rows beside the records of a folder, whole or not at all."""
        with files.atomic(folder / NAME) as temporary, open(temporary, "wb") as file:
            np.savez(file, ids=self._ids_M, starts=self._starts)


def read(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """The ids [M] int32 of all rows, and where each row begins and the last one ends [W + 1].

    Raises:
      UserError: the file is missing or damaged.
    """
    rows = files.read_arrays(folder / NAME, "--stage=pairs makes it again")
    return rows["ids"], rows["starts"]
