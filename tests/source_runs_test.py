"""Runs on several sources of labelled pairs: their shards, batches, losses and logs, and what is refused."""

import collections
import contextlib
import functools
import json
import shutil

import jax
import numpy as np
import pytest
import tensorflow as tf
from conftest import REPOSITORY
from jax.sharding import NamedSharding
from support import children
from support.run_results import metrics, state
from support.tiny import CHEAP, as_flags, complete, execute, make_config

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.data.examples import batches as draws
from retrieval.data.labelled import grouping, pair_shards, sources
from retrieval.data.labelled.grouping import Counts, Example
from retrieval.data.labelled.merged_groups import MergedGroups, WithoutPositives
from retrieval.data.sets.beir import Candidate
from retrieval.data.tokenizers.vocab import SPECIAL_TOKENS, WordPiece
from retrieval.recipes import source_objective
from retrieval.recipes.parameters import bind, make_mesh, parameters_of
from retrieval.recipes.recipe import abstract_model, build_model, recipe_of
from retrieval.runs.fitting import source_batches, training_length
from retrieval.runs.fitting.examples import abstract_batch
from retrieval.runs.pipeline import preflight, records
from retrieval.runs.pipeline.run import Run
from retrieval.runs.weights import train_state

NAMES = ("one", "two", "three")
FIVE = (*NAMES, "four", "five")
SETTINGS = {
    "one": 'query_prompt = "ask "\nnegatives = 1',
    "two": 'loss = "multi_negative_nll"\nnegatives = 2\ntemperature = 2.0',
    "three": 'document_prompt = "read "',
}
SMALL = CHEAP | {
    "model.dropout": 0.1,
    "train.init_from": "",
    "train.batch_size": 8,
    "train.steps": 12,
    "train.other_positives": "mask",
    "data.negatives": 0,
    "data.query_length": 8,
    "data.document_length": 12,
    "data.lanes": 2,
    "split.shards": 2,
    "loop.log_every": 5,
    "loop.checkpoint_every": 2,
    "loop.validate_every": 0,
}


def write_sources(folder):
    """Five sources of 60 to 20 queries; the sources one and two share many, and disagree about texts of these."""
    vocabulary = WordPiece([*SPECIAL_TOKENS, *(f"w{number}" for number in range(99)), "ask", "read"])
    vocabulary.save(folder / "vocab.txt")
    for number, name in enumerate(FIVE, 1):
        first = 0 if number <= 2 else 60
        examples = [
            {"query": f"w{i} w{first}", "positive": f"w{i} w{number}", "negatives": [f"w{i} w{3 - number}", f"w{i} w9"]}
            for i in range(10 * (7 - number))
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, examples)))
    tables = [f'[{name}]\nfiles = "{folder}/{name}.jsonl"\n{SETTINGS[name]}\n' for name in NAMES]
    (folder / "sources.toml").write_text("\n".join(tables))


def make_run(place, folder, **changes):
    config = make_config("dpr", **SMALL | changes)
    config.vocab, config.stages = str(place / "vocab.txt"), ("pairs", "train")
    if not config.pairs.sources:
        config.pairs.sources = str(place / "sources.toml")
    sources.fill_in(config)
    return Run(config, folder, REPOSITORY / "requirements.lock")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")
    write_sources(folder)
    return folder


@pytest.fixture(scope="module")
def run(place, tmp_path_factory):
    """A run that has its pairs and is trained."""
    return complete(make_run(place, tmp_path_factory.mktemp("run") / "run"))


def batches_of(run, devices=1):
    return source_batches.make_batches(run, run.load_vocabulary(), make_mesh(run.config, jax.devices()[:devices]))


def take(batches, count):
    return [jax.device_get(next(batches)) for _ in range(count)]


@pytest.fixture(scope="module")
def drawn(run, tmp_path_factory):
    """The first batches, on two devices, and a folder with the position after five."""
    folder, batches = tmp_path_factory.mktemp("position"), batches_of(run, devices=2)
    first = take(batches, 5)
    batches.save(folder)
    return [*first, *take(batches, 15)], folder


def assert_equal(left, right):
    assert len(left) == len(right)
    for one, other in zip(left, right):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name], name)


def test_shares_are_those_of_sizes_and_their_power():
    sizes = (1_000_000, 100_000, 10_000)
    for alpha, expected in ((1, (0.9009, 0.0901, 0.0090)), (0.5, (0.7061, 0.2233, 0.0706)), (0, (1 / 3,) * 3)):
        share_S = draws.shares(sizes, (), alpha)
        np.testing.assert_allclose(share_S, expected, atol=5e-5)
        drawn = collections.Counter(draws.drawn(share_S, 7, number) for number in range(10_000))
        for source, share in enumerate(share_S):
            assert abs(drawn[source] / 10_000 - share) < 3 * np.sqrt(share * (1 - share) / 10_000)
    np.testing.assert_allclose(draws.shares(sizes, (3, 1, 0.5), 1), np.array([6, 2, 1]) / 9)


def test_every_source_is_written_with_the_positives_of_all(run):
    details = records.details(run, "pairs")
    pairs = {name: of_source["pairs"] for name, of_source in details["sources"].items()}
    assert sum(pairs.values()) == details["pairs"] and list(pairs) == list(NAMES)
    held_out = details["validation queries"]
    assert held_out == 10 and 40 <= details["queries of several sources"] <= 50  # of 60 + 40, without those held out
    negatives = "negatives that another source knows as positives"
    left = details["sources"]["one"]["left out"][negatives]
    assert left == details["sources"]["two"]["left out"][negatives] == pairs["two"]
    known = set()
    for name, count in pairs.items():
        folder = source_batches.folder_of(run.pairs, name)
        ids, starts = pair_shards.read_known(folder)
        paths = [str(path) for path in folder.glob(pair_shards.PATTERN)]
        written = [tf.train.Example.FromString(raw.numpy()) for raw in tf.data.TFRecordDataset(paths)]
        assert len(written) == count
        for example in written:
            of_query, row = example.features.feature["document_id"].int64_list.value, example.features.feature["known"]
            (row,) = row.int64_list.value
            assert of_query[0] in ids[starts[row] : starts[row + 1]]
            assert not {*of_query[1:]} & {*ids[starts[row] : starts[row + 1]].tolist()}
            known.add(starts[row + 1] - starts[row])
    assert known == {1, 2}


def files_of(path, field):
    return [json.loads(line)[field] for line in path.read_text().splitlines()]


def test_a_batch_is_of_one_source_with_its_prompts_and_negatives(run, drawn):
    vocabulary, seen = run.load_vocabulary(), set()
    ask, read = (vocabulary.encode(word)[0] for word in ("ask", "read"))
    for batch in drawn[0]:
        (number,) = set(batch["source"][:, 0].tolist())
        name = NAMES[number]
        seen.add(name)
        assert batch["document_id"].shape == (8, {"one": 2, "two": 3, "three": 1}[name])
        assert (batch["query"][:, 1] == ask).all() == (name == "one")
        assert (batch["document"][:, :, 1] == read).all() == (name == "three")
    assert seen == set(NAMES)


def test_batches_go_on_from_a_position_on_other_hosts_to_the_bit(run, drawn, monkeypatch, tmp_path):
    whole, folder = drawn

    def own(self, shape):
        return {device: index for device, index in self.devices_indices_map(shape).items() if device.id == host}

    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(NamedSharding, "addressable_devices_indices_map", own)
    monkeypatch.setattr(jax, "make_array_from_process_local_data", lambda sharding, values: values)
    for host in range(2):
        of_host = batches_of(run, devices=2)
        of_host.restore(folder)
        halves = [{name: np.split(values, 2)[host] for name, values in batch.items()} for batch in whole[5:]]
        assert_equal(take(of_host, 15), halves)
    files.write_json(tmp_path / "sources.json", {"batches": 5, "sources": ["one"]})
    with pytest.raises(UserError, match="no position in these sources"):
        of_host.restore(tmp_path)


def test_each_source_has_its_loss_and_the_log_says_which(run, drawn):
    config = run.config
    model = build_model(config, len(run.load_vocabulary()))
    params, configs = parameters_of(model), sources.configs_of(config)
    assert configs["two"].train.loss == "multi_negative_nll" and configs["two"].train.temperature == 2
    of_sources = {NAMES[int(batch["source"][0, 0])]: batch for batch in drawn[0]}
    with jax.set_mesh(make_mesh(config, jax.devices()[:1])):
        objective = jax.jit(source_objective.objective(config, bind(model)))
        for name in ("one", "two"):
            batch = jax.tree.map(jax.numpy.asarray, of_sources[name])
            loss_B, found = objective(params, batch, jax.random.key(0))
            own = jax.jit(recipe_of(configs[name]).objective(bind(model)))
            np.testing.assert_allclose(loss_B, own(params, dict(batch), jax.random.key(0))[0], rtol=1e-6)
            for other in NAMES:
                np.testing.assert_array_equal(found[f"examples/{other}"], float(other == name))
                np.testing.assert_array_equal(found[f"loss/{other}"], loss_B * (other == name))
    share_S = draws.shares([records.details(run, "pairs")["sources"][name]["pairs"] for name in NAMES], (), 1.0)
    order = [draws.drawn(share_S, config.seed, number) for number in range(12)]
    lines = metrics(run.folder)
    for (first, last), line in zip(((0, 5), (5, 10), (10, 12)), lines, strict=True):
        counted = [line[f"examples/{name}"] for name in NAMES]
        assert counted == [8 * order[first:last].count(number) for number in range(3)]
        means = [line[f"loss/{name}"] * count for name, count in zip(NAMES, counted) if count]
        assert sum(means) / sum(counted) == pytest.approx(line["loss"], rel=1e-5)
        assert all(f"loss/{name}" not in line for name, count in zip(NAMES, counted) if not count)


@pytest.mark.long
def test_a_step_costs_what_those_of_its_sources_do_on_average(place):
    """Operations are counted for `flops_per_second`. Alone, a source has a config without sources."""
    transformer = {"model.encoder": "transformer", "model.num_layers": 1, "model.remat": "none"}
    run = make_run(place, place / "run", **transformer)
    mesh = make_mesh(run.config, jax.devices()[:1])

    def count(config, batch):
        with jax.set_mesh(mesh):
            like = train_state.abstract_state(config, abstract_model(config, 110), mesh)
            return train_state.useful_flops(config, 110, like, batch)

    configs = sources.configs_of(run.config)
    alone = [count(own, abstract_batch(own, mesh)) for own in configs.values()]
    assert alone[1] > alone[0] > alone[2]  # of two negatives, of one, and of none
    shares, counts = (0.5, 0.3, 0.2), functools.partial(count, run.config)
    shapes = [abstract_batch(run.config, mesh, own) for own in configs.values()]
    assert training_length.mean_flops(counts, shapes, shares) == pytest.approx(np.dot(shares, alone))


@pytest.mark.long
def test_a_teacher_is_asked_for_the_pairs_of_the_sources_that_learn_from_it(place, tmp_path):
    lines = map(json.loads, (place / "five.jsonl").read_text().splitlines())
    scored = [(line["query"], text) for line in lines for text in (line["positive"], *line["negatives"])]
    scores = [{"query": query, "text": text, "score": len(text)} for query, text in scored]
    (tmp_path / "scores.jsonl").write_text("\n".join(map(json.dumps, scores)))
    learns = "loss = 'margin_mse'\nnegatives = 2\ntemperature = 1.0"
    text = TWO.format(place, "", learns)
    changes = {"pairs.sources": text, "pairs.teacher": str(tmp_path / "scores.jsonl"), "train.steps": 6}
    run = make_run(place, tmp_path / "run", **changes, **{"data.source_alpha": 0.0, "data.lanes": 1})
    complete(run)
    details = records.details(run, "pairs")["sources"]
    assert [details[name]["has teacher"] for name in ("one", "five")] == [False, True]
    assert {"loss/one", "loss/five"} <= set(metrics(run.folder)[0])


def test_an_id_is_of_its_source_alone(tmp_path):
    """A text that another source gives the positive's id is a negative still; the positive's text is none."""
    of_sources = {
        "a": [Example("q", (Candidate("1", "", "yes"),)), Example("r", (Candidate("2", "", "only a"),))],
        "b": [Example("q", (Candidate("7", "", "also"),), (Candidate("1", "", "no"), Candidate("9", "", "yes")))],
    }
    with contextlib.ExitStack() as stack:
        found = {}
        for name, examples in of_sources.items():
            found[name] = stack.enter_context(grouping.grouped(examples, tmp_path, 10, Counts(), seed=3))
        merged = MergedGroups(found, 3)
        by_query = {example.query: example for example in merged}
        assert [text.text for text in by_query["q"].positives] == ["yes", "also"]
        assert [text.text for text in by_query["q"].negatives] == ["no"]
        assert (merged.counts.queries, merged.counts.examples, merged.shared) == (2, 3, 1)
        kept = WithoutPositives(merged.of_source("b"), pair_shards.known_of(merged))
        assert [[text.text for text in example.negatives] for example in kept] == [["no"]] and kept.left_out == 1
        first = next(iter(merged)).query
        others = merged.where(lambda query: query != first)
        for name, examples in of_sources.items():
            left = {example.query for example in others.of_source(name)}
            assert left == {example.query for example in examples} - {first}


@pytest.mark.long
def test_a_base_has_the_pairs_and_the_run_its_own_weights(run, tmp_path):
    """Other weights, losses and negatives are a run's own; other files and prompts are refused."""
    config = run.config.copy_and_resolve_references()
    config.base, config.stages = str(run.folder), ("train",)
    config.pairs.sources = run.config.pairs.sources.replace("negatives = 2", "negatives = 1")
    other = Run(config, tmp_path / "run", run.lock)
    preflight.check(other, ("train",))
    assert {batch["document_id"].shape for batch in take(batches_of(other), 6)} == {(8, 1), (8, 2)}
    config.pairs.sources = run.config.pairs.sources.replace("ask ", "tell ")
    with pytest.raises(UserError, match=r"source 'one' is not as in .*, whose pairs are trained on"):
        preflight.check(Run(config, tmp_path / "run", run.lock), ("train",))
    config.pairs.sources = ""
    with pytest.raises(UserError, match="source 'one' is not as in"):
        preflight.check(Run(config, tmp_path / "run", run.lock), ("train",))


TWO = '[one]\nfiles = "{0}/one.jsonl"\n{1}\n[five]\nfiles = "{0}/five.jsonl"\n{2}\n'


@pytest.mark.parametrize(
    ("one", "five", "changes", "message"),
    [
        ("loss = 'triplet'\nnegatives = 1",) * 2
        + ({"train.loss": "two_way_nll"}, "^config.train.loss=two_way_nll comp"),
        ("loss = 'kl_divergence'\nnegatives = 1", "", {}, "kl_divergence learns from a teacher's scores, and the"),
        ("", "", {"train.loss": "kl_divergence"}, "source 'one': .* learns from a teacher, .*: write loss = \"kl_div"),
        ("weight = 1", "weight = 2", {"data.source_alpha": 0.5}, "and config.pairs.sources gives them weights"),
        (
            "query_prompt = 'q '",
            "",
            {"model.pool_from": (2, 0), "model.encoder": "transformer"},
            "source 'one': config.model.pool_from=.2, 0. leaves",
        ),
        ("", "", {"mine.refresh_every": 2, "loop.validate_every": 2}, "makes pairs anew that have no source"),
        ("", "", {"train.batch_size": 32}, "source 'five': config.pairs.files=.*: 20 labelled pairs, fewer than"),
    ],
)
def test_what_does_not_go_together_is_refused_in_a_sentence(place, tmp_path, one, five, changes, message):
    run = make_run(place, tmp_path / "run", **changes, **{"pairs.sources": TWO.format(place, one, five)})
    with pytest.raises(UserError, match=message) as raised:
        preflight.check(run, run.config.stages)
    assert "\n" not in str(raised.value)


def test_a_source_that_is_missing_or_without_an_example_is_named(place, tmp_path):
    text = TWO.format(place, "", "").replace("five.jsonl", "six.jsonl")
    with pytest.raises(UserError, match=r"six\.jsonl: no such file or folder"):
        run = make_run(place, tmp_path / "run", **{"pairs.sources": text})
        preflight.check(run, run.config.stages)
    (tmp_path / "six.jsonl").write_text('{"query": "w1", "positive": " "}\n')
    text = text.replace(f"{place}/six", f"{tmp_path}/six")
    with pytest.raises(UserError, match="source 'five': no labelled example is left to train on"):
        execute(make_run(place, tmp_path / "run", **{"pairs.sources": text}), "pairs")


@pytest.mark.long
def test_a_run_on_five_sources_that_is_killed_ends_the_same(place, tmp_path):
    """SIGKILL in the middle of training; the file of sources has gone meanwhile."""
    flags = as_flags(**SMALL, vocab=place / "vocab.txt", stages="('pairs','train')")
    copy, log = shutil.copy(place / "sources.toml", tmp_path / "sources.toml"), tmp_path / "log"
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    commands = [["--config=dpr:local", f"--workdir={folder}", *flags] for folder in (whole, killed)]
    assert children.run([*commands[0], f"--config.pairs.sources={copy}"], log) == 0, log.read_text()
    strike = children.Strike([killed / "checkpoints" / str(step) for step in (4, 6, 8)])
    assert children.run([*commands[1], f"--config.pairs.sources={copy}"], log, strike) == -9, log.read_text()
    assert not (killed / "checkpoints" / "12").exists()
    (tmp_path / "sources.toml").unlink()
    assert children.run([f"--workdir={killed}"], log) == 0, log.read_text()
    assert "restored step" in log.read_text()
    assert metrics(killed) == metrics(whole)
    for one, other in zip(state(killed), state(whole), strict=True):
        np.testing.assert_array_equal(one, other)
