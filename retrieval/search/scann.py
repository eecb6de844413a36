"""Approximate search with ScaNN: a tree of partitions, anisotropic hashing, exact scores for the best of those.

Guo et al. 2020, "Accelerating Large-Scale Inference with Anisotropic Vector Quantization". Fewer than 5,000 candidates
are searched by brute force; N otherwise have 2 sqrt(N) partitions and 2 dimensions per hash code. How many partitions a
query looks into, and how many candidates then get their exact score, is tuned for a recall (see `tuning`).
"""

import contextlib
import dataclasses
import functools
import logging
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from retrieval import extras
from retrieval.errors import UserError
from retrieval.files import atomic, read_array, read_json, verify_manifest, write_json, write_manifest
from retrieval.search import scann_tree, tuning
from retrieval.search.exact import finite_embeddings, matching_queries, no_results
from retrieval.search.tuning import Sample, Setting

_log = logging.getLogger(__name__)

BRUTE_FORCE_BELOW = 5_000
_PARAMETERS = "parameters.json"
_ASSETS = "scann_assets.pbtxt"
_PICKLE = "scann_docids.pkl"


# What tuning chooses from: shares of the partitions, and exact scores per result.
_LEAVES, _DEPTHS = 40, (1, 2, 3, 5, 10, 20, 50)


@dataclasses.dataclass(frozen=True)
class _Parameters:
    """The index, and the setting for `k` results; untuned, a query looks into every partition.

    `target` and `recall`: the recall@k that the setting was tuned for, and the one measured in doing so.
    """

    candidates: int
    dimensions: int
    partitions: int
    leaves: int
    reordered: int
    k: int
    target: float | None = None
    recall: float | None = None

    def setting(self, k: int) -> Setting:
        """That for `k` results; those for more than it was tuned for grow with their number."""
        more = max(1, k / self.k)
        leaves, reordered = math.ceil(self.leaves * more), math.ceil(self.reordered * more)
        return Setting(min(leaves, self.partitions), min(reordered, self.candidates))

    def cost(self, setting: Setting) -> float:
        """Bytes that a query reads, per dimension: half of a 4-bit code for hashed candidates, 4 for exact scores."""
        return setting.leaves / self.partitions * self.candidates / 4 + setting.reordered * 4


class ScannIndex:
    """A ScaNN searcher of inner products. The scores it returns are exact; only the choice of candidates is not."""

    def __init__(self, searcher: Any, parameters: _Parameters):
        self._searcher = searcher
        self._parameters = parameters

    @classmethod
    def build(cls, embeddings_NE: np.ndarray, scratch: Path | None = None) -> "ScannIndex":
        """Builds the index; 100,000 candidates of 128 dimensions take about 9 s on two cores.

        The same embeddings give the same index, on any number of devices of a kind that divides 64.

        Args:
          scratch: an existing folder that takes the embeddings for a moment, as `files.scratch`.

        Raises:
          UserError: there are no candidates, or an embedding holds NaN or infinity.
        """
        embeddings_NE = finite_embeddings(embeddings_NE, "candidate")
        candidates, dimensions = embeddings_NE.shape
        if not candidates:
            raise UserError("there are no candidates to search: the list of embeddings is empty")
        count = partitions(candidates)
        parameters = _Parameters(candidates, dimensions, count, leaves=count, reordered=_DEPTHS[-1], k=1)
        scann = _import_scann()
        if count == 1:
            return cls(scann.builder(embeddings_NE, 1, "dot_product").score_brute_force().build(), parameters)
        return cls(scann_tree.build(scann, embeddings_NE, count, parameters.reordered, scratch), parameters)

    def __len__(self) -> int:
        return self._parameters.candidates

    def tuned(self, sample: Sample, target: float) -> "ScannIndex":
        """The same index with the cheapest setting that reaches the recall `target` on a sample of queries.

        Where none does, a query looks into all partitions, and that is logged as a warning.
        """
        parameters, k = self._parameters, sample.exact_SK.shape[1]
        choice = tuning.choose(
            lambda setting: sample.recalls(functools.partial(self._search, setting=setting)),
            leaves=np.unique(np.geomspace(1, parameters.partitions, _LEAVES).round().astype(int)).tolist(),
            depths=sorted({min(k * depth, parameters.candidates) for depth in _DEPTHS}),
            cost=parameters.cost,
            target=target,
            weights_S=sample.weights,
        )
        if not choice.enough:
            _log.warning(
                "ScaNN: no setting reaches recall@%d %g for sure, the most exact one has %.4f", k, target, choice.recall
            )
        setting = choice.setting._asdict()
        tuned = dataclasses.replace(parameters, **setting, k=k, target=target, recall=round(choice.recall, 6))
        return ScannIndex(self._searcher, tuned)

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
        verify_manifest(folder, "--stage=index makes it again")
        try:
            parameters = _Parameters(**read_json(folder / _PARAMETERS))
        except TypeError as error:
            raise UserError(f"{folder}: of another version of this program ({error}); build it again") from error
        _check_assets(folder)
        try:
            searcher = _import_scann().load_searcher(str(folder))
        except (ValueError, RuntimeError, TypeError) as error:
            raise UserError(f"{folder}: ScaNN cannot read it ({error}); build it again") from error
        return cls(searcher, parameters)

    @property
    def description(self) -> str:
        """The kind of index and its parameters, in words for a report."""
        parameters = self._parameters
        size = f"{parameters.candidates:,} candidates of {parameters.dimensions} dimensions"
        if parameters.partitions == 1:
            return f"ScaNN, brute force, {size}"
        searched = f"{parameters.leaves} of them searched, {parameters.reordered:,} candidates rescored"
        tuned = (
            f"for {parameters.k} results"
            if parameters.target is None
            else (f"for recall@{parameters.k} {parameters.target:g} ({parameters.recall:.4f} on a sample)")
        )
        return f"ScaNN, {parameters.partitions} partitions, {searched} {tuned}, anisotropic hashing, {size}"

    def search(self, queries_QE: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Nearly the `k` candidates with the largest inner product, ties among those found to the smaller row.

        Returns:
          scores [Q, k] float32, best first, and rows [Q, k] int32; -inf and -1 where fewer were found.

        Raises:
          UserError: a query holds NaN or infinity or has another size than the candidates.
        """
        return self._search(queries_QE, k, self._parameters.setting(k))

    def _search(self, queries_QE: np.ndarray, k: int, setting: Setting) -> tuple[np.ndarray, np.ndarray]:
        queries_QE = matching_queries(queries_QE, self._parameters.dimensions)
        scores_QK, rows_QK = no_results(len(queries_QE), k)
        if not len(queries_QE):
            return scores_QK, rows_QK
        wanted = min(k, self._parameters.candidates)
        found, scores = self._searcher.search_batched_parallel(
            queries_QE, wanted, max(wanted, setting.reordered), setting.leaves
        )
        # Where ScaNN finds fewer than it was asked for, it fills up with row 0 and a score of NaN.
        missing = np.isnan(scores)
        scores_QK[:, :wanted] = np.where(missing, -np.inf, scores)
        rows_QK[:, :wanted] = np.where(missing, -1, found.astype(np.int32))
        order = np.lexsort((np.where(rows_QK < 0, np.iinfo(np.int32).max, rows_QK), -scores_QK), axis=1)
        return np.take_along_axis(scores_QK, order, axis=1), np.take_along_axis(rows_QK, order, axis=1)


def partitions(candidates: int) -> int:
    """Of so many candidates; 1: they are searched by brute force."""
    return 1 if candidates < BRUTE_FORCE_BELOW else round(2 * math.sqrt(candidates))


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


def available() -> bool:
    """Whether ScaNN can be imported; where it cannot, the reason is logged."""
    try:
        _import_scann()
    except Exception as error:  # built against another TensorFlow, it fails with an error of TensorFlow's own
        _log.warning("ScaNN cannot be used here (%s): %s", error, extras.install("scann"))
        return False
    return True


def _import_scann() -> ModuleType:
    """ScaNN's Python module. Its import loads TensorFlow, which must not take the accelerator's memory from JAX."""
    import tensorflow as tf

    with contextlib.suppress(RuntimeError):  # too late to hide them once TensorFlow has used them
        tf.config.set_visible_devices([], "GPU")
    from scann.scann_ops.py import scann_ops_pybind

    return scann_ops_pybind
