"""What a plan says of a collection: its towers, its indexes and its search, by small ones and by hand."""

import json
import types

import jax
import numpy as np
import pytest
from conftest import REPOSITORY
from support.toy_plan import TOY, make_config

from retrieval.data.tokenizers.vocab import SPECIAL_TOKENS, WordPiece
from retrieval.recipes.recipe import abstract_model
from retrieval.search.index_kind import INDEXES, Planned
from retrieval.stage_outputs import Run
from retrieval.stages import plan_collection, plan_devices, plan_indexes


def test_a_collection_takes_towers_k_means_and_search():
    config = make_config(**{"plan.passages": 1000, "mine.refresh_makes": "clusters"})
    config.cluster.update(count=10, iterations=3, sample=20)
    parts = plan_collection.parts(config, 200, jax.devices(), TOY)
    encode, query, search, k_means = (part.task for part in parts)
    # The embeddings of all, and of the sample; a device of a host of eight has an eighth of those that it searches.
    assert [part.host for part in parts[2:]] == [4 * 16 * 1000, 4 * 16 * (1000 + 200)]
    assert parts[2].device == 4 * 16 * 1000 // 8 and all(part.device > 0 for part in (parts[0], *parts[2:]))
    names = [name for part in parts for name, _ in part.rows(TOY, 8, None)]
    assert (
        len(names) == len(set(names)) and "k-means of 1,000 x 16 in 10 clusters, 3 iterations, a device: peak" in names
    )
    layer = 4 * 16 * 32 * 32 + 2 * 16 * 16 * 32 + 2 * 16 * 32 * 64
    assert encode.flops == pytest.approx(1000 * 2 * (2 * layer + 32 * 16), rel=0.02)
    once = 4 * 8 * 32 * 32 + 2 * 8 * 8 * 32 + 2 * 8 * 32 * 64
    assert query.flops == pytest.approx(2 * (2 * once + 32 * 16), rel=0.02)
    assert query.bytes > 4 * 2 * (4 * 32 * 32 + 2 * 32 * 64)  # all matrices of the layers, and what passes them
    name = "a query through its tower, at least"  # on one chip, whatever their number
    assert {dict(parts[1].rows(TOY, chips, None))[name] for chips in (1, 8)} == {f"{query.bytes / 1e8:.3g} s"}
    assert {dict(parts[1].rows(None, chips, chips * 1e6))[name] for chips in (1, 8)} == {f"{query.flops / 1e6:.3g} s"}
    assert search.flops == 2 * 1000 * 16 and search.bytes == 4 * 1000 * 16
    # 200 points for three iterations, with distances and sums, and the distances of all; float32 is six products.
    assert k_means.flops == 6 * 2 * 16 * 10 * (2 * 3 * 200 + 1000)
    assert k_means.seconds(TOY, 4) == k_means.flops / 1e9 / 4


def test_windows_are_counted_as_if_every_passage_had_all_of_them(monkeypatch):
    monkeypatch.setattr(plan_collection, "_compiled", lambda *_: (1, 0.5))
    one, two = (
        plan_collection.parts(
            make_config(**{"plan.passages": 1000, "encode.windows": windows}), 200, jax.devices()[:1], None
        )
        for windows in (1, 2)
    )
    assert two[0].task.name == "to encode 2,000 windows (the most) of 1,000 passages"
    assert two[2].task.name == "a query of exact search over 2,000 x 16"
    for part in (0, 2):
        assert two[part].task[1:] == tuple(2 * count for count in one[part].task[1:])
    assert two[2].host == 2 * one[2].host and two[0].estimate == 2 * one[0].estimate


def test_a_host_encodes_as_the_stage_does_where_fsdp_does_not_divide_its_devices():
    config = make_config(**{"plan.passages": 1000, "mesh.fsdp": 8})
    encoding = plan_collection._encoding(config, abstract_model(config, 200), jax.devices()[:4], "documents")
    assert encoding.mesh.shape["fsdp"] == 4


@pytest.mark.parametrize(("topology", "of_a_host"), [("v5e:4x8", "v5e:2x2"), ("v4:2x2x4", "v4:2x2x1")])
def test_a_host_of_a_topology_has_one_of_its_own(monkeypatch, topology, of_a_host):
    """libtpu refuses a program for a part of a v5e's."""
    places = [(host, (x, y, host)) for host in (0, 1) for x in (0, 1) for y in (0, 1)]
    devices = [types.SimpleNamespace(process_index=host, coords=coords) for host, coords in places]
    monkeypatch.setattr(plan_devices, "of_topology", lambda name: name)
    assert plan_devices.of_a_host(topology, devices) == of_a_host
    assert plan_devices.of_a_host(topology, devices[:4]) == plan_devices.of_a_host("", devices) == devices[:4]


def test_a_collection_is_encoded_here_to_see_how_long_it_takes(monkeypatch):
    config = make_config(**{"plan.passages": 1000, "encode.batch_tokens": 512})
    parts, batches = plan_collection.parts(config, 200, jax.devices(), None), []

    def seconds(call):
        assert np.isfinite(call()).all()
        batches.append(len(call()))
        return 0.5

    monkeypatch.setattr(plan_collection.step_time, "median_seconds", seconds)
    encoded, asked, found = plan_collection.timed(parts, config, 200, jax.devices(), 1e12)
    assert batches == [32, 8]  # of documents so many tokens, of queries one a device
    assert (encoded.measured, asked.measured, found) == (1000 / 32 * 0.5, 0.5, parts[2])
    few = plan_collection.timed(parts, config, 200, jax.devices(), 17 * encoded.task.flops / 1000)
    assert batches[2:] == [16, 8] and few[0].measured == 1000 / 16 * 0.5
    none = plan_collection.timed(parts, config, 200, jax.devices(), 1.0)
    assert none == parts and len(batches) == 4


def a_set(folder, count):
    """A run whose stage `sets` wrote a set of so many passages."""
    run = Run(make_config(**{"plan.passages": 10 * count}), folder / "run", REPOSITORY / "requirements.lock")
    texts = [{"_id": f"d{i}", "title": "", "text": f"word{i % 7} and word{i % 11}"} for i in range(count)]
    (run.sets / "toy").mkdir(parents=True)
    (run.sets / "toy" / "corpus.jsonl").write_text("".join(json.dumps(text) + "\n" for text in texts))
    WordPiece([*SPECIAL_TOKENS, "a"]).save(run.corpus / "vocab.txt")
    return run


def test_indexes_are_planned_by_small_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(plan_indexes, "_SAMPLE", 77)
    run = a_set(tmp_path, 154)
    run.config.index.update(dense="exact", bm25_also=(0.9, 0.4))
    bm25, also, exact = plan_indexes.indexes(run, 16)
    # 77 texts have two words each, but every 77th one twice; 'and' is no word. There will be 20 times as many texts.
    assert bm25.cost.held == also.cost.held == 8 * 20 * (2 * 77 - 7)
    assert bm25.cost.building > bm25.cost.held and bm25.cost.seconds > 0
    assert exact.cost.seconds == 0 and exact.cost.held > 4 * 16 * 1540
    run.config.encode.windows = 3
    *words, dense = plan_indexes.indexes(run, 16)
    assert [index.cost.held for index in words] == [bm25.cost.held] * 2 and dense.cost.held == pytest.approx(
        3 * exact.cost.held
    )
    assert "exact search of 4,620 windows (the most) of 1,540 passages, a host: the index" in dict(dense.rows())
    rows = dict(row for index in (bm25, also, exact) for row in index.rows())
    assert "BM25 of 1,540 passages, to build on this machine" in rows and len(rows) == 3 + 3 + 1


def test_an_index_of_texts_that_are_not_there_is_left_out_of_the_plan(tmp_path, caplog):
    run = Run(make_config(**{"plan.passages": 100}), tmp_path, REPOSITORY / "requirements.lock")
    run.config.index.dense = "exact"
    assert [index.title for index in plan_indexes.indexes(run, 16)] == ["exact search"]
    assert "plan: BM25 is left out, for the run has no texts yet" in caplog.text


def test_an_index_that_cannot_be_built_is_left_out_of_the_plan(tmp_path, caplog):
    run = a_set(tmp_path, 20)
    run.config.index.update(dense="exact", words=("doc2query",))
    assert [index.title for index in plan_indexes.indexes(run, 16)] == ["exact search"]
    assert "plan: BM25 over expanded passages is left out: " in caplog.text and "generated" in caplog.text


def test_partitions_of_scann_grow_with_their_distances_and_the_rest_with_the_embeddings(monkeypatch):
    kind = INDEXES["scann"]
    monkeypatch.setattr(type(kind), "available", lambda self: True)
    times = {40_000: (2.0, 7.0), 10_000: (0.5, 4.0)}
    monkeypatch.setattr(type(kind), "_timed", lambda self, N, *_: times[N])
    # Of 40,000 there are 400 partitions and 250,000 points at most: (24 x 40,000 + 40,000) x 400 distances.
    distances = (24 * 251_000 + 1_000_000) * 2000 / (25 * 40_000 * 400)
    cost = kind.cost(Planned(1_000_000, 16, 100, None), {"index.tune_queries": 10})
    assert cost.seconds == pytest.approx(2 * distances + 7 + 960_000 * 3 / 30_000, rel=0.01)
    assert cost.held > 4 * 16 * 1_000_000 and cost.building > cost.held
