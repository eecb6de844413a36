"""The stage `tables`: embeddings and results as Parquet, which pandas, `datasets` and others read."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from retrieval import files
from retrieval.errors import UserError
from retrieval.evaluation import result_files
from retrieval.pipeline.stage import STAGES, Stage
from retrieval.search import encoding
from retrieval.stage_outputs import Run

FOLDER = "tables"
_KINDS = ("candidates", "queries")
_RESULTS = {"evaluate": "", "rerank": result_files.RERANKED, "answer": result_files.ANSWERED}


def tables(run: Run) -> dict[str, int]:
    """Writes `tables/`: a file for every shard of embeddings, and the rows of all results; returns the rows of each.

    Raises:
      UserError: the run has neither embeddings nor results.
    """
    embeddings = run.holder("encode").folder / "embeddings"
    places = [run.holder(stage).folder / place for stage, place in _RESULTS.items()]
    results = result_files.rows(place for place in places if (place / result_files.NAME).is_file())
    if not (results or embeddings.is_dir()):
        raise UserError(f"--stage=tables: {run.place} has neither embeddings nor results: run encode or evaluate first")
    rows: dict[str, int] = {}
    with files.atomic(run.folder / FOLDER) as folder:
        folder.mkdir()
        if results:
            parquet.write_table(pa.Table.from_pylist(results), folder / "results.parquet")
            rows["results"] = len(results)
        for place in _folders(embeddings):
            name = place.relative_to(embeddings)
            for kind in _KINDS:
                if any(place.glob(f"{kind}-*.npy")):
                    rows[f"{name}/{kind}"] = _write(folder / "embeddings" / name, kind, encoding.shards(place, kind))
    return rows


def _folders(embeddings: Path) -> list[Path]:
    """Those of each collection and system."""
    return sorted(path for path in embeddings.glob("*/*") if path.is_dir())


def _write(folder: Path, kind: str, shards: Iterator[tuple[list[str], np.ndarray]]) -> int:
    """Files of ids and embeddings; returns the number of rows."""
    folder.mkdir(parents=True, exist_ok=True)
    total = 0
    for number, (ids, embeddings_NE) in enumerate(shards):
        vectors: Any = pa.FixedSizeListArray.from_arrays(pa.array(embeddings_NE.reshape(-1)), embeddings_NE.shape[1])
        table = pa.table({"id": pa.array(ids, pa.string()), "embedding": vectors})
        parquet.write_table(table, folder / f"{kind}-{number:05d}.parquet")
        total += len(ids)
    return total


STAGES.register(
    "tables",
    Stage(
        tables,
        reads="embeddings, results",
        writes="`tables/`: both as Parquet",
        wants=("encode", "evaluate", "rerank", "answer"),
        outputs=(FOLDER,),
        always=True,
    ),
)
