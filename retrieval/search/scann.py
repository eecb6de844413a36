"""Approximate search with ScaNN: a tree of partitions, anisotropic hashing, exact scores for the best of those.

Guo et al. 2020, "Accelerating Large-Scale Inference with Anisotropic Vector Quantization". Parameters by the number of
candidates N and of results k: fewer than 5,000 candidates are searched by brute force; otherwise 2 sqrt(N) partitions,
of which a query searches as many as hold about max(20,000, N / 5, 200 k) candidates, 2 dimensions per hash code, and
max(500, 5 k) candidates that get their exact score.

Recall of the exact best 100 on tf-idf + SVD embeddings of SQuAD passages, 128 dimensions, 2 CPU cores: 104,725
candidates 0.989 (of unit length 0.984) at 20,000 queries a second, 20,000 candidates 0.991, 5,000 candidates 0.993; on
1,000,000 random vectors of 64 dimensions in 1,000 clusters 0.998 at 7,000 queries a second.
"""

import contextlib
import dataclasses
import logging
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from retrieval.errors import UserError
from retrieval.files import atomic, read_json, verify_manifest, write_json, write_manifest
from retrieval.search.exact import finite_embeddings, matching_queries, no_results

_BRUTE_FORCE_BELOW = 5_000
_PARAMETERS = "parameters.json"
_PICKLE = "scann_docids.pkl"


@dataclasses.dataclass(frozen=True)
class _Parameters:
    candidates: int
    dimensions: int
    partitions: int

    def searched(self, k: int) -> int:
        """Partitions that a search for `k` candidates looks into."""
        fraction = max(20_000, self.candidates / 5, 200 * k) / self.candidates
        return math.ceil(self.partitions * min(1, fraction))


class ScannIndex:
    """A ScaNN searcher of inner products. The scores it returns are exact; only the choice of candidates is not."""

    def __init__(self, searcher: Any, parameters: _Parameters):
        self._searcher = searcher
        self._parameters = parameters

    @classmethod
    def build(cls, embeddings_NE: np.ndarray) -> "ScannIndex":
        """Builds the index; 100,000 candidates of 128 dimensions take about 15 s.

        The same embeddings give the same index: k-means++ on one thread is the one setting of ScaNN that is
        reproducible (its random start has no seed).

        Raises:
          UserError: there are no candidates, or an embedding holds NaN or infinity.
        """
        embeddings_NE = finite_embeddings(embeddings_NE, "candidate")
        candidates, dimensions = embeddings_NE.shape
        if not candidates:
            raise UserError("there are no candidates to search: the list of embeddings is empty")
        partitions = 1 if candidates < _BRUTE_FORCE_BELOW else round(2 * math.sqrt(candidates))
        parameters = _Parameters(candidates, dimensions, partitions)
        builder = _import_scann().builder(embeddings_NE, 1, "dot_product")
        if partitions == 1:
            return cls(builder.score_brute_force().build(), parameters)
        builder.set_n_training_threads(1).tree(
            num_leaves=partitions,
            num_leaves_to_search=parameters.searched(1),
            training_sample_size=min(candidates, 250_000),
            random_init=False,
        )
        builder.score_ah(min(2, dimensions), anisotropic_quantization_threshold=0.2).reorder(_reordered(1))
        return cls(builder.build(), parameters)

    def save(self, folder: Path) -> None:
        """Writes the index and the checksums of its files, whole or not at all; the folder can be moved."""
        with atomic(folder) as temporary:
            temporary.mkdir()
            self._searcher.serialize(str(temporary), relative_path=True)
            write_json(temporary / _PARAMETERS, dataclasses.asdict(self._parameters))
            write_manifest(temporary)

    @classmethod
    def load(cls, folder: Path) -> "ScannIndex":
        """Loads what `save` wrote.

        Raises:
          UserError: the folder is no saved index or is damaged (ScaNN itself would answer wrongly and say nothing), or
            it holds pickled data, which could run any code.
        """
        folder = Path(folder)
        if (folder / _PICKLE).exists():
            raise UserError(f"{folder / _PICKLE}: refused, unpickling it can run any code; build the index again")
        verify_manifest(folder)
        parameters = _Parameters(**read_json(folder / _PARAMETERS))
        return cls(_import_scann().load_searcher(str(folder)), parameters)

    @property
    def description(self) -> str:
        """The kind of index and its parameters, in words for a report."""
        parameters = self._parameters
        size = f"{parameters.candidates:,} candidates of {parameters.dimensions} dimensions"
        if parameters.partitions == 1:
            return f"ScaNN, brute force, {size}"
        searched = f"{parameters.searched(100)} of them searched for 100 results"
        return f"ScaNN, {parameters.partitions} partitions, {searched}, anisotropic hashing, rescoring, {size}"

    def search(self, queries_QE: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Nearly the `k` candidates with the largest inner product, ties among those found to the smaller row.

        Returns:
          scores [Q, k] float32, best first, and rows [Q, k] int32; -inf and -1 where fewer were found.

        Raises:
          UserError: a query holds NaN or infinity or has another size than the candidates.
        """
        queries_QE = matching_queries(queries_QE, self._parameters.dimensions)
        scores_QK, rows_QK = no_results(len(queries_QE), k)
        if not len(queries_QE):
            return scores_QK, rows_QK
        wanted = min(k, self._parameters.candidates)
        found, scores = self._searcher.search_batched_parallel(
            queries_QE, wanted, _reordered(wanted), self._parameters.searched(wanted)
        )
        # Where ScaNN finds fewer than it was asked for, it fills up with row 0 and a score of NaN.
        missing = np.isnan(scores)
        scores_QK[:, :wanted] = np.where(missing, -np.inf, scores)
        rows_QK[:, :wanted] = np.where(missing, -1, found.astype(np.int32))
        order = np.lexsort((np.where(rows_QK < 0, np.iinfo(np.int32).max, rows_QK), -scores_QK), axis=1)
        return np.take_along_axis(scores_QK, order, axis=1), np.take_along_axis(rows_QK, order, axis=1)


def available() -> bool:
    """Whether ScaNN can be imported; where it cannot, the reason is logged."""
    try:
        _import_scann()
    except Exception as error:  # built against another TensorFlow, it fails with an error of TensorFlow's own
        logging.warning("ScaNN cannot be used here: %s", error)
        return False
    return True


def recall_against(exact_rows_QK: np.ndarray, approximate_rows_QK: np.ndarray) -> float:
    """The mean fraction of each query's exact results that the approximate results hold as well."""
    if len(exact_rows_QK) != len(approximate_rows_QK):
        raise ValueError(f"{len(exact_rows_QK)} exact lists and {len(approximate_rows_QK)} approximate ones")
    found = [np.isin(exact[exact >= 0], rows).mean() for exact, rows in zip(exact_rows_QK, approximate_rows_QK)]
    return float(np.mean(found))


def _reordered(k: int) -> int:
    return max(500, 5 * k)


def _import_scann() -> ModuleType:
    """ScaNN's Python module. Its import loads TensorFlow, which must not take the accelerator's memory from JAX."""
    import tensorflow as tf

    with contextlib.suppress(RuntimeError):  # too late to hide them once TensorFlow has used them
        tf.config.set_visible_devices([], "GPU")
    from scann.scann_ops.py import scann_ops_pybind

    return scann_ops_pybind
