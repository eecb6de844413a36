"""The questions that a system fails most, with what it found and what was right, for people to look at.

`evaluate` keeps them in what it tells of a set, for it has the rows of the ranked lists at hand.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from retrieval.data.sets.beir import Judged
from retrieval.data.sets.row_texts import RowTexts

FAILED = "failed"  # what is told of a set
_QUESTIONS, _SHOWN, _WIDTH = 10, 3, 100  # of a set, candidates of a question, characters of a text


def failed(
    folder: Path, value: Judged, rule: str, queries: list[str], metric: str, values_J: np.ndarray, rows_QK: np.ndarray
) -> list[dict[str, Any]]:
    """The ten questions of the lowest values, without those that are answered as well as can be.

    Args:
      folder: of the set.
      rule: of its judgements; one that it has not is of its answers.
      queries: ids of the questions [J] that have a value of the metric.
      rows_QK: the ranked lists of all queries of the set.
    """
    worst = [place for place in np.argsort(values_J, kind="stable")[:_QUESTIONS].tolist() if values_J[place] < 1]
    right = {place: _right(value, rule, queries[place]) for place in worst}
    wanted = set[str]().union(*right.values()) if rule in value.qrels else ()
    row_of = {id: row for row, id in enumerate(value.candidates) if id in wanted}
    rows_of = dict(zip(value.queries, rows_QK))
    with RowTexts([folder / "corpus.jsonl"]) as texts:

        def shown(row: int) -> str:
            text = texts[row].text if row < len(texts) else ""  # run files name candidates that the set has not
            return f"[{value.candidates[row]}] {_beginning(text)}"

        return [
            {
                "question": _beginning(value.queries[queries[place]]),
                "found": " · ".join(shown(row) for row in rows_of[queries[place]][:_SHOWN].tolist() if row >= 0),
                "right": " · ".join(shown(row_of[each]) if wanted else _beginning(each) for each in right[place]),
                metric: round(float(values_J[place]), 4),
            }
            for place in worst
        ]


def _right(value: Judged, rule: str, query: str) -> Sequence[str]:
    """Ids of the right candidates of a question, the best first; of a rule without judgements its answers."""
    if rule not in value.qrels:
        return value.answers[query].values[:_SHOWN]
    grades = value.qrels[rule][query]
    return sorted((id for id, grade in grades.items() if grade > 0), key=lambda id: -grades[id])[:_SHOWN]


def _beginning(text: str) -> str:
    """The beginning of a text, cut at a blank where there is one."""
    return text if len(text) <= _WIDTH else f"{text[:_WIDTH].rsplit(' ', 1)[0]} ..."
