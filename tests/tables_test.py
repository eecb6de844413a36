"""The stage `tables`: what a run has made, as files for other programs."""

import json

import numpy as np
import pytest
from conftest import REPOSITORY
from pyarrow import parquet
from support.tiny import execute, make_config

from retrieval.errors import UserError
from retrieval.stage_outputs import Run

RNG = np.random.default_rng(0)
ROWS = [
    {"system": "bm25", "dataset": "toy", "split": "test", "metric": "RR", "value": 0.5, "queries": 2, "step": None},
    {"system": "dense", "dataset": "toy", "split": "test", "metric": "RR", "value": 0.25, "queries": 2, "step": 7},
]


@pytest.fixture
def run(tmp_path):
    return Run(make_config("evaluate"), tmp_path / "run", REPOSITORY / "requirements.lock")


def test_embeddings_and_results_are_tables(run):
    place = run.embeddings("toy", "trained")
    place.mkdir(parents=True)
    shards = [RNG.standard_normal((rows, 4)).astype(np.float32) for rows in (3, 2)]
    for number, shard in enumerate(shards):
        name = f"candidates-0000{number}-of-00002"
        np.save(place / f"{name}.npy", shard, allow_pickle=False)
        (place / f"{name}.ids.json").write_text(json.dumps([f"ü{number}-{row}" for row in range(len(shard))]))
    (run.folder / "results.json").write_text(json.dumps(ROWS))
    (run.folder / "config.json").write_text(run.config.to_json())
    execute(run, "tables")
    tables = run.folder / "tables"
    paths = sorted((tables / "embeddings" / "toy" / "trained").iterdir())
    read = [parquet.read_table(path) for path in paths]
    assert [path.name for path in paths] == ["candidates-00000.parquet", "candidates-00001.parquet"]
    assert [id for table in read for id in table["id"].to_pylist()] == ["ü0-0", "ü0-1", "ü0-2", "ü1-0", "ü1-1"]
    for table, shard in zip(read, shards):
        np.testing.assert_array_equal(np.array(table["embedding"].to_pylist(), np.float32), shard)
    assert parquet.read_table(tables / "results.parquet").to_pylist() == ROWS


def test_results_are_those_of_the_run_and_of_its_base(run, tmp_path):
    """A run that reranks on a base has rows of its own, which stand beside those of the base's `evaluate`."""
    later = Run(make_config("evaluate"), tmp_path / "later", REPOSITORY / "requirements.lock")
    run.config.stages, later.config.stages, later.config.base = ("sets", "evaluate"), ("rerank",), str(run.folder)
    reranked = ROWS[0] | {"system": "bm25+rerank@10"}
    for place, rows in ((run.folder, ROWS[:1]), (later.folder / "reranked", [reranked])):
        place.mkdir(parents=True, exist_ok=True)
        (place / "results.json").write_text(json.dumps(rows))
    for each in (run, later):
        (each.folder / "config.json").write_text(each.config.to_json())
    execute(later, "tables")
    assert parquet.read_table(later.folder / "tables" / "results.parquet").to_pylist() == [ROWS[0], reranked]


def test_a_run_without_either_is_told(run):
    with pytest.raises(UserError, match="has neither embeddings nor results: run encode or evaluate first"):
        execute(run, "tables")
    assert not (run.folder / "tables").exists()
