"""The TSV files of MS MARCO (Nguyen et al. 2016), plain or .gz:

    collection.tsv         passage id, passage
    msmarco-docs.tsv       document id, url, title, body
    queries.*.tsv          query id, query

Fields are between tabs, and quotation marks mean nothing. A collection is of passages or of documents, as its first
line is. The url of a document stands before its title. A first line that names the columns is passed over, as of
pid and passage; MS MARCO's own files have none.
"""

import array
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from retrieval.data.sets import beir, relevance
from retrieval.data.sets.beir import Candidate
from retrieval.errors import UserError
from retrieval.parsing import text_files
from retrieval.runtime import hashing

# The fields of a collection's lines, by their number.
_COLLECTIONS = {2: ("passage id", "passage"), 4: ("document id", "url", "title", "body")}
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
    again, names, is_empty = repeated(path, lambda: _rows(path), "passage id"), (), True
    for number, line in enumerate(text_files.byte_lines(path), 1):
        at = f"{path}, line {number}"
        if number not in again and (text := text_files.decoded(line, at)):
            names = names or _kind(text, at)
            if not is_empty or not _names_columns(text):
                is_empty = False
                yield _passage(text, names, at)
    if is_empty:
        raise UserError(f"{path}: no passage in it; lines of passage id, tab, passage are needed")


def read_queries(path: Path) -> dict[str, str]:
    """Query id -> query."""
    queries: dict[str, str] = {}
    again = 0
    for at, line in text_files.lines(path):
        if not queries and _names_columns(line):
            continue
        id, text = fields(line, ("query id", "query"), at)
        if not text.strip():
            raise UserError(f"{at}: the query '{id}' is empty; write one, or drop the line")
        again += beir.check_id(id, "query id", at) in queries
        if queries.setdefault(id, text) != text:
            raise UserError(f"{at}: the query id '{id}' is there twice, with another query; ids must be distinct")
    relevance.log_again(path, "queries", again)
    if not queries:
        raise UserError(f"{path}: no query in it; lines of query id, tab, query are needed")
    return queries


def repeated(path: Path, rows: Callable[[], Iterable[tuple[int, str, str]]], name: str) -> frozenset[int]:
    """The numbers of lines that say again, word for word, what an earlier one says of the same id; the log counts them.

    A file is read for that once, and not held: a set of MS MARCO's 8.8 million ids would take a gigabyte.

    Args:
      rows: gives the number, the id and the text of each line.
      name: of the id.

    Raises:
      UserError: two lines say different things of one id.
    """
    if not path.is_file():  # which its reader tells
        return frozenset()
    look = path.stat()
    if (key := (path, look.st_size, look.st_mtime_ns)) not in _REPEATED:
        ids, texts, lines = array.array("Q"), array.array("Q"), array.array("Q")
        for line, id, text in rows():
            ids.append(hashing.number(id))
            texts.append(hashing.number(text))
            lines.append(line)
        ids_N, texts_N, lines_N = (np.asarray(values, np.uint64) for values in (ids, texts, lines))
        _, first_N, row_N = np.unique(ids_N, return_index=True, return_inverse=True)
        first_N = first_N[row_N]
        again_N = np.flatnonzero(first_N != np.arange(len(ids_N)))
        if len(other := again_N[texts_N[again_N] != texts_N[first_N[again_N]]]):
            line, before = lines_N[other[0]], lines_N[first_N[other[0]]]
            raise UserError(
                f"{path}, line {line}: its {name} is there twice, with something else at line {before}; ids must be "
                "distinct"
            )
        _REPEATED[key] = frozenset(lines_N[again_N].tolist())
        relevance.log_again(path, "lines", len(again_N))
    return _REPEATED[key]


def _rows(path: Path) -> Iterator[tuple[int, str, str]]:
    for number, line in enumerate(text_files.byte_lines(path), 1):
        if text := text_files.decoded(line, f"{path}, line {number}"):
            yield number, text.partition("\t")[0], text


def _kind(line: str, at: str) -> Sequence[str]:
    """The names of the fields of the collection that a line is of."""
    count = line.count("\t") + 1
    if count not in _COLLECTIONS:
        known = ", or ".join(f"{number} between tabs: {', '.join(names)}" for number, names in _COLLECTIONS.items())
        raise UserError(f"{at}: {count} fields, expected {known}")
    return _COLLECTIONS[count]


def _names_columns(line: str) -> bool:
    """Whether a line of a collection or of queries has the names of its fields in their place."""
    id, *others = line.split("\t")
    return text_files.names_ids(id) and bool(others) and all(map(_BEHIND_ID.fullmatch, others))


def _passage(line: str, names: Sequence[str], at: str) -> Candidate:
    id, *before, text = fields(line, names, at)
    return Candidate(beir.check_id(id, names[0], at), " ".join(filter(None, map(str.strip, before))), text)


def fields(line: str, names: Sequence[str], at: str) -> list[str]:
    """The fields of a line that was read at `at`, which must be as many as they have names."""
    values = line.split("\t")
    if len(values) != len(names):
        raise UserError(f"{at}: {len(values)} fields, expected {len(names)} between tabs: {', '.join(names)}")
    return values
