"""Retrieval metrics through ir_measures, and the rule on candidates that are the query itself.

Some collections ask for the neighbours of a document, and their queries are candidates. BEIR's own evaluation drops
every candidate that has the query's id. In others (cranfield, cisi ...) queries and candidates are both numbered from 1
and share ids by accident. There dropping would hide right answers. The rule here: a candidate is the query itself only
where the id and the text are both the query's. `drop_self_matches` drops it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from retrieval.common.errors import UserError
from retrieval.common.libraries import ir_measures
from retrieval.common.registry import Table
from retrieval.evaluation import exact_match


class Metric(NamedTuple):
    """A metric by judgements: 'NAME', or 'NAME@k' for the first k results.

    Attributes:
      value: of one query, from the grades [K] of its results (best first; 0 where a result is not judged), all its
        judgements, and k (0 where none is given). None: ir_measures has a metric of this name.
      needs_cutoff: whether it must be written with '@k'.
      is_share: whether reports show it as a percentage.
    """

    value: Callable[[np.ndarray, Mapping[str, int], int], float] | None = None
    needs_cutoff: bool = False
    is_share: bool = True


class AnswerMetric(NamedTuple):
    """A metric by the answers that the texts of the results hold.

    Attributes:
      value: of one query, from what its results hold (bool [K], best first), and k (0 where none is given).
      needs_cutoff, is_share: as of a `Metric`.
    """

    value: Callable[[np.ndarray, int], float]
    needs_cutoff: bool = True
    is_share: bool = True


METRICS: Table[Metric | AnswerMetric] = Table("metric", word="metric")
for _name in ("AP", "P", "R", "RR", "Rprec", "Success", "nDCG"):
    METRICS.register(_name, Metric(needs_cutoff=_name in ("P", "R", "Success")))
# Top-k retrieval accuracy (Karpukhin et al. 2020, Table 2); ProQA calls it R@k.
METRICS.register("Answer", AnswerMetric(lambda holds_K, k: float(holds_K[: k or None].any())))

# What the stage `answer` measures: no list of results, but a reader's answers.
OF_ANSWERS = (exact_match.EM, exact_match.F1, exact_match.REGEX, exact_match.REGEX_ANYWHERE)

# The first of these judges a set: of graded lists, of MS MARCO, of single answers, and of open-domain questions.
_PRIMARY = ("nDCG@10", "RR@10", "RR", "Answer@20")

# Queries that are Python dictionaries at the same time: 5,000 with 100 results take about 100 MB.
_BATCH = 5_000

Qrels = Mapping[str, Mapping[str, int]]
"""Query id -> candidate id -> grade; above 0 is relevant."""


def evaluate(
    rows_QK: np.ndarray, query_ids: Sequence[str], candidate_ids: Sequence[str], qrels: Qrels, metrics: Sequence[str]
) -> dict[str, float]:
    """The mean of each metric over the queries that `qrels` judges; a judged query without results counts 0.

    97,888 queries with 100 results and 10 metrics take about 15 s.

    Args:
      rows_QK: positions in `candidate_ids`, best first; -1 where there is no result.
      query_ids: one per row of `rows_QK`.
      candidate_ids: one per candidate.
      metrics: names as ir_measures writes them, of AP, P, R, RR, Rprec, Success, nDCG: 'Success@1', 'R@100', 'RR',
        'RR@10', 'nDCG@10' ...; 'RR(rel=2)@10' counts only grades of 2 and more as relevant. `by_kind` checks them.
    """
    values = per_query(rows_QK, query_ids, candidate_ids, qrels, metrics)
    return {name: float(values_J.mean()) for name, values_J in values.items()}


def judged(query_ids: Sequence[str], qrels: Qrels) -> list[str]:
    """The queries that `qrels` judges, in the order of `query_ids`."""
    return [query for query in query_ids if qrels.get(query)]


def per_query(
    rows_QK: np.ndarray, query_ids: Sequence[str], candidate_ids: Sequence[str], qrels: Qrels, metrics: Sequence[str]
) -> dict[str, np.ndarray]:
    """The values [J] of each metric for the queries that `judged` gives; arguments are those of `evaluate`."""
    in_order = np.sort(rows_QK, axis=1)
    if ((in_order[:, 1:] == in_order[:, :-1]) & (in_order[:, 1:] >= 0)).any():
        raise ValueError("a run lists the same candidate twice for one query")
    queries = [(query, rows) for query, rows in zip(query_ids, rows_QK, strict=True) if qrels.get(query)]
    functions: dict[str, Any] = {name: own for name in metrics if (own := METRICS[_base(name)].value)}
    measures = {name: ir_measures.parse_measure(name) for name in metrics if name not in functions}
    columns = {key: np.zeros(len(queries)) for key in (*functions, *measures.values())}
    for start in range(0, len(queries), _BATCH):
        run, places = {}, {}
        for place, (query, rows_K) in enumerate(queries[start : start + _BATCH], start):
            rows: list[int] = rows_K.tolist()
            grades = qrels[query]
            # The scores fall strictly with the rank, so that no tie is left to a metric's own rule.
            run[query] = {candidate_ids[row]: float(-rank) for rank, row in enumerate(rows) if row >= 0}
            places[query] = place
            for name, function in functions.items():
                grades_K = np.array([grades.get(candidate_ids[row], 0) if row >= 0 else 0 for row in rows])
                columns[name][place] = function(grades_K, grades, cutoff(name))
        # Below 0 is as irrelevant as 0; where every grade is below -1, trec_eval writes outside of its memory.
        judged = {query: {candidate: max(grade, 0) for candidate, grade in qrels[query].items()} for query in run}
        for value in ir_measures.iter_calc(set(measures.values()), judged, run) if measures else ():
            columns[value.measure][places[value.query_id]] = value.value
    return {name: columns[measures.get(name, name)] for name in metrics}


def per_answered_query(holds_QK: np.ndarray, metrics: Sequence[str]) -> dict[str, np.ndarray]:
    """The values [Q] of each metric by answers, such as 'Answer@20', from whether results hold one: bool [Q, K]."""
    functions: dict[str, Any] = {name: METRICS[_base(name)].value for name in metrics}
    return {
        name: np.array([function(holds_K, cutoff(name)) for holds_K in holds_QK], float)
        for name, function in functions.items()
    }


def by_kind(metrics: Sequence[str]) -> tuple[list[str], list[str]]:
    """The metrics by judgements, and those by answers.

    Raises:
      UserError: one is unknown or written wrongly.
    """
    kinds: tuple[list[str], list[str]] = [], []
    for name in metrics:
        base, entry = _base(name), METRICS.find(_base(name))
        # ir_measures would hand a cutoff of 0 to trec_eval, which ends the process with a segmentation fault.
        grades = r"(\(rel=[1-9]\d*\))?" if entry.value is None else ""
        cut = re.fullmatch(rf"{grades}(?P<cut>@[1-9]\d*)?", name[len(base) :])
        if not cut or (entry.needs_cutoff and not cut["cut"]):
            raise UserError(f"metric '{name}' is written wrongly: give a cutoff of 1 or more, as in {base}@10")
        if entry.value is None:
            try:
                ir_measures.parse_measure(name).validate_params()
            except AssertionError as error:
                raise UserError(f"metric '{name}': {error}") from error
        kinds[isinstance(entry, AnswerMetric)].append(name)
    return kinds


def cutoff(metric: str) -> int:
    """How many results a metric looks at: 10 of 'nDCG@10', 0 where it takes all that there are."""
    return int(metric.rpartition("@")[2]) if "@" in metric else 0


def least_grade(metric: str) -> int:
    """The grade from which on a passage is relevant: 2 of 'RR(rel=2)@10', 1 where a metric says nothing."""
    written = re.search(r"\(rel=(\d+)\)", metric)
    return int(written[1]) if written else 1


def drop_self_matches(
    scores_QK: np.ndarray, rows_QK: np.ndarray, query_ids: Iterable[str], row_of_query: Mapping[str, int]
) -> tuple[np.ndarray, np.ndarray]:
    """The run without the candidates that are the query itself; what follows moves up, and -1 fills the end.

    Search for one more result than is needed, if there can be such candidates.

    Args:
      scores_QK, rows_QK: as returned by a search.
      row_of_query: query id -> row of the candidate that is the query itself, where there is one.
    """
    own_Q1 = np.array([[row_of_query.get(query, -1)] for query in query_ids], np.int32)
    own_QK = (rows_QK == own_Q1) & (rows_QK >= 0)
    order = np.argsort(own_QK, axis=1, kind="stable")
    scores_QK, rows_QK = np.where(own_QK, -np.inf, scores_QK), np.where(own_QK, -1, rows_QK)
    return np.take_along_axis(scores_QK, order, axis=1), np.take_along_axis(rows_QK, order, axis=1)


def is_share(name: str) -> bool:
    """Whether reports show a metric as a percentage. They may have metrics of a plugin that is not there."""
    entry = METRICS.get(_base(name))
    return name in OF_ANSWERS or (entry is not None and entry.is_share)


def main_rule(rules: Sequence[str]) -> str:
    """The rule of relevance, of those of a set, that a verdict on it is by."""
    return "test" if "test" in rules else next(iter(rules), "")


def primary(names: Iterable[str]) -> str | None:
    """The metric that judges a set: of those that were measured the first of `_PRIMARY`, else the first share."""
    shares = list(filter(is_share, names))
    return next((name for name in (*_PRIMARY, *shares) if name in shares), None)


def _base(name: str) -> str:
    """The metric without its cutoff: 'nDCG' of 'nDCG@10'; all of a name that begins as none does, such as '(RR'."""
    return re.split(r"\W", name, maxsplit=1)[0] or name
