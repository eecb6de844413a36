"""Approximate search with ScaNN: a tree of partitions, anisotropic hashing, exact scores for the best of those.

Guo et al. 2020, "Accelerating Large-Scale Inference with Anisotropic Vector Quantization". Fewer than 5,000 candidates
are searched by brute force. One rule fits all others: N have sqrt(N) partitions and 2 dimensions per hash code. For ten
results a query looks into a fifth of the partitions, for a hundred into two fifths and so on, and ten candidates for
each result get their exact score. A million clustered vectors of 128 dimensions then have a recall@10 of 0.997, the
81,826 passages of the quickstart one of 0.999.
"""

import contextlib
import logging
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from retrieval.common import libraries
from retrieval.common.errors import UserError
from retrieval.common.files import atomic, read_array, read_json, verify_manifest, write_json, write_manifest
from retrieval.search.exact import finite_embeddings, matching_queries, merge, no_results
from retrieval.search.index_kind import IndexKind, Options, register

_log = logging.getLogger(__name__)

_BRUTE_FORCE_BELOW = 5_000
_SEARCHED = 0.2  # of the partitions, for each power of ten that the results are
_RESCORED, _LEAST_RESCORED = 10, 100  # candidates per result that get their exact score, and how many at least
# What ScaNN's documentation recommends. Its centroids are made of so many candidates at most.
_DIMENSIONS_PER_CODE, _THRESHOLD, _SAMPLE = 2, 0.2, 250_000

_SIZES, _ASSETS, _PICKLE = "sizes.json", "scann_assets.pbtxt", "scann_docids.pkl"
_REMEDY = "--stage=index makes it again"


class ScannIndex:
    """A ScaNN searcher of inner products. The scores it returns are exact; only the choice of candidates is not.

    One that does not reorder keeps no embeddings, but codes alone, and its scores are those of the codes.
    """

    def __init__(self, searcher: Any, candidates: int, dimensions: int, reorders: bool = True):
        self._searcher, self._candidates, self._dimensions, self._reorders = searcher, candidates, dimensions, reorders
        self._partitions = 1 if candidates < _BRUTE_FORCE_BELOW else round(math.sqrt(candidates))

    @classmethod
    def build(cls, embeddings_NE: np.ndarray, reorders: bool = True) -> "ScannIndex":
        """Builds the index; 100,000 candidates of 128 dimensions take about 20 s on two cores.

        Args:
          reorders: whether the best candidates get their exact score, by a copy of the embeddings.
        """
        embeddings_NE = finite_embeddings(embeddings_NE, "candidate")
        if not len(embeddings_NE):
            raise UserError("there are no candidates to search: the list of embeddings is empty")
        index = cls(None, len(embeddings_NE), embeddings_NE.shape[1], reorders)
        builder = _import_scann().builder(embeddings_NE, 1, "dot_product")
        if index._partitions == 1:
            builder = builder.score_brute_force()
        else:
            sample = min(_SAMPLE, index._candidates)
            builder = builder.tree(index._partitions, index._partitions, training_sample_size=sample)
            dimensions = min(_DIMENSIONS_PER_CODE, index._dimensions)
            builder = builder.score_ah(dimensions, anisotropic_quantization_threshold=_THRESHOLD)
            builder = builder.reorder(_LEAST_RESCORED) if reorders else builder
        index._searcher = builder.build()
        return index

    def __len__(self) -> int:
        return self._candidates

    def save(self, folder: Path) -> None:
        """Writes the index and the checksums of its files, whole or not at all; the folder can be moved."""
        with atomic(folder) as temporary:
            temporary.mkdir()
            self._searcher.serialize(str(temporary), relative_path=True)
            write_json(temporary / _SIZES, [self._candidates, self._dimensions, int(self._reorders)])
            write_manifest(temporary)

    @classmethod
    def load(cls, folder: Path) -> "ScannIndex":
        """Loads what `save` wrote; of a damaged folder ScaNN itself would answer wrongly and say nothing."""
        folder = Path(folder)
        if (folder / _PICKLE).exists():
            raise UserError(f"{folder / _PICKLE}: refused, unpickling it can run any code; build the index again")
        verify_manifest(folder, _REMEDY)
        try:
            candidates, dimensions, reorders = map(int, read_json(folder / _SIZES))
            _check_assets(folder)
            searcher = _import_scann().load_searcher(str(folder))
        except (ValueError, RuntimeError, TypeError) as error:
            raise UserError(f"{folder}: ScaNN cannot read it ({error}); {_REMEDY}") from error
        return cls(searcher, candidates, dimensions, bool(reorders))

    @property
    def description(self) -> str:
        """The kind of index and its parameters, in words for a report."""
        size = f"{self._candidates:,} candidates of {self._dimensions} dimensions"
        if self._partitions == 1:
            return f"ScaNN, brute force, {size}"
        rescored = f"{_RESCORED} candidates per result rescored" if self._reorders else "no embeddings kept"
        searched = f"{self._searched(10)} of them searched for 10 results, {rescored}"
        return f"ScaNN, {self._partitions} partitions, {searched}, anisotropic hashing, {size}"

    def _searched(self, k: int) -> int:
        """The partitions that a query looks into, for so many results."""
        return math.ceil(min(1, _SEARCHED * max(1, math.log10(k))) * self._partitions)

    def search(self, queries_QE: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Nearly the `k` candidates with the largest inner product, ties among those found to the smaller row."""
        queries_QE = matching_queries(queries_QE, self._dimensions)
        if not len(queries_QE):
            return no_results(0, k)
        wanted = min(k, self._candidates)
        rescored = min(max(_RESCORED * wanted, _LEAST_RESCORED), self._candidates) if self._reorders else None
        rows, scores = self._searcher.search_batched_parallel(queries_QE, wanted, rescored, self._searched(wanted))
        # Where ScaNN finds fewer than it was asked for, it fills up with row 0 and a score of NaN.
        missing = np.isnan(scores)
        lists = np.where(missing, np.float32(-np.inf), scores), np.where(missing, np.int32(-1), rows.astype(np.int32))
        return merge([lists], len(queries_QE), k)


@register
class Scann(IndexKind):
    """ScaNN."""

    name, title, system = "scann", "ScaNN", "dense (ScaNN)"
    options = ("index.rescore",)

    def available(self) -> bool:
        try:
            _import_scann()
        except Exception as error:  # built against another TensorFlow, it fails with an error of TensorFlow's own
            _log.warning("ScaNN cannot be used here (%s): %s", error, libraries.install(libraries.TRAIN))
            return False
        return True

    def build(self, contents: np.ndarray, options: Options) -> ScannIndex:
        return ScannIndex.build(contents, reorders=not options["index.rescore"])

    def load(self, folder: Path) -> ScannIndex:
        return ScannIndex.load(folder)


def _check_assets(folder: Path) -> None:
    """Raises `UserError` unless the files that ScaNN will open are those of the folder, and what their names say."""
    from google.protobuf import text_format
    from scann.scann_ops import scann_assets_pb2

    path, messages = folder / _ASSETS, vars(scann_assets_pb2)  # made when it is imported
    try:
        listed = text_format.Parse(path.read_bytes(), messages["ScannAssets"]())
    except (text_format.ParseError, ValueError, FileNotFoundError) as error:
        raise UserError(f"{path}: not the list of an index's files ({error}); build it again") from error
    for name in [asset.asset_path for asset in listed.assets]:
        if name in ("", ".", "..") or Path(name).name != name or not (folder / name).is_file():
            raise UserError(f"{path}: '{name}' is no file of this folder; build the index again")
        if name.endswith(".npy"):
            read_array(folder / name, "build the index again")


def _import_scann() -> ModuleType:
    """ScaNN's Python module. Its import loads TensorFlow, which must not take the accelerator's memory from JAX."""
    import tensorflow as tf

    with contextlib.suppress(RuntimeError):  # too late to hide them once TensorFlow has used them
        tf.config.set_visible_devices([], "GPU")
    from scann.scann_ops.py import scann_ops_pybind

    return scann_ops_pybind
