"""Vertex AI Vector Search: a folder of Avro files, or of JSON lines, and the metadata of an index.

Nothing but files of data may be in `data/`, and `data/delete/` is the one folder below it.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from retrieval import files
from retrieval.errors import UserError
from retrieval.handover import avro_file
from retrieval.handover.number_text import numbers
from retrieval.handover.target import Place, Target, register
from retrieval.handover.vectors import BLOCK, DOCUMENT, INTEGER, NUMBER, PARENT, SWITCH, TEXT, Block, Vectors

_MOST_FILES = 5000
_INT32 = 1 << 31
_SHARDS = ((2 << 30, "SMALL"), (20 << 30, "MEDIUM"))  # bytes that a shard holds; LARGE beyond
_LOAD = """Copy `data/` to a bucket, and name it in `contentsDeltaUri` of `index.json`, which already has it where
config.handover.out was an address on Cloud Storage:

    gcloud storage cp -r data gs://BUCKET/passages/
    gcloud ai indexes create --metadata-file=index.json --display-name=passages --region=REGION

Put nothing else into `data/`. Of passages it has ids, vectors and what is filtered by: texts are in the target `table`.
"""


_SCHEMA = json.loads("""
{"type": "record", "name": "FeatureVector", "fields": [
  {"name": "id", "type": "string"},
  {"name": "embedding", "type": {"type": "array", "items": "float"}},
  {"name": "sparse_embedding", "type": ["null", {"type": "record", "name": "sparse_embedding", "fields": [
    {"name": "values", "type": {"type": "array", "items": "float"}},
    {"name": "dimensions", "type": {"type": "array", "items": "long"}}]}]},
  {"name": "restricts", "type": ["null", {"type": "array", "items": {"type": "record", "name": "Restrict", "fields": [
    {"name": "namespace", "type": "string"},
    {"name": "allow", "type": ["null", {"type": "array", "items": "string"}]},
    {"name": "deny", "type": ["null", {"type": "array", "items": "string"}]}]}}]},
  {"name": "numeric_restricts", "type": ["null", {"type": "array", "items": {
    "type": "record", "name": "NumericRestrict", "fields": [
    {"name": "namespace", "type": "string"},
    {"name": "value_int", "type": ["null", "int"], "default": null},
    {"name": "value_float", "type": ["null", "float"], "default": null},
    {"name": "value_double", "type": ["null", "double"], "default": null}]}}]},
  {"name": "crowding_tag", "type": ["null", "string"]}]}
""")


class Point(NamedTuple):
    """A row as Vertex has it.

    Attributes:
      allowed: the texts of each namespace that is filtered by.
      values: the numbers of the others.
      crowd: what it is one part of, such as a document; '' where it stands alone.
    """

    id: str
    allowed: dict[str, list[str]]
    values: dict[str, int | float]
    crowd: str


@register
class Vertex(Target):
    """Avro: a third of the bytes of JSON, and exact."""

    name, title = "vertex", "Vertex AI Vector Search"
    load = _LOAD
    suffix = "avro"

    def check(self, vectors: Vectors) -> None:
        super().check(vectors)
        if vectors.rows > _MOST_FILES * BLOCK:
            raise UserError(
                f"config.handover.to={self.name}: {vectors.rows:,} vectors, and {_MOST_FILES:,} files of {BLOCK:,} are "
                "the most: hand the collection over in parts"
            )

    def write(self, place: Place, vectors: Vectors, queries: Vectors | None) -> dict[str, int]:
        (place.folder / "data").mkdir()
        rows = {}
        for number, block in enumerate(self.blocks(vectors)):
            name = f"data/data-{number:05}.{self.suffix}"
            with (place.folder / name).open("wb") as file:
                self.write_block(file, block, [self._point(vectors, *row) for row in zip(block.ids, block.metadata)])
            rows[name] = len(block.ids)
        files.write_json(place.folder / "index.json", _index(vectors, place.address))
        return rows

    def write_block(self, file: BinaryIO, block: Block, points: Sequence[Point]) -> None:
        """Writes a file of data."""
        avro_file.write(file, _SCHEMA, map(_encoded, points, block.vectors))

    def _point(self, vectors: Vectors, id: str, metadata: Mapping[str, Any]) -> Point:
        allowed, values = {}, {}
        for name in vectors.columns:
            if (value := metadata.get(name)) is None:
                continue
            kind = vectors.kinds[name]
            if kind in (INTEGER, NUMBER):
                if kind == INTEGER and not -_INT32 <= value < _INT32:
                    raise UserError(
                        f"config.handover.to={self.name}: {name}={value} of '{id}' is no whole number of 32 bits, "
                        f"and {self.title} has no longer ones: write it as a decimal number ({value}.0), or as a text"
                    )
                values[name] = value if kind == INTEGER else float(value)
            else:
                allowed[name] = {TEXT: [value], SWITCH: [str(value).lower()]}.get(kind, value)
        return Point(id, allowed, values, metadata.get(PARENT) or metadata.get(DOCUMENT) or "")


@register
class VertexJson(Vertex):
    """The same as JSON lines, which collections of Vector Search 2.0 import too."""

    name, suffix = "vertex_json", "json"

    def write_block(self, file: BinaryIO, block: Block, points: Sequence[Point]) -> None:
        for point, vector, title, metadata in zip(points, numbers(block.vectors), block.titles, block.metadata):
            record: dict[str, Any] = {"embedding_metadata": {"title": title, **metadata}}
            if point.allowed:
                record["restricts"] = [{"namespace": name, "allow": of} for name, of in point.allowed.items()]
            if point.values:
                record["numeric_restricts"] = [
                    {"namespace": name, f"value_{_type(value)}": value} for name, value in point.values.items()
                ]
            if point.crowd:
                record["crowding_tag"] = point.crowd
            begin = f'{{"id": {json.dumps(point.id, ensure_ascii=False)}, "embedding": [{vector}], '
            file.write((begin + json.dumps(record, ensure_ascii=False)[1:] + "\n").encode())


def _type(value: int | float) -> str:
    return "int" if isinstance(value, int) else "double"


def _encoded(point: Point, vector_D: np.ndarray) -> bytes:
    """A point in the fields of `_SCHEMA`."""
    text, optional, array = avro_file.text, avro_file.optional, avro_file.array
    numbers = avro_file.long(len(vector_D)) + vector_D.astype("<f4").tobytes() + avro_file.long(0)
    allowed = [text(name) + optional(array([*map(text, of)])) + optional(None) for name, of in point.allowed.items()]
    values = []
    for name, value in point.values.items():
        whole = avro_file.long(value) if isinstance(value, int) else None
        double = None if isinstance(value, int) else struct.pack("<d", value)
        values.append(text(name) + optional(whole) + optional(None) + optional(double))
    return b"".join(
        (
            text(point.id),
            numbers,
            optional(None),
            optional(array(allowed) if allowed else None),
            optional(array(values) if values else None),
            optional(text(point.crowd) if point.crowd else None),
        )
    )


def _index(vectors: Vectors, address: str) -> dict[str, Any]:
    """What `--metadata-file` of `gcloud ai indexes create` takes."""
    data = f"{address}/data" if address.startswith("gs://") else "gs://BUCKET/passages/data"
    size = 4 * vectors.dimension * vectors.rows
    tree = {"leafNodeEmbeddingCount": 1000, "leafNodesToSearchPercent": 10}
    return {
        "contentsDeltaUri": data,
        "config": {
            "dimensions": vectors.dimension,
            "approximateNeighborsCount": 150,
            "distanceMeasureType": "DOT_PRODUCT_DISTANCE",
            "featureNormType": "NONE",
            "shardSize": f"SHARD_SIZE_{next((name for most, name in _SHARDS if size < most), 'LARGE')}",
            "algorithmConfig": {"treeAhConfig": tree},
        },
    }
