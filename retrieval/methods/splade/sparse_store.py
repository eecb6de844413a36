"""Sparse vectors of passages in files, a shard of the passages in each; a run that was killed goes on after the last.

candidates-00003-of-00012.npz          weights [rows, V] in compressed rows
candidates-00003-of-00012.sums.json    its sum, as `sharded_map` has it
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import scipy.sparse

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.data.sets.beir import Candidate
from retrieval.runs.ranking.collection import Collection
from retrieval.search import sharded_map

_NAME, _AGAIN = "candidates", "--stage=sparse makes it again"


def write(
    folder: Path, collection: Collection, shard_size: int, make: Callable[[Sequence[Candidate]], scipy.sparse.csr_array]
) -> None:
    """Writes the vectors of a collection, shard by shard."""

    def save(path: Path, matrix: Any) -> None:
        with files.atomic(path) as temporary, temporary.open("wb") as file:
            scipy.sparse.save_npz(file, matrix, compressed=False)

    total = sum(1 for _ in collection.candidates())
    folder.mkdir(parents=True, exist_ok=True)
    sharded_map.Shards(folder, _NAME, ".npz", total, shard_size).write(collection.candidates(), make, save)


def load(folder: Path, passages: int) -> Any:
    """The vectors [N, V] that `write` has written.

    Raises:
      UserError: a file is missing or damaged, or they are of another number of passages.
    """
    parts = []
    for path in sharded_map.whole(folder, _NAME, ".npz", _AGAIN):
        arrays = files.read_arrays(sharded_map.verify(path, _AGAIN), _AGAIN)
        if not arrays.keys() >= {"data", "indices", "indptr", "shape"}:
            raise UserError(f"{path}: no sparse vectors; {_AGAIN}")
        rows = arrays["data"], arrays["indices"], arrays["indptr"]
        parts.append(scipy.sparse.csr_array(rows, shape=tuple(arrays["shape"].tolist())))
    whole: Any = scipy.sparse.vstack(parts, format="csr")
    if whole.shape[0] != passages:
        raise UserError(f"{folder}: vectors of {whole.shape[0]} passages where there are {passages} now; {_AGAIN}")
    return whole
