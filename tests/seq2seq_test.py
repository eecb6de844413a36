"""The recipe 'seq2seq' and the stage `generate`: from labelled passages to a file of queries."""

import dataclasses
import importlib.util
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.special
import seqio
from flax import nnx
from support import tiny

from retrieval import files
from retrieval.data.examples import feature_lengths, features, seqio_tasks
from retrieval.data.examples.task_kind import Stored
from retrieval.errors import UserError
from retrieval.methods.writer import expansions, stage, validation
from retrieval.methods.writer.model import teacher_forced
from retrieval.models.text import Text
from retrieval.pipeline import preflight
from retrieval.pipeline.runner import check_run
from retrieval.recipes.initial_parameters import check_sizes
from retrieval.recipes.placement import bind, make_mesh, parameters_of
from retrieval.recipes.recipe import recipe_of
from retrieval.stages import passage_lines
from retrieval.stages.collection import collections

STAGES = ("prepare", "sets", "pairs", "train", "generate")
CHANGES = {
    "stages": STAGES,
    "base": "",
    "split.set": "reqa",
    "split.ratio": 0.9,
    "split.validation": 0.1,
    "split.shards": 2,
    "model.writer.layers": 1,
    "loop.validate_every": 100,
    "loop.validate_queries": 3,
    "loop.checkpoint_every": 100,
    "train.steps": 200,
    "train.batch_size": 8,
    "train.learning_rate": 3e-3,
    "generate.queries": 3,
    "generate.shard_size": 5,
    "generate.collections": ("reqa",),
}


MLM = {"recipe": "mlm", "data.rates.doc2query": 0.0, "data.rates.mlm": 1.0, "train.label_smoothing": 0.0}


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


def test_an_example_is_a_passage_and_its_query(trained):
    vocabulary = trained.load_vocabulary()
    stored = Stored(trained.corpus, {"tasks": {}}, trained.pairs)
    name, sizes = seqio_tasks.register(stored, vocabulary, {"doc2query": 1.0})
    lengths = feature_lengths.generation_lengths(48, 16)
    dataset = seqio.TaskRegistry.get(name).get_dataset(lengths, shuffle=False, num_epochs=1, seed=0)
    examples = [
        tuple(vocabulary.decode(example[part]) for part in ("source", "target"))
        for example in dataset.as_numpy_iterator()
    ]
    assert len(examples) == sizes["doc2query"] > 10
    for source, target in examples:
        animal = target.removeprefix("what does the ").removesuffix(" eat [UNK]")
        if animal != target:
            assert source.startswith(f"the {animal} eats grass and leaves")
    rows = next(features.GenerationConverter(vocabulary.sep_id)(dataset, lengths).as_numpy_iterator())
    assert {part: values.shape for part, values in rows.items()} == {
        "source": (48,),
        "source_types": (48,),
        "target": (16,),
    }
    second = np.cumsum(rows["source"] == vocabulary.sep_id) - (rows["source"] == vocabulary.sep_id) > 0
    np.testing.assert_array_equal(rows["source_types"], second & (rows["source"] != 0))


def test_the_loss_is_the_targets_cross_entropy(inputs, tmp_path):
    run = make_run(inputs, tmp_path, **{"train.label_smoothing": 0.2, "model.dropout": 0.0, "model.writer.copy": True})
    model = recipe_of(run.config).build(50)
    random = np.random.default_rng(0)
    source = np.where(np.arange(9) < random.integers(2, 10, (4, 1)), random.integers(5, 50, (4, 9)), 0)
    target = np.where(np.arange(6) < random.integers(2, 7, (4, 1)), random.integers(5, 50, (4, 6)), 0)
    batch = {"source": source, "source_types": 0 * source, "target": target}
    batch = {name: jnp.asarray(values, jnp.int32) for name, values in batch.items()}
    objective = jax.jit(recipe_of(run.config).objective(bind(model)))
    loss, metrics = objective(parameters_of(model), batch, jax.random.key(0))
    seen, labels, weights = teacher_forced(batch["target"])
    logits = model(Text.from_ids(batch["source"], batch["source_types"]), seen, None)
    each = optax.softmax_cross_entropy(logits, optax.smooth_labels(jax.nn.one_hot(labels, 50), 0.2))
    assert float(loss.mean()) == pytest.approx(float((weights * each).sum() / weights.sum()), rel=1e-5)
    np.testing.assert_array_equal(metrics["tokens"], (source != 0).sum(1) + (target != 0).sum(1))


def test_validation_is_the_mean_over_held_out_tokens(trained):
    config, vocabulary = trained.config, trained.load_vocabulary()
    model = recipe_of(config).build(len(vocabulary))
    values = recipe_of(config).validation(trained, vocabulary, make_mesh(config))(parameters_of(model))
    rows = validation.held_out(trained, vocabulary)
    log = hits = tokens = 0
    logits_of = nnx.jit(lambda model, ids, types, seen: model(Text.from_ids(ids, types), seen, None))
    for source, target in zip(rows.source[:, None], rows.target[:, None]):
        labels = target[0, 1 : (target != 0).sum()]
        logits = np.asarray(logits_of(model, source, _types(source, vocabulary.sep_id), target[:, :-1]))[
            0, : len(labels)
        ]
        log += np.take_along_axis(scipy.special.log_softmax(logits, axis=1), labels[:, None], axis=1).sum()
        hits += (logits.argmax(-1) == labels).sum()
        tokens += len(labels)
    assert tokens and values["LogLikelihood"] == pytest.approx(log / tokens, rel=1e-4)
    assert values["TokenAccuracy"] == pytest.approx(hits / tokens)


def _types(ids, sep_id):
    return ((np.cumsum(ids == sep_id, axis=1) - (ids == sep_id)) > 0).astype(np.int32)


def test_it_learns_to_ask(trained):
    lines = (trained.folder / "metrics" / "train.jsonl").read_text().splitlines()
    likelihood = [
        row["validation/LogLikelihood"] for row in map(json.loads, lines) if "validation/LogLikelihood" in row
    ]
    assert len(likelihood) == 2 and -5 < likelihood[0] < likelihood[1], likelihood  # untrained: -5.7, of 300 tokens
    queries = [record["text"] for record in generated(trained)]
    assert not any("[" in query for query in queries)
    assert sum("eat" in query.split() or "knows" in query.split() for query in queries) > 0.3 * len(queries)


def test_the_file_has_every_passage_in_order(trained):
    records = generated(trained)
    ids = [item.id for item in collections(trained)[0].candidates()]
    assert sorted(dict.fromkeys(record["_id"] for record in records), key=ids.index) == list(
        dict.fromkeys(record["_id"] for record in records)
    )
    counts = files.read_json(trained.record("generate"))["details"]["reqa"]
    assert counts["passages"] == len(ids) and counts["texts"] == 3 * len(ids)
    assert counts["kept"] == len(records) == counts["texts"] - counts[stage.EMPTY] - counts[stage.DUPLICATES]
    assert all(
        len({r["text"] for r in records if r["_id"] == id}) == sum(r["_id"] == id for r in records) for id in ids
    )
    assert [item.document for item in expansions.read(trained.folder / "generated" / "reqa.jsonl")] == [
        record["_id"] for record in records
    ]


@pytest.mark.parametrize("changes", [{"generate.shard_size": 100, "generate.batch_size": 8}, {"mesh.fsdp": 2}])
def test_the_file_does_not_depend_on_shards_or_batches(trained, inputs, tmp_path, changes):
    run = again(trained, inputs, tmp_path / "run", **changes)
    tiny.execute(run, "generate")
    ours, theirs = generated(run), generated(trained)
    assert [(record["_id"], record["text"]) for record in ours] == [(r["_id"], r["text"]) for r in theirs]
    logs = ([record["log_probability"] for record in records] for records in (ours, theirs))
    np.testing.assert_allclose(*logs, atol=2e-3)


def test_a_killed_run_writes_the_same_file(trained, inputs, tmp_path, monkeypatch):
    run, written, real = again(trained, inputs, tmp_path / "run"), [], stage._queries

    def killed(members, write):
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(members)
        return real(members, write)

    monkeypatch.setattr(stage, "_queries", killed)
    with pytest.raises(KeyboardInterrupt):
        tiny.execute(run, "generate")
    assert not (run.folder / "generated" / "reqa.jsonl").exists()
    rest = []
    monkeypatch.setattr(stage, "_queries", lambda members, write: rest.append(members) or real(members, write))
    tiny.execute(run, "generate")
    total = files.read_json(run.record("generate"))["details"]["reqa"]["passages"]
    assert sum(map(len, rest)) == total - 10
    name = "generated/reqa.jsonl"
    assert (run.folder / name).read_bytes() == (trained.folder / name).read_bytes()
    assert {path.name for path in (run.folder / "generated").iterdir()} == {"reqa.jsonl", "reqa.counts.json"}


@pytest.mark.parametrize("way", ["greedy", "beam"])
def test_greedy_and_beam_search_write_the_most_probable(trained, inputs, tmp_path, way):
    count = {"greedy": 1, "beam": 2}[way]
    run = again(trained, inputs, tmp_path / "run", **{"generate.way": way, "generate.queries": count})
    tiny.execute(run, "generate")
    best = {record["_id"]: record["log_probability"] for record in reversed(generated(run))}
    drawn = {record["_id"]: record["log_probability"] for record in generated(trained)}
    assert np.mean([best[id] >= drawn[id] - 1e-3 for id in drawn if id in best]) > 0.9
    queries = {record["_id"]: record["text"] for record in reversed(generated(run))}.values()
    assert np.mean(["eat" in query.split() or "knows" in query.split() for query in queries]) > 0.8


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"generate.way": "greedy"}, "config.generate.way=greedy gives 1: ask for 1"),
        ({"generate.tokens": 16}, "config.generate.tokens=16: the model has positions for 15"),
        (MLM | {"loop.validate_every": 0}, "needs a model that writes"),
        ({"data.rates.pairs": 1.0}, "task 'pairs' gives pairs of a query and a document, and config.recipe=seq2seq"),
        ({"data.negatives": 1}, "config.data.negatives=1"),
        ({"model.encoder": "bow_mlp"}, "needs a transformer"),
    ],
)
def test_unfit_settings_are_refused_before_the_run(inputs, tmp_path, changes, message):
    with pytest.raises(UserError, match=message.replace("(", r"\(")):
        preflight.check(make_run(inputs, tmp_path / "run", **changes), STAGES)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (None, r"no config\.json there; a folder of a T5 or BART is needed"),
        ({"model_type": "bert"}, "not an encoder-decoder"),
        ({"is_encoder_decoder": True}, "no weights there; put model.safetensors there"),
        (
            {"is_encoder_decoder": True, "max_position_embeddings": 32, "d_model": 8},
            r"config\.generate\.tokens=40: .* 32 positions",
        ),
        ({"is_encoder_decoder": True, "d_model": 8}, "config.generate.model needs the package torch, which is not"),
    ],
)
def test_an_unfit_published_model_is_refused_before_the_run(inputs, tmp_path, monkeypatch, config, message):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    if config:
        (tmp_path / "config.json").write_text(json.dumps(config))
        (tmp_path / "tokenizer.json").write_text("{}")
    if config and "d_model" in config:
        (tmp_path / "model.safetensors").touch()
    changes = {"generate.model": str(tmp_path), "generate.tokens": 40}
    with pytest.raises(UserError, match=message):
        preflight.check(make_run(inputs, tmp_path / "run", **changes), STAGES)


def test_an_unknown_collection_and_an_empty_passage_are_refused(trained, inputs, tmp_path):
    run = again(trained, inputs, tmp_path / "run", **{"generate.collections": ("reqq",)})
    with pytest.raises(UserError, match=r"config\.generate\.collections 'reqq': did you mean reqa"):
        stage.generate(run)
    (item,) = collections(trained)
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"_id": "a", "title": "", "text": "one"}\n{"_id": "b", "title": " ", "text": ""}\n')
    with pytest.raises(UserError, match=r"corpus.jsonl: passage 'b', number 2, has neither title nor text"):
        passage_lines.check(dataclasses.replace(item, files=(path,)))


def test_it_starts_from_a_post_norm_encoder(inputs, tmp_path):
    config = make_run(inputs, tmp_path / "mlm", **{"recipe": "mlm"}).config
    mlm = recipe_of(config).build(60)
    own = make_run(inputs, tmp_path / "own", **{"model.writer.pre_norm": False}).config
    model = recipe_of(own).build(60)
    recipe_of(own).start_from(model, mlm)
    table = model.encoder.token_embedding.embedding[...]
    np.testing.assert_array_equal(table, mlm.encoder.token_embedding.embedding[...])
    own.model.writer.pre_norm = True
    with pytest.raises(UserError, match=r"norms stand after its sublayers: set config\.model\.writer\.pre_norm=False"):
        check_sizes(own, config)


def test_the_model_of_a_base_writes_too(trained, inputs, tmp_path):
    run = make_run(
        inputs, tmp_path / "run", **{"stages": ("generate",), "base": str(trained.folder), "generate.queries": 1}
    )
    check_run(run)
    tiny.execute(run, "generate")
    assert len({record["_id"] for record in generated(run)}) == len(generated(run)) > 5


def test_lengths_that_the_writer_does_not_take_are_refused(trained, inputs, tmp_path):
    changes = {"stages": ("generate",), "base": str(trained.folder), "data.document_length": 40}
    run = make_run(inputs, tmp_path / "run", **changes)
    with pytest.raises(UserError, match=r"config\.data\.document_length=40: the model of .* writes with 48"):
        preflight.check(run, ("generate",))


@pytest.mark.parametrize("is_named", [True, False])
def test_bm25_over_expanded_passages_stands_beside_bm25(trained, inputs, tmp_path, is_named):
    """As the experiment's second command has it; what the base wrote need not be named."""
    stages, place = ("index", "evaluate", "report"), str(trained.folder / "generated") if is_named else ""
    index = {"index.words": ("bm25", "doc2query"), "index.expansions": place}
    run = tiny.make_run(
        "evaluate", inputs, tmp_path / "run", **{"stages": stages, "base": str(trained.folder), **index}
    )
    preflight.check(run, stages)
    tiny.execute(run)
    rows = files.read_json(run.folder / "results.json")
    assert {row["system"] for row in rows} == {"bm25", "doc2query"}
    queries = (trained.folder / "generated" / "reqa.jsonl").read_text()
    said = files.read_json(run.record("index"))["details"]["reqa, BM25 over expanded passages"]
    assert queries and "title + text + up to 40 written queries" in said


def test_an_index_of_unwritten_queries_is_refused_early(inputs, tmp_path):
    run = make_run(inputs, tmp_path / "run", **{"stages": ("sets", "index"), "index.words": ("doc2query",)})
    with pytest.raises(UserError, match="the stage 'generate' writes, which is a stage neither of this run nor of its"):
        preflight.check(run, ("sets", "index"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: not valid JSON"),
        ('{"_id": "a"}', "line 2: not a text of a document"),
        ('{"_id": [1], "text": "b"}', "line 2: the field '_id'"),
        ('{"_id": "a", "text": 1}', "line 2: the field 'text'"),
        ('{"_id": "a", "text": "b", "log_probability": NaN}', "line 2: not valid JSON .NaN is no number of JSON"),
        ("\x80", "not UTF-8"),
    ],
)
def test_a_file_of_texts_that_is_wrong(tmp_path, line, message):
    path = tmp_path / "texts.jsonl"
    path.write_bytes(b'{"_id": "a", "text": "b", "log_probability": -1.5}\n' + line.encode("latin-1"))
    with pytest.raises(UserError, match=message):
        list(expansions.read(path))
