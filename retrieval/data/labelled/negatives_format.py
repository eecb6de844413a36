"""Files of queries with mined negatives, as other libraries have them.

    triplet         anchor, positive, negative                 a row for each positive and negative
    n-tuple         anchor, positive, negative_1, ...          a row for each positive, where all negatives were found
    labeled-pair    anchor, document, label                    a row for each document; 1 is a positive, 0 a negative
    labeled-list    anchor, documents, labels                  a row for each positive, with all negatives
    flagembedding   query, pos, neg, pos_scores, neg_scores    a row for each query
    tevatron        query_id, query, positive_passages, negative_passages

The first four are those of sentence-transformers, which goes by the order of columns; with scores they have "scores",
of the positive and then of the negatives, or have them in the place of labels. All but the last join a title and its
text by a blank.
"""

import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from retrieval.data.sets.beir import Candidate
from retrieval.errors import UserError
from retrieval.parsing import parquet_files
from retrieval.runtime import hashing

_LINES = ".jsonl"
_ROWS = 1000  # of Parquet that are written at a time


class Mined(NamedTuple):
    """A query with its documents; the scores are a model's, parallel to these."""

    query: str
    positives: list[Candidate]
    negatives: list[Candidate]
    positive_scores: list[float]
    negative_scores: list[float]


class Wanted(NamedTuple):
    """Attributes:
    negatives: of a query at most; an n-tuple has as many.
    scores: whether the scores of documents are written, where a format can do without.
    """

    negatives: int
    scores: bool = False


Record = dict[str, Any]


def write(path: Path, mined: Iterable[Mined], form: str, wanted: Wanted) -> int:
    """Writes Parquet or JSON lines, as the name ends; returns how many rows there are.

    Args:
      form: a name of FORMATS.
    """
    records = (record for each in mined for record in FORMATS[form](each, wanted))
    return (_write_parquet if path.suffix == parquet_files.SUFFIX else _write_lines)(path, records)


def check_name(path: Path) -> None:
    """Checks that the name of a file tells what it is to be."""
    if path.suffix not in (_LINES, parquet_files.SUFFIX):
        raise UserError(f"--out={path}: end the name in {_LINES} or {parquet_files.SUFFIX}, which is what is written")


def _write_lines(path: Path, records: Iterable[Record]) -> int:
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
            count += 1
    return count


def _write_parquet(path: Path, records: Iterable[Record]) -> int:
    """The first rows tell the types of the columns."""
    import pyarrow
    from pyarrow import parquet

    count, records = 0, iter(records)
    table = pyarrow.Table.from_pylist(list(itertools.islice(records, _ROWS)))
    with parquet.ParquetWriter(path, table.schema) as writer:
        while len(table):
            writer.write_table(table)
            count += len(table)
            table = pyarrow.Table.from_pylist(list(itertools.islice(records, _ROWS)), table.schema)
    return count


def _triplets(mined: Mined, wanted: Wanted) -> Iterator[Record]:
    for positive, score in zip(mined.positives, mined.positive_scores):
        for negative, other in zip(mined.negatives, mined.negative_scores):
            row = {"anchor": mined.query, "positive": _text(positive), "negative": _text(negative)}
            yield row | ({"scores": [score, other]} if wanted.scores else {})


def _tuples(mined: Mined, wanted: Wanted) -> Iterator[Record]:
    if len(mined.negatives) == wanted.negatives:
        negatives = {f"negative_{number}": _text(text) for number, text in enumerate(mined.negatives, 1)}
        for positive, score in zip(mined.positives, mined.positive_scores):
            row = {"anchor": mined.query, "positive": _text(positive), **negatives}
            yield row | ({"scores": [score, *mined.negative_scores]} if wanted.scores else {})


def _labelled_pairs(mined: Mined, wanted: Wanted) -> Iterator[Record]:
    sides = (mined.positives, mined.positive_scores, 1), (mined.negatives, mined.negative_scores, 0)
    for documents, scores, label in sides:
        for document, score in zip(documents, scores):
            row = {"anchor": mined.query, "document": _text(document)}
            yield row | ({"score": score} if wanted.scores else {"label": label})


def _labelled_lists(mined: Mined, wanted: Wanted) -> Iterator[Record]:
    if mined.negatives:
        for positive, score in zip(mined.positives, mined.positive_scores):
            row = {"anchor": mined.query, "documents": [_text(text) for text in (positive, *mined.negatives)]}
            labels = {"labels": [1] + [0] * len(mined.negatives)}
            yield row | ({"scores": [score, *mined.negative_scores]} if wanted.scores else labels)


def _by_query(mined: Mined, wanted: Wanted) -> Iterator[Record]:
    if mined.negatives:
        texts = {"pos": list(map(_text, mined.positives)), "neg": list(map(_text, mined.negatives))}
        scores = {"pos_scores": mined.positive_scores, "neg_scores": mined.negative_scores}
        yield {"query": mined.query, **texts, **scores}


def _passages(mined: Mined, wanted: Wanted) -> Iterator[Record]:
    if mined.negatives:
        sides = {
            f"{name}_passages": [{"docid": text.id, "title": text.title, "text": text.text} for text in texts]
            for name, texts in (("positive", mined.positives), ("negative", mined.negatives))
        }
        yield {"query_id": hashing.digest(mined.query).hex(), "query": mined.query, **sides}


def _text(document: Candidate) -> str:
    return " ".join(filter(None, (document.title, document.text)))


FORMATS: dict[str, Callable[[Mined, Wanted], Iterator[Record]]] = {
    "triplet": _triplets,
    "n-tuple": _tuples,
    "labeled-pair": _labelled_pairs,
    "labeled-list": _labelled_lists,
    "flagembedding": _by_query,
    "tevatron": _passages,
}
