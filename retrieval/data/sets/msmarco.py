"""The TSV files of MS MARCO (Nguyen et al. 2016), plain or .gz:

    collection.tsv         passage id, passage
    msmarco-docs.tsv       document id, url, title, body
    queries.*.tsv          query id, query

Fields are between tabs, and quotation marks mean nothing. A collection is of passages or of documents, as its first
line is. The url of a document stands before its title. A first line whose id is called `pid` or the like names the
columns, and is passed over; MS MARCO's own files have none.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from retrieval.common.errors import UserError
from retrieval.common.parsing import text_files
from retrieval.data.sets import beir
from retrieval.data.sets.beir import Candidate

# The fields of a collection's lines, by their number.
_COLLECTIONS = {2: ("passage id", "passage"), 4: ("document id", "url", "title", "body")}
Rows = Iterator[tuple[str, list[str]]]  # the fields of each line, after the place where it stands


def read_collection(path: Path) -> Iterator[Candidate]:
    """The passages or documents, one after the other. An empty one is kept: it can be judged, and its place counts.

    Raises:
      UserError: the file cannot be read or is not UTF-8, a line has not two fields, of documents four, an id is not
        one, or two lines say different things of it; with the line.
    """
    for at, (id, *before, text) in distinct(path, _collection_rows(path)):
        name = "document id" if before else "passage id"
        yield Candidate(beir.check_id(id, name, at), " ".join(filter(None, map(str.strip, before))), text)


def _collection_rows(path: Path) -> Rows:
    names = ()
    for number, (at, line) in enumerate(text_files.lines(path)):
        row = line.split("\t")
        if not (names := names or _COLLECTIONS.get(len(row), ())):
            known = ", or ".join(f"{number} between tabs: {', '.join(each)}" for number, each in _COLLECTIONS.items())
            raise UserError(f"{at}: {len(row)} fields, expected {known}")
        if number or not text_files.names_ids(row[0]):
            yield at, fields(row, names, at)


def read_queries(path: Path) -> dict[str, str]:
    """Query id -> query."""
    lines = text_files.lines(path)
    rows = (
        (at, fields(line.split("\t"), ("query id", "query"), at))
        for number, (at, line) in enumerate(lines)
        if number or not text_files.names_ids(line.partition("\t")[0])
    )
    return {
        beir.check_id(id, "query id", at): text_files.required(text, f"query '{id}'", at)
        for at, (id, text) in distinct(path, rows)
    }


def distinct(path: Path, rows: Rows) -> Rows:
    """The rows of a file, whose first field is an id, as `beir.distinct` has them."""
    return ((at, row) for at, _, row in beir.distinct(path, ((at, row[0], tuple(row), row) for at, row in rows)))


def fields(values: list[str], names: Sequence[str], at: str) -> list[str]:
    """The fields of a line that was read at `at`, which must be as many as they have names."""
    if len(values) != len(names):
        raise UserError(f"{at}: {len(values)} fields, expected {len(names)} between tabs: {', '.join(names)}")
    return values
