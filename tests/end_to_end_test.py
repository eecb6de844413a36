"""The whole line on a toy dump: every config trains and is evaluated; `faults_test` cuts runs off."""

import dataclasses
import importlib
import json
import shutil

import jax
import numpy as np
import pytest
from conftest import REPOSITORY
from support import toy_corpus
from support.tiny import CHEAP, execute, fine_tuning, make_run

from retrieval.data.tokenizers.vocab import SPECIAL_TOKENS, WordPiece
from retrieval.errors import UserError
from retrieval.pipeline import preflight, records
from retrieval.pipeline.work_directory import Asked
from retrieval.recipes import examples, initial_parameters, packed_rows
from retrieval.recipes.packed_rows import with_rows
from retrieval.recipes.placement import parameters_of
from retrieval.recipes.recipe import build_model
from retrieval.search import encoding, scann
from retrieval.stage_outputs import Run
from retrieval.stages import export, findings, train
from retrieval.training import sharding


def results(folder):
    rows = json.loads((folder / "results.json").read_text())
    return {(row["system"], row["split"], row["metric"]): row["value"] for row in rows}


@pytest.fixture(scope="module")
def pretrained(inputs, prepared, tmp_path_factory):
    """A work directory with trained towers, to stand on."""
    folder = shutil.copytree(prepared, tmp_path_factory.mktemp("pretrained") / "run")
    changes = {"train.steps": 120, "train.learning_rate": 1e-2, "loop.checkpoint_every": 40}
    execute(make_run("ict", inputs, folder, **changes), "train")
    return folder


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


@pytest.mark.parametrize("name", ["bfs", "wlp", "bow_mlp"])  # and ict, in `pretrained`
def test_every_config_trains(name, inputs, prepared, tmp_path):
    folder = shutil.copytree(prepared, tmp_path / "run")
    changes = CHEAP | {"train.steps": 1, "train.temperature": 1.0, "train.log_q": False}
    execute(make_run(name, inputs, folder, **changes), "train")
    (line,) = (folder / "metrics" / "train.jsonl").read_text().splitlines()
    assert json.loads(line)["loss"] == pytest.approx(np.log(16), abs=1)  # chance, among 16 documents


@pytest.mark.parametrize("name", ["finished", "finished_mlm"])
def test_from_the_shards_to_the_report(name, request):
    folder = request.getfixturevalue(name).folder
    systems = {system for system, _, _ in results(folder)}
    assert systems == {"bm25", "untrained", "dense", "hybrid"} | ({"dense (ScaNN)"} if scann.available() else set())
    assert all(0 <= value <= 1 for value in results(folder).values())
    report = (folder / "report.md").read_text()
    assert "| dense |" in report and "Table 1" in report and (folder / "runs" / "reqa" / "bm25.trec").exists()
    lines = [json.loads(line) for line in (folder / "metrics" / "train.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [2, 4] and all(np.isfinite(line["loss"]) for line in lines)


@pytest.fixture(scope="module")
def autoencoder(inputs, prepared, tmp_path_factory):
    """A run that has trained one with another decoder than the config's, and looked at its similarities."""
    folder = shutil.copytree(prepared, tmp_path_factory.mktemp("autoencoder") / "run")
    run = make_run("seed_encoder", inputs, folder)
    run.config.prepare = make_run("mlm", inputs, folder).config.prepare  # what the corpus was made with
    run.config.train.update(steps=6, learning_rate=1e-2)
    run.config.model.decoder.update(layers=1, latent=4)
    run.config.similarity.update(lengths=(8, 16), pairs=50)
    execute(run, "train", "similarity")
    return run


def test_an_autoencoders_encoder_starts_towers_and_mlms(inputs, finished_mlm, autoencoder, tmp_path):
    """The encoder as it was trained, in both towers and in an MLM; and an autoencoder from an MLM."""
    seed = autoencoder
    lines = [json.loads(line) for line in (seed.folder / "metrics" / "train.jsonl").read_text().splitlines()]
    for line in lines:
        assert line["loss"] > line["mlm"] + line["reconstruction"] > 0 and line["kl"] > 0  # and its share of kl
    assert lines[-1]["mlm"] < lines[0]["mlm"] and lines[-1]["reconstruction"] < lines[0]["reconstruction"]
    cosines = json.loads((seed.folder / "similarity.json").read_text())
    assert cosines["trained"].keys() == {"8", "16"} and 0 < cosines["untrained"]["8"] < cosines["untrained"]["16"] < 1
    assert cosines["trained"] != cosines["untrained"]
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
    changes = {"data.lanes": 8, "train.batch_size": 32, **{f"data.pack.{key}": value for key, value in pack.items()}}
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
    found = results(tmp_path)
    assert {system for system, _, _ in found} == {"bm25"}
    assert found["bm25", "pair", "Success@5"] == 1.0  # each question names the animal of its own passage


def test_an_index_of_words_reads_the_corpus_on_demand(inputs, prepared, tmp_path):
    """Where the run encodes nothing, no other stage tells."""
    folder = shutil.copytree(prepared, tmp_path / "run")
    for corpus in (False, True):
        run = make_run("bm25", inputs, folder, **{"encode.corpus": corpus})
        execute(run, "index")
        assert run.index("corpus", "bm25").exists() == corpus


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
    config.data.update(query_length=8, document_length=16, lanes=2)
    config.train.update(steps=2, batch_size=8)
    config.loop.update(checkpoint_every=2, validate_every=2)
    config.index.dense, config.stages = "exact", (*config.stages[:-1], "export")
    run = Run(config, root / "run", REPOSITORY / "requirements.lock")
    preflight.check(run, config.stages)
    execute(run)
    return run


def test_bert_learns_from_labelled_examples_without_a_corpus(without_corpus):
    run = without_corpus
    assert {system for system, _, _ in results(run.folder)} >= {"bm25", "dense"} and not run.corpus.exists()
    assert WordPiece.load(run.folder / "export" / "vocab.txt").tokens == WordPiece.load(run.vocabulary).tokens
    preflight.check(run, ("encode", "export"))
    made = {name: records.is_current(run, name) for name in ("sets", "pairs", "train", "encode", "export")}
    assert all(made.values()), made


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


def test_fine_tuning_on_half_of_the_questions(inputs, pretrained, tmp_path):
    changes = {"train.learning_rate": 1e-2, "train.steps": 40, "loop.validate_every": 4, "loop.checkpoint_every": 4}
    run = fine_tuning(inputs, pretrained, tmp_path / "run", **changes)
    execute(run)
    folder = run.folder
    assert not (folder / "corpus").exists()  # the base's serves
    queries = [
        {json.loads(line)["_id"] for line in (folder / path / "queries.jsonl").read_text().splitlines()}
        for path in ("training", "sets/reqa")
    ]
    assert list(map(len, queries)) == [12, 12] and not queries[0] & queries[1]
    lines = [json.loads(line) for line in (folder / "metrics" / "train.jsonl").read_text().splitlines()]
    validated = {line["step"]: line["validation/RR"] for line in lines if "validation/RR" in line}
    assert list(validated) == list(range(4, 41, 4))
    best = max(validated, key=lambda step: (validated[step], step))
    assert records.details(run, "train")["step"] == best
    assert (folder / "checkpoints" / str(best)).exists()
    steps = {row["step"] for row in json.loads((folder / "results.json").read_text()) if row["system"] == "dense"}
    assert steps == {best}
    assert results(folder)["dense", "pair", "Success@10"] > 0.5  # of 24 candidates
    assert "Table 2" in (folder / "report.md").read_text()


def test_fine_tuning_on_labelled_files_with_hard_negatives(inputs, pretrained, tmp_path, caplog, monkeypatch):
    """Files of two formats; their queries are held out to validate on, and one is also an evaluation set."""
    monkeypatch.setattr(findings, "IN_A_RUN", 15)  # fewer than there are: the share held out is of all
    animals = [toy_corpus.title(i) for i in range(40)]
    rows = [(f"What is {name}?", f"It is a {name}.", f"It is a {animals[i - 7]}.") for i, name in enumerate(animals)]
    fields = ("anchor", "positive", "negative")
    lines = (json.dumps(dict(zip(fields, row))) + "\n" for row in rows[:30])
    (tmp_path / "pairs.jsonl").write_text("".join(lines))
    (tmp_path / "triples.tsv").write_text("".join("\t".join(row) + "\n" for row in [*rows[20:], rows[-1]]))
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
    assert (written["pairs"], written["pairs with negatives"], written["validation queries"]) == (36, 36, 4)
    assert written["evaluated queries"] == 30 and "30 queries are also those of an evaluation set" in caplog.text
    lines = [json.loads(line) for line in (run.folder / "metrics" / "train.jsonl").read_text().splitlines()]
    assert sum("validation/RR" in line for line in lines) == 3
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses[0] == pytest.approx(np.log(24), abs=1) and losses[-1] < 0.7 * losses[0]  # 8 positives, 16 negatives
    found = {(row["dataset"], row["system"]) for row in json.loads((run.folder / "results.json").read_text())}
    assert ("pairs", "dense") in found and results(run.folder)["dense", "test", "Success@10"] > 0.5


def test_more_candidates_from_the_corpus_of_the_base(inputs, finished, tmp_path):
    changes = {"base": str(finished.folder), "stages": ("sets", "encode", "index", "evaluate", "report")}
    run = make_run("ict_bfs_wlp", inputs, tmp_path, **changes, **{"sets.distractors": 100})
    execute(run)
    count = len((run.sets / "reqa" / "corpus.jsonl").read_text().splitlines())
    assert count == 100 + len((finished.sets / "reqa" / "corpus.jsonl").read_text().splitlines())
    assert not (run.folder / "checkpoints").exists()
    ours, theirs = results(run.folder), results(finished.folder)
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
    ours, theirs = results(run.folder), results(finished.folder)
    assert ours["dense", "pair", "RR"] == pytest.approx(theirs["dense", "pair", "RR"])
    assert "| dense |" in (run.folder / "report.md").read_text()


def test_pre_training_is_validated_on_unseen_passages(inputs, prepared, tmp_path):
    folder = shutil.copytree(prepared, tmp_path / "run")
    changes = CHEAP | {"data.held_out": 0.2, "train.steps": 60, "train.learning_rate": 1e-2}
    changes |= {"loop.validate_every": 20, "loop.checkpoint_every": 20}
    run = make_run("ict_bfs_wlp", inputs, folder, **changes)
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


@pytest.mark.parametrize("stages, asked", [(("train", "encode"), "evaluate"), (("train",), "search")])
def test_outputs_of_two_models_do_not_mix(inputs, finished, tmp_path, stages, asked):
    run = make_run("ict", inputs, tmp_path, base=str(finished.folder), stages=(*stages, asked), **CHEAP)
    execute(run, *stages)
    with pytest.raises(
        UserError, match=rf"stage '{asked}' would read what stage '\w+' of .* made of its own '\w+', and"
    ):
        preflight.check(dataclasses.replace(run, asked=Asked("What?")), [asked])
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
