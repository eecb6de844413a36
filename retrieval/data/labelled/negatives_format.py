"""Files of queries with mined negatives, JSON lines, as the trainers of others read them.

    triplet     anchor, positive, negative             sentence-transformers: a row for each positive and negative
    n-tuple     anchor, positive, negative_1, ...      the same: a row for each positive, where all negatives were found
    tevatron    query_id, query, positive_passages, negative_passages

The first two go by the order of columns, and have a title before its text, with a blank between them.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from retrieval.common.runtime import hashing
from retrieval.data.labelled.grouping import Example
from retrieval.data.sets.beir import Candidate

TEVATRON = "tevatron"

Records = Iterator[dict[str, object]]


def write(path: Path, examples: Iterable[Example], form: str, count: int) -> int:
    """Writes the queries that have negatives; returns how many rows there are.

    Args:
      form: a name of FORMATS.
      count: negatives of an n-tuple.
    """
    rows = 0
    with path.open("w", encoding="utf-8") as file:
        for example in examples:
            for record in FORMATS[form](example, count):
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
                rows += 1
    return rows


def _triplets(example: Example, count: int) -> Records:
    for positive in example.positives:
        for negative in example.negatives:
            yield {"anchor": example.query, "positive": _joined(positive), "negative": _joined(negative)}


def _tuples(example: Example, count: int) -> Records:
    if len(example.negatives) == count:
        negatives = {f"negative_{number}": _joined(text) for number, text in enumerate(example.negatives, 1)}
        for positive in example.positives:
            yield {"anchor": example.query, "positive": _joined(positive), **negatives}


def _passages(example: Example, count: int) -> Records:
    sides = {
        f"{name}_passages": [{"docid": text.id, "title": text.title, "text": text.text} for text in texts]
        for name, texts in (("positive", example.positives), ("negative", example.negatives))
    }
    yield {"query_id": hashing.digest(example.query).hex(), "query": example.query, **sides}


def _joined(document: Candidate) -> str:
    return " ".join(filter(None, (document.title, document.text)))


FORMATS: dict[str, Callable[[Example, int], Records]] = {"triplet": _triplets, "n-tuple": _tuples, TEVATRON: _passages}
