"""Ranked lists without the query itself, their metrics, and the weight of the dense list in the hybrid."""

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from ml_collections import ConfigDict

from retrieval.config import fields
from retrieval.data.sets import answers, beir
from retrieval.data.sets.beir import Candidate, Judged, own_rows
from retrieval.evaluation.by_article import Questions
from retrieval.runs.fitting import validation
from retrieval.runs.ranking import failures, fused, rankings
from retrieval.runs.ranking.fused import USUAL, Fusing, Weight, best_system, weight_of
from retrieval.runs.ranking.ranked_lists import Ranking
from retrieval.search.exact import ExactIndex
from retrieval.stages import evaluate


@pytest.mark.parametrize(("own", "expected"), [({"a": 0}, [1, 2]), ({}, [0, 1])])
def test_dropping_the_query_itself_leaves_a_full_list(own, expected):
    value = Judged("toy", {"a": "wings"}, ["a", "b", "c", "d"], own, {"test": {"a": {"b": 1}}})
    index = ExactIndex(np.array([[4.0], [3.0], [2.0], [1.0]], np.float32))
    ranking = rankings.search(value, 2, "dense", index, np.ones((1, 1), np.float32))
    assert ranking.rows.tolist() == [expected] and ranking.scores.shape == (1, 2)


class Lists:
    """An index that gives every query the same list, as deep as asked."""

    def __init__(self, *rows):
        self._rows = rows

    def search(self, queries, k):
        rows_QK = np.tile(np.array(self._rows[:k], np.int32), (len(queries), 1))
        return -np.arange(rows_QK.shape[1], dtype=np.float32) * np.ones(rows_QK.shape, np.float32), rows_QK


def chosen_weight(queries, words, dense, candidates):
    """The weight for queries whose gold is the last candidate, named 'gold'."""
    own = own_rows({id: id for id in queries}, [Candidate(id, "", id) for id in candidates])
    golds = [[candidates.index("gold")]] * len(queries)
    texts = {id: id for id in queries}
    value = rankings.Validation(texts, np.zeros((len(queries), 1)), golds, own, len(candidates))
    lists = [
        Ranking(system, np.ones((1, 1)), np.zeros((1, 1), int), 0, on_validation=partial(value.search, index, False, 4))
        for system, index in (("bm25", words), ("dense", dense))
    ]
    hybrid = fused.hybrid(*lists, golds, 4)
    settings = Fusing(("bm25", "dense"), False, ("weighted_sum",))
    (fusion,) = fused.fuse("toy", lists, settings, golds, 4)
    assert (fusion.validation, fusion.weights) == ((len(golds), hybrid.weights) if len(golds) > 9 else (0, (0.5, 0.5)))
    return hybrid.weights[1], hybrid.validation


OF_ARTICLES = ("Success@1", "Success@2", "RR")
ARTICLES = (
    ["q0", "q1", "q2", "q3"],
    ["a0", "a1", "b0", "b1", "b2", "x"],
    ["A", "A", "B", "B", "B", ""],
    {"q0": {"a1": 1}, "q1": {"b0": 1, "b2": 1}, "q2": {"x": 1}, "q3": {"a0": 1, "b0": 0}},
)


def test_any_passage_of_the_article_is_right():
    asked = Questions(*ARTICLES)
    assert asked.queries == ["q0", "q1", "q3"]  # the article of q2's passage is not known
    values = asked.anywhere(np.array([[2, 0], [5, -1], [0, 0], [3, 4]]), OF_ARTICLES)
    assert [values[name].tolist() for name in OF_ARTICLES] == [[0, 0, 0], [1, 0, 0], [0.5, 0, 0]]


def test_within_the_article_its_passages_alone_are_ranked():
    scores = np.array([[5, 4, 9, 9, 9, 9], [9, 9, 1, 3, 2, 9], [0] * 6, [1, 1, 9, 9, 9, 9]])
    asked = Questions(*ARTICLES)
    values = asked.within(lambda number, rows: scores[number][rows], 10, OF_ARTICLES)
    # Ties go to the smaller row.
    assert [values[name].tolist() for name in OF_ARTICLES] == [[0, 0, 1], [1, 1, 1], [0.5, 0.5, 1]]
    assert [len(value) for value in asked.within(lambda number, rows: rows, 2, OF_ARTICLES).values()] == [2, 2, 2]


def of_articles(qrels, articles):
    value = Judged("toy", {"q0": "a", "q1": "b"}, ["d0", "d1"], {}, qrels, articles=articles)
    lists = [Ranking("bm25", np.ones((2, 1)), np.array([[0], [1]]), 0)]
    return {each.split: each.queries for each in evaluate.by_articles(value, lists)}


def test_articles_are_those_of_every_rule():
    qrels = {"dev": {"q0": {"d0": 1}}, "test": {"q1": {"d1": 1}}}
    assert of_articles(qrels, ["A", "B"]) == {"article": ["q0", "q1"]}
    reqa = {"pair": {"q0": {"d0": 1}}, "sentence": {"q0": {"d1": 1}, "q1": {"d1": 1}}}
    assert of_articles(reqa, ["A", "B"]) == {"article": ["q0"]}


class DenseOf(Lists):
    """The gold (2) is first for the first `hits` questions, and last for the others."""

    def __init__(self, hits):
        self._hits = hits

    def search(self, queries, k):
        rows_QK = np.array([[2, 0, 1] if place < self._hits else [0, 1, 2] for place in range(len(queries))], np.int32)
        return -np.arange(3, dtype=np.float32) * np.ones(rows_QK.shape, np.float32), rows_QK[:, :k]


@pytest.mark.parametrize(("hits", "weight"), [(7, 0), (8, 0.55)])
def test_weights_change_only_beyond_chance(hits, weight):
    """BM25 has the gold second: a weight of 0.55 makes it first for `hits` questions, and third for the others.

    With 7 of 20 that is 0.067 points of RR more, with a standard error of 0.073; with 8 it is 0.100, and 0.075.
    """
    lists = Lists(0, 2, 1), DenseOf(hits)
    assert chosen_weight([f"q{number}" for number in range(20)], *lists, ["a", "b", "gold"])[0] == weight


def test_the_weight_is_chosen_without_the_question_itself():
    """Of twelve questions that are candidates too, each is first in both lists, and hides what the weight does.

    BM25's list is still full without it, and does not end with 0.
    """
    queries = [f"q{number}" for number in range(12)]
    candidates = [*queries, "a", "gold", "b", "c"]

    class OwnFirst(Lists):
        def __init__(self, *rows, last):
            super().__init__(*rows)
            self._last = last

        def search(self, queries, k):
            scores_QK, rows_QK = super().search(queries, k - 1)
            own_Q1 = np.arange(len(queries), dtype=np.int32)[:, None]
            scores_QK = np.concatenate([scores_QK[:, :1] + 5, scores_QK], axis=1)
            return scores_QK - scores_QK.min() + self._last, np.concatenate([own_Q1, rows_QK], axis=1)

    lists = OwnFirst(12, 13, 14, 15, last=7), OwnFirst(13, 12, 14, 15, last=-3)
    assert chosen_weight(queries, *lists, candidates) == (0.55, 12)


def test_a_question_is_no_result_of_its_own_validation(monkeypatch):
    candidates = [Candidate("a", "", "wings"), Candidate("x", "", "birds"), Candidate("b", "", "not fins")]
    queries = {"a": "wings", "b": "fins"}
    pool = validation.Pool(
        {"a": [1], "b": [2]}, {c.id: [[3]] for c in candidates}, {"a": {"x": 1}}, own_rows(queries, candidates)
    )
    assert pool.own == {"a": 0}
    embeddings = iter([np.eye(2, dtype=np.float32), np.array([[1.0, 0], [0.9, 0], [0, 1]], np.float32)])
    monkeypatch.setattr(validation, "check", lambda config: None)
    monkeypatch.setattr(validation, "_labelled_pool", lambda *_: pool)
    embedder = SimpleNamespace(
        queries=lambda params: None, documents=lambda params: None, embed_rows=lambda *_: next(embeddings)
    )
    monkeypatch.setattr(validation, "Embedder", lambda *_: embedder)
    config = dict(data=dict(rates=dict(pairs=1.0)))
    validate = validation.make(SimpleNamespace(config=ConfigDict(config)), None, SimpleNamespace(size=1))
    assert validate(None)["RR"] == 1


@pytest.mark.parametrize(
    ("qrels", "asked", "found"),
    [
        ({"pair": {"a": {"x": 1}}}, ("RR", "Answer@1", "Answer@2"), {"Answer@1": 0.5, "Answer@2": 1}),
        ({}, ("RR",), {"Answer@1": 0.5, "Answer@5": 1, "Answer@20": 1, "Answer@100": 1}),
    ],
)
def test_answers_count_without_judgements_or_on_request(tmp_path, qrels, asked, found):
    """'a' has its answer in the first passage and 'c' in the second; those of 'b' are not known, and it is no miss."""
    beir.write_candidates(
        tmp_path / "toy" / "corpus.jsonl", [Candidate("x", "", "In Rome."), Candidate("y", "", "No.")]
    )
    queries = {"a": "where?", "b": "why?", "c": "or?"}
    known = {"a": answers.of_texts(["rome"]), "c": answers.of_texts(["no"])}
    value = Judged("toy", queries, ["x", "y"], {}, qrels, known)
    ranking = Ranking("bm25", np.ones((3, 2)), np.array([[0, 1]] * 3), 1.0)
    names = evaluate.metrics_of_answers(value, asked, 100)
    scores = list(evaluate.by_answers(tmp_path / "toy", value, [ranking], names)) if names else []
    assert all(each.queries == ["a", "c"] and each.split == "answers" for each in scores)
    rows = evaluate.write_values(tmp_path, value.name, scores)
    assert {row["metric"]: row["value"] for row in rows} == found
    assert all(row["queries"] == 2 for row in rows)
    # Of ten results nothing is known of the twentieth.
    assert not {"Answer@20", "Answer@100"} & set(evaluate.metrics_of_answers(value, asked, 10))


@pytest.mark.parametrize(
    ("qrels", "asked", "measured"),
    [
        ({"test": {"a": {"x": 1, "y": 1}}}, (), evaluate.RANKING),  # BEIR's folder of Natural Questions
        ({"pair": {"a": {"x": 1, "y": 1}}}, (), evaluate.HITS),  # ReQA's set of it
        ({"test": {"a": {"x": 1}}}, (), evaluate.HITS),
        # A grade that nobody gave is no 0.
        ({"test": {"a": {"x": 1}}}, ("RR@10", "RR(rel=2)@10", "R(rel=3)@10"), ("RR@10",)),
        ({"test": {"a": {"x": 1}}}, ("RR(rel=2)@10",), evaluate.HITS),
    ],
)
def test_the_metrics_of_a_set_follow_from_its_judgements(qrels, asked, measured):
    ranking = Ranking("bm25", np.ones((1, 2)), np.array([[0, 1]]), 1.0)
    (scores,) = evaluate.by_judgements(Judged("toy", {"a": ""}, ["x", "y"], {}, qrels), ranking, asked)
    assert tuple(scores.values) == measured
    assert measured is evaluate.RANKING or all(values.tolist() == [1] for values in scores.values.values())


def test_a_weight_is_that_of_a_base_with_the_same_model(monkeypatch):
    """Unless the field says another; a hybrid whose weight nobody chose says nothing."""
    monkeypatch.setattr(fused, "details", lambda run, stage: run.told)

    def run(model, told=None, weight=0.5, evaluated=None):
        config = ConfigDict({"fuse": {"dense_weight": weight}})
        each = SimpleNamespace(folder=Path("runs/base"), config=config, told=told)
        each.owner = lambda stage: SimpleNamespace(folder=model) if stage == "train" else evaluated or each
        return each

    chosen = {"weights": [0.65, 0.35], "validation": 20}
    chosen = run("m", {"faq": {}, "faq, dense": {}, "faq, hybrid": chosen | {fused.CHOSEN_BY: "20 questions"}})
    equal = run("m", {"faq, hybrid": {"weights": [0.5, 0.5], "validation": 0}})
    assert weight_of(run("m"), [run("m"), equal, chosen]) == Weight(0.35, "20 questions of base")
    above = run("other", evaluated=chosen)  # a model that is not evaluated yet
    assert weight_of(above, [above]) == USUAL
    assert weight_of(run("other"), [chosen]) == weight_of(run("m"), [equal]) == USUAL
    assert weight_of(run("m", weight=0.2), [chosen]) == (0.2, USUAL.chosen_by)
    assert USUAL.dense == fields.defaults()["fuse.dense_weight"]


@pytest.mark.parametrize(("weight", "best"), [(0, "bm25"), (0.05, "hybrid"), (1, "dense")])
def test_the_weight_says_which_system_is_best(weight, best):
    assert best_system(Weight(weight, "12 validation questions"), "bm25") == best
    assert best_system(Weight(weight), "bm25") == ""


def test_questions_that_failed_are_shown_with_what_was_found_and_right(tmp_path):
    texts = {"d0": "the first text", "d1": "the second " + "very long " * 20, "d2": "the third"}
    lines = [json.dumps({"_id": id, "title": "", "text": text}) + "\n" for id, text in texts.items()]
    (tmp_path / "corpus.jsonl").write_text("".join(lines))
    queries = {f"q{number}": f"question {number}" for number in range(13)}
    grades = {query: {"d0": 1, "d1": 2, "d2": 0} for query in queries}
    known = {query: answers.of_texts(["third"]) for query in queries}
    value = Judged("toy", queries, [*texts, "x"], {}, {"test": grades}, known)
    values, rows = np.array([1.0] * 2 + [0.5] * 6 + [0.0] * 5), np.tile([[2, 3, -1]], (13, 1))
    found = failures.failed(tmp_path, value, "test", list(queries), "RR", values, rows)
    assert [each["question"] for each in found] == [f"question {number}" for number in (*range(8, 13), *range(2, 7))]
    assert found[0]["found"] == "[d2] the third · [x] " and found[0]["RR"] == 0
    first, second = found[0]["right"].split(" · ")
    assert first.startswith("[d1] the second very") and first.endswith("very ...") and len(first) < 110
    assert second == "[d0] the first text"
    (of_answers, *_) = failures.failed(tmp_path, value, "answers", list(queries), "Answer@20", values, rows)
    assert (
        of_answers["right"] == "third"
        and failures.failed(tmp_path, value, "test", ["q0"], "RR", values[:1], rows) == []
    )
