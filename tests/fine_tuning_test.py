"""Labelled examples, with a corpus or without: what towers learn from them, and from which they start."""

import collections
import dataclasses
import importlib
import json
import shutil

import jax
import numpy as np
import pytest
from conftest import REPOSITORY
from support import toy_corpus
from support.run_results import values
from support.tiny import execute, make_run

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.data.tokenizers import vocabularies
from retrieval.data.tokenizers.vocab import SPECIAL_TOKENS, WordPiece
from retrieval.runs.fitting import data_warnings, examples, packed_rows, validation
from retrieval.runs.fitting.packed_rows import with_rows
from retrieval.runs.pipeline import preflight, records
from retrieval.runs.pipeline.run import Run
from retrieval.stages import train
from retrieval.training import sharding


@pytest.fixture(scope="module")
def pretrained(inputs, prepared, tmp_path_factory):
    """A work directory with trained towers, to stand on."""
    folder = shutil.copytree(prepared, tmp_path_factory.mktemp("pretrained") / "run")
    changes = {"train.steps": 120, "train.learning_rate": 1e-2, "loop.checkpoint_every": 40}
    execute(make_run("ict", inputs, folder, **changes), "train")
    return folder


@pytest.mark.long
def test_training_learns_to_tell_documents_apart(pretrained):
    lines = [json.loads(line) for line in (pretrained / "metrics" / "train.jsonl").read_text().splitlines()]
    assert np.mean([line["recall@1"] for line in lines[-20:]]) > 0.5  # chance is 1 in 16
    assert lines[-1]["loss"] < 0.5 * lines[0]["loss"]


@pytest.fixture(scope="module")
def without_corpus(tmp_path_factory):
    """Labelled examples and BERT's weights: a whole run that prepares no corpus."""
    root = tmp_path_factory.mktemp("without")
    bert = shutil.copytree(REPOSITORY / "tests" / "golden" / "bert", root / "bert")
    WordPiece([*SPECIAL_TOKENS, *(f"w{number}" for number in range(45))]).save(bert / "vocab.txt")
    examples = [{"query": f"w{i}", "positive": f"w{i} w{i + 1}", "negative": f"w{i + 2} w{i + 3}"} for i in range(40)]
    (root / "p.jsonl").write_text("\n".join(map(json.dumps, examples)))
    config = importlib.import_module("configs.dpr").get_config("local")
    config.vocab = config.train.init_from = str(bert)
    config.pairs.files = config.sets.labelled = str(root / "p.jsonl")
    config.model.update(num_layers=2, hidden_size=16, num_heads=4, mlp_size=24, embed_dim=8)
    config.data.update(query_length=8, document_length=16, lanes=2, shuffle_buffer=64)
    config.split.shards = 2
    config.train.update(steps=2, batch_size=8)
    config.loop.update(checkpoint_every=2, validate_every=2)
    config.index.dense, config.stages = "exact", (*config.stages[:-1], "export")
    run = Run(config, root / "run", REPOSITORY / "requirements.lock")
    preflight.check(run, config.stages)
    execute(run)
    return run


def test_bert_learns_from_labelled_examples_without_a_corpus(without_corpus):
    run = without_corpus
    assert {system for system, _, _ in values(run.folder)} >= {"bm25", "dense"} and not run.corpus.exists()
    assert vocabularies.load(run.folder / "export").fingerprint == vocabularies.load(run.vocabulary).fingerprint
    preflight.check(run, ("encode", "export"))
    made = {name: records.is_current(run, name) for name in ("sets", "pairs", "train", "encode", "export")}
    assert all(made.values()), made


def test_a_collapsed_tower_does_not_find_what_the_order_of_a_pool_tells(without_corpus):
    """Of equal scores the first candidate counts, so what is relevant must not stand first."""
    pool = validation.labelled_pool(without_corpus)
    golds = {id for grades in pool.qrels.values() for id in grades}
    places = [row for row, candidate in enumerate(pool.candidates) if candidate.id in golds]
    assert places != list(range(len(golds))) and len(places) == len(golds) < len(pool.candidates)


@pytest.mark.long
def test_packed_rows_are_chosen_from_the_runs_own_pairs(without_corpus, monkeypatch):
    vocabulary, mesh = without_corpus.load_vocabulary(), sharding.make_mesh(devices=jax.devices()[:1])
    assert with_rows(without_corpus, vocabulary, mesh.size) is without_corpus  # too few pairs to tell
    monkeypatch.setattr(packed_rows, "_LEAST", 1)
    chosen = with_rows(without_corpus, vocabulary, mesh.size)
    pack = chosen.config.data.pack
    assert 0 < pack.query < 0.8 and 0 < pack.document < 0.8  # 3 of 8 tokens, and 5 of 16
    assert with_rows(without_corpus, vocabulary, mesh.size).config.to_dict() == chosen.config.to_dict()
    assert with_rows(without_corpus, vocabulary, 8) is without_corpus  # two lanes for eight devices
    shapes = {name: x.shape for name, x in examples.abstract_batch(chosen.config, mesh).items()}
    batches = examples.make_batches(chosen, vocabulary, mesh)
    assert {name: x.shape for name, x in next(batches).items()} == shapes


def test_another_vocabulary_without_a_corpus_is_noticed(without_corpus, tmp_path):
    """The stages that read it are out of date; with as many tokens, it is refused where others build on the old one."""
    folder = shutil.copytree(without_corpus.folder, tmp_path / "run")
    bert = shutil.copytree(without_corpus.config.vocab, tmp_path / "bert")
    *tokens, one, other = WordPiece.load(bert / "vocab.txt").tokens
    WordPiece([*tokens, other, one]).save(bert / "vocab.txt")
    run = dataclasses.replace(without_corpus, config=without_corpus.config.copy_and_resolve_references(), folder=folder)
    run.config.vocab = str(bert)
    for name in ("pairs", "train", "encode", "export"):
        assert not records.is_current(run, name)
    with pytest.raises(UserError, match=f"trained with another vocabulary than {bert}/vocab.txt; use its own"):
        preflight.check(run, ("encode",))
    run.config.train.init_from = ""
    with pytest.raises(UserError, match=f"pairs: tokenised with another vocabulary than {bert}/vocab.txt has now"):
        train.train(run)
    (bert / "vocab.txt").unlink()
    with pytest.raises(UserError, match=r"bert: a folder without a vocabulary, in config\.vocab; put it back"):
        preflight.check(run, ("pairs",))


@pytest.mark.long
def test_fine_tuning_on_labelled_files_with_hard_negatives(inputs, pretrained, tmp_path, caplog, monkeypatch):
    """Files of two formats; their queries are held out to validate on, and one is also an evaluation set."""
    monkeypatch.setattr(data_warnings, "IN_A_RUN", 15)  # fewer than there are: the share held out is of all
    animals = [toy_corpus.title(i) for i in range(40)]
    rows = [(f"What is {name}?", f"It is a {name}.", f"It is a {animals[i - 7]}.") for i, name in enumerate(animals)]
    fields = ("anchor", "positive", "negative")
    shouted = [(query.upper(), *others) for query, *others in rows[30:]]  # held out, or trained on, with their like
    lines = (json.dumps(dict(zip(fields, row))) + "\n" for row in rows[:30])
    (tmp_path / "pairs.jsonl").write_text("".join(lines))
    (tmp_path / "triples.tsv").write_text("".join("\t".join(row) + "\n" for row in [*rows[20:], *shouted]))
    changes = {
        "pairs.files": f"{tmp_path / 'pairs.jsonl'},{tmp_path / 'triples.tsv'}",
        "sets.labelled": str(tmp_path / "pairs.jsonl"),
        "sets.reqa": "",
        "data.negatives": 2,
        "train.batch_size": 8,
        "train.steps": 60,
        "train.learning_rate": 1e-2,
        "loop.validate_every": 20,
        "loop.checkpoint_every": 20,
        "base": str(pretrained),
        "corpus": "",
    }
    run = make_run("dpr", inputs, tmp_path / "run", **changes)
    execute(run)
    written = records.details(run, "pairs")
    assert (written["pairs"], written["pairs with negatives"], written["validation queries"]) == (44, 44, 6)
    assert written["evaluated queries"] == 30 and "30 queries are also those of an evaluation set" in caplog.text
    assert written["left out"]["queries with the wording of a held-out one, held out with it"] == 1
    held_out = (json.loads(line)["text"] for line in (run.held_out_pairs / "queries.jsonl").open())
    assert sorted(collections.Counter(map(str.lower, held_out)).values()) == [1, 1, 1, 1, 2]
    lines = [json.loads(line) for line in (run.folder / "metrics" / "train.jsonl").read_text().splitlines()]
    assert sum("validation/RR" in line for line in lines) == 3
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses[0] == pytest.approx(np.log(24), abs=1) and losses[-1] < 0.7 * losses[0]  # 8 positives, 16 negatives
    found = {(row["dataset"], row["system"]) for row in json.loads((run.folder / "results.json").read_text())}
    assert ("pairs", "dense") in found and values(run.folder)["dense", "test", "Success@10"] > 0.5


# The loss `two_way_nll` compares with an example's own negatives alone.
@pytest.mark.parametrize(
    "change", [{}, {"train.other_positives": "negatives"}, {"train.loss": "two_way_nll"}, {"data.rates.pairs": 0.0}]
)
def test_a_batch_has_room_for_the_most_positives_where_a_loss_asks(tmp_path, change):
    (tmp_path / "pairs").mkdir()
    files.write_json(tmp_path / "pairs" / "stats.json", {"most positives": 3})
    config = importlib.import_module("configs.reqa").get_config("local")
    config.update_from_flattened_dict({"base": "", "stages": ("pairs",)} | change)
    assert examples.known_positives(Run(config, tmp_path, tmp_path)) == (0 if change else 3)
