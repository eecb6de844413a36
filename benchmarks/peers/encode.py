"""Encoding a corpus with sentence-transformers: tokenise, embed and write; documents a second."""

import itertools
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import worker
from benchmarks.measure import timed


def prepare(settings: Mapping[str, Any]) -> worker.Turn:
    """Settings: config, vocabulary, passages (.jsonl files), documents, backend ('torch' or 'onnx'), rows; accelerator
    where it is one's work.
    """
    import numpy as np
    import torch

    if settings["backend"] == "onnx":
        import onnxruntime
        import optimum.onnxruntime  # noqa: F401

        onnxruntime.set_default_logger_severity(3)

    from benchmarks.peers import towers

    config, device = settings["config"], "cuda" if settings.get("accelerator") else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise worker.MissingError("torch sees no accelerator")
    folder = tempfile.TemporaryDirectory()  # the process is ended, not left: its files go with this object
    model = towers.build(
        config["model"],
        Path(settings["vocabulary"]),
        config["data"]["document_length"],
        Path(folder.name),
        device,
        backend=settings["backend"],
    )
    if config["model"]["dtype"] == "bfloat16":
        model.bfloat16()
    items = [json.loads(line) for line in itertools.islice(_lines(settings["passages"]), settings["documents"])]
    texts = [f"{item['title']} [SEP] {item['text']}" for item in items]  # the tokens that ours have

    def work() -> None:
        embeddings_NE = model.encode(texts, batch_size=settings["rows"], normalize_embeddings=True)
        np.save(Path(folder.name) / "candidates.npy", embeddings_NE, allow_pickle=False)

    name = torch.cuda.get_device_name() if device == "cuda" else ""
    return lambda: {"documents/s": len(texts) / timed(work)[1], worker.DEVICE: name}


def _lines(paths: Sequence[str]) -> Iterator[str]:
    for path in paths:
        with open(path, encoding="utf-8") as lines:
            yield from lines


if __name__ == "__main__":
    worker.serve(prepare)
