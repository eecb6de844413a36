"""A model of sentence-transformers that is evaluated as it is, without a training example."""

import json
import shutil

import numpy as np
import pytest
from conftest import REPOSITORY
from support import exported
from support.tiny import complete
from support.tuned import tuned

import retrieval
from configs import fine_tune, own, published
from configs.studies import folds
from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.common.runtime import model_folder
from retrieval.data.sets import beir
from retrieval.data.sets.beir import Candidate, RetrievalSet
from retrieval.runs.pipeline import preflight
from retrieval.runs.pipeline.run import Run
from retrieval.search import encoding
from retrieval.studies import run_table, study_report

TEXTS = [("a", "The fox", "The fox is a dog."), ("b", "", "the dog"), ("c", "dog " * 60, "the end")]
JOINED = ["The fox The fox is a dog.", "the dog", "dog " * 60 + " the end"]


def with_older_pooling(folder, **switches):
    """The folder with a switch for each way of pooling, as most published ones have them."""
    switches = {"cls_token": False, "mean_tokens": True, "max_tokens": False} | switches
    record = {"word_embedding_dimension": 16} | {f"pooling_mode_{name}": value for name, value in switches.items()}
    files.write_json(folder / "1_Pooling" / "config.json", record)
    return folder


@pytest.fixture(scope="module")
def whole_model(tmp_path_factory):
    changes = {"model.embed_dim": 0, "model.pooling": "mean", "data.query_length": 40}
    place = tmp_path_factory.mktemp("models")
    export = exported.export(exported.work_directory(place / "trained", **changes))
    folder = with_older_pooling(shutil.copytree(export, place / "model"))  # which no run's record has sums of
    (folder / model_folder.SUMS).unlink()
    return with_titles(folder, {})  # which only our own exports have


@pytest.fixture
def model(whole_model, tmp_path):
    """A copy, which may be changed."""
    return shutil.copytree(whole_model, tmp_path / "model")


@pytest.fixture(scope="module")
def evaluated(whole_model, tmp_path_factory):
    return run_of(whole_model, tmp_path_factory.mktemp("evaluated"))


def with_titles(folder, titles):
    """The folder with what it says of titles."""
    record = json.loads((folder / "config_sentence_transformers.json").read_text())
    record = {name: value for name, value in record.items() if name != "titles"} | titles
    files.write_json(folder / "config_sentence_transformers.json", record)
    return folder


def run_of(folder, path, **changes):
    """A run of a tiny set with a published model; all its stages are done."""
    candidates = [Candidate(*text) for text in TEXTS]
    value = RetrievalSet("set", {"q": "what is a fox?"}, candidates, {"test": {"q": {"a": 1}}})
    beir.write_folder(path / "set", value)
    config = published.get_config(str(folder))
    config.sets.beir, config.index.dense = str(path / "set"), "exact"
    config.update_from_flattened_dict(changes)
    return complete(Run(config, path / "run", REPOSITORY / "requirements.lock"))


def test_a_model_is_evaluated_without_an_example(whole_model, evaluated):
    run = evaluated
    found, ids = encoding.load(run.embeddings("set", "trained"), "candidates")
    theirs = retrieval.load(whole_model)
    assert ids == ["a", "b", "c"] and np.allclose(found, theirs.encode_document(JOINED), atol=1e-6)
    queries, _ = encoding.load(run.embeddings("set", "trained"), "queries")
    assert np.allclose(queries, theirs.encode_query(["what is a fox?"]), atol=1e-6)
    systems = {row["system"] for row in json.loads((run.folder / "results.json").read_text())}
    assert {"bm25", "dense"} <= systems
    again = retrieval.load(run.folder).encode_document([{"title": "The fox", "text": "The fox is a dog."}])
    assert np.allclose(again, found[:1], atol=1e-6)


def write_set(folder, parts):
    """A BEIR folder of foxes and dogs; of a question with number n the right candidate is that of n."""
    candidates = [Candidate(f"d{n}", "", f"the {'fox' if n % 2 else 'dog'} {n}") for n in range(60)]
    qrels = {name: {f"q{n}": {f"d{n}": 1} for n in asked} for name, asked in parts.items()}
    queries = {f"q{n}": f"where is {n}?" for n in range(60)}
    beir.write_folder(folder, RetrievalSet(folder.name, queries, candidates, qrels))
    return folder


def all_stages(config, folder, **changes):
    """A run of a config, all of whose stages are done."""
    config.update_from_flattened_dict({"index.dense": "exact", **changes})
    return complete(Run(config, folder, REPOSITORY / "requirements.lock"))


@pytest.mark.long
def test_documents_are_searched_with_a_model_and_pairs_train_it(model, tmp_path):
    """`own:MODEL`, then `own:pairs:MODEL` on top of that."""
    for number in range(30):
        text = f"The fox {number} is a dog. It was {number} and {number + 100} at the end of the day."
        files.write_text(tmp_path / "docs" / f"{number}.md", f"# Fox {number}\n\n{text}\n")
    pairs = [{"query": f"where is {n}?", "positives": [f"the fox {n}"]} for n in range(60)]
    files.write_text(tmp_path / "pairs.jsonl", "".join(json.dumps(pair) + "\n" for pair in pairs))
    labelled = {"sets.labelled": str(tmp_path / "pairs.jsonl")}
    run = all_stages(own.get_config(str(model)), tmp_path / "run", corpus=str(tmp_path / "docs"), **labelled)
    rows = json.loads((run.folder / "results.json").read_text())
    assert {(row["dataset"], row["system"]) for row in rows} >= {
        (set, system) for set in ("sentences", "pairs") for system in ("bm25", "dense", "hybrid")
    }
    loaded = retrieval.load(run.folder)
    assert loaded.index(kind="bm25").search("a day of 107", k=3)[0].id == "7.md:0"
    assert len(loaded.index(kind="hybrid").search("fox 7", k=3)) == 3

    changes = {"train.batch_size": 8, "train.epochs": 1, "train.minutes": 0.0, "loop.validate_every": 3}
    tuned = all_stages(
        own.get_config(f"pairs:{model}"), tmp_path / "tuned", base=str(run.folder), **labelled, **changes
    )
    systems = {row["system"] for row in json.loads((tuned.folder / "results.json").read_text())}
    assert systems >= {"bm25", "start", "dense", "hybrid"}
    hits = retrieval.load(tuned.folder).index(kind="hybrid").search("fox 7", k=3)
    assert len(hits) == 3 and all(".md:" in hit.id for hit in hits)

    config = folds.get_config(str(model))
    config.base, config.labelled = str(run.folder), labelled["sets.labelled"]
    folds.complete(config)
    table = run_table.read_table(config, tmp_path / "folds")
    run_table.check_table(table)
    study_report.report_of(config).check(table)
    assert config.report.notes.startswith("60 questions,") and table["fold-2"].run.config.split.fold == "2/5"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"split.train": "trian"}, r"unknown file of .*qrels in config\.split\.train 'trian': did you mean train"),
        ({"sets.splits": ("tets",)}, r"in config\.sets\.splits 'tets': did you mean test"),
        ({"split.dev": "train"}, r"config\.split\.train and config\.split\.dev are both train"),
        ({"train.init_from": ""}, r"config\.encode\.start=True evaluates what config\.train\.init_from names"),
    ],
)
def test_mistakes_of_fine_tuning(model, tmp_path, changes, message):
    folder = write_set(tmp_path / "own", {"train": range(10, 60), "dev": range(6, 10), "test": range(6)})
    own = {"sets.beir": str(folder), "split.set": "own", "split.train": "train", "split.dev": "dev"}
    with pytest.raises(UserError, match=message):
        tuned(model, tmp_path / "run", **own | changes)


def test_titles_can_be_pairs(model, tmp_path):
    run = run_of(model, tmp_path, **{"data.titles": "pair"})
    found, _ = encoding.load(run.embeddings("set", "trained"), "candidates")
    pairs = [{"title": title, "text": text} for _, title, text in TEXTS]
    assert np.allclose(found, retrieval.load(with_titles(model, {"titles": "pair"})).encode_document(pairs), atol=1e-6)


@pytest.mark.parametrize(
    ("switch", "pooling"), [("cls_token", "cls"), ("lasttoken", "last"), ("weightedmean_tokens", "weighted_mean")]
)
def test_each_switch_of_older_folders_is_a_pooling(model, switch, pooling):
    folder = with_older_pooling(model, **{"mean_tokens": False, switch: True})
    assert published.get_config(str(folder)).model.pooling == pooling


def test_what_ours_would_not_start_from_is_refused(model, tmp_path):
    for name, match in (("", "starts from a model: write"), (str(tmp_path), f"init_from={tmp_path}: no model there")):
        with pytest.raises(UserError, match=match):
            fine_tune.get_config(name)
    with pytest.raises(UserError, match=r"neither a modules\.json nor the config\.json of an encoder"):
        published.get_config(str(tmp_path))
    with pytest.raises(UserError, match="it pools by cls and mean"):
        published.get_config(str(with_older_pooling(model, cls_token=True)))


def test_without_a_model_nothing_begins():
    with pytest.raises(UserError, match=r"'adopt' takes the model that config\.train\.init_from names, .* is empty"):
        preflight.check_settings(published.get_config(), published.get_config().stages)


def test_a_published_model_has_the_same_say_as_bm25(evaluated):
    noted = files.read_json(evaluated.folder / "stages" / "evaluate.json")["details"]["set, hybrid"]
    assert noted["weights"] == [0.5, 0.5] and not noted["validation"]
    loaded = retrieval.load(evaluated.folder)
    scores = [
        [hit.score for hit in loaded.index(JOINED, kind="hybrid", **given).search("a fox", k=3)]
        for given in ({}, {"weight": 0.5}, {"weight": 0.1})
    ]
    assert scores[0] == scores[1] != scores[2]
