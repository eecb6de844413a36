"""The refresh 'clusters': batches whose paragraphs the model finds alike (ProQA, Xiong et al. 2020, section 3.3).

The paragraphs of the labelled pairs are encoded with the model as it is, and clustered. From then on each batch, or
each of its groups (`train.groups`), is of one cluster. A version has beside its shards what they come from:

    paragraphs.npy    document ids of the paragraphs
    clusters.npy      the cluster of each, after small ones were merged
    centroids.npy     those of k-means, before that
"""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.data.examples.stored_pairs import Positive, StoredPairs
from retrieval.methods.clusters import cluster_order
from retrieval.methods.clusters.cluster_order import ORDERS, Clustered
from retrieval.recipes.recipe import recipe_of
from retrieval.runs.fitting import examples
from retrieval.runs.fitting.refresh import RefreshKind
from retrieval.runs.fitting.refresh_kind import REFRESHES
from retrieval.runs.fitting.versions import Counts, RefreshInputs, Write
from retrieval.runs.pipeline.records import get_field
from retrieval.runs.pipeline.run import Run
from retrieval.search import kmeans

ARRAYS = ("paragraphs", "clusters", "centroids")
_ORDER = 1  # the seed of the batches, beside that of k-means
_SAMPLE = 1000  # paragraphs of a cluster that k-means learns from, at most


class ClustersRefresh(RefreshKind):
    """The same pairs, in batches by clusters of their paragraphs."""

    name = "clusters"
    what = "batches by clusters of their paragraphs"

    def check(self, config: ConfigDict) -> None:
        """Checks that batches are of labelled pairs alone, in rows of their own, for towers, and of two or more."""
        tasks = [*examples.labelled(config), *examples.unlabelled(config)]
        if examples.unlabelled(config) or len(tasks) != 1:
            what = f"is of the labelled pairs of one task, and drawn are {' and '.join(tasks)}"
            raise UserError(f"config.mine.refresh_makes=clusters {what}: set config.data.rates of the others to 0")
        for field, needed in {"data.pack.query": 0, "data.pack.document": 0, "mine.refresh_share": 1}.items():
            if (value := get_field(config, field)) != needed:
                why = "batches by clusters are of all pairs, a row each"
                raise UserError(f"config.{field}={value}: {why}: set {needed}, or config.mine.refresh_makes=negatives")
        if not recipe_of(config).has_towers:
            what = f"config.mine.refresh_makes=clusters embeds paragraphs, which {recipe_of(config).label} does not"
            raise UserError(f"{what}: set config.recipe=two_tower, or config.mine.refresh_every=0")

    def check_pairs(self, config: ConfigDict, pairs: Path) -> None:
        """Checks that there are as many paragraphs as clusters, and as rows of a batch."""
        path = pairs / "stats.json"
        if path.exists():
            _check_enough(files.read_json(path)["paragraphs"], config.cluster.count, _group_size(config.train))

    def check_version(self, pairs: Path, folder: Path, counts: Counts) -> None:
        """Checks that the clusters are of the run's pairs."""
        if counts["pairs"] != StoredPairs(pairs).fingerprint:
            way = f"put those back, or delete the checkpoints and {folder.parent}, and train again"
            raise UserError(f"{folder}: clusters of other labelled pairs than {pairs} has now; {way}")

    def make(self, run: Run, inputs: RefreshInputs, publish: Callable[[Write], None]) -> None:
        """As `RefreshKind.make`.

        Raises:
          UserError: there are fewer paragraphs than clusters, or than a batch has rows.
        """
        config, pairs = run.config, StoredPairs(run.pairs)
        id_N, record_N, pair_M, paragraph_M = _paragraphs(pairs, config.data.negatives > 0)
        size = _group_size(config.train)
        _check_enough(len(id_N), config.cluster.count, size)
        embedding_NE = _embedded(inputs, config, pairs.positives(record_N))
        seed = [config.seed, inputs.version]
        rule = kmeans.Rule(config.cluster.count, config.cluster.iterations, _SAMPLE)
        made_N, centroid_KE = kmeans.cluster(embedding_NE, rule, seed, inputs.mesh)
        cluster_N = cluster_order.merge_small(made_N, centroid_KE, size)

        def write(folder: Path) -> Counts:
            batches = config.mine.refresh_every * config.train.groups
            random = np.random.default_rng([*seed, _ORDER])
            rows_TG = ORDERS[config.cluster.batches](Clustered(cluster_N, paragraph_M), batches, size, random)
            pairs.write(folder, pair_M[rows_TG].reshape(-1, config.train.batch_size), config.data.lanes)
            for name, values in zip(ARRAYS, (id_N, cluster_N, centroid_KE)):
                np.save(folder / f"{name}.npy", values, allow_pickle=False)
            return _counts(made_N, cluster_N, paragraph_M) | {"seed": seed, "pairs": pairs.fingerprint}

        publish(write)

    def summary(self, counts: Counts) -> tuple[str, dict[str, float]]:
        """As `RefreshKind.summary`."""
        names = ("clusters", "least", "most")
        return f"{counts['clusters']} clusters of {counts['paragraphs']} paragraphs", {n: counts[n] for n in names}


def _paragraphs(pairs: StoredPairs, negatives: bool) -> tuple[np.ndarray, ...]:
    """Distinct positives, and the records that are trained on.

    Returns:
      The document id of each paragraph [N], and the number of the first record that has it [N], ascending; the numbers
      of the records [M], and the paragraph of each [M].
    """
    number_M, id_M = pairs.document_ids(negatives)
    id_N, first_N, sorted_M = np.unique(id_M, return_index=True, return_inverse=True)
    by_record_N = np.argsort(first_N)
    rank_N = np.empty(len(id_N), np.int64)
    rank_N[by_record_N] = np.arange(len(id_N))
    return id_N[by_record_N], number_M[first_N[by_record_N]], number_M, rank_N[sorted_M]


def _embedded(inputs: RefreshInputs, config: ConfigDict, read: Iterator[Positive]) -> np.ndarray:
    """The embeddings of paragraphs [N, E], of which the tokens of a shard are held at a time."""
    tower, length, parts = inputs.embedder.documents(inputs.params), config.data.document_length, []
    while part := list(itertools.islice(read, config.encode.shard_size)):
        tokens = [inputs.prefixes.document_rows(inputs.vocabulary, item.title, item.text, length)[0] for item in part]
        parts.append(inputs.embedder.embed_rows(tower, tokens))
    return np.concatenate(parts)


def _group_size(train: ConfigDict) -> int:
    """Examples that are of one cluster, by the group `train` of the config."""
    return train.batch_size // train.groups


def _check_enough(paragraphs: int, count: int, size: int) -> None:
    """Checks that `count` clusters can be made, and a batch of `size` different paragraphs of one."""
    if paragraphs < max(count, size):
        way = f"lower the first, such as to {max(1, paragraphs // (2 * size))}, or the batch"
        raise UserError(f"config.cluster.count={count}, and batches of {size}, of {paragraphs} paragraphs: {way}")


def _counts(made_N: np.ndarray, cluster_N: np.ndarray, paragraph_M: np.ndarray) -> dict[str, Any]:
    """What is told of the clusters; sizes are those of pairs."""
    size_K = np.bincount(cluster_N[paragraph_M])
    return {
        "paragraphs": len(cluster_N),
        "clusters": len(size_K),
        "merged": int(len(np.unique(made_N)) - len(size_K)),
        "least": int(size_K.min()),
        "most": int(size_K.max()),
    }


REFRESHES.register(ClustersRefresh.name, ClustersRefresh())
