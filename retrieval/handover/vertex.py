"""Vertex AI Vector Search: a folder of JSON lines, and the metadata of an index.

Nothing but files of data may be in `data/`.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

from retrieval import files
from retrieval.errors import UserError
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
    """JSON lines, which indexes and collections of Vector Search 2.0 import."""

    name, title = "vertex", "Vertex AI Vector Search"
    load = _LOAD

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
            name = f"data/data-{number:05}.json"
            with (place.folder / name).open("wb") as file:
                self._write_block(file, block, [self._point(vectors, *row) for row in zip(block.ids, block.metadata)])
            rows[name] = len(block.ids)
        files.write_json(place.folder / "index.json", _index(vectors, place.address))
        return rows

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

    def _write_block(self, file: BinaryIO, block: Block, points: Sequence[Point]) -> None:
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
