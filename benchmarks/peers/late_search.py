"""Search of late interaction with fast-plaid, one query after another."""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import worker
from benchmarks.measure import searched, timed


def prepare(settings: Mapping[str, Any]) -> worker.Turn:
    """Settings: vectors (a folder of `tokens`, float16), exact (rows [Q, 10], .npy), bits, probes, full (scored)."""
    import numpy as np
    import torch
    from fast_plaid.search import FastPlaid

    def read(name: str, most: int | None = None) -> list[torch.Tensor]:
        texts = []
        for path in sorted(Path(settings["vectors"]).glob(f"{name}-*-of-?????.npy")):
            sizes = json.loads(path.with_suffix(".texts.json").read_text())["vectors"]
            texts += torch.from_numpy(np.load(path, allow_pickle=False).astype(np.float32)).split(sizes)
        return texts[:most]

    exact, folder = np.load(settings["exact"], allow_pickle=False).tolist(), tempfile.TemporaryDirectory()
    queries, index = read("queries", len(exact)), FastPlaid(folder.name, device="cpu")
    _, seconds = timed(lambda: index.create(read("candidates"), nbits=settings["bits"]))
    megabytes = sum(path.stat().st_size for path in Path(folder.name).rglob("*") if path.is_file()) / 1e6
    options = dict(top_k=10, n_full_scores=settings["full"], n_ivf_probe=settings["probes"], show_progress=False)

    def search(query: torch.Tensor) -> list[int]:
        return [row for row, _ in index.search(query[None], **options)[0]]

    return lambda: searched(search, queries, exact) | {"index MB": megabytes, "seconds to build": seconds}


if __name__ == "__main__":
    worker.serve(prepare)
