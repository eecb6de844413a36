"""Ranked lists as TREC run files: `query-id Q0 candidate-id rank score tag` per line, ranks from 1."""

from array import array
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from retrieval.errors import UserError
from retrieval.files import atomic


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
      UserError: an id or the tag is empty or has white space in it, or a score is NaN or infinite.
    """
    if scores_QK.shape != rows_QK.shape or len(rows_QK) != len(query_ids):
        raise ValueError(f"scores {scores_QK.shape}, rows {rows_QK.shape}, {len(query_ids)} queries do not match")
    if (scores_QK[:, 1:] > scores_QK[:, :-1]).any():
        raise ValueError("the scores of a run rise with the rank")
    for kind, names in (("query id", query_ids), ("candidate id", candidate_ids), ("tag", [tag])):
        bad = next((name for name in names if len(name.split()) != 1 or name != name.strip()), None)
        if bad is not None:
            raise UserError(f"{kind} {bad!r}: a TREC run file cannot hold names that are empty or have white space")
    bad_scores = np.argwhere((rows_QK >= 0) & ~np.isfinite(scores_QK))
    if len(bad_scores):
        raise UserError(f"query '{query_ids[bad_scores[0][0]]}' has a score of NaN or infinity; the run is not written")
    with atomic(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        for query, scores, rows in zip(query_ids, scores_QK, rows_QK):
            found = [(score, row) for score, row in zip(scores.tolist(), rows.tolist()) if row >= 0]
            file.writelines(
                f"{query} Q0 {candidate_ids[row]} {rank} {score:.9g} {tag}\n"
                for rank, (score, row) in enumerate(found, start=1)
            )


def read_run(path: Path, query_ids: Sequence[str], candidate_ids: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Reads a run in the form that a search returns it.

    Returns:
      scores [Q, K] float32 and rows [Q, K] int32 (positions in `candidate_ids`), best first; K is the length of the
      longest list; -inf and -1 where a query has fewer results.

    Raises:
      UserError: a line is malformed, names an unknown query or candidate, has a score of NaN or infinity, repeats a
        candidate or a rank of its query, leaves out a rank, or scores higher than the rank before; the message
        names the file and, where it is one line, the line.
    """
    columns = _columns(Path(path), _numbers("query", query_ids), _numbers("candidate", candidate_ids))
    return _arrange(path, len(query_ids), *map(np.array, columns))


def _columns(path: Path, query_of: dict[str, int], row_of: dict[str, int]) -> tuple[array, array, array, array]:
    """The query number, candidate row, rank and score of every line."""
    queries, rows, ranks, scores = array("i"), array("i"), array("i"), array("f")
    if not path.is_file():
        raise UserError(f"{path}: no such run file")
    with open(path, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            try:
                query, _, candidate, rank, score, _ = line.split()
                queries.append(query_of[query])
                rows.append(row_of[candidate])
                ranks.append(int(rank))
                scores.append(float(score))
            except KeyError as error:
                raise UserError(f"{path}, line {number}: unknown query or candidate id {error}") from error
            except (ValueError, OverflowError) as error:
                expected = "expected 'query Q0 candidate rank score tag'"
                raise UserError(f"{path}, line {number}: {expected} ({error})") from error
    return queries, rows, ranks, scores


def _numbers(kind: str, ids: Sequence[str]) -> dict[str, int]:
    numbers = {name: number for number, name in enumerate(ids)}
    if len(numbers) != len(ids):
        raise UserError(f"{len(ids) - len(numbers)} {kind} ids occur more than once: ids must be unique")
    return numbers


def _arrange(path: Path, query_count: int, queries, rows, ranks, scores) -> tuple[np.ndarray, np.ndarray]:
    """Puts the lines of a run, given as columns, where their query and rank say."""
    _refuse(path, ~np.isfinite(scores), "the score is NaN or infinite")
    _refuse(path, ranks < 1, "ranks count from 1")
    _refuse(path, _repeated(queries, rows), "the candidate is listed twice for this query")
    _refuse(path, _repeated(queries, ranks), "the rank is given twice for this query")
    counts = np.bincount(queries, minlength=query_count)
    _refuse(path, ranks > counts[queries], "a smaller rank is missing for this query")
    scores_QK = np.full((query_count, counts.max(initial=1)), -np.inf, np.float32)
    rows_QK = np.full(scores_QK.shape, -1, np.int32)
    scores_QK[queries, ranks - 1], rows_QK[queries, ranks - 1] = scores, rows
    before = scores_QK[queries, np.maximum(ranks - 2, 0)]
    _refuse(path, scores > before, "the score is higher than that of the rank before")
    return scores_QK, rows_QK


def _repeated(queries: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Marks the lines whose (query, value) an earlier line has."""
    order = np.lexsort((values, queries))
    same = np.zeros(len(order), bool)
    same[1:] = (queries[order][1:] == queries[order][:-1]) & (values[order][1:] == values[order][:-1])
    repeated = np.empty_like(same)
    repeated[order] = same
    return repeated


def _refuse(path: Path, wrong: np.ndarray, why: str) -> None:
    if wrong.any():
        raise UserError(f"{path}, line {np.argmax(wrong) + 1}: {why}")
