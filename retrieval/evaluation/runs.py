"""Ranked lists as TREC run files: `query-id Q0 candidate-id rank score tag` per line, ranks from 1."""

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
