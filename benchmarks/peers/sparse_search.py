"""Search among sparse vectors with Seismic, one query after another."""

import itertools
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import worker
from benchmarks.measure import searched, timed


def prepare(settings: Mapping[str, Any]) -> worker.Turn:
    """Settings: vectors and exact as ours; cut (terms of a query that are looked up), heap (its heap_factor)."""
    import numpy as np
    import seismic

    def read(name: str, most: int | None = None) -> list[tuple[np.ndarray, np.ndarray]]:
        arrays = dict(np.load(Path(settings["vectors"]) / f"{name}.npz", allow_pickle=False))  # each is read once
        terms = np.array([str(term) for term in range(arrays["shape"][1])], seismic.get_seismic_string())
        values, ends = arrays["data"].astype(np.float32), arrays["indptr"]
        spans = [slice(*span) for span in itertools.pairwise(ends)][:most]
        return [(terms[arrays["indices"][span]], values[span]) for span in spans]

    def build() -> seismic.SeismicIndex:
        documents = seismic.SeismicDataset()
        for number, (terms, values) in enumerate(read("documents")):
            documents.add_document(str(number), terms, values)
        return seismic.SeismicIndex.build_from_dataset(documents)

    exact = np.load(settings["exact"], allow_pickle=False).tolist()
    (index, seconds), queries, folder = timed(build), read("queries", len(exact)), tempfile.TemporaryDirectory()
    index.save(f"{folder.name}/index")
    megabytes = sum(path.stat().st_size for path in Path(folder.name).iterdir()) / 1e6
    options = dict(k=10, query_cut=settings["cut"], heap_factor=settings["heap"])

    def search(query: tuple[np.ndarray, np.ndarray]) -> list[int]:
        return [int(row) for _, _, row in index.search("query", *query, **options)]

    return lambda: searched(search, queries, exact) | {"index MB": megabytes, "seconds to build": seconds}


if __name__ == "__main__":
    worker.serve(prepare)
