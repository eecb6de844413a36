"""Sparse vectors as JSON lines, which other systems index.

anserini    {"id": "d7", "contents": "", "vector": {"bomb": 139, "war": 41}}, weights in hundredths, whole; queries as
            lines of an id, a tab and each token as often as it weighs (`--impact --pretokenized`)
elastic     {"_id": "d7", "vector": {"bomb": 1.386294}}, for fields `rank_features` and `sparse_vector` of Elasticsearch
            and OpenSearch, queries too; their names have no dots, so "." is written as "_"
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from retrieval.common import files

_SCALE = 100
_NOTHING = {"[unused993]": 1}  # Anserini refuses a passage without a token; no text has this one


def write(
    folder: Path,
    form: str,
    tokens: Sequence[str],
    documents: tuple[Iterable[str], Any],
    queries: tuple[Iterable[str], Any],
) -> None:
    """Writes `FORM.jsonl` of the documents, and `FORM-queries.tsv` or `FORM-queries.jsonl`; each whole or not at all.

    Args:
      form: in `FORMATS`.
      tokens: of the vocabulary.
      documents, queries: the ids, and the vectors [N, V] in compressed rows.
    """
    suffix, of_document, of_query = _LINES[form]
    for name, line, vectors in (
        (f"{form}.jsonl", of_document, documents),
        (f"{form}-queries.{suffix}", of_query, queries),
    ):
        with files.atomic(folder / name) as temporary, temporary.open("w", encoding="utf-8") as file:
            file.writelines(line(*each) + "\n" for each in _vectors(tokens, *vectors))


def _vectors(tokens: Sequence[str], ids: Iterable[str], matrix_NV: Any) -> Iterator[tuple[str, dict[str, float]]]:
    """The id of each vector, and the weights of its tokens."""
    for id, start, end in zip(ids, matrix_NV.indptr[:-1], matrix_NV.indptr[1:], strict=True):
        terms, weights = matrix_NV.indices[start:end].tolist(), matrix_NV.data[start:end].tolist()
        yield id, {tokens[int(term)]: float(weight) for term, weight in zip(terms, weights)}


def _rounded(vector: dict[str, float]) -> dict[str, int]:
    return {token: whole for token, weight in vector.items() if (whole := int(np.rint(_SCALE * weight)))}


def _impacts(id: str, vector: dict[str, float]) -> str:
    return json.dumps({"id": id, "contents": "", "vector": _rounded(vector) or _NOTHING}, ensure_ascii=False)


def _repeated(id: str, vector: dict[str, float]) -> str:
    return f"{id}\t{' '.join(token for token, count in _rounded(vector).items() for _ in range(count))}"


def _weights(id: str, vector: dict[str, float]) -> str:
    named: dict[str, float] = {}
    for token, weight in vector.items():
        name = token.replace(".", "_")
        named[name] = max(named.get(name, 0.0), round(weight, 6))
    return json.dumps({"_id": id, "vector": named}, ensure_ascii=False)


# The end of the name of the queries' file, and a line of a document and of a query.
_LINES = {"anserini": ("tsv", _impacts, _repeated), "elastic": ("jsonl", _weights, _weights)}
FORMATS = tuple(_LINES)
