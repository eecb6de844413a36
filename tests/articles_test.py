"""Right articles, and right passages within them, by hand."""

import numpy as np

from retrieval.evaluation.by_article import Asked

METRICS = ("Success@1", "Success@2", "RR")
SET = (
    ["q0", "q1", "q2", "q3"],
    ["a0", "a1", "b0", "b1", "b2", "x"],
    ["A", "A", "B", "B", "B", ""],
    {"q0": {"a1": 1}, "q1": {"b0": 1, "b2": 1}, "q2": {"x": 1}, "q3": {"a0": 1, "b0": 0}},
)


def test_any_passage_of_the_article_is_right():
    asked = Asked(*SET)
    assert asked.queries == ["q0", "q1", "q3"]  # the article of q2's passage is not known
    values = asked.anywhere(np.array([[2, 0], [5, -1], [0, 0], [3, 4]]), METRICS)
    assert {name: list(value) for name, value in values.items()} == {
        "Success@1": [0, 0, 0],
        "Success@2": [1, 0, 0],
        "RR": [0.5, 0, 0],
    }


def test_within_the_article_its_passages_alone_are_ranked():
    scores = np.array([[5, 4, 9, 9, 9, 9], [9, 9, 1, 3, 2, 9], [0] * 6, [1, 1, 9, 9, 9, 9]])
    asked = Asked(*SET)
    values = asked.within(lambda number, rows: scores[number][rows], 10, METRICS)
    assert {name: list(value) for name, value in values.items()} == {
        "Success@1": [0, 0, 1],  # ties go to the smaller row
        "Success@2": [1, 1, 1],
        "RR": [0.5, 0.5, 1],
    }
    assert [len(value) for value in asked.within(lambda number, rows: rows, 2, METRICS).values()] == [2, 2, 2]
