"""ScaNN over partitions that are ours: k-means on every device, and the same index twice.

ScaNN's own k-means starts with k-means++ on one thread, which takes most of a build, or with points drawn without a
seed. So it gets finished partitions, in the files of a saved index that lacks all else, and makes the rest of them.
"""

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from retrieval import files
from retrieval.search import kmeans
from retrieval.search.exact import local_mesh

# Points that centroids are made of, and rounds; both are what ScaNN itself would be told.
_SAMPLE, _ITERATIONS = 250_000, 12
_DIMENSIONS_PER_CODE, _THRESHOLD = 2, 0.2

_PARTITIONER, _PARTITION_OF, _DATASET = "serialized_partitioner.pb", "datapoint_to_token.npy", "dataset.npy"


def build(
    scann: ModuleType, embeddings_NE: np.ndarray, partitions: int, reordered: int, scratch: Path | None = None
) -> Any:
    """A ScaNN searcher of inner products: partitions, anisotropic hashing, exact scores.

    Args:
      scann: its Python module.
      reordered: exact scores of a query that does not say how many it wants.
      scratch: an existing folder that takes the embeddings for a moment, as `files.scratch`.
    """
    clusters = partition(embeddings_NE, partitions)
    with files.scratch(scratch) as folder:
        (folder / "scann_config.pb").write_bytes(_config(scann, embeddings_NE, partitions, reordered))
        (folder / _PARTITIONER).write_bytes(_partitioner(clusters.centroid_KE))
        np.save(folder / _PARTITION_OF, clusters.cluster_N, allow_pickle=False)
        np.save(folder / _DATASET, embeddings_NE, allow_pickle=False)
        (folder / "scann_assets.pbtxt").write_text(_assets())
        return scann.load_searcher(str(folder))


def partition(embeddings_NE: np.ndarray, partitions: int) -> kmeans.Clusters:
    """The partitions of the embeddings, as many as asked for."""
    rule = kmeans.Rule(partitions, _ITERATIONS, sample=-(-_SAMPLE // partitions))
    return kmeans.cluster(embeddings_NE, rule, [0], local_mesh())


def _config(scann: ModuleType, embeddings_NE: np.ndarray, partitions: int, reordered: int) -> bytes:
    """The settings of the index. Every search says how many partitions and exact scores it wants, in place of these."""
    from google.protobuf import text_format
    from scann.proto import scann_pb2

    builder = scann.builder(embeddings_NE, 1, "dot_product")
    builder.tree(num_leaves=partitions, num_leaves_to_search=partitions)
    builder.score_ah(
        min(_DIMENSIONS_PER_CODE, embeddings_NE.shape[1]), anisotropic_quantization_threshold=_THRESHOLD
    ).reorder(reordered)
    message = vars(scann_pb2)["ScannConfig"]()  # made when it is imported
    return text_format.Parse(builder.create_config(), message).SerializeToString(deterministic=True)


def _partitioner(centroid_KE: np.ndarray) -> bytes:
    """The partitions as ScaNN saves them: a tree of one level."""
    from scann.partitioning import partitioner_pb2

    partitioner = vars(partitioner_pb2)["SerializedPartitioner"](n_tokens=len(centroid_KE))
    root = partitioner.kmeans.kmeans_tree.root
    root.leaf_id = -1
    for number, centroid_E in enumerate(centroid_KE.astype(np.float64)):
        root.centers.add().dimension.extend(centroid_E.tolist())
        root.children.add().leaf_id = number
    return partitioner.SerializeToString(deterministic=True)


def _assets() -> str:
    kinds = {"PARTITIONER": _PARTITIONER, "TOKENIZATION_NPY": _PARTITION_OF, "DATASET_NPY": _DATASET}
    return "".join(f'assets {{ asset_type: {kind} asset_path: "{path}" }}\n' for kind, path in kinds.items())
