"""Ranked lists as TREC run files: `query-id Q0 candidate-id rank score tag` per line, ranks from 1.

Blanks in an id are written as in an address: `my notes.md` is `my%20notes.md`.
"""

import array
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from retrieval.errors import UserError
from retrieval.files import atomic
from retrieval.parsing import scalars
from retrieval.parsing.scalars import SEVERAL, in_run_file, numbered

# Columns of a line -> what they are, and the places of candidate, rank and score among them.
_FORMS: dict[int, tuple[str, tuple[int, int, int | None]]] = {
    6: ("query id, Q0, candidate id, rank, score, tag", (2, 3, 4)),
    3: ("query id, candidate id, rank (MS MARCO)", (1, 2, None)),
}

_RANK = re.compile(r"[0-9]{1,8}")
_LOOKED_AT = 1000  # lines that are enough to look at before a run

# Reads a file's lines, each after the place where it stands, as `data.text_files.lines` does.
Lines = Callable[[Path], Iterable[tuple[str, str]]]


def write_run(
    path: Path,
    query_ids: Sequence[str],
    candidate_ids: Sequence[str],
    scores_QK: np.ndarray,
    rows_QK: np.ndarray,
    tag: str,
) -> None:
    """Writes a run, whole or not at all; 97,888 queries with 100 results take about 10 s.

    Args:
      path: the file to write.
      query_ids: one per row of `rows_QK`.
      candidate_ids: one per candidate.
      scores_QK: not rising along a row. Nine digits are written, which give back the same float32.
      rows_QK: positions in `candidate_ids`, best first; places with -1 are left out.
      tag: the name of the system.

    Raises:
      UserError: an id is empty or is another one as a run file has it, the tag is empty or has white space, or a
        score is NaN or infinite.
    """
    if scores_QK.shape != rows_QK.shape or len(rows_QK) != len(query_ids):
        raise ValueError(f"scores {scores_QK.shape}, rows {rows_QK.shape}, {len(query_ids)} queries do not match")
    if (scores_QK[:, 1:] > scores_QK[:, :-1]).any():
        raise ValueError("the scores of a run rise with the rank")
    if tag.split() != [tag]:
        raise UserError(f"tag {tag!r}: a TREC run file cannot hold names that are empty or have white space")
    query_ids, candidate_ids = _names(query_ids, "query"), _names(candidate_ids, "candidate")
    bad_scores = np.argwhere((rows_QK >= 0) & ~np.isfinite(scores_QK))
    if len(bad_scores):
        raise UserError(f"query '{query_ids[bad_scores[0][0]]}' has a score of NaN or infinity; the run is not written")
    with atomic(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        for query, scores, rows in zip(query_ids, scores_QK, rows_QK):
            results = [(score, row) for score, row in zip(scores.tolist(), rows.tolist()) if row >= 0]
            file.writelines(
                f"{query} Q0 {candidate_ids[row]} {rank} {score:.9g} {tag}\n"
                for rank, (score, row) in enumerate(results, start=1)
            )


def read_run(
    path: Path, lines: Lines, query_ids: Sequence[str], candidate_ids: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Reads the run of any system, in a form of _FORMS. Lines may come in any order.

    Where a column has ranks, they decide, also between equal scores. They go 1, 2, 3 ... for every query or, in the
    whole file, 0, 1, 2 ... A column that is the same on all lines has none (BEIR writes 0): then scores decide, and
    between equal ones the id, the last first, as trec_eval has it.

    Args:
      query_ids, candidate_ids: all that the file may name.

    Returns:
      scores [Q, K] float32 and rows [Q, K] int32, as a search gives them; -inf and -1 where a query has fewer than K
      results, or none. Where there are no scores, minus the rank stands for them.

    Raises:
      UserError: the file has no result, or a line is not a result, names an unknown id or one that may be either of
        two, repeats a rank or a candidate, leaves a rank out, or has a score that is NaN, infinite or better than that
        of the rank before.
    """
    results = _numbered(_results(lines(path)), query_ids, candidate_ids)
    if not len(results.query):
        raise UserError(f"{path}: no result in it; a line has {_FORMS[6][0]}")
    fault = _repeated_candidate(results)
    if results.has_ranks:
        fault = fault or _no_rank(results) or _wrong_rank(results) or _rising_score(results)
    if fault:
        at, _ = next(itertools.islice(lines(path), fault.line, None))
        raise UserError(f"{at}: query '{query_ids[results.query[fault.line]]}' has {fault.problem}")
    place = results.rank - results.rank.min() if results.has_ranks else _places_by_score(results, candidate_ids)
    shape = (len(query_ids), place.max() + 1)
    scores_QK, rows_QK = np.full(shape, -np.inf, np.float32), np.full(shape, -1, np.int32)
    scores_QK[results.query, place], rows_QK[results.query, place] = results.score, results.row
    return scores_QK, rows_QK


def check_beginning(path: Path, lines: Lines) -> None:
    """Checks the first lines of a run."""
    for result in itertools.islice(_results(lines(path)), _LOOKED_AT):
        if result.score is not None:
            scalars.score(result.score, "score", result.at)


def ids_in_runs(paths: Iterable[Path], lines: Lines) -> tuple[list[str], list[str]]:
    """The queries and the candidates that runs name, in the order in which they come: for runs without a collection.

    Raises:
      UserError: a line is not a result.
    """
    queries: dict[str, None] = {}
    candidates: dict[str, None] = {}
    for path in paths:
        for result in _results(lines(path)):
            queries.setdefault(result.query)
            candidates.setdefault(result.candidate)
    return list(queries), list(candidates)


class UnknownIdError(UserError):
    """A run file names a query or a candidate that its reader does not know."""


class _Result(NamedTuple):
    """A line of a run file, and the place where it stands."""

    at: str
    query: str
    candidate: str
    rank: str
    score: str | None


class _Numbered(NamedTuple):
    """One value for every line of a run file: positions among the queries and the candidates, rank and score.

    Attributes:
      rank: -1 where it is no whole number from 0 on.
      score: minus the rank where there is none.
      has_ranks: whether the column of ranks has two different values, or there is no score.
    """

    query: np.ndarray
    row: np.ndarray
    rank: np.ndarray
    score: np.ndarray
    has_ranks: bool


def _results(lines: Iterable[tuple[str, str]]) -> Iterator[_Result]:
    """The results of a file, all in the form of the first."""
    width = 0
    for at, line in lines:
        fields = line.split()
        width = width or (len(fields) if len(fields) in _FORMS else 6)
        if len(fields) != width:
            raise UserError(f"{at}: {len(fields)} columns, expected {width}: {_FORMS[width][0]}")
        candidate, rank, score = _FORMS[width][1]
        yield _Result(at, fields[0], fields[candidate], fields[rank], None if score is None else fields[score])


def _names(ids: Sequence[str], kind: str) -> Sequence[str]:
    """Ids as a run file has them, each once."""
    names = list(map(in_run_file, ids))
    twice = names != list(ids) and next((name for name, count in Counter(names).items() if count > 1), None)
    if twice or not all(names):
        raise UserError(f"the {kind} id {twice or ''!r}: a TREC run file cannot tell it from another; rename it")
    return names


def _numbered(results: Iterable[_Result], query_ids: Sequence[str], candidate_ids: Sequence[str]) -> _Numbered:
    queries, rows = numbered(query_ids), numbered(candidate_ids)
    query, row, rank, score = (array.array(code) for code in "iiif")
    first, has_ranks = None, False
    for result in results:
        query.append(_known(queries, result.query, "query", result.at))
        row.append(_known(rows, result.candidate, "candidate", result.at))
        first = result.rank if first is None else first
        has_ranks = has_ranks or result.rank != first or result.score is None
        rank.append(int(result.rank) if _RANK.fullmatch(result.rank) else -1)
        score.append(-rank[-1] if result.score is None else scalars.score(result.score, "score", result.at))
    return _Numbered(np.array(query), np.array(row), np.array(rank), np.array(score), has_ranks)


def _places_by_score(results: _Numbered, candidate_ids: Sequence[str]) -> np.ndarray:
    """The place of each result among those of its query, from 0 on; of equal scores the last id comes first."""
    rows, of_row = np.unique(results.row, return_inverse=True)
    names = [in_run_file(candidate_ids[int(row)]) for row in rows]
    by_name = np.empty(len(rows), np.int64)
    by_name[sorted(range(len(rows)), key=names.__getitem__)] = np.arange(len(rows))
    order = np.lexsort((-by_name[of_row], -results.score, results.query))
    _, starts, counts = np.unique(results.query[order], return_index=True, return_counts=True)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order)) - np.repeat(starts, counts)
    return place


def _known(ids: Mapping[str, int], id: str, kind: str, at: str) -> int:
    number = ids.get(id)
    if number is None:
        raise UnknownIdError(f"{at}: the {kind} '{id}' is unknown; is the run of another collection?")
    if number == SEVERAL:
        raise UserError(
            f"{at}: two ids of the set are the {kind} '{id}' in a run file, which has %20 for a blank; rename one"
        )
    return number


class _Fault(NamedTuple):
    """A line that does not fit the others, counted from 0, and what its query has that is wrong."""

    line: int
    problem: str


def _repeated_candidate(results: _Numbered) -> _Fault | None:
    order = np.lexsort((results.row, results.query))
    query, row = results.query[order], results.row[order]
    for at in np.flatnonzero((query[1:] == query[:-1]) & (row[1:] == row[:-1])) + 1:
        return _Fault(order[at], "this candidate twice; keep one of the lines")
    return None


def _no_rank(results: _Numbered) -> _Fault | None:
    for at in np.flatnonzero(results.rank < 0).tolist():
        return _Fault(at, "a rank that is not a whole number from 0 on")
    return None


def _wrong_rank(results: _Numbered) -> _Fault | None:
    order = np.lexsort((results.rank, results.query))
    query, rank = results.query[order], results.rank[order]
    first = min(int(rank.min()), 1)
    expected = np.where(np.append(True, query[1:] != query[:-1]), first, np.append(0, rank[:-1]) + 1)
    for at in np.flatnonzero(rank != expected):
        problem = f"rank {rank[at]} twice" if rank[at] < expected[at] else f"no rank {expected[at]}"
        return _Fault(order[at], f"{problem}; number its results {first}, {first + 1}, {first + 2} ...")
    return None


def _rising_score(results: _Numbered) -> _Fault | None:
    order = np.lexsort((results.rank, results.query))
    query, rank, score = results.query[order], results.rank[order], results.score[order]
    for at in np.flatnonzero((query[1:] == query[:-1]) & (score[1:] > score[:-1])) + 1:
        return _Fault(order[at], f"a better score at rank {rank[at]} than at rank {rank[at - 1]}; rank by score")
    return None
