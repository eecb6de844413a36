"""Elasticsearch and OpenSearch: bodies of `_bulk` requests, and a mapping for each of the two."""

import json
from typing import Any

import numpy as np

from retrieval import files
from retrieval.errors import UserError
from retrieval.handover.number_text import numbers
from retrieval.handover.packed import packed
from retrieval.handover.target import Place, Target, register
from retrieval.handover.vectors import BIT, FLOAT32, INT8, INTEGER, NUMBER, SWITCH, TEXT, TEXTS, Vectors

_BYTES, _DOCUMENTS = 10_000_000, 100_000  # of a body
_ELASTIC_DIMENSIONS = 4096
_FIELDS = ("title", "text", "vector")
# A longer keyword is kept, and not searched for: Lucene has none of more than 32,766 bytes.
_KEYWORD = {"type": "keyword", "ignore_above": 8191}
_TYPES = {TEXT: _KEYWORD, TEXTS: _KEYWORD}
_TYPES |= {INTEGER: {"type": "long"}, NUMBER: {"type": "double"}, SWITCH: {"type": "boolean"}}
_LOAD = """E is the address of the server. In this folder, with the mapping of your system:

    curl --fail -X PUT "$E/passages" -H 'content-type: application/json' --data-binary @elasticsearch.json
    for body in bulk-*.ndjson; do
      curl --fail -X POST "$E/passages/_bulk?filter_path=errors,items.*.error" \\
        -H 'content-type: application/x-ndjson' --data-binary "@$body" || break
    done

Every answer has to say `"errors":false`. (`-d` in place of `--data-binary` would strip the line breaks.) The ten best
for a query of `check.jsonl`, in Elasticsearch and in OpenSearch:

    POST /passages/_search
    {"knn": {"field": "vector", "query_vector": VECTOR, "k": 10, "num_candidates": 200}, "_source": false}
    {"query": {"knn": {"vector": {"vector": VECTOR, "k": 10}}}, "size": 10, "_source": false}

Their scores are not inner products: compare ranks.
"""


@register
class Bulk(Target):
    """One writer, two mappings. Bits are signed bytes, which both take."""

    name, title, dtypes = "bulk", "Elasticsearch and OpenSearch", (FLOAT32, INT8, BIT)
    instead = "take float32 or int8; the index compresses what it searches by itself"
    dimensions = {FLOAT32: 16_000, INT8: 16_000, BIT: 16_000}
    id_bytes = 512
    load = _LOAD

    def check(self, vectors: Vectors) -> None:
        super().check(vectors)
        if taken := next((name for name in vectors.kinds if name in _FIELDS or name.startswith("_")), ""):
            raise UserError(f"config.handover.metadata: '{taken}' is a field of its own in {self.title}; rename it")

    def write(self, place: Place, vectors: Vectors, queries: Vectors | None) -> dict[str, int]:
        for name, vector, settings in _mappings(vectors):
            properties = {"title": {"type": "text"}, "text": {"type": "text"}, "vector": vector}
            properties |= {of: _TYPES[kind] for of, kind in vectors.kinds.items()}
            files.write_json(place.folder / name, settings | {"mappings": {"properties": properties}})
        documents = (
            f'{{"index":{{"_id":{_json(id)}}}}}\n'
            f'{{"vector":[{vector}], {_json({"title": title, "text": text, **metadata})[1:]}'
            for block in self.blocks(vectors)
            for (id, _, title, text, metadata), vector in zip(zip(*block), numbers(_signed(block.vectors)))
        )
        return packed(place.folder, "bulk-{:05}.ndjson", documents, _DOCUMENTS, _BYTES, ("", "\n", "\n"))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _signed(vectors_NS: np.ndarray) -> np.ndarray:
    return vectors_NS.view(np.int8) if vectors_NS.dtype == np.uint8 else vectors_NS


def _mappings(vectors: Vectors) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """The name of each file, the field of vectors in it, and the settings of an index."""
    # Vectors of another length than 1 are refused where the similarity is dot_product.
    similarity = "dot_product" if vectors.normalised and vectors.dtype == FLOAT32 else "max_inner_product"
    elastic = {
        FLOAT32: {"similarity": similarity, "index_options": {"type": "int8_hnsw"}},
        INT8: {"element_type": "byte", "similarity": similarity, "index_options": {"type": "hnsw"}},
        BIT: {"element_type": "bit", "index_options": {"type": "hnsw"}},
    }[vectors.dtype]
    open_search = {
        FLOAT32: {"space_type": "innerproduct"},
        INT8: {"space_type": "innerproduct", "data_type": "byte"},
        BIT: {"space_type": "hamming", "data_type": "binary"},
    }[vectors.dtype]
    size = vectors.dimension
    both = [
        ("elasticsearch.json", {"type": "dense_vector", "dims": size, **elastic}, {}),
        (
            "opensearch.json",
            {"type": "knn_vector", "dimension": size, **open_search},
            {"settings": {"index.knn": True}},
        ),
    ]
    return both if size <= _ELASTIC_DIMENSIONS else both[1:]
