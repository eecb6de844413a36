"""Ranked lists: the query itself is left out, and the list keeps its length."""

import numpy as np
import pytest

from retrieval.data.beir import Judged
from retrieval.search.exact import ExactIndex
from retrieval.stages import evaluate


@pytest.mark.parametrize(("own", "expected"), [({"a": 0}, [1, 2]), ({}, [0, 1])])
def test_dropping_the_query_itself_leaves_a_full_list(own, expected):
    value = Judged("toy", {"a": "wings"}, ["a", "b", "c", "d"], own, {"test": {"a": {"b": 1}}})
    index = ExactIndex(np.array([[4.0], [3.0], [2.0], [1.0]], np.float32))
    ranking = evaluate._search(value, 2, "dense", index, np.ones((1, 1), np.float32))
    assert ranking.rows.tolist() == [expected] and ranking.scores.shape == (1, 2)
