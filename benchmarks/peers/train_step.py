"""A train step of sentence-transformers on given pairs: useful tokens a second, and memory.

Its own loss, AdamW in one kernel and clipping, in a plain loop: what its Trainer does for every step, without the rest.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import pairs, worker
from benchmarks.measure import timed


def prepare(settings: Mapping[str, Any]) -> worker.Turn:
    """Settings: config, pairs, batch, batches, vocabulary, dtype; chunk for the loss that caches gradients, or 0."""
    import numpy as np
    import torch
    from sentence_transformers.sentence_transformer import losses

    from benchmarks.peers import towers

    config = settings["config"]
    with tempfile.TemporaryDirectory() as folder:
        length = max(config["data"]["query_length"], config["data"]["document_length"])
        model = towers.build(config["model"], Path(settings["vocabulary"]), length, Path(folder)).train()
    scale = 1 / config["train"]["temperature"]
    if settings["chunk"]:
        loss = losses.CachedMultipleNegativesRankingLoss(model, scale=scale, mini_batch_size=settings["chunk"])
    else:
        loss = losses.MultipleNegativesRankingLoss(model, scale=scale)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["train"]["learning_rate"], weight_decay=0, fused=True)
    dtype = getattr(torch, settings["dtype"])
    batches = list(pairs.batches(Path(settings["pairs"]), settings["batch"], settings["batches"]))

    def features(ids_BL: np.ndarray, types_BL: np.ndarray) -> dict[str, torch.Tensor]:
        longest = int((ids_BL != 0).sum(axis=1).max())
        columns = {"input_ids": ids_BL, "token_type_ids": types_BL, "attention_mask": ids_BL != 0}
        return {name: torch.from_numpy(values[:, :longest].astype(np.int64)) for name, values in columns.items()}

    def step(rows: pairs.Rows) -> None:
        texts = [
            features(rows["query"], rows["query_types"]),
            features(rows["document"][:, 0], rows["document_types"][:, 0]),
        ]
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            value = loss(texts, torch.empty(0))
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config["train"]["clip_norm"])
        optimizer.step()
        optimizer.zero_grad()

    def turn() -> dict[str, float]:
        seconds = timed(lambda: [step(rows) for rows in batches])[1]
        return {"tokens/s": sum(map(pairs.tokens, batches)) / seconds, "peak MB": worker.peak_mb()}

    return turn


if __name__ == "__main__":
    worker.serve(prepare)
