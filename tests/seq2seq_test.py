"""The recipe 'seq2seq' and the stage `generate`: from labelled passages to a file of queries."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.special
from flax import nnx
from support import tiny

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.methods.writer import decoding, examples, recipe, stage
from retrieval.methods.writer.model import teacher_forced
from retrieval.models.text import Text
from retrieval.recipes.parameters import bind, make_mesh, parameters_of
from retrieval.recipes.recipe import recipe_of
from retrieval.runs.pipeline import preflight
from retrieval.runs.ranking.collection import collections

STAGES = ("prepare", "sets", "pairs", "train", "generate")
CHANGES = {"stages": STAGES, "base": "", "split.set": "reqa", "split.ratio": 0.9, "split.validation": 0.1}
CHANGES |= {"split.shards": 2, "model.writer.layers": 1, "loop.validate_every": 100, "loop.validate_queries": 3}
CHANGES |= {"loop.checkpoint_every": 100, "train.steps": 200, "train.batch_size": 8, "train.learning_rate": 3e-3}
CHANGES |= {"loop.log_every": 100, "generate.queries": 3, "encode.shard_size": 5, "generate.collections": ("reqa",)}


def make_run(inputs, folder, **changes):
    return tiny.make_run("doc2query", inputs, folder, **{**CHANGES, **changes})


@pytest.fixture(scope="module")
def trained(inputs, tmp_path_factory):
    run = make_run(inputs, tmp_path_factory.mktemp("doc2query") / "run")
    tiny.execute(run)
    return run


def generated(run):
    return [json.loads(line) for line in (run.folder / "generated" / "reqa.jsonl").read_text().splitlines()]


def again(trained, inputs, folder, **changes):
    """A run with the trained model and no queries yet."""
    shutil.copytree(trained.folder, folder)
    files.remove(folder / "generated")
    (folder / "stages" / "generate.json").unlink()
    return make_run(inputs, folder, **changes)


def test_the_loss_is_the_targets_cross_entropy(inputs, tmp_path):
    run = make_run(inputs, tmp_path, **{"train.label_smoothing": 0.2, "model.dropout": 0.0, "model.writer.copy": True})
    model = recipe_of(run.config).build(50)
    random = np.random.default_rng(0)
    source = np.where(np.arange(9) < random.integers(2, 10, (4, 1)), random.integers(5, 50, (4, 9)), -1)
    target = np.where(np.arange(6) < random.integers(2, 7, (4, 1)), random.integers(5, 50, (4, 6)), -1)
    batch = {"source": source, "source_types": 0 * source, "target": target}
    batch = {name: jnp.asarray(values, jnp.int32) for name, values in batch.items()}
    objective = jax.jit(recipe_of(run.config).objective(bind(model)))
    loss, metrics = objective(parameters_of(model), batch, jax.random.key(0))
    seen, labels, weights = teacher_forced(batch["target"])
    logits_of = nnx.jit(lambda model, ids, types: model(Text.from_ids(ids, types), seen, None))
    logits = logits_of(model, batch["source"], batch["source_types"])
    each = optax.softmax_cross_entropy(logits, optax.smooth_labels(jax.nn.one_hot(labels, 50), 0.2))
    assert float(loss.mean()) == pytest.approx(float((weights * each).sum() / weights.sum()), rel=1e-5)
    np.testing.assert_array_equal(metrics["tokens"], (source >= 0).sum(1) + (target >= 0).sum(1))


def test_validation_is_the_mean_over_held_out_tokens(trained):
    config, vocabulary = trained.config, trained.load_vocabulary()
    model = recipe_of(config).build(len(vocabulary))
    values = recipe_of(config).validation(trained, vocabulary, make_mesh(config))(parameters_of(model))
    rows = recipe.held_out(trained, vocabulary)
    log = hits = tokens = 0
    logits_of = nnx.jit(lambda model, ids, types, seen: model(Text.from_ids(ids, types), seen, None))
    for source, types, target in zip(*(rows[name][:, None] for name in ("source", "source_types", "target"))):
        labels = target[0, 1 : (target >= 0).sum()]
        logits = np.asarray(logits_of(model, source, types, target[:, :-1]))[0, : len(labels)]
        log += np.take_along_axis(scipy.special.log_softmax(logits, axis=1), labels[:, None], axis=1).sum()
        hits += (logits.argmax(-1) == labels).sum()
        tokens += len(labels)
    assert tokens and values["LogLikelihood"] == pytest.approx(log / tokens, rel=1e-4)
    assert values["TokenAccuracy"] == pytest.approx(hits / tokens)


def test_it_learns_to_ask(trained):
    lines = (trained.folder / "metrics" / "train.jsonl").read_text().splitlines()
    name = "validation/LogLikelihood"
    likelihood = [row[name] for row in map(json.loads, lines) if name in row]
    assert len(likelihood) == 2 and -5 < likelihood[0] < likelihood[1], likelihood  # untrained: -5.7, of 300 tokens
    queries = [record["text"] for record in generated(trained)]
    assert not any("[" in query for query in queries)
    assert sum("eat" in query.split() or "knows" in query.split() for query in queries) > 0.3 * len(queries)


def test_the_file_has_every_passage_in_order(trained):
    records = generated(trained)
    ids = [item.id for item in collections(trained)[0].candidates()]
    in_order = list(dict.fromkeys(record["_id"] for record in records))
    assert sorted(in_order, key=ids.index) == in_order
    counts = files.read_json(trained.record("generate"))["details"]["reqa"]
    assert counts["passages"] == len(ids) and counts["texts"] == 3 * len(ids)
    assert counts["kept"] == len(records) == counts["texts"] - counts[stage.EMPTY] - counts[stage.DUPLICATES]
    assert len({(record["_id"], record["text"]) for record in records}) == len(records)
    read = examples.read(trained.folder / "generated" / "reqa.jsonl")
    assert [item.document for item in read] == [record["_id"] for record in records]


def test_the_file_does_not_depend_on_shards_or_batches(trained, inputs, tmp_path, monkeypatch):
    monkeypatch.setattr(decoding, "BATCH", 8)
    run = again(trained, inputs, tmp_path / "run", **{"encode.shard_size": 100})
    tiny.execute(run, "generate")
    ours, theirs = generated(run), generated(trained)
    assert [(record["_id"], record["text"]) for record in ours] == [(r["_id"], r["text"]) for r in theirs]
    logs = ([record["log_probability"] for record in records] for records in (ours, theirs))
    np.testing.assert_allclose(*logs, atol=2e-3)


def test_an_unfit_setting_is_refused_before_the_run(inputs, tmp_path):
    with pytest.raises(UserError, match=r"config\.generate\.queries=2, and greedy gives 1"):
        preflight.check(make_run(inputs, tmp_path / "run", **{"generate.way": "greedy", "generate.queries": 2}), STAGES)


def test_bm25_over_expanded_passages_stands_beside_bm25(trained, inputs, tmp_path):
    """As the experiment's second command has it; what the base wrote need not be named."""
    stages = ("index", "evaluate", "report")
    index = {"index.words": ("bm25", "doc2query"), "index.expansions": ""}
    run = tiny.make_run("evaluate", inputs, tmp_path / "run", stages=stages, base=str(trained.folder), **index)
    preflight.check(run, stages)
    tiny.execute(run)
    assert {row["system"] for row in files.read_json(run.folder / "results.json")} == {"bm25", "doc2query"}
    said = files.read_json(run.record("index"))["details"]["reqa, BM25 over expanded passages"]
    assert "title + text + up to 40 written queries" in said
