"""PostgreSQL with pgvector: a table, its rows in COPY's binary format, and the index that is made after the load.

PostgreSQL's documentation of COPY, "Binary Format". Numbers are big-endian.
"""

import json
import re
import struct
from collections.abc import Sequence

import numpy as np

from retrieval import files
from retrieval.errors import UserError
from retrieval.handover.target import Place, Target, register
from retrieval.handover.vectors import BIT, FLOAT16, FLOAT32, Vectors

_TYPES = {FLOAT32: "vector", FLOAT16: "halfvec", BIT: "bit"}
_OPERATORS = {FLOAT32: "vector_ip_ops", FLOAT16: "halfvec_ip_ops", BIT: "bit_hamming_ops"}
# The most dimensions that HNSW indexes.
_INDEXED = {FLOAT32: 2000, FLOAT16: 4000, BIT: 64_000}
_SIGNATURE = b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0)
_END = struct.pack(">h", -1)
_NUL = re.compile(r"(?<!\\)(\\\\)*\\u0000")  # in JSON

_SCHEMA = """CREATE EXTENSION IF NOT EXISTS vector;
CREATE TABLE passages (id text PRIMARY KEY, title text, text text, metadata jsonb, embedding {type});
"""
_LOAD = """Ask for pgvector 0.8.6 or later. In this folder:

    psql -v ON_ERROR_STOP=1 -f schema.sql -c "\\copy passages FROM 'passages.bin' WITH (FORMAT binary)" -f index.sql

The first line of `index.sql` is a search: put the vector of a line of `check.jsonl` in place of VECTOR. Written in
another way, a search does not use the index.
"""


@register
class PgVector(Target):
    """float32 as `vector`, float16 as `halfvec`, bits as `bit`."""

    name, title, dtypes = "pgvector", "pgvector", tuple(_TYPES)
    instead = "take float16 (halfvec), or bit"
    dimensions = {FLOAT32: 16_000, FLOAT16: 16_000, BIT: 64_000}
    id_bytes = 2600  # of a key of a B-tree
    load = _LOAD

    def write(self, place: Place, vectors: Vectors, queries: Vectors | None) -> dict[str, int]:
        kind = f"{_TYPES[vectors.dtype]}({vectors.dimension})"
        files.write_text(place.folder / "schema.sql", _SCHEMA.format(type=kind))
        files.write_text(place.folder / "index.sql", _index(vectors))
        with (place.folder / "passages.bin").open("wb") as file:
            file.write(_SIGNATURE)
            for block in self.blocks(vectors):
                texts = zip(block.ids, block.titles, block.texts, block.metadata)
                for (*shown, metadata), vector in zip(texts, _encoded(block.vectors, vectors)):
                    said = json.dumps(metadata, ensure_ascii=False, sort_keys=True)
                    if any("\0" in text for text in shown) or _NUL.search(said):
                        raise UserError(
                            f"config.handover.to={self.name}: the passage {shown[0]!r} has a NUL character in its id, "
                            "title, text or metadata, which PostgreSQL cannot store: take it out of that document"
                        )
                    file.write(_row([*(text.encode() for text in shown), b"\x01" + said.encode(), vector]))
            file.write(_END)
        return {"passages.bin": vectors.rows}


def _row(fields: Sequence[bytes]) -> bytes:
    return struct.pack(">h", len(fields)) + b"".join(struct.pack(">i", len(field)) + field for field in fields)


def _encoded(vectors_NS: np.ndarray, vectors: Vectors) -> list[bytes]:
    """Each vector as its type's `recv` function reads it: its dimensions, two bytes that are 0, and the numbers."""
    if vectors.dtype == BIT:
        head = struct.pack(">i", vectors.dimension)
    else:
        head = struct.pack(">hh", vectors.dimension, 0)
        vectors_NS = vectors_NS.astype(vectors_NS.dtype.newbyteorder(">"))
    return [head + vector_S.tobytes() for vector_S in vectors_NS]


def _index(vectors: Vectors) -> str:
    """The statements that make the indexes, and how a query uses them."""
    size, operator = vectors.dimension, "<~>" if vectors.dtype == BIT else "<#>"
    on, operators = "embedding", _OPERATORS[vectors.dtype]
    if size > _INDEXED[vectors.dtype]:
        cast = size <= _INDEXED[FLOAT16]
        on = f"embedding::halfvec({size})" if cast else f"binary_quantize(embedding)::bit({size})"
        operators, operator = (_OPERATORS[FLOAT16], "<#>") if cast else (_OPERATORS[BIT], "<~>")
        on = f"({on})"
    asked = on.replace("embedding", f"'VECTOR'::{_TYPES[vectors.dtype]}({size})")
    lines = [
        f"-- SELECT id FROM passages ORDER BY {on} {operator} {asked} LIMIT 10;",
        f"CREATE INDEX ON passages USING hnsw ({on} {operators});",
    ]
    for name in vectors.columns:
        key = name.replace("'", "''")
        lines.append(f"CREATE INDEX ON passages ((metadata->'{key}'));")
    if vectors.columns:
        lines.append("-- With filters: SET hnsw.iterative_scan = relaxed_order;")
    return "\n".join(lines) + "\n"
