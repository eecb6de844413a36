"""The neutral table, of Parquet, which most systems read.

vectors/part-00000.parquet, ...   id, vector (fixed_size_list; bits: fixed_size_binary), title, text, metadata (JSON)
vectors.json                      what the vectors are; each part has it too, as the entry `retrieval.vectors`
queries/, queries.json            the same of an evaluation set's queries
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from retrieval import files
from retrieval.errors import UserError
from retrieval.handover.target import Place, Target, register
from retrieval.handover.vectors import (
    BIT,
    DTYPES,
    FLOAT16,
    FLOAT32,
    INT8,
    INTEGER,
    NUMBER,
    SWITCH,
    TEXT,
    TEXTS,
    Block,
    Vectors,
)

_ENTRY = "retrieval.vectors"
_MOST_BYTES = 1_000_000_000  # of a part
_NAMES = ("id", "vector", "bits", "title", "text", "metadata")


@register
class NeutralTable(Target):
    """Row groups have 65,536 rows. Texts are compressed, vectors are not: that would hardly make them smaller."""

    name, title, dtypes = "table", "a table of Parquet", DTYPES
    load = "The commands of DuckDB, LanceDB, Hugging Face's `datasets` and Milvus are in docs/guides/handover.md.\n"

    def check(self, vectors: Vectors) -> None:
        super().check(vectors)
        if taken := next((name for name in vectors.columns if name in _NAMES), ""):
            raise UserError(f"config.handover.columns: the table has a column '{taken}' already; name others")

    def write(self, place: Place, vectors: Vectors, queries: Vectors | None) -> dict[str, int]:
        rows: dict[str, int] = {}
        for name, side in (("vectors", vectors), ("queries", queries)):
            if side:
                parts = dict(self._write_parts(place.folder / name, side))
                files.write_json(place.folder / f"{name}.json", side.described | {"parts": len(parts)})
                rows |= {f"{name}/{part}": count for part, count in parts.items()}
        return rows

    def _write_parts(self, folder: Path, vectors: Vectors) -> Iterator[tuple[str, int]]:
        """Writes the parts; yields the name and the rows of each."""
        from pyarrow import parquet

        folder.mkdir()
        schema, number = _schema(vectors), 0
        options: Any = {"compression": dict.fromkeys(set(schema.names) - {"vector", "bits"}, "zstd")}
        options["use_dictionary"] = list(vectors.columns)
        blocks = self.blocks(vectors)
        block = next(blocks, None)
        while block:
            path, rows = folder / f"part-{number:05}.parquet", 0
            with parquet.ParquetWriter(path, schema, **options) as writer:
                while block and (not rows or path.stat().st_size + block.vectors.nbytes < _MOST_BYTES):
                    writer.write_batch(_batch(block, schema), row_group_size=len(block.ids))
                    rows += len(block.ids)
                    block = next(blocks, None)
            yield path.name, rows
            number += 1


def _schema(vectors: Vectors) -> Any:
    import pyarrow as pa

    stored = {FLOAT32: pa.float32(), FLOAT16: pa.float16(), INT8: pa.int8()}
    vector = (
        pa.field("bits", pa.binary(vectors.dimension // 8), nullable=False)
        if vectors.dtype == BIT
        else pa.field("vector", pa.list_(stored[vectors.dtype], vectors.dimension), nullable=False)
    )
    types = {TEXT: pa.string(), TEXTS: pa.list_(pa.string()), INTEGER: pa.int64(), NUMBER: pa.float64()}
    types[SWITCH] = pa.bool_()
    texts = [pa.field(name, pa.string(), nullable=False) for name in ("id", "title", "text", "metadata")]
    columns = [pa.field(name, types[vectors.kinds[name]]) for name in vectors.columns]
    entry = {_ENTRY: json.dumps(vectors.described, ensure_ascii=False)}
    return pa.schema([texts[0], vector, *texts[1:], *columns], metadata=entry)


def _batch(block: Block, schema: Any) -> Any:
    import pyarrow as pa

    flat, kind = np.ascontiguousarray(block.vectors).reshape(-1), schema.field(1).type
    if schema.names[1] == "bits":
        vectors = pa.FixedSizeBinaryArray.from_buffers(kind, len(block.ids), [None, pa.py_buffer(flat)])
    else:
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(flat, kind.value_type), type=kind)
    metadata = [json.dumps(of, ensure_ascii=False, sort_keys=True) for of in block.metadata]
    columns = [pa.array([of.get(f.name) for of in block.metadata], f.type) for f in list(schema)[5:]]
    return pa.RecordBatch.from_arrays(
        [block.ids, vectors, block.titles, block.texts, metadata, *columns], schema=schema
    )
