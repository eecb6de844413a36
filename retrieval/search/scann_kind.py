"""The kind of index 'scann', tuned on queries like those that will come; the hosts of a pod build a shard each."""

import logging
from pathlib import Path

import numpy as np

from retrieval.search import scann, scann_shards, tuning, windows
from retrieval.search.exact import ExactIndex
from retrieval.search.index_kind import Embeddings, IndexKind, Options, SavedIndex, Share, register
from retrieval.search.scann import ScannIndex
from retrieval.search.scann_shards import ScannShards

_log = logging.getLogger(__name__)


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
