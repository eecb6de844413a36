"""Relevance judgements: their grades, the qrels files of BEIR, and what becomes of judgements of unknown candidates."""

import functools
import logging
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from retrieval import numbers, text_files
from retrieval.errors import UserError

_log = logging.getLogger(__name__)

REFUSE, DROP = "refuse", "drop"
UNKNOWN = "sets.unknown"  # the field with the two
DROP_ALL = f"config.{UNKNOWN}={DROP}"
# What is counted where judgements are dropped.
OUTSIDE, RELEVANT_OUTSIDE = "judgements outside of the candidates, left out", "of these relevant"
LOST = "queries that lose all their judgements so, left out"
HEADER = ["query-id", "corpus-id", "score"]
_WITHOUT_FRACTION = re.compile(r"(?<=[0-9])\.0+\Z")
_HIGHEST_GRADE = 1_000_000  # the metrics count with 32 bits


def read(
    path: Path, queries: Collection[str], candidates: Collection[str], dropped: Counter[str] | None
) -> dict[str, dict[str, int]]:
    """Query id -> candidate id -> grade, of a qrels file of BEIR.

    Args:
      dropped: counts judgements of unknown candidates, which are an error without it.

    Raises:
      UserError: the file is broken, or a line names an unknown query or candidate; with the line.
    """
    qrels: dict[str, dict[str, int]] = {}
    again = 0
    with_unknown: set[str] = set()  # queries with a judgement of an unknown candidate
    for at, query, candidate, score in judgements(path):
        if query not in queries:
            raise UserError(f"{at}: the query '{query}' is not in queries.jsonl; add it there, or drop the line")
        if candidate not in candidates:
            if dropped is None:
                raise UserError(
                    f"{at}: the candidate '{candidate}' is not in corpus.jsonl; add it there, drop the line, or drop "
                    f"all such lines with {DROP_ALL}"
                )
            dropped[OUTSIDE] += 1
            dropped[RELEVANT_OUTSIDE] += score > 0
            with_unknown.add(query)
            continue
        grades = qrels.setdefault(query, {})
        again += candidate in grades
        if grades.setdefault(candidate, score) != score:
            raise UserError(f"{at}: query '{query}' and candidate '{candidate}' are judged twice, and differently")
    log_again(path, "judgements", again)
    if not qrels:
        outside = " of a candidate of the set" if dropped else ""
        raise UserError(f"{path}: no judgement{outside} in it, so no query is left to evaluate")
    check_relevant(qrels.values(), path)
    if dropped is not None and (lost := len(with_unknown - qrels.keys())):
        dropped[LOST] += lost
    return qrels


@functools.cache
def log_again(path: Path, what: str, count: int) -> None:
    """Tells the log, once, how many lines of a file say again what another one has said."""
    if count:
        _log.warning("%s: %d %s are there again, and count once", path, count, what)


def judgements(path: Path) -> Iterator[tuple[str, str, str, int]]:
    """Place, query id, candidate id and grade of each line of a qrels file of BEIR; the header is passed over.

    Raises:
      UserError: the file is broken; with the line.
    """
    is_first = True
    for at, line in text_files.lines(path):
        fields = line.split("\t")
        if fields[-1].strip().lower() in HEADER:
            _check_header(fields, at, is_first)
        else:
            yield at, *_judgement(fields, at)
        is_first = False


def grade(text: str, at: str) -> int:
    """The grade of a judgement, which may be written as 1.0.

    Raises:
      UserError: it is not an integer, or too large for what counts with it.
    """
    try:
        value = numbers.integer(_WITHOUT_FRACTION.sub("", text))
    except ValueError as error:
        raise UserError(f"{at}: the score '{text}' is not an integer; write 1 for relevant") from error
    if abs(value) > _HIGHEST_GRADE:
        raise UserError(f"{at}: the score '{text}' is out of range, it may be {_HIGHEST_GRADE} at most")
    return value


def check_relevant(judgements: Iterable[Mapping[str, int]], path: Path) -> None:
    """Checks that the grades of some query by candidate have one above 0.

    Raises:
      UserError: they have none, so every metric would be 0.
    """
    if not any(grade > 0 for grades in judgements for grade in grades.values()):
        raise UserError(
            f"{path}: no grade of the queries that are asked is above 0, so nothing is relevant; write 1 for relevant"
        )


def _check_header(fields: Sequence[str], at: str, is_first: bool) -> None:
    names = [field.strip().lower() for field in fields]
    if names != HEADER:
        raise UserError(f"{at}: the columns {', '.join(names)} must be {', '.join(HEADER)}, in this order")
    if not is_first:
        raise UserError(f"{at}: a second header, as of files that were joined; drop the line")


def _judgement(fields: list[str], at: str) -> tuple[str, str, int]:
    if len(fields) != 3:
        raise UserError(f"{at}: {len(fields)} fields, expected 3 between tabs: {', '.join(HEADER)}")
    return fields[0], fields[1], grade(fields[2], at)
