"""What the benchmark of search reports; not how fast anything is."""

import numpy as np

from benchmarks import measure, search_speed


class Clock:
    """Time goes on only while somebody works."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now

    def searcher(self, name, seconds, rows, calls):
        def search(queries, k):
            self.now += next(seconds)
            calls.append(name)
            return None, np.array(rows)

        return search


def test_systems_take_turns_after_an_uncounted_search(monkeypatch):
    clock, calls = Clock(), []
    monkeypatch.setattr(measure, "time", clock)
    ours = clock.searcher("ours", iter([100, 1, 2, 4]), [[1, 2], [3, 4]], calls)
    peer = clock.searcher("peer", iter([100, 2, 2, 2]), [[2, 9], [3, 4]], calls)
    measured = search_speed._measure({search_speed.OURS: ours, "peer": peer}, np.ones((2, 1)), 2, rounds=3)
    assert calls == ["ours", "peer"] * 4
    assert measured == {
        search_speed.OURS: {
            "queries_per_second": {"median": 1, "lowest": 0.5, "highest": 2},
            "ratio": {"median": 1, "lowest": 1, "highest": 1},
            "recall": 1,
        },
        "peer": {
            "queries_per_second": {"median": 1, "lowest": 1, "highest": 1},
            "ratio": {"median": 1, "lowest": 0.5, "highest": 2},
            "recall": 0.75,
        },
    }
