"""Relevance judgements: their grades, the qrels files of BEIR, and what becomes of judgements of unknown candidates."""

import functools
import logging
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from retrieval.common.errors import UserError
from retrieval.common.parsing import scalars, text_files

_log = logging.getLogger(__name__)

PAIR = "pair"  # the rule of ReQA that its paper reports
REFUSE, DROP = "refuse", "drop"
UNKNOWN = "sets.unknown"  # the field with the two
DROP_ALL = f"config.{UNKNOWN}={DROP}"
# What is counted where judgements are dropped.
OUTSIDE, RELEVANT_OUTSIDE = "judgements outside of the candidates, left out", "of these relevant"
LOST = "queries that lose all their judgements so, left out"
HEADER = ["query-id", "corpus-id", "score"]
_WITHOUT_FRACTION = re.compile(r"(?<=[0-9])\.0+\Z")
_BOOLEANS = {"true": "1", "false": "0"}
_HIGHEST_GRADE = 1_000_000  # the metrics count with 32 bits


Row = tuple[str, str, str, int]  # place, query id, candidate id and grade of a line
# Query id -> candidate id -> its grade, and the place of the judgement.
Placed = dict[str, dict[str, tuple[int, str]]]
Qrels = dict[str, dict[str, int]]


def read(path: Path, rows: Iterable[Row]) -> Placed:
    """The judgements of a file, whose lines `rows` are; lines that say the same again are counted in the log.

    Raises:
      UserError: two lines say different things, or there is none.
    """
    judged: Placed = {}
    again = 0
    for at, query, candidate, score in rows:
        grades = judged.setdefault(query, {})
        again += candidate in grades
        if grades.setdefault(candidate, (score, at))[0] != score:
            raise UserError(f"{at}: query '{query}' and candidate '{candidate}' are judged twice, and differently")
    log_again(path, "judgements", again)
    if not judged:
        raise UserError(f"{path}: no judgement in it, so no query is left to evaluate")
    return judged


def check_queries(judged: Placed, queries: Collection[str], among: str) -> None:
    """Refuses judgements of a query that is not among those of a set."""
    if (unknown := next((id for id in judged if id not in queries), None)) is not None:
        _, at = next(iter(judged[unknown].values()))
        raise UserError(f"{at}: the query '{unknown}' is not in {among}; add it there, or drop the line")


def within(path: Path, judged: Placed, candidates: Collection[str], among: str, dropped: Counter[str] | None) -> Qrels:
    """Query id -> candidate id -> grade, of the judgements of a file.

    Args:
      among: the file with the candidates, for errors.
      dropped: counts judgements of unknown candidates, which are an error without it.

    Raises:
      UserError: a candidate is unknown, or no judgement is left, or none above 0.
    """
    qrels: Qrels = {}
    for query, grades in judged.items():
        for candidate, (grade, at) in grades.items():
            if candidate in candidates:
                qrels.setdefault(query, {})[candidate] = grade
            elif dropped is None:
                problem = f"the candidate '{candidate}' is not in {among}"
                raise UserError(f"{at}: {problem}; is it another collection? {DROP_ALL} leaves such judgements out")
            else:
                dropped[OUTSIDE] += 1
                dropped[RELEVANT_OUTSIDE] += grade > 0
    if dropped is not None and (lost := len(judged) - len(qrels)):
        dropped[LOST] += lost
    if not qrels:
        raise UserError(f"{path}: no judgement is of a candidate in {among}; are they of one collection?")
    if max(grade for grades in qrels.values() for grade in grades.values()) <= 0:
        raise UserError(f"{path}: no grade of the queries that are asked is above 0; write 1 for relevant")
    return qrels


@functools.cache
def log_again(path: Path, what: str, count: int) -> None:
    """Tells the log, once, how many lines of a file say again what another one has said."""
    if count:
        _log.warning("%s: %d %s are there again, and count once", path, count, what)


def judgements(path: Path, of_trec: bool = False) -> Iterator[Row]:
    """Place, query id, candidate id and grade of each line of a qrels file.

    Args:
      of_trec: whether its lines are query id, iteration (not read), candidate id and grade between tabs or blanks;
        otherwise they are BEIR's, between tabs, and the header is passed over.

    Raises:
      UserError: the file is broken; with the line.
    """
    expected = "4: query id, 0, candidate id, grade" if of_trec else f"3 between tabs: {', '.join(HEADER)}"
    for number, (at, line) in enumerate(text_files.lines(path)):
        fields = line.split() if of_trec else line.split("\t")
        if not of_trec and fields[-1].strip().lower() in HEADER:
            _check_header(fields, at, is_first=not number)
            continue
        if len(fields) != int(expected[0]):
            raise UserError(f"{at}: {len(fields)} fields, expected {expected}")
        yield at, fields[0], fields[-2], grade(fields[-1], at)


def grade(text: str, at: str) -> int:
    """The grade of a judgement, which may be written as 1.0, or as true or false.

    Raises:
      UserError: it is not an integer, or too large for what counts with it.
    """
    try:
        value = scalars.integer(_BOOLEANS.get(text.lower()) or _WITHOUT_FRACTION.sub("", text))
    except ValueError as error:
        raise UserError(f"{at}: the score '{text}' is not an integer; write 1 for relevant") from error
    if abs(value) > _HIGHEST_GRADE:
        raise UserError(f"{at}: the score '{text}' is out of range, it may be {_HIGHEST_GRADE} at most")
    return value


def _check_header(fields: Sequence[str], at: str, is_first: bool) -> None:
    names = [field.strip().lower() for field in fields]
    if names != HEADER:
        raise UserError(f"{at}: the columns {', '.join(names)} must be {', '.join(HEADER)}, in this order")
    if not is_first:
        raise UserError(f"{at}: a second header, as of files that were joined; drop the line")
