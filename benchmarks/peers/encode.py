"""Encoding a corpus with sentence-transformers: tokenise, embed and write; documents a second."""

import itertools
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import worker
from benchmarks.measure import timed


def prepare(settings: Mapping[str, Any]) -> worker.Turn:
    """Settings: config, vocabulary, passages (.jsonl files), documents, backend ('torch' or 'onnx'), rows."""
    import numpy as np

    if settings["backend"] == "onnx":
        import onnxruntime
        import optimum.onnxruntime  # noqa: F401

        onnxruntime.set_default_logger_severity(3)

    from benchmarks.peers import towers

    config = settings["config"]
    folder = tempfile.TemporaryDirectory()  # the process is ended, not left: its files go with this object
    model = towers.build(
        config["model"],
        Path(settings["vocabulary"]),
        config["data"]["document_length"],
        Path(folder.name),
        backend=settings["backend"],
    )
    lines = itertools.chain.from_iterable(map(open, settings["passages"]))
    items = [json.loads(line) for line in itertools.islice(lines, settings["documents"])]
    texts = [f"{item['title']} [SEP] {item['text']}" for item in items]  # the tokens that ours have

    def work() -> None:
        embeddings_NE = model.encode(texts, batch_size=settings["rows"], normalize_embeddings=True)
        np.save(Path(folder.name) / "candidates.npy", embeddings_NE, allow_pickle=False)

    return lambda: {"documents/s": len(texts) / timed(work)[1]}


if __name__ == "__main__":
    worker.serve(prepare)
