"""Ranked lists: the query itself is left out, and the list keeps its length."""

import numpy as np
import pytest

from retrieval.data.beir import Judged
from retrieval.search import exact
from retrieval.search.exact import ExactIndex
from retrieval.stages import evaluate


@pytest.mark.parametrize(("own", "expected"), [({"a": 0}, [1, 2]), ({}, [0, 1])])
def test_dropping_the_query_itself_leaves_a_full_list(own, expected):
    value = Judged("toy", {"a": "wings"}, ["a", "b", "c", "d"], own, {"test": {"a": {"b": 1}}})
    index = ExactIndex(np.array([[4.0], [3.0], [2.0], [1.0]], np.float32))
    ranking = evaluate._search(value, 2, "dense", index, np.ones((1, 1), np.float32))
    assert ranking.rows.tolist() == [expected] and ranking.scores.shape == (1, 2)


@pytest.mark.parametrize("queries", [1, 600, 3584, 3585, 4096, 4097, 9000])
def test_what_a_search_uses_is_compiled_before_its_time_is_taken(monkeypatch, queries):
    used = []

    def search_batches(queries_GBE, embeddings, layout, k):
        used.append(len(queries_GBE))
        return np.zeros((2, len(queries_GBE) * queries_GBE.shape[1], k), np.float32)

    class Clock:
        """Between its two readings a search takes place."""

        def perf_counter(self):
            used.append("read")
            return 0.0

    monkeypatch.setattr(exact, "_search_batches", search_batches)
    monkeypatch.setattr(evaluate, "time", Clock())
    value = Judged("toy", dict.fromkeys(map(str, range(queries)), "wings"), ["a"], {}, {"test": {}})
    index = ExactIndex(np.ones((1, 1), np.float32))
    evaluate._search(value, 1, "dense", index, np.ones((queries, 1), np.float32))
    began = used.index("read")
    compiled, clocked = used[:began], used[began + 1 : -1]
    assert set(compiled) == set(clocked) and len(compiled) <= 2
