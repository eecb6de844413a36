"""Ranked lists as TREC run files: `query-id Q0 candidate-id rank score tag` per line, ranks from 1.

Blanks in an id are written as in an address: `my notes.md` is `my%20notes.md`.
"""

import array
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from retrieval.common.errors import UserError
from retrieval.common.files import atomic
from retrieval.common.parsing import scalars, text_files
from retrieval.common.parsing.scalars import SEVERAL, in_run_file, numbered

# Columns of a line -> what they are, and the places of candidate, rank and score among them.
_FORMS: dict[int, tuple[str, tuple[int, int, int | None]]] = {
    6: ("query id, Q0, candidate id, rank, score, tag", (2, 3, 4)),
    3: ("query id, candidate id, rank (MS MARCO)", (1, 2, None)),
}

_RANK = re.compile(r"[0-9]{1,8}")
_NO_RANK = 10**9


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
    if (scores_QK[:, 1:] > scores_QK[:, :-1]).any():
        raise ValueError("the scores of a run rise with the rank")
    if tag.split() != [tag]:
        raise UserError(f"tag {tag!r}: a TREC run file cannot hold names that are empty or have white space")
    query_ids, candidate_ids = _names(query_ids, "query"), _names(candidate_ids, "candidate")
    bad_scores = np.argwhere((rows_QK >= 0) & ~np.isfinite(scores_QK))
    if len(bad_scores):
        raise UserError(f"query '{query_ids[bad_scores[0][0]]}' has a score of NaN or infinity; the run is not written")
    with atomic(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        for query, scores, rows in zip(query_ids, scores_QK, rows_QK, strict=True):
            results = [(score, row) for score, row in zip(scores.tolist(), rows.tolist(), strict=True) if row >= 0]
            for rank, (score, row) in enumerate(results, start=1):
                file.write(f"{query} Q0 {candidate_ids[row]} {rank} {score:.9g} {tag}\n")


def read_run(path: Path, query_ids: Sequence[str], candidate_ids: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
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
        two, repeats a candidate, has another rank than the next one, or has a score that is NaN, infinite or better
        than that of the rank before.
    """
    queries, candidates = numbered(query_ids), numbered(candidate_ids)
    columns = query_N, row_N, rank_N, score_N = tuple(array.array(code) for code in "iiif")
    first, has_ranks = "", False
    for at, query, candidate, rank, score in _results(path):
        query_N.append(_known(queries, query, "query", at))
        row_N.append(_known(candidates, candidate, "candidate", at))
        rank_N.append(int(rank) if _RANK.fullmatch(rank) else _NO_RANK)
        score_N.append(-rank_N[-1] if score is None else scalars.score(score, "score", at))
        first = first or rank
        has_ranks = has_ranks or rank != first or score is None
    query_N, row_N, rank_N, score_N = map(np.array, columns)
    if not first:
        raise UserError(f"{path}: no result in it; a line has {_FORMS[6][0]}")
    keys = (rank_N,) if has_ranks else (_by_name(row_N, candidate_ids), -score_N)
    order_N, numbers_N = np.lexsort((*keys, query_N)), np.arange(len(query_N))
    begins_N = np.diff(query_N[order_N], prepend=-1) != 0
    place_N = numbers_N - np.maximum.accumulate(np.where(begins_N, numbers_N, 0))
    _, once_N = np.unique(query_N.astype(np.int64) * len(candidate_ids) + row_N, return_index=True)
    faults = {"this candidate twice; keep one of the lines": np.setdiff1d(numbers_N, once_N)}
    if has_ranks:
        least, rises_N = min(int(rank_N.min()), 1), np.diff(score_N[order_N], prepend=np.inf) > 0
        needed = f"number its results {least}, {least + 1}, {least + 2} ..."
        faults[f"a rank that is not the next one; {needed}"] = order_N[rank_N[order_N] != place_N + least]
        faults["a better score than at the rank before; rank by score"] = order_N[rises_N & ~begins_N]
    for problem, lines in faults.items():
        if len(lines):
            at, line = next(itertools.islice(text_files.lines(path), int(lines[0]), None))
            raise UserError(f"{at}: query '{line.split()[0]}' has {problem}")
    shape = (len(query_ids), place_N.max() + 1)
    scores_QK, rows_QK = np.full(shape, -np.inf, np.float32), np.full(shape, -1, np.int32)
    places = query_N[order_N], place_N
    scores_QK[places], rows_QK[places] = score_N[order_N], row_N[order_N]
    return scores_QK, rows_QK


def check_beginning(path: Path) -> None:
    """Checks the first lines of a run."""
    for at, *_, score in itertools.islice(_results(path), 1000):
        if score is not None:
            scalars.score(score, "score", at)


def ids_in_runs(paths: Iterable[Path]) -> tuple[list[str], list[str]]:
    """The queries and the candidates that runs name, in the order in which they come: for runs without a collection.

    Raises:
      UserError: a line is not a result.
    """
    queries: dict[str, None] = {}
    candidates: dict[str, None] = {}
    for path in paths:
        for _, query, candidate, *_ in _results(path):
            queries.setdefault(query)
            candidates.setdefault(candidate)
    return list(queries), list(candidates)


class UnknownIdError(UserError):
    """A run file names a query or a candidate that its reader does not know."""


def _results(path: Path) -> Iterator[tuple[str, str, str, str, str | None]]:
    """The place of each line, and its query, candidate, rank and score; all lines have the form of the first."""
    width = 0
    for at, line in text_files.lines(path):
        fields = line.split()
        width = width or (len(fields) if len(fields) in _FORMS else 6)
        if len(fields) != width or "\0" in line:
            raise UserError(f"{at}: {len(fields)} columns, expected {width}: {_FORMS[width][0]}, without NUL")
        candidate, rank, score = _FORMS[width][1]
        yield at, fields[0], fields[candidate], fields[rank], None if score is None else fields[score]


def _names(ids: Sequence[str], kind: str) -> Sequence[str]:
    """Ids as a run file has them, each once."""
    names = list(map(in_run_file, ids))
    twice = names != list(ids) and next((name for name, count in Counter(names).items() if count > 1), None)
    if twice or not all(names):
        raise UserError(f"the {kind} id {twice or ''!r}: a TREC run file cannot tell it from another; rename it")
    return names


def _by_name(row_N: np.ndarray, candidate_ids: Sequence[str]) -> np.ndarray:
    """A number for each result by the name of its candidate, the last name first."""
    rows, of_row = np.unique(row_N, return_inverse=True)
    names = np.array([in_run_file(candidate_ids[int(row)]) for row in rows], object)
    return -np.argsort(np.argsort(names))[of_row]


def _known(ids: Mapping[str, int], id: str, kind: str, at: str) -> int:
    number = ids.get(id)
    if number is None:
        raise UnknownIdError(f"{at}: the {kind} '{id}' is unknown; is the run of another collection?")
    if number == SEVERAL:
        raise UserError(f"{at}: two ids of the set are the {kind} '{id}' in a run file, %20 for a blank; rename one")
    return number
