"""The whole line on a toy dump: every config trains and is evaluated; `faults_test` cuts runs off."""

import dataclasses
import importlib
import json
import shutil

import jax
import numpy as np
import pytest
from support.run_results import values
from support.tiny import CHEAP, execute, make_run

from retrieval.data.tokenizers.vocab import WordPiece
from retrieval.errors import UserError
from retrieval.pipeline import preflight, records
from retrieval.pipeline.work_directory import Asked
from retrieval.recipes import initial_parameters
from retrieval.recipes.placement import parameters_of
from retrieval.recipes.recipe import build_model
from retrieval.search import encoding, scann
from retrieval.stage_outputs import Run
from retrieval.stages import export


@pytest.fixture(scope="module")
def finished(inputs, prepared, tmp_path_factory):
    """A whole run; a test that changes something copies it."""
    run = make_run("ict_bfs_wlp", inputs, shutil.copytree(prepared, tmp_path_factory.mktemp("finished") / "run"))
    execute(run)
    return run


@pytest.fixture(scope="module")
def finished_mlm(inputs, prepared, tmp_path_factory):
    """The same of a masked language model."""
    run = make_run("mlm", inputs, shutil.copytree(prepared, tmp_path_factory.mktemp("mlm") / "run"))
    execute(run)
    return run


def test_a_step_starts_at_chance(inputs, prepared, tmp_path):
    folder = shutil.copytree(prepared, tmp_path / "run")
    changes = CHEAP | {"train.steps": 1, "train.temperature": 1.0, "train.log_q": False}
    execute(make_run("wlp", inputs, folder, **changes), "train")
    (line,) = (folder / "metrics" / "train.jsonl").read_text().splitlines()
    assert json.loads(line)["loss"] == pytest.approx(np.log(16), abs=1)  # chance, among 16 documents


@pytest.mark.parametrize("name", ["finished", "finished_mlm"])
def test_from_the_shards_to_the_report(name, request):
    folder = request.getfixturevalue(name).folder
    systems = {system for system, _, _ in values(folder)}
    assert systems == {"bm25", "untrained", "dense", "hybrid"} | ({"dense (ScaNN)"} if scann.available() else set())
    assert all(0 <= value <= 1 for value in values(folder).values())
    report = (folder / "report.md").read_text()
    assert (
        "| dense |" in report
        and "Corpus: pairs to train on" in report
        and (folder / "runs" / "reqa" / "bm25.trec").exists()
    )
    lines = [json.loads(line) for line in (folder / "metrics" / "train.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [2, 4] and all(np.isfinite(line["loss"]) for line in lines)


@pytest.fixture(scope="module")
def autoencoder(inputs, prepared, tmp_path_factory):
    """A run that has trained one with another decoder than the config's."""
    folder = shutil.copytree(prepared, tmp_path_factory.mktemp("autoencoder") / "run")
    run = make_run("seed_encoder", inputs, folder)
    run.config.prepare = make_run("mlm", inputs, folder).config.prepare  # what the corpus was made with
    run.config.train.update(steps=6, learning_rate=1e-2)
    run.config.model.decoder.update(layers=1, latent=4)
    execute(run, "train")
    return run


@pytest.mark.long
def test_an_autoencoders_encoder_starts_towers_and_mlms(inputs, finished_mlm, autoencoder, tmp_path):
    """The encoder as it was trained, in both towers and in an MLM; and an autoencoder from an MLM."""
    seed = autoencoder
    lines = [json.loads(line) for line in (seed.folder / "metrics" / "train.jsonl").read_text().splitlines()]
    for line in lines:
        assert line["loss"] > line["mlm"] + line["reconstruction"] > 0 and line["kl"] > 0  # and its share of kl
    assert lines[-1]["mlm"] < lines[0]["mlm"] and lines[-1]["reconstruction"] < lines[0]["reconstruction"]
    vocab_size = len(WordPiece.load(seed.corpus / "vocab.txt"))
    _, trained = initial_parameters.load_parameters(seed.folder, vocab_size, seed.config.mesh)
    wanted = parameters_of(trained)
    start = {"train.init_from": str(seed.folder), "model.tied": False}
    towers, mlm = (make_run(name, inputs, tmp_path / name, **start) for name in ("ict", "mlm"))
    for run in (towers, mlm):
        initial_parameters.check_start(run)
        model = build_model(run.config, vocab_size)
        initial_parameters.init_from(model, run.config, vocab_size)
        found = parameters_of(model)
        if run is mlm:
            parts = [found[name] for name in ("encoder", "dense", "norm", "bias")]
            assert len(found) == len(parts)
            given = [wanted[name] for name in ("encoder", "dense", "norm", "bias")]
        else:
            parts = [found[name]["encoder"] for name in ("query_tower", "document_tower")]
            given = [wanted["encoder"]] * 2
        for left, right in zip(jax.tree.leaves(parts), jax.tree.leaves(given), strict=True):
            np.testing.assert_array_equal(left, right)
    again = make_run("seed_encoder", inputs, tmp_path / "again", **{"train.init_from": str(finished_mlm.folder)})
    initial_parameters.check_start(again)
    model = build_model(again.config, vocab_size)
    initial_parameters.init_from(model, again.config, vocab_size)
    _, bert = initial_parameters.load_parameters(finished_mlm.folder, vocab_size, again.config.mesh)
    found = parameters_of(model)
    for name, value in parameters_of(bert).items():
        for left, right in zip(jax.tree.leaves(found[name]), jax.tree.leaves(value), strict=True):
            np.testing.assert_array_equal(left, right)
    assert "decoder" in found


@pytest.mark.long
@pytest.mark.parametrize("name", ["ict_bfs_wlp", "mlm"])
def test_packed_texts_train_towers_and_an_mlm(name, inputs, prepared, tmp_path):
    """In rows that are too few for the texts, the run says what to raise."""
    pack = {"query": 0.9, "query_row": 32, "document": 0.9, "document_row": 96}
    changes = {"data.lanes": 2, "train.batch_size": 32, **{f"data.pack.{key}": value for key, value in pack.items()}}
    folder = shutil.copytree(prepared, tmp_path / "run")
    execute(make_run(name, inputs, folder, **changes), "train")
    lines = [json.loads(line) for line in (folder / "metrics" / "train.jsonl").read_text().splitlines()]
    assert all(np.isfinite(line["loss"]) and line["examples"] == 32 for line in lines)
    assert all(8 < line["tokens"] < 16 + 48 for line in lines)
    short = make_run(name, inputs, shutil.copytree(prepared, tmp_path / "short"), **changes)
    short.config.data.pack.document = 0.3
    with pytest.raises(
        UserError, match=r"lane-0000\d: \d+ examples wait for room; .* raise config\.data\.pack\.document"
    ):
        execute(short, "train")


def test_bm25_needs_no_training(inputs, tmp_path):
    execute(make_run("bm25", inputs, tmp_path))
    found = values(tmp_path)
    assert {system for system, _, _ in found} == {"bm25"}
    assert found["bm25", "pair", "Success@5"] == 1.0  # each question names the animal of its own passage


def test_an_index_of_words_reads_the_corpus_on_demand(inputs, prepared, tmp_path):
    """Where the run encodes nothing, no other stage tells."""
    folder = shutil.copytree(prepared, tmp_path / "run")
    for corpus in (False, True):
        run = make_run("bm25", inputs, folder, **{"encode.corpus": corpus})
        execute(run, "index")
        assert run.index("corpus", "bm25").exists() == corpus


def test_more_candidates_from_the_corpus_of_the_base(inputs, finished, tmp_path):
    changes = {"base": str(finished.folder), "stages": ("sets", "encode", "index", "evaluate", "report")}
    run = make_run("ict_bfs_wlp", inputs, tmp_path, **changes, **{"sets.distractors": 100})
    execute(run)
    count = len((run.sets / "reqa" / "corpus.jsonl").read_text().splitlines())
    assert count == 100 + len((finished.sets / "reqa" / "corpus.jsonl").read_text().splitlines())
    assert not (run.folder / "checkpoints").exists()
    ours, theirs = values(run.folder), values(finished.folder)
    for metric in ("Success@1", "Success@10", "RR"):  # other candidates can only come before the right one
        assert ours["dense", "pair", metric] <= theirs["dense", "pair", metric]
    assert ours["dense", "pair", "RR"] < theirs["dense", "pair", "RR"]
    assert "more candidates from the corpus" in (run.folder / "report.md").read_text()
    assert records.details(run, "sets")["reqa"]["more candidates from the corpus"] == 100


def test_one_command_evaluates_new_sets_alone(inputs, finished, tmp_path, monkeypatch):
    """The second has the passages of the first: their embeddings are copied."""
    new = shutil.copytree(finished.sets / "reqa", tmp_path / "new")
    again = shutil.copytree(new, tmp_path / "other")
    copied, copy = [], encoding.copy
    monkeypatch.setattr(encoding, "copy", lambda *args: copied.append(args[:2]) or copy(*args))
    before = {path: path.stat().st_mtime_ns for path in finished.folder.rglob("*")}
    config = importlib.import_module("configs.evaluate").get_config()
    config.base, config.sets.beir = str(finished.folder), f"{new},{again}"
    run = Run(config, tmp_path / "run", finished.lock)
    preflight.check(run, config.stages)
    execute(run)
    assert copied == [tuple(run.embeddings(name, "trained") for name in ("new", "other"))]
    assert sorted(path.name for path in (run.folder / "embeddings").iterdir()) == ["new", "other"]
    of_new, of_other = ({p.name: p.read_bytes() for p in folder.iterdir()} for folder in copied[0])
    assert of_new == of_other
    assert [path.name for path in (run.folder / "embeddings" / "new").iterdir()] == ["trained"]
    assert not {"corpus", "checkpoints"} & {path.name for path in run.folder.iterdir()}
    assert {path: path.stat().st_mtime_ns for path in finished.folder.rglob("*")} == before
    ours, theirs = values(run.folder), values(finished.folder)
    assert ours["dense", "pair", "RR"] == pytest.approx(theirs["dense", "pair", "RR"])
    assert "| dense |" in (run.folder / "report.md").read_text()


def test_pre_training_is_validated_on_unseen_passages(inputs, prepared, tmp_path):
    folder = shutil.copytree(prepared, tmp_path / "run")
    changes = CHEAP | {"data.held_out": 0.2, "train.steps": 60, "train.learning_rate": 1e-2}
    changes |= {"loop.validate_every": 20, "loop.checkpoint_every": 20}
    run = make_run("wlp", inputs, folder, **changes)
    execute(run, "train")
    lines = [json.loads(line) for line in (folder / "metrics" / "train.jsonl").read_text().splitlines()]
    scores = [line["validation/Success@10"] for line in lines if "validation/RR" in line]
    assert len(scores) == 3 and scores[-1] > scores[0]


def test_the_bases_towers_encode_as_they_were_trained(inputs, finished, tmp_path):
    """Whatever the run's own config says of them, which nothing has to repeat."""
    other = {"model.pooling": "mean", "data.query_length": 8, "data.document_length": 96, "model.num_heads": 1}
    run = make_run("ict", inputs, tmp_path, base=str(finished.folder), stages=("encode",), **other)
    execute(run)
    ours, theirs = (sorted((each.folder / "embeddings").rglob("*.npy")) for each in (run, finished))
    assert [path.read_bytes() for path in ours] == [path.read_bytes() for path in theirs]


def test_outputs_of_two_models_do_not_mix(inputs, finished, tmp_path):
    run = make_run("ict", inputs, tmp_path, base=str(finished.folder), stages=("train", "evaluate"), **CHEAP)
    execute(run, "train")
    mixed = r"stage '{}' would read what stage '\w+' of .* made of its own '\w+', and"
    with pytest.raises(UserError, match=mixed.format("evaluate")):
        preflight.check(run, ["evaluate"])
    run.config.stages = ("train", "search")
    with pytest.raises(UserError, match=mixed.format("search")):
        preflight.check(dataclasses.replace(run, asked=Asked("What?")), ["search"])
    assert not export.results(run)


def test_a_query_of_ones_own(finished, tmp_path, capsys):
    run = dataclasses.replace(finished, folder=shutil.copytree(finished.folder, tmp_path / "run"))
    execute(dataclasses.replace(run, asked=Asked("What does the Red fox eat?")), "search")
    output = capsys.readouterr().out
    assert [line for line in output.splitlines() if line in ("dense", "BM25", "hybrid")] == ["dense", "BM25", "hybrid"]
    first = output.split("\nBM25\n")[1].splitlines()
    assert first[0].startswith("  1.") and "Red fox" in first[0] + first[1]
    with pytest.raises(UserError, match="needs a query"):
        execute(run, "search")
