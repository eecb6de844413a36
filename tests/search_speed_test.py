"""What the benchmark of search reports; not how fast anything is."""

import json

import numpy as np
import pytest

from benchmarks import measure, search_speed
from retrieval.search import scann

RNG = np.random.default_rng(0)


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


class Faiss:
    """An index that searches exactly, or with an odd `nprobe` nothing at all."""

    METRIC_INNER_PRODUCT = 0

    def __init__(self):
        self.factories = []

    def index_factory(self, dimensions, factory, metric):
        self.factories.append(factory)
        return Flat(dimensions)

    def IndexFlatIP(self, dimensions):  # noqa: N802, as FAISS has it
        return Flat(dimensions)

    def ParameterSpace(self):  # noqa: N802
        return self

    def set_index_parameters(self, index, setting):
        index.setting = setting


class Flat:
    def __init__(self, dimensions):
        self.setting = ""

    def train(self, embeddings):
        pass

    def add(self, embeddings):
        self.embeddings = embeddings

    def search(self, queries, k):
        scores = queries @ self.embeddings.T
        rows = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        return None, np.full_like(rows, -1) if self.setting == "nprobe=1" else rows


def test_exact_search_and_its_peer():
    measured = search_speed.measure_exact((500, 8), 20, 5, 2, Faiss())
    assert list(measured["systems"]) == [search_speed.OURS, search_speed.FLAT]
    assert measured["systems"][search_speed.FLAT]["recall"] == 1
    assert list(search_speed.measure_exact((500, 8), 20, 5, 1, None)["systems"]) == [search_speed.OURS]


@pytest.mark.skipif(not scann.available(), reason="ScaNN cannot be imported here")
def test_approximate_search_and_its_peers(tmp_path):
    faiss, embeddings = Faiss(), RNG.normal(size=(5500, 8)).astype(np.float32)
    np.save(tmp_path / "candidates.npy", embeddings)
    candidates, queries = search_speed.read_data(tmp_path / "candidates.npy", None, 100)
    assert candidates.shape == (5400, 8) and queries.shape == (100, 8)
    assert not {row.tobytes() for row in candidates} & {row.tobytes() for row in queries}

    measured = search_speed.measure_approximate(candidates, queries, 10, 1, faiss, ["ivf", "ivfpq"])
    assert faiss.factories == ["IVF294,Flat", "IVF294,PQ4x4fs,RFlat"]
    assert list(measured["targets"]) == ["0.9", "0.95", "0.99"]
    for part in measured["targets"].values():
        assert list(part["systems"]) == [search_speed.OURS, "ScaNN", "FAISS IVFFlat", "FAISS IVFPQ fast-scan"]
        assert part["settings"]["FAISS IVFFlat"] != "nprobe=1" and "recall@10" in part["settings"]["ScaNN"]
    json.dumps(measured)
    lines = search_speed.table({"cores": 2, "k": 10, "rounds": 1, "exact": [], "approximate": measured}).splitlines()
    assert len(lines) == 2 + 2 + 3 * 4 and lines[4].startswith("| recall 0.9, ours, exact | ")
    assert lines[4].endswith("| 1.00 | 1.0000 |")
