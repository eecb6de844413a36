"""Metrics by hand and against numpy; the rule on self matches."""

import numpy as np
import pytest

from retrieval.common.errors import UserError
from retrieval.evaluation import metrics
from retrieval.evaluation.metrics import drop_self_matches, evaluate

CANDIDATES = [f"d{row}" for row in range(40)]


def reference(rows_QK, query_ids, qrels):
    """The metrics of every judged query from their definitions, as lists in the order of `query_ids`."""
    values = {name: [] for name in ("Success@1", "Success@5", "R@5", "R@100", "RR", "RR@3", "P@5", "nDCG@5", "AP")}
    values |= {"RR(rel=2)@3": [], "R(rel=2)@5": []}  # as TREC's deep learning tracks count passages
    for query, rows in zip(query_ids, rows_QK):
        if query not in qrels:
            continue
        grades = np.array([qrels[query].get(CANDIDATES[row], 0) if row >= 0 else 0 for row in rows])
        hits, relevant = grades > 0, sum(grade > 0 for grade in qrels[query].values())
        ranks = np.flatnonzero(hits) + 1
        discounts = 1 / np.log2(np.arange(2, 7))
        ideal = np.sort(np.maximum([*qrels[query].values(), 0, 0, 0, 0, 0], 0))[::-1][:5] @ discounts
        first = ranks[0] if len(ranks) else np.inf
        values["Success@1"].append(first <= 1)
        values["Success@5"].append(first <= 5)
        values["R@5"].append(hits[:5].sum() / max(relevant, 1))
        values["R@100"].append(hits.sum() / max(relevant, 1))
        values["RR"].append(1 / first)
        values["RR@3"].append(1 / first if first <= 3 else 0)
        values["P@5"].append(hits[:5].sum() / 5)
        values["nDCG@5"].append(grades[:5] @ discounts / ideal if ideal else 0)
        graded = np.flatnonzero(grades > 1) + 1
        values["RR(rel=2)@3"].append(1 / graded[0] if len(graded) and graded[0] <= 3 else 0)
        relevant_2 = sum(grade > 1 for grade in qrels[query].values())
        values["R(rel=2)@5"].append((grades[:5] > 1).sum() / max(relevant_2, 1))
        values["AP"].append(sum((place + 1) / rank for place, rank in enumerate(ranks)) / max(relevant, 1))
    return values


def random_case(seed):
    """30 queries: some without results, some not judged, some judged without a relevant candidate."""
    rng = np.random.default_rng(seed)
    query_ids = [f"q{number}" for number in range(30)]
    rows = rng.permuted(np.tile(np.arange(40), (30, 1)), axis=1)[:, :10]
    rows = np.where(np.arange(10) < rng.integers(0, 11, (30, 1)), rows, -1).astype(np.int32)
    qrels = {
        query: {CANDIDATES[row]: int(rng.integers(0, 4)) for row in rng.choice(40, rng.integers(1, 9), replace=False)}
        for query in query_ids[::-1]
        if rng.random() < 0.8
    }
    qrels[query_ids[0]] = {"d0": 0, "not in the corpus": 1}
    return rows, query_ids, qrels


def test_same_as_the_definitions(monkeypatch):
    monkeypatch.setattr(metrics, "_BATCH", 7)
    rows, query_ids, qrels = random_case(7)
    expected = reference(rows, query_ids, qrels)
    measured = evaluate(rows, query_ids, CANDIDATES, qrels, list(expected))
    assert measured == pytest.approx({name: float(np.mean(values)) for name, values in expected.items()})
    each = metrics.per_query(rows, query_ids, CANDIDATES, qrels, list(expected))
    assert all(each[name] == pytest.approx(np.array(values, float)) for name, values in expected.items())
    assert len(metrics.judged(query_ids, qrels)) == len(each["RR"])
    assert list(measured) == list(expected) and 0 < measured["Success@1"] < measured["Success@5"] < 1


def test_answers_among_the_first():
    found_QK = np.array([[False, True, True], [False] * 3, [True, False, False], [False, False, True]])
    names = ("Answer@1", "Answer@2", "Answer@100")
    found = {name: values_Q.tolist() for name, values_Q in metrics.per_answered_query(found_QK, names).items()}
    assert found == {"Answer@1": [0, 0, 1, 0], "Answer@2": [1, 0, 1, 0], "Answer@100": [1, 0, 1, 1]}


def test_a_wrong_metric_is_refused():
    wrong = {"Succes@1": "unknown metric 'Succes': did you mean Success", "R@1.5": "as in R@10"}
    for name, message in (wrong | {"nDCG(rel=2)@10": "unsupported params"}).items():
        with pytest.raises(UserError, match=message):
            metrics.by_kind(["RR", name])


def test_a_candidate_twice_is_refused():
    with pytest.raises(ValueError, match="same candidate twice"):
        evaluate(np.array([[0, 1, 0], [-1, -1, -1]]), ["a", "b"], CANDIDATES, {"a": {"d0": 1}}, ["RR"])


def test_only_the_query_itself_is_dropped():
    rows = np.array([[1, 0, 3], [1, 0, 3], [2, -1, -1], [0, 1, 2]], np.int32)
    scores = np.array([[9, 8, 7], [9, 8, 7], [9, -np.inf, -np.inf], [9, 8, 7]], np.float32)
    kept_scores, kept_rows = drop_self_matches(scores, rows, ["1", "2", "3", "4"], {"1": 0, "3": 2})
    assert kept_rows.tolist() == [[1, 3, -1], [1, 0, 3], [-1, -1, -1], [0, 1, 2]]
    assert kept_scores.tolist() == [[9, 7, -np.inf], [9, 8, 7], [-np.inf] * 3, [9, 8, 7]]
    assert kept_rows.dtype == np.int32 and kept_scores.dtype == np.float32


def test_judgements_below_zero_are_as_good_as_zero():
    """trec_eval, given nothing but such grades, writes outside of its memory: sooner or later the process dies."""
    rows, queries = np.array([[0, 1, 2, 3]] * 50, np.int32), [f"q{number}" for number in range(50)]
    negative = {query: {"d0": -number, "d1": -10 * number} for number, query in enumerate(queries)}
    assert set(evaluate(rows, queries, CANDIDATES, negative, ["nDCG@10", "RR", "AP"]).values()) == {0}
    mixed = {query: {"d0": -number, "d1": 1} for number, query in enumerate(queries)}
    assert evaluate(rows, queries, CANDIDATES, mixed, ["RR"]) == {"RR": 0.5}
