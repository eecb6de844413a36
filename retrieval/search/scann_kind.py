"""The kind of index 'scann', tuned on queries like those that will come; the hosts of a pod build a shard each."""

import logging
import time
from pathlib import Path

import numpy as np

from retrieval.search import scann, scann_shards, scann_tree, tuning, windows
from retrieval.search.exact import ExactIndex
from retrieval.search.index_kind import Cost, Embeddings, IndexKind, Options, Planned, SavedIndex, Share, register
from retrieval.search.scann import ScannIndex
from retrieval.search.scann_shards import ScannShards

_log = logging.getLogger(__name__)

# Times the bytes of the embeddings: at the peak of a build, and of a loaded index, as docs/scale.md measured them.
_BUILDING, _HELD = 4.25, 1.6
_PLANNED = (40_000, 10_000)  # embeddings of the indexes that a plan builds


@register
class Scann(IndexKind):
    """ScaNN."""

    name, title, system = "scann", "ScaNN", "dense (ScaNN)"
    options = ("index.tune_queries", "index.recall_target")
    least_of_shard = scann.BRUTE_FORCE_BELOW

    def available(self) -> bool:
        return scann.available()

    def build(self, contents: Embeddings, options: Options) -> ScannIndex:
        embeddings_WE, scratch = contents.embeddings_WE, contents.scratch
        if len(embeddings_WE) < scann.BRUTE_FORCE_BELOW:
            return ScannIndex.build(embeddings_WE, scratch)
        # First, for exact search and ScaNN hold all embeddings once more, each for itself.
        sample = tuning.draw(embeddings_WE, contents.queries(), options["index.tune_queries"], _results(contents))
        return ScannIndex.build(embeddings_WE, scratch).tuned(sample, options["index.recall_target"])

    def cost(self, planned: Planned, options: Options) -> Cost | None:
        """By two small indexes over embeddings drawn by chance, which are the hardest to index."""
        if not self.available():
            return None
        N = planned.embeddings
        (partition, rest), (_, less) = (self._timed(size, planned, options) for size in _PLANNED)
        per_row = max(0.0, rest - less) / (_PLANNED[0] - _PLANNED[1])
        size, (large, small) = 4 * N * planned.dimensions, (_distances(n) for n in (N, _PLANNED[0]))
        seconds = partition * large / small + rest + per_row * (N - _PLANNED[0])
        return Cost(max(0.0, seconds), _BUILDING * size, _HELD * size)

    def _timed(self, N: int, planned: Planned, options: Options) -> tuple[float, float]:
        """Seconds for the partitions of N embeddings, and for the rest of a build."""
        rng = np.random.default_rng(0)
        embeddings_NE = rng.standard_normal((N, planned.dimensions), np.float32)
        queries_QE = rng.standard_normal((options["index.tune_queries"], planned.dimensions), np.float32)
        contents = Embeddings(embeddings_NE, np.arange(N), lambda: queries_QE, planned.depth)
        scann_tree.partition(embeddings_NE, scann.partitions(N))  # compiles it
        start = time.perf_counter()
        scann_tree.partition(embeddings_NE, scann.partitions(N))
        partition = time.perf_counter() - start
        self.build(contents, options)
        return partition, max(0.0, time.perf_counter() - start - 2 * partition)

    def build_share(self, share: Share, options: Options) -> ScannIndex:
        """Tuned to find the target's share of those of the exact results that it has; of too few queries, untuned."""
        exact = ExactIndex(share.rows, mesh=share.mesh)
        queries_QE = share.contents.queries()
        count, results = options["index.tune_queries"], _results(share.contents)
        sample = tuning.draw(share.rows, queries_QE, count, results, exact)
        del exact
        rows = scann_shards.rows_of(share.number, share.count, len(share.rows))
        tree = ScannIndex.build(share.rows[rows], share.contents.scratch)
        own = scann_shards.sample_of(sample, rows)
        if (queries := len(own.queries_SE)) < tuning.fewest(count):
            _log.warning(
                "ScaNN, shard %d: %d queries are too few to tune it for: all is searched", share.number, queries
            )
            return tree
        return tree.tuned(own, options["index.recall_target"])

    def load(self, folder: Path) -> SavedIndex:
        return ScannShards.load(folder) if scann_shards.is_in_shards(folder) else ScannIndex.load(folder)

    def load_share(self, folder: Path, number: int, count: int) -> ScannShards:
        return ScannShards.load(folder, slice(number, None, count))


def _results(contents: Embeddings) -> int:
    """For how many windows it is tuned."""
    return windows.at_first(contents.depth, np.bincount(contents.owners_W).max())


def _distances(N: int) -> int:
    """How many the partitions of N embeddings take."""
    return scann_tree.distances(N, scann.partitions(N))
