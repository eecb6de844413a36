"""Search of late interaction with fast-plaid, one query after another."""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import worker
from benchmarks.measure import timed


def prepare(settings: Mapping[str, Any]) -> worker.Turn:
    """Settings: tokens (a folder of `tokens`, float16), exact (rows [Q, 10], .npy), probes, full (scored in full)."""
    import numpy as np
    import torch
    from fast_plaid.search import FastPlaid

    def read(name: str, most: int | None = None) -> list[torch.Tensor]:
        texts = []
        for path in sorted(Path(settings["tokens"]).glob(f"{name}-*-of-?????.npy")):
            sizes = json.loads(path.with_suffix(".texts.json").read_text())["vectors"]
            texts += torch.from_numpy(np.load(path, allow_pickle=False).astype(np.float32)).split(sizes)
        return texts[:most]

    exact, folder = np.load(settings["exact"], allow_pickle=False), tempfile.TemporaryDirectory()
    queries, index = read("queries", len(exact)), FastPlaid(folder.name, device="cpu")
    _, seconds = timed(lambda: index.create(read("candidates"), nbits=2))
    megabytes = sum(path.stat().st_size for path in Path(folder.name).rglob("*") if path.is_file()) / 1e6
    options = dict(n_full_scores=settings["full"], n_ivf_probe=settings["probes"], show_progress=False)

    def work() -> list[list[int]]:
        return [[row for row, _ in index.search(each[None], top_k=10, **options)[0]] for each in queries]

    def turn() -> Mapping[str, float]:
        rows, taken = timed(work)
        found = sum(len({*one} & {*best.tolist()}) for one, best in zip(rows, exact)) / exact.size
        return {"queries/s": len(rows) / taken, "recall@10": found, "index MB": megabytes, "seconds to build": seconds}

    return turn


if __name__ == "__main__":
    worker.serve(prepare)
