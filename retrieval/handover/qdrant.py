"""Qdrant: the bodies of the requests that make a collection and put its points."""

import json
import uuid
from typing import Any

from retrieval import files
from retrieval.errors import UserError
from retrieval.handover.number_text import numbers
from retrieval.handover.packed import packed
from retrieval.handover.target import Place, Target, register
from retrieval.handover.vectors import FLOAT16, FLOAT32, INTEGER, NUMBER, SWITCH, TEXT, TEXTS, Vectors

_POINTS, _BYTES = 1000, 24_000_000  # of a body; a server takes 32 MB
_PAYLOAD = ("id", "title", "text")
_SCHEMAS = {TEXT: "keyword", TEXTS: "keyword", INTEGER: "integer", NUMBER: "float", SWITCH: "bool"}
_LOAD = """Q is the address of the server, such as http://localhost:6333. In this folder:

    send() { curl --fail -X PUT "$Q/collections/passages$1" -H 'content-type: application/json' --data-binary "@$2"; }
    send "" collection.json
    for body in payload-index-*.json; do [ -e "$body" ] && send /index "$body"; done
    for body in points-*.json; do send /points "$body" || break; done

The ten best for a query of `check.jsonl`, whose true ids are in the payload:

    POST /collections/passages/points/query
    {"query": VECTOR, "using": "dense", "limit": 10, "with_payload": ["id"]}
"""


def point_id(id: str) -> str:
    """The id of a point: Qdrant has numbers and UUIDs alone."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"retrieval:{id}"))


@register
class Qdrant(Target):
    """Points have a vector `dense`, and as payload id, title, text and metadata."""

    name, title, dtypes = "qdrant", "Qdrant", (FLOAT32, FLOAT16)
    instead = "take float16, and add quantization_config to collection.json, for Qdrant makes codes itself"
    dimensions = {FLOAT32: 65_535, FLOAT16: 65_535}
    load = _LOAD

    def check(self, vectors: Vectors) -> None:
        super().check(vectors)
        if taken := next((name for name in vectors.kinds if name in _PAYLOAD), ""):
            raise UserError(f"config.handover.metadata: '{taken}' is a field of its own in Qdrant; rename it")

    def write(self, place: Place, vectors: Vectors, queries: Vectors | None) -> dict[str, int]:
        dense = {"size": vectors.dimension, "distance": "Dot", "datatype": vectors.dtype}
        files.write_json(place.folder / "collection.json", {"vectors": {"dense": dense}})
        for number, name in enumerate(vectors.columns):
            schema = {"field_name": name, "field_schema": _SCHEMAS[vectors.kinds[name]]}
            files.write_json(place.folder / f"payload-index-{number}.json", schema)
        points = (
            f'{{"id":"{point_id(id)}","vector":{{"dense":[{vector}]}},"payload":{_json(id, title, text, metadata)}}}'
            for block in self.blocks(vectors)
            for (id, _, title, text, metadata), vector in zip(zip(*block), numbers(block.vectors))
        )
        return packed(place.folder, "points-{:05}.json", points, _POINTS, _BYTES, ('{"points":[\n', ",\n", "\n]}\n"))


def _json(id: str, title: str, text: str, metadata: dict[str, Any]) -> str:
    return json.dumps({"id": id, "title": title, "text": text, **metadata}, ensure_ascii=False)
