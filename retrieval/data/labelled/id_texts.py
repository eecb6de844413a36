"""The texts of ids, where labelled examples have ids in place of texts.

`config.pairs.queries` and `config.pairs.collection` name them. Each is a TSV file of MS MARCO, or JSON lines or Parquet
with an id and a text, by the names that people use: (query_id, query), (passage_id, passage), (document_id, text),
(docid, title, text), (_id, title, text).
"""

import array
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from retrieval.common.errors import UserError
from retrieval.common.parsing import parquet_files, scalars, text_files
from retrieval.common.runtime import hashing
from retrieval.data.labelled import labelled_format
from retrieval.data.labelled.grouping import Counts, Example, example
from retrieval.data.labelled.labelled_format import Settings
from retrieval.data.labelled.record_fields import shown
from retrieval.data.sets import beir, msmarco
from retrieval.data.sets.beir import Candidate

_IDS = ("query_id", "qid", "document_id", "doc_id", "docid", "passage_id", "pid", "_id", "id")
_TEXTS = ("text", "query", "passage", "document", "contents", "body")


class TextsOfIds:
    """The texts that stand for ids; to be used in a `with` statement.

    Queries are held in memory; of documents, of which there may be millions, 16 bytes for each.
    """

    def __init__(self, settings: Settings, folder: Path):
        """Args:
        folder: where temporary files may lie.
        """
        self._settings, self._folder = settings, folder

    def __enter__(self) -> "TextsOfIds":
        """Reads the texts.

        Raises:
          UserError: a file has no ids and texts, or says different things of one id.
        """
        self._queries = {text.id: text.text for text in _texts(self._settings.queries, is_of_queries=True)}
        self._file = tempfile.TemporaryFile(dir=self._folder)
        digests, places = array.array("Q"), array.array("Q")
        for text in _texts(self._settings.collection):
            digests.append(hashing.number(text.id))
            places.append(self._file.tell())
            self._file.write(msgpack.packb([text.id, text.title, text.text]) or b"")
        order = np.argsort(np.asarray(digests, np.uint64), kind="stable")
        self._digests, self._places = (np.asarray(each, np.uint64)[order] for each in (digests, places))
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def example(self, of_ids: Example, at: str, counts: Counts) -> Example | None:
        """The texts of an example of ids, as `grouping.example` gives them."""
        positives, negatives = ([self.document(text.id, at) for text in side] for side in of_ids[1:3])
        return example(self.query(of_ids.query, at), positives, negatives, at, counts)

    def query(self, id: str, at: str) -> str:
        """The text of a query that is named at `at`."""
        if id not in self._queries:
            raise UserError(f"{at}: the query '{id}' is not among those of config.pairs.queries; name the file with it")
        return self._queries[id]

    def document(self, id: str, at: str) -> Candidate:
        """The text of a document that is named at `at`."""
        return self._read(self._row(id, at))

    def _row(self, id: str, at: str) -> int:
        digest = np.uint64(hashing.number(id))
        row = int(np.searchsorted(self._digests, digest))
        if row == len(self._digests) or self._digests[row] != digest:
            raise UserError(f"{at}: the document '{id}' is not in the collection; add one to config.pairs.collection")
        return row

    def _read(self, row: int) -> Candidate:
        self._file.seek(int(self._places[row]))
        return Candidate(*next(msgpack.Unpacker(self._file, read_size=1 << 12)))


def _texts(value: str, is_of_queries: bool = False) -> Iterator[Candidate]:
    """Ids with their titles and texts, of the files that a field names, each once."""
    for path in labelled_format.files(value):
        if parquet_files.is_parquet(path) or text_files.first_character(path) == "{":
            yield from (text for *_, text in beir.distinct(path, _records(path, is_of_queries)))
        elif is_of_queries:
            yield from (Candidate(id, "", text) for id, text in msmarco.read_queries(path).items())
        else:
            yield from msmarco.read_collection(path)


def _records(path: Path, is_of_queries: bool) -> Iterator[tuple[str, str, Candidate, Candidate]]:
    records = _rows(path) if parquet_files.is_parquet(path) else text_files.objects(path, '{"_id": ..., "text": ...}')
    for at, record in records:
        id, text = (_one(record, names, at) for names in (_IDS, _TEXTS))
        title = text_files.string(record, "title", at, default="")
        candidate = Candidate(scalars.of_value(record[id], id, at), title, text_files.string(record, text, at))
        if is_of_queries:
            text_files.required(candidate.text, f"query '{candidate.id}'", at)
        yield at, candidate.id, candidate, candidate


def _rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    there = parquet_files.columns(path)
    read = [_one(there, names, str(path)) for names in (_IDS, _TEXTS)]
    return parquet_files.rows(path, [*read, *(name for name in there if name == "title")])


def _one(there: Collection[str], names: tuple[str, ...], at: str) -> str:
    if name := next((name for name in names if name in there), ""):
        return name
    raise UserError(f"{at}: one of {', '.join(names)} is needed, and there are {shown(there)}")
