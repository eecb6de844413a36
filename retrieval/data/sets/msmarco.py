"""The TSV files of MS MARCO (Nguyen et al. 2016), plain or .gz:

    collection.tsv         passage id, passage
    msmarco-docs.tsv       document id, url, title, body
    queries.*.tsv          query id, query

Fields are between tabs, and quotation marks mean nothing. A collection is of passages or of documents, as its first
line is. The url of a document stands before its title. A first line that names the columns is passed over, as of
pid and passage; MS MARCO's own files have none.
"""

import array
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from retrieval.common.errors import UserError
from retrieval.common.parsing import text_files
from retrieval.common.runtime import hashing
from retrieval.data.sets import beir, relevance
from retrieval.data.sets.beir import Candidate

# The fields of a collection's lines, by their number.
_COLLECTIONS = {2: ("passage id", "passage"), 4: ("document id", "url", "title", "body")}
Rows = Iterator[tuple[str, list[str]]]  # the fields of each line, after the place where it stands
_REPEATED: dict[tuple[Path, int, int], frozenset[int]] = {}  # by path, size and time of a file
_BEHIND_ID = re.compile(  # what people call the columns behind an id
    r"\s*(?:query|question|passage|document|text|contents?|body|title|url)(?:[ _-]text)?\s*", re.IGNORECASE
)


def read_collection(path: Path) -> Iterator[Candidate]:
    """The passages or documents, one after the other. An empty one is kept: it can be judged, and its place counts.

    Raises:
      UserError: the file cannot be read or is not UTF-8, a line has not two fields, of documents four, an id is not
        one, or two lines say different things of it; with the line.
    """
    for at, (id, *before, text) in distinct(path, lambda: _collection_rows(path), "passage id, tab, passage"):
        name = "document id" if before else "passage id"
        yield Candidate(beir.check_id(id, name, at), " ".join(filter(None, map(str.strip, before))), text)


def _collection_rows(path: Path) -> Rows:
    names, is_first = (), True
    for at, line in text_files.lines(path):
        if not names and not (names := _COLLECTIONS.get(line.count("\t") + 1, ())):
            known = ", or ".join(f"{number} between tabs: {', '.join(each)}" for number, each in _COLLECTIONS.items())
            raise UserError(f"{at}: {line.count(chr(9)) + 1} fields, expected {known}")
        if not (is_first and _names_columns(line)):
            yield at, fields(line.split("\t"), names, at)
        is_first = False


def read_queries(path: Path) -> dict[str, str]:
    """Query id -> query."""
    queries: dict[str, str] = {}
    again = 0
    for at, line in text_files.lines(path):
        if not queries and _names_columns(line):
            continue
        id, text = fields(line.split("\t"), ("query id", "query"), at)
        text_files.required(text, f"query '{id}'", at)
        again += beir.check_id(id, "query id", at) in queries
        if queries.setdefault(id, text) != text:
            raise UserError(f"{at}: the query id '{id}' is there twice, with another query; ids must be distinct")
    relevance.log_again(path, "queries", again)
    if not queries:
        raise UserError(f"{path}: no query in it; lines of query id, tab, query are needed")
    return queries


def distinct(path: Path, rows: Callable[[], Rows], needed: str) -> Rows:
    """The rows of a file, each after its place, without those that say again, word for word, what an earlier one says
    of the same id, the first field; the log counts them.

    A file is read for that once more, and not held: a set of MS MARCO's 8.8 million ids would take a gigabyte.

    Args:
      needed: what a line is, for errors.

    Raises:
      UserError: two rows say different things of one id, or there is none.
    """
    again, is_empty = _repeated(path, rows) if path.is_file() else (), True
    for number, row in enumerate(rows()):
        if number not in again:
            is_empty = False
            yield row
    if is_empty:
        raise UserError(f"{path}: no passage in it; lines of {needed} are needed")


def _repeated(path: Path, rows: Callable[[], Rows]) -> frozenset[int]:
    """The numbers of the rows that are there again."""
    look = path.stat()
    if (key := (path, look.st_size, look.st_mtime_ns)) not in _REPEATED:
        ids, texts = array.array("Q"), array.array("Q")
        for _, values in rows():
            ids.append(hashing.number(values[0]))
            texts.append(hashing.number(*values))
        ids_N, texts_N = np.asarray(ids, np.uint64), np.asarray(texts, np.uint64)
        _, first_N, row_N = np.unique(ids_N, return_index=True, return_inverse=True)
        first_N = first_N[row_N]
        again_N = np.flatnonzero(first_N != np.arange(len(ids_N)))
        if len(other := again_N[texts_N[again_N] != texts_N[first_N[again_N]]]):
            before, at = (next(itertools.islice(rows(), int(n), None))[0] for n in (first_N[other[0]], other[0]))
            line = before.rpartition(", ")[2]
            raise UserError(f"{at}: its id is there twice, with something else at {line}; ids must be distinct")
        _REPEATED[key] = frozenset(again_N.tolist())
        relevance.log_again(path, "lines", len(again_N))
    return _REPEATED[key]


def _names_columns(line: str) -> bool:
    """Whether a line of a collection or of queries has the names of its fields in their place."""
    id, *others = line.split("\t")
    return text_files.names_ids(id) and bool(others) and all(map(_BEHIND_ID.fullmatch, others))


def fields(values: list[str], names: Sequence[str], at: str) -> list[str]:
    """The fields of a line that was read at `at`, which must be as many as they have names."""
    if len(values) != len(names):
        raise UserError(f"{at}: {len(values)} fields, expected {len(names)} between tabs: {', '.join(names)}")
    return values
