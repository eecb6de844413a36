"""Relevance judgements: their grades, the qrels files of BEIR, and what becomes of judgements of unknown candidates."""

import functools
import logging
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from retrieval.common.errors import UserError
from retrieval.common.parsing import scalars, text_files

_log = logging.getLogger(__name__)

PAIR = "pair"  # the rule of ReQA that its paper reports
DOCUMENT = "document"  # the rule of labels that are documents: any passage of one answers
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
Qrels = dict[str, dict[str, int]]


def read(
    path: Path,
    rows: Iterable[Row],
    queries: Collection[str],
    candidates: Collection[str],
    among: str,
    dropped: Counter[str] | None = None,
) -> Qrels:
    """Query id -> candidate id -> grade, of the judgements of a file; what is said again is counted in the log.

    Args:
      among: the file with the candidates, for errors.
      dropped: counts judgements of unknown candidates, which are an error without it.

    Raises:
      UserError: a query or a candidate is unknown or is judged differently before, or no grade is above 0.
    """
    qrels, lost, again = Qrels(), set[str](), 0
    for at, query, candidate, grade in rows:
        if query not in queries:
            raise UserError(f"{at}: the query '{query}' is not among the set's, as of queries.jsonl; add or drop it")
        if candidate in candidates:
            grades = qrels.setdefault(query, {})
            again += candidate in grades
            if grades.setdefault(candidate, grade) != grade:
                raise UserError(f"{at}: query '{query}' and candidate '{candidate}' are judged twice, and differently")
        elif dropped is None:
            problem = f"the candidate '{candidate}' is not in {among}"
            raise UserError(f"{at}: {problem}; is it another collection? {DROP_ALL} leaves such judgements out")
        else:
            dropped.update({OUTSIDE: 1, RELEVANT_OUTSIDE: grade > 0})
            lost.add(query)
    log_again(path, "judgements", again)
    if dropped is not None and (lost := lost - qrels.keys()):
        dropped[LOST] += len(lost)
    if max((grade for grades in qrels.values() for grade in grades.values()), default=0) <= 0:
        raise UserError(f"{path}: no candidate in {among} has a grade above 0, of the queries that are asked")
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
    """
    expected = "4: query id, 0, candidate id, grade" if of_trec else f"3 between tabs: {', '.join(HEADER)}"
    for number, (at, line) in enumerate(text_files.lines(path)):
        fields = line.split() if of_trec else line.split("\t")
        if not (of_trec or number) and [field.strip().lower() for field in fields] == HEADER:
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
