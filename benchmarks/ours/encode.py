"""Encoding a corpus as the encode stage does: tokenise, embed and write; documents a second."""

import functools
import itertools
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import worker
from benchmarks.measure import timed


def prepare(settings: Mapping[str, Any]) -> worker.Turn:
    """Settings: config, vocabulary, passages (.jsonl files), documents."""
    from ml_collections import ConfigDict

    from benchmarks.ours import training
    from retrieval.data.sets import beir
    from retrieval.data.tokenizers.vocab import WordPiece
    from retrieval.recipes.parameters import parameters_of
    from retrieval.recipes.towers import Embedder, build_towers, candidate_windows
    from retrieval.search import encoding

    config, vocabulary = ConfigDict(settings["config"]), WordPiece.load(Path(settings["vocabulary"]))
    mesh = training.one_device()
    params = parameters_of(build_towers(config, len(vocabulary)))
    embed = Embedder(config, vocabulary, mesh).documents(params)
    read = itertools.chain.from_iterable(map(beir.read_candidates, map(Path, settings["passages"])))
    items = list(itertools.islice(read, settings["documents"]))

    def work() -> None:
        with tempfile.TemporaryDirectory() as folder:
            encoding.encode(
                Path(folder),
                "candidates",
                ((item.id, item) for item in items),
                len(items),
                functools.partial(candidate_windows, config, vocabulary),
                embed,
                shard_size=config.encode.shard_size,
                batch_tokens=config.encode.batch_tokens,
                longest=config.data.document_length,
                multiple=mesh.size,
            )

    return lambda: {"documents/s": len(items) / timed(work)[1]}


if __name__ == "__main__":
    worker.serve(prepare)
