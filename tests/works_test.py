"""The works that are measured: that both sides do the same, and that ours run; not how fast anything is."""

import dataclasses
import importlib
import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl import flags
from conftest import REPOSITORY
from ml_collections import ConfigDict
from support import toy_corpus

from benchmarks import labelled, pairs, run, worker, works
from benchmarks.config import get_config
from benchmarks.ours import loss
from benchmarks.peers import fine_tune as peer
from benchmarks.works import Sizes
from retrieval.errors import UserError
from retrieval.evaluation.metrics import per_query
from retrieval.pipeline import runner
from retrieval.recipes.recipe import recipe_of
from retrieval.stage_outputs import Run

SIZES = Sizes(large=32, chunk=8, documents=20, files=3, resume=4)
MODEL = dict(num_layers=1, hidden_size=16, num_heads=2, mlp_size=32)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The toy corpus, prepared as the benchmarks' config has it, in tiny sizes."""
    folder = tmp_path_factory.mktemp("works")
    toy_corpus.write_dump(folder / "dump.xml")
    toy_corpus.write_squad(folder / "squad.json", articles=40)
    config = get_config()
    config.corpus, config.sets.reqa = str(folder / "dump.xml"), str(folder / "squad.json")
    config.prepare.update(shards=4, vocab_size=300, longest_passage=40, shortest_paragraph=10, least_passage=5)
    config.split.shards = 4
    config.data.update(query_length=16, document_length=48, shuffle_buffer=16)
    config.model.update(embed_dim=8, dropout=0.0, unroll=1)
    config.train.update(batch_size=16)
    config.encode.update(batch_tokens=512)
    run = Run(config, folder / "run", REPOSITORY / "requirements.lock")
    runner.open_run(run)
    for stage in config.stages:
        runner.run_stage(run, stage)
    write_beir(folder / "beir")
    return run


def write_beir(folder: Path) -> None:
    """Forty passages, each asked for by a word of its own; a half to train on, a half to test with."""
    (folder / "qrels").mkdir(parents=True)
    rows = [{"_id": f"d{i}", "title": f"about {i}", "text": f"word{i} and more of it"} for i in range(40)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rows = [{"_id": f"q{i}", "text": f"where is word{i}"} for i in range(40)]
    (folder / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for split, numbers in (("train", range(20)), ("test", range(20, 40))):
        lines = ["query-id\tcorpus-id\tscore", *(f"q{i}\td{i}\t{i % 3}" for i in numbers)]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n")


def sizes(made):
    return dataclasses.replace(SIZES, beir=made.folder.parent / "beir", steps=4, seeds=1)


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setattr(works.benchmark, "MODELS", dict.fromkeys(works.benchmark.MODELS, MODEL))


def turn(system):
    """One turn of a system, in this process, on one of its 8 devices: a lane may be too small to be divided."""
    row = dict(importlib.import_module(system.module).prepare(system.settings)())
    assert row.pop(worker.DEVICE, "") == ""
    return row


def test_the_plain_loss_is_ours():
    generator = np.random.default_rng(0)
    query_BE, document_BE = (jnp.asarray(loss._directions(generator, (24, 8))) for _ in range(2))
    ids_BK = jnp.asarray(generator.integers(0, 16, 24))[:, None]  # some documents are there twice
    values = []
    for name in ("plain", "blocks"):

        def total(query_BE, document_BE, name=name):
            loss_B, metrics = loss.LOSSES[name](query_BE, document_BE[:, None], ids_BK, 0.05)
            return loss_B.sum(), (loss_B, metrics["recall@1"])

        values.append(jax.value_and_grad(total, argnums=(0, 1), has_aux=True)(query_BE, document_BE))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), *values)


@pytest.mark.long
def test_pairs_are_drawn_once_and_cut_into_batches(made):
    path = works.write_pairs(made, 32)
    stamp = path.stat().st_mtime_ns
    assert works.write_pairs(made, 32) == path and path.stat().st_mtime_ns == stamp
    assert re.fullmatch(r"pairs-32-[0-9a-f]{16}\.npz", path.name)
    one, two = pairs.batches(path, 16, 2)
    assert one["query"].shape == (16, 16) and one["document"].shape == (16, 1, 48)
    assert not np.array_equal(one["query"], two["query"])
    assert pairs.tokens(one) == np.count_nonzero(one["query"]) + np.count_nonzero(one["document"]) < 16 * (16 + 48)
    with pytest.raises(ValueError, match="32 rows are fewer than 3 batches of 16"):
        list(pairs.batches(path, 16, 3))
    with pytest.raises(UserError, match=r"40 pairs are no multiple of config\.train\.batch_size=16"):
        works.write_pairs(made, 40)


def test_the_shares_are_the_smallest_that_fit(tmp_path):
    lengths = np.array([16, 8, 8, 9, 9, 9, 4, 4])  # of two lanes: the first needs 3 rows of 16, the second 2
    rows = {
        "query": (np.arange(16) < lengths[:, None]).astype(np.int32),
        "document": np.ones((8, 1, 16), np.int32),
    }
    np.savez(tmp_path / "pairs.npz", **rows)
    config = get_config()
    config.data.update(query_length=16, document_length=16)
    config.data.pack.update(query_row=16, document_row=16)
    config.train.batch_size = 8
    config = json.loads(config.to_json())
    given = dict(pairs=str(tmp_path / "pairs.npz"), batch=8, batches=1)
    works._pack(config, given, 2, query=0.4, document=0.4)
    assert config["data"]["pack"]["query"] == 0.52  # 3 rows; 0.5 of those of 4 texts would be 2
    assert config["data"]["pack"]["document"] == 0.76 and config["data"]["lanes"] == 2
    works._pack(config, given, 2, query=0.8, document=0.8)  # what fits stays
    assert (config["data"]["pack"]["query"], config["data"]["pack"]["document"]) == (0.8, 0.8)

    packed = pairs.packed(*pairs.batches(tmp_path / "pairs.npz", 8, 1), recipe_of(ConfigDict(config)).packing())
    assert packed["query"].shape == (2, 4, 16) and pairs.tokens(packed) == lengths.sum() + 8 * 16
    config["data"]["pack"]["document_row"] = 24  # a text in each, and 8 tokens that no other fits into
    with pytest.raises(UserError, match=r"do not fit: raise config\.data\.pack\.document_row"):
        works._pack(config, given, 2, query=0.5, document=0.5)
    with pytest.raises(UserError, match="raise its shares"):
        pairs.packed(*pairs.batches(tmp_path / "pairs.npz", 8, 1), recipe_of(ConfigDict(config)).packing())


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(works.WORKS))
def test_both_sides_get_the_same_work(made, name, monkeypatch):
    monkeypatch.setattr(works.resume, "travel", lambda *_: None)
    work = works.WORKS[name](made, sizes(made))
    names = [system.name for system in work.systems]
    assert {target.against for target in work.targets} < set(names) and work.ours()
    theirs = (
        "is_peer",
        "chunk",
        "backend",
        "rows",
        "dtype",
        "longest",
        "limits",
        "shards",
        "vocab_size",
        "loss",
        "protected",
    )
    for system in work.systems:
        json.dumps(dict(system.settings))
        for key in system.settings.keys() & work.systems[0].settings.keys() - {*theirs, "config", "folder", "step"}:
            assert system.settings[key] == work.systems[0].settings[key]
        if "config" in system.settings:
            models = [each.settings["config"]["model"] for each in (system, work.systems[0])]
            if work.accelerator:  # what is kept for the backward pass changes nothing that is computed
                models = [model | dict(remat="", dtype="", unroll=0) for model in models]
            assert models[0] == models[1]
        if system.is_peer:
            assert importlib.util.find_spec(system.module)


@pytest.mark.long
@pytest.mark.parametrize("name", ["large-batch", "loss", "encode", "protection", "learning"])
def test_ours_run(made, name, monkeypatch):
    monkeypatch.setattr(works.labelled, "SIZES", {"L2 H128": MODEL})
    monkeypatch.setattr(works.labelled, "_BATCH", 8)
    for system in works.WORKS[name](made, sizes(made)).systems:
        if not system.is_peer:
            row = turn(system)
            assert row and all(value >= 0 for value in row.values())


def test_labelled_pairs_are_those_of_the_training_split(tmp_path):
    write_beir(tmp_path / "toy")
    path = labelled.write_pairs(tmp_path, tmp_path / "toy")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(rows) == 13  # those of 20 whose grade is not 0
    assert rows[0] == {"query": "where is word1", "title": "about 1", "text": "word1 and more of it"}
    (tmp_path / "toy/qrels/train.tsv").rename(tmp_path / "toy/qrels/other.tsv")
    with pytest.raises(UserError, match=r"no test\.tsv beside a train\.tsv or dev\.tsv; name another --beir"):
        labelled.write_pairs(tmp_path, tmp_path / "toy")


def test_the_peers_ndcg_is_that_of_our_evaluation():
    grades, ids = {"a": 2, "b": 1, "c": 1, "e": 0}, ["a", "b", "c", "e", "x"]
    hits = ["b", "x", "a", "e"]
    ours = per_query(np.array([[ids.index(hit) for hit in hits]]), ["q"], ids, {"q": grades}, ["nDCG@10"])["nDCG@10"]
    theirs = peer.ndcg([grades.get(hit, 0) for hit in hits], list(grades.values()))
    assert theirs == pytest.approx(float(ours[0])) and 0 < theirs < 1
    assert peer.ndcg([0, 0], [0, 0]) == 0


def test_results_of_earlier_calls_are_kept(tmp_path):
    flags.FLAGS(["run", "--turns=2"])
    result = {"title": "t", "device": "", "systems": {}, "ratios": [], "missing": {"p": "m"}}
    run.write(tmp_path, [{"name": "loss", **result}])
    run.write(tmp_path, [{"name": "encode", **result}])
    run.write(tmp_path, [{"name": "loss", **result, "title": "new"}])
    written = json.loads((tmp_path / "results.json").read_text())
    assert {name: value["title"] for name, value in written.items()} == {"loss": "new", "encode": "t"}
    assert written["loss"]["turns"] == 2 and written["loss"]["machine"]["cores"] > 0
    assert "| new |  | p | left out: m |" in (tmp_path / "results.md").read_text()
    for device in ("H100", "H200", "H100", ""):  # none takes the place of another
        run.write(tmp_path, [{"name": "accelerator", **result, "device": device, "title": f"on {device}"}])
    written = json.loads((tmp_path / "results.json").read_text())
    assert list(written)[2:] == ["accelerator, H100", "accelerator, H200", "accelerator"]
    assert written["accelerator, H200"]["title"] == "on H200"
