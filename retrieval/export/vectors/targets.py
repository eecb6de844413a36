"""The systems that vectors are handed over to: `config.handover.to` names them.

table/     vectors/part-00000.parquet, ...: id, vector (fixed_size_list), title, text, metadata (JSON); vectors.json
           says what the vectors are, and so does each part's entry `retrieval.vectors`; queries/ and queries.json are
           the same of an evaluation set's queries
vertex/    data/data-00000.json, ..., JSON lines and nothing else; index.json, the metadata of an index
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.common.registry import Table
from retrieval.export.vectors.vectors import BLOCK, COLUMNS, DOCUMENT, PARENT, Block, Vectors, numbers

_MOST_FILES = 5000  # that Vertex takes
_SHARDS = ((2 << 30, "SMALL"), (20 << 30, "MEDIUM"))  # bytes that a shard of Vertex's holds; LARGE beyond


class Place(NamedTuple):
    """Where a target writes.

    Attributes:
      folder: an empty folder.
      address: where that will be in the end: a path, or an address on a store.
    """

    folder: Path
    address: str


class Target:
    """A system, and the files that it loads.

    Attributes:
      name: in the config, and of the folder.
      title: what people call it.
      load: how the folder is loaded and asked, for its README.
    """

    name: str
    title: str
    load: str = ""

    def check(self, vectors: Vectors) -> None:
        """Checks that it can be given these vectors, before any is written."""

    def write(self, place: Place, vectors: Vectors, queries: Vectors | None) -> dict[str, int]:
        """Writes the files; returns the rows of each that has rows, by its path below the folder.

        Args:
          queries: of an evaluation set.

        Raises:
          UserError: a row cannot be stored there.
        """
        raise NotImplementedError(f"the target '{self.name}' has no write()")


TARGETS: Table[Target] = Table("target")


def register(target: type[Target]) -> type[Target]:
    """Adds a target to TARGETS. To be used as a decorator."""
    TARGETS.register(target.name, target())
    return target


@register
class NeutralTable(Target):
    """Parquet, which most systems read. Texts are compressed, vectors are not: that would hardly make them smaller."""

    name, title = "table", "a table of Parquet"
    load = "The commands of DuckDB, LanceDB, Hugging Face's `datasets` and Milvus are in docs/guides/handover.md.\n"

    def write(self, place: Place, vectors: Vectors, queries: Vectors | None) -> dict[str, int]:
        from pyarrow import parquet

        rows: dict[str, int] = {}
        for name, side in (("vectors", vectors), ("queries", queries)):
            if side:
                (place.folder / name).mkdir()
                compression: Any = dict.fromkeys({*COLUMNS} - {"vector"}, "zstd")
                options: Any = {"compression": compression, "use_dictionary": []}
                parts = {}
                for number, block in enumerate(side.blocks()):
                    part = f"{name}/part-{number:05}.parquet"
                    parquet.write_table(_table(side, block), place.folder / part, row_group_size=BLOCK, **options)
                    parts[part] = len(block.ids)
                files.write_json(place.folder / f"{name}.json", side.described | {"parts": len(parts)})
                rows |= parts
        return rows


def _table(vectors: Vectors, block: Block) -> Any:
    import pyarrow as pa

    flat = pa.array(np.ascontiguousarray(block.vectors).reshape(-1))
    metadata = [json.dumps(of, ensure_ascii=False, sort_keys=True) for of in block.metadata]
    vectors_N = pa.FixedSizeListArray.from_arrays(flat, vectors.dimension)
    texts = [pa.array(column, pa.string()) for column in (block.ids, block.titles, block.texts, metadata)]
    columns: list[Any] = [texts[0], vectors_N, *texts[1:]]
    form = [pa.field(name, column.type, nullable=False) for name, column in zip(COLUMNS, columns)]
    entry = {"retrieval.vectors": json.dumps(vectors.described, ensure_ascii=False)}
    return pa.Table.from_arrays(columns, schema=pa.schema(form, metadata=entry))


@register
class Vertex(Target):
    """JSON lines, which indexes and collections of Vector Search 2.0 import."""

    name, title = "vertex", "Vertex AI Vector Search"
    load = """Copy `data/` to a bucket, and name it in `contentsDeltaUri` of `index.json`, which already has it where
config.handover.out was an address on Cloud Storage:

    gcloud storage cp -r data gs://BUCKET/passages/
    gcloud ai indexes create --metadata-file=index.json --display-name=passages --region=REGION

Put nothing else into `data/`. Of passages it has ids, vectors and metadata: texts are in the target `table`.
"""

    def check(self, vectors: Vectors) -> None:
        if vectors.rows > (most := _MOST_FILES * BLOCK):
            raise UserError(f"config.handover.to={self.name}: {vectors.rows:,} vectors; {most:,} are the most")

    def write(self, place: Place, vectors: Vectors, queries: Vectors | None) -> dict[str, int]:
        (place.folder / "data").mkdir()
        rows = {}
        for number, block in enumerate(vectors.blocks()):
            name = f"data/data-{number:05}.json"
            with (place.folder / name).open("w", encoding="utf-8") as file:
                for id, vector, title, metadata in zip(block.ids, numbers(block.vectors), block.titles, block.metadata):
                    crowd = metadata.get(PARENT) or metadata.get(DOCUMENT)
                    record = {"embedding_metadata": {"title": title, **metadata}}
                    record |= {"crowding_tag": crowd} if crowd else {}
                    shown_id, rest = (json.dumps(each, ensure_ascii=False) for each in (id, record))
                    file.write(f'{{"id": {shown_id}, "embedding": [{vector}], {rest[1:]}\n')
            rows[name] = len(block.ids)
        files.write_json(place.folder / "index.json", _vertex_index(vectors, place.address))
        return rows


def _vertex_index(vectors: Vectors, address: str) -> dict[str, Any]:
    """What `--metadata-file` of `gcloud ai indexes create` takes."""
    size, tree = 4 * vectors.dimension * vectors.rows, {"leafNodeEmbeddingCount": 1000, "leafNodesToSearchPercent": 10}
    shard = f"SHARD_SIZE_{next((name for most, name in _SHARDS if size < most), 'LARGE')}"
    config = {"dimensions": vectors.dimension, "approximateNeighborsCount": 150}
    config |= {"distanceMeasureType": "DOT_PRODUCT_DISTANCE", "featureNormType": "NONE", "shardSize": shard}
    config |= {"algorithmConfig": {"treeAhConfig": tree}}
    place = f"{address}/data" if address.startswith("gs://") else "gs://BUCKET/passages/data"
    return {"contentsDeltaUri": place, "config": config}
