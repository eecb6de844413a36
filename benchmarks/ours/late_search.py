"""Search of late interaction by centroids and MaxSim over residual codes, one query after another."""

import functools
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import worker
from benchmarks.measure import searched, timed


def prepare(settings: Mapping[str, Any]) -> worker.Turn:
    """Settings: vectors (a folder of `tokens`, float16), exact (rows [Q, 10], .npy), bits, probes, depth (ranked)."""
    import numpy as np

    from benchmarks.ours import training
    from retrieval.methods.late_interaction import token_store
    from retrieval.methods.late_interaction.maxsim_search import best, of_candidates, probe_centroids
    from retrieval.methods.late_interaction.residuals import Codec
    from retrieval.methods.late_interaction.token_encoder import Queries
    from retrieval.methods.late_interaction.token_store import TokenStore
    from retrieval.search import sharded_map
    from retrieval.search.sharded_map import Shards

    stored, texts = (TokenStore(Path(settings["vectors"]), name) for name in ("candidates", "queries"))
    exact, folder = np.load(settings["exact"], allow_pickle=False).tolist(), tempfile.TemporaryDirectory()
    count = len(stored)
    some = np.random.default_rng(0).choice(count, min(count, 1 + int(8 * (120 * count) ** 0.5)), replace=False)

    def build() -> TokenStore:
        total, mesh = int(stored.sizes.sum()), training.one_device()
        codec = Codec.learn(stored.gather(some.tolist()), total, settings["bits"], [0], mesh)
        shards = Shards(Path(folder.name), "candidates", ".npy", count, 4096)
        codec.save(path := token_store.codec_path(shards.folder, shards.name))
        sharded_map.seal(path)
        numbers = ((str(number), number) for number in range(count))
        token_store.write(
            shards,
            numbers,
            lambda some: [stored[number] for number in some],
            functools.partial(codec.encode, mesh=mesh),
        )
        return TokenStore(shards.folder, shards.name)

    (store, seconds), queries = timed(build), [texts[number][None] for number in range(len(exact))]
    lists, asked = store.centroid_lists(), [Queries(each, np.ones(each.shape[:2], bool)) for each in queries]
    megabytes = (store.bytes + lists.bytes + lists.centroids.nbytes) / 1e6

    def search(query: Queries) -> list[int]:
        rows_QK = probe_centroids(lists, query, settings["probes"], settings["depth"])
        return best(of_candidates(query, store, rows_QK), rows_QK, 10)[1][0].tolist()

    return lambda: searched(search, asked, exact) | {"index MB": megabytes, "seconds to build": seconds}


if __name__ == "__main__":
    worker.serve(prepare)
