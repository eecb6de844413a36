"""A train step of sentence-transformers or PyLate on given pairs: useful tokens a second, and memory.

Its own loss, AdamW in one kernel and clipping, in a plain loop: what its Trainer does for every step, without the rest.
"""

import functools
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import pairs, worker
from benchmarks.measure import timed


def prepare(settings: Mapping[str, Any]) -> worker.Turn:
    """Settings: config, whose recipe decides on the model and its loss, pairs, batch, batches, vocabulary, dtype; chunk
    for the loss that caches gradients, or 0; encoder (config.json) where it is no plain BERT, accelerator where it is
    one's work.
    """
    import numpy as np
    import torch

    from benchmarks.peers.objectives import OBJECTIVES

    config, device = settings["config"], "cuda" if settings.get("accelerator") else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise worker.MissingError("torch sees no accelerator")
    with tempfile.TemporaryDirectory() as folder:
        model, loss = OBJECTIVES[config["recipe"]](settings, Path(folder), device)
    model.train()
    dtype = getattr(torch, settings["dtype"])
    autocast = functools.partial(torch.autocast, device, dtype, enabled=dtype != torch.float32)
    # The loss that caches gradients embeds a second time in the backward pass, which no autocast around the loss
    # reaches: as in its Trainer, the model brings its own.
    model.forward = autocast()(model.forward)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["train"]["learning_rate"], weight_decay=0, fused=True)
    batches = list(pairs.batches(Path(settings["pairs"]), settings["batch"], settings["batches"]))

    def features(ids_BL: np.ndarray, types_BL: np.ndarray) -> dict[str, torch.Tensor]:
        is_text_BL = ids_BL >= 0
        longest = int(is_text_BL.sum(axis=1).max())
        columns = {"input_ids": ids_BL * is_text_BL, "token_type_ids": types_BL, "attention_mask": is_text_BL}
        return {
            name: torch.from_numpy(values[:, :longest].astype(np.int64)).to(device) for name, values in columns.items()
        }

    def step(rows: pairs.Rows) -> None:
        texts = [
            features(rows["query"], rows["query_types"]),
            features(rows["document"][:, 0], rows["document_types"][:, 0]),
        ]
        with autocast():
            value = loss(texts, torch.empty(0))
        (sum(value.values()) if isinstance(value, dict) else value).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config["train"]["clip_norm"])
        optimizer.step()
        optimizer.zero_grad()

    def work() -> None:
        for rows in batches:
            step(rows)
        if device == "cuda":
            torch.cuda.synchronize()

    def turn() -> dict[str, float]:
        try:
            seconds = timed(work)[1]
        except torch.OutOfMemoryError as error:
            raise worker.MissingError("the device has not enough memory") from error
        on_gpu = device == "cuda"
        return {
            "tokens/s": sum(map(pairs.tokens, batches)) / seconds,
            "peak MB": worker.peak_mb(),
            "peak MB of the device": torch.cuda.max_memory_allocated() / 1e6 if on_gpu else 0,
        }

    return turn


if __name__ == "__main__":
    worker.serve(prepare)
