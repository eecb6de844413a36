"""The kind of index 'random': candidates by chance. It gives simple negatives, and chance as a row of tables."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from retrieval import files
from retrieval.errors import UserError
from retrieval.runtime import hashing
from retrieval.search.index_kind import IndexKind, Options, Texts, register

_FILE = "random.json"


class RandomIndex:
    """Draws candidates for a query: others for each query, the same for the same query and seed."""

    def __init__(self, size: int, seed: int = 0):
        """Args: size: how many candidates there are."""
        self._size, self._seed = size, seed

    def __len__(self) -> int:
        return self._size

    @property
    def description(self) -> str:
        """As `SavedIndex.description`."""
        return f"candidates by chance, seed {self._seed}"

    def search(self, queries: Sequence[str], k: int, /) -> tuple[np.ndarray, np.ndarray]:
        """As `SavedIndex.search`; the scores are -1, -2 and so on."""
        k = min(k, self._size)
        rows_QK = np.empty((len(queries), k), np.int64)
        for row_K, query in zip(rows_QK, queries):
            random = np.random.default_rng(hashing.number(f"{self._seed} {query}"))
            row_K[:] = random.choice(self._size, k, replace=False)
        return np.broadcast_to(-np.arange(1, k + 1, dtype=np.float32), rows_QK.shape), rows_QK

    def save(self, folder: Path) -> None:
        """As `SavedIndex.save`."""
        with files.atomic(folder) as temporary:
            temporary.mkdir()
            files.write_json(temporary / _FILE, {"size": self._size, "seed": self._seed})
            files.write_manifest(temporary)

    @classmethod
    def load(cls, folder: Path) -> "RandomIndex":
        """Loads what `save` wrote.

        Raises:
          UserError: the folder is damaged, or is no such index.
        """
        files.verify_manifest(folder, "make it again with --stage=index")
        value = files.read_json(folder / _FILE)
        if not isinstance(value, dict) or value.keys() != {"size", "seed"}:
            raise UserError(f"{folder / _FILE}: not an index by chance; make it again with --stage=index")
        return cls(**value)


@register
class Random(IndexKind):
    """Chance."""

    name, title, system = "random", "candidates by chance", "random"
    of_words = True
    options = ("split.seed",)

    def build(self, contents: Texts, options: Options) -> RandomIndex:
        size = sum(1 for _ in contents.passages())
        if not size:
            raise UserError(f"{contents.name}: there are no candidates")
        return RandomIndex(size, options["split.seed"])

    def load(self, folder: Path) -> RandomIndex:
        return RandomIndex.load(folder)
