"""The TSV files of MS MARCO (Nguyen et al. 2016), plain or .gz:

    collection.tsv         passage id, passage
    msmarco-docs.tsv       document id, url, title, body
    queries.*.tsv          query id, query
    triples.*.tsv          query, positive, negative
    qidpidtriples.*.tsv    the same as ids

Fields are between tabs, and quotation marks mean nothing. A collection is of passages or of documents, as its first
line is. The url of a document stands before its title. A first line that names the columns is passed over, as of
pid and passage; MS MARCO's own files have none.
"""

import array
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from retrieval.data.labelled.grouping import Counts, Example, example, grouped
from retrieval.data.sets import beir, relevance
from retrieval.data.sets.beir import Candidate
from retrieval.errors import UserError
from retrieval.parsing import text_files
from retrieval.runtime import hashing

# The fields of a collection's lines, by their number.
_COLLECTIONS = {2: ("passage id", "passage"), 4: ("document id", "url", "title", "body")}
_TRIPLE = ("query", "positive", "negative")
_NAMES_OF_QUERIES = ("query", "question", "anchor")  # in a line that names the columns
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
    return (passage for _, passage in _passages(path))


def read_queries(path: Path) -> dict[str, str]:
    """Query id -> query."""
    queries: dict[str, str] = {}
    again = 0
    for at, line in text_files.lines(path):
        if not queries and _names_columns(line):
            continue
        id, text = _fields(line, ("query id", "query"), at)
        if not text.strip():
            raise UserError(f"{at}: the query '{id}' is empty; write one, or drop the line")
        again += beir.check_id(id, "query id", at) in queries
        if queries.setdefault(id, text) != text:
            raise UserError(f"{at}: the query id '{id}' is there twice, with another query; ids must be distinct")
    relevance.log_again(path, "queries", again)
    if not queries:
        raise UserError(f"{path}: no query in it; lines of query id, tab, query are needed")
    return queries


def read_triples(path: Path, counts: Counts) -> Iterator[Example]:
    """The triples of texts, one after the other.

    Raises:
      UserError: as `read_collection`, for three fields, or a query is empty, or the line names the columns.
    """
    for at, line in text_files.lines(path):
        query, *texts = _fields(line, _TRIPLE, at)
        if query.strip().lower() in _NAMES_OF_QUERIES and len(texts[0].split()) == 1:
            raise UserError(f"{at}: the names of columns, and no triple; drop the line")
        positives, negatives = ([Candidate("", "", text)] for text in texts)
        if triple := example(query, positives, negatives, at, counts):
            yield triple


def read_id_triples(
    path: Path, queries: Path, collection: Path, folder: Path, pool: int, counts: Counts
) -> Iterator[Example]:
    """The triples of ids, by query, with the texts that `queries` and `collection` have for them.

    Queries are held in memory; of passages, of which there may be millions, 16 bytes for each.

    Args:
      folder: where temporary files may lie.
      pool: negatives that a query keeps, drawn by a hash: the others need no text.

    Raises:
      UserError: as the readers of the three files, or a triple names an unknown query or passage.
    """
    known = read_queries(queries)
    with Passages(collection, folder) as passages:
        triples = _id_triples(path, known, passages, queries)
        of_ids = Counts()
        with grouped(triples, folder, pool, of_ids, key=lambda passage: passage.id) as groups:
            for query, *ids in (group[:3] for group in groups):
                positives, negatives = ([passages[passage.id] for passage in side] for side in ids)
                if of_query := example(known[query], positives, negatives, f"{path}, query '{query}'", counts):
                    yield of_query
        for what, number in of_ids.left_out.items():
            counts.left_out[f"ids of {what}"] += number


def read_id_triples_in_order(
    path: Path, queries: Path, collection: Path, folder: Path, counts: Counts
) -> Iterator[Example]:
    """The triples of ids in the order of the file. Arguments and errors are those of `read_id_triples`."""
    known = read_queries(queries)
    with Passages(collection, folder) as passages:
        for number, triple in enumerate(_id_triples(path, known, passages, queries), 1):
            query, *ids = triple[:3]
            positives, negatives = ([passages[passage.id] for passage in side] for side in ids)
            if triple := example(known[query], positives, negatives, f"{path}, line {number}", counts):
                yield triple


def read_ids(path: Path) -> Iterator[tuple[str, Example]]:
    """The triples of ids without their texts, each after the place where it stands."""
    for at, line in text_files.lines(path):
        query, *ids = _fields(line, ("query id", "positive id", "negative id"), at)
        positives, negatives = ((Candidate(id, "", ""),) for id in ids)
        yield at, Example(query, positives, negatives)


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


class Passages:
    """Passages or documents by id, read from the disk when they are asked for; to be used in a `with` statement.

    What is compressed, or UTF-16, is written as plain UTF-8 into a temporary file without a name.
    """

    def __init__(self, path: Path, folder: Path):
        """Raises:
        UserError: as `read_collection`.
        """
        self._path = path
        self._folder = folder
        digests, places = array.array("Q"), array.array("Q")
        for place, passage in _passages(path):
            digests.append(hashing.number(passage.id))
            places.append(place)
        order = np.argsort(np.asarray(digests))
        self._digests, self._places = np.asarray(digests)[order], np.asarray(places)[order]

    def __enter__(self) -> "Passages":
        if text_files.is_plain(self._path):
            self._file = self._path.open("rb")
            return self
        self._file = tempfile.TemporaryFile(dir=self._folder)
        self._file.writelines(text_files.byte_lines(self._path))
        return self

    def __exit__(self, *_) -> None:
        self._file.close()

    def __contains__(self, id: str) -> bool:
        return self._digests[self._row(id)] == hashing.number(id)

    def __getitem__(self, id: str) -> Candidate:
        self._file.seek(int(self._places[self._row(id)]))
        line = text_files.decoded(self._file.readline(), str(self._path))
        return _passage(line, _kind(line, str(self._path)), str(self._path))

    def _row(self, id: str) -> int:
        """That of the id, where it is there."""
        return min(int(np.searchsorted(self._digests, np.uint64(hashing.number(id)))), len(self._digests) - 1)


def _passages(path: Path) -> Iterator[tuple[int, Candidate]]:
    """Each passage, after the byte at which its line begins, in what the file holds."""
    again, place, names, is_empty = repeated(path, lambda: _rows(path), "passage id"), 0, (), True
    for number, line in enumerate(text_files.byte_lines(path), 1):
        at = f"{path}, line {number}"
        if number not in again and (text := text_files.decoded(line, at)):
            names = names or _kind(text, at)
            if not is_empty or not _names_columns(text):
                is_empty = False
                yield place, _passage(text, names, at)
        place += len(line)
    if is_empty:
        raise UserError(f"{path}: no passage in it; lines of passage id, tab, passage are needed")


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
    id, *before, text = _fields(line, names, at)
    return Candidate(beir.check_id(id, names[0], at), " ".join(filter(None, map(str.strip, before))), text)


def _id_triples(path: Path, queries: Mapping[str, str], passages: Passages, names: Path) -> Iterator[Example]:
    """Those of `read_ids`, whose ids must be known."""
    for at, triple in read_ids(path):
        if (query := triple.query) not in queries:
            raise UserError(f"{at}: the query '{query}' is not in {names}; name its file in config.pairs.queries")
        for passage in (*triple.positives, *triple.negatives):
            if passage.id not in passages:
                raise UserError(
                    f"{at}: the passage '{passage.id}' is not in the collection; name its file in "
                    "config.pairs.collection"
                )
        yield triple


def _fields(line: str, names: Sequence[str], at: str) -> list[str]:
    fields = line.split("\t")
    if len(fields) != len(names):
        raise UserError(f"{at}: {len(fields)} fields, expected {len(names)} between tabs: {', '.join(names)}")
    return fields
