"""A model of sentence-transformers that is evaluated as it is, without a training example."""

import json

import numpy as np
import pytest
from conftest import REPOSITORY
from support import exported, toy_hub

import retrieval
from configs import mlm, published
from retrieval import files, model_folder
from retrieval.errors import UserError
from retrieval.pipeline import preflight, runner
from retrieval.runtime import hub
from retrieval.search import encoding
from retrieval.stage_outputs import Run

pytestmark = pytest.mark.usefixtures("one_device")

TEXTS = [("a", "The fox", "The fox is a dog."), ("b", "", "the dog"), ("c", "dog " * 60, "the end")]
JOINED = ["The fox The fox is a dog.", "the dog", "dog " * 60 + " the end"]


def with_older_pooling(folder, **switches):
    """The folder with a switch for each way of pooling, as most published ones have them."""
    switches = {"cls_token": False, "mean_tokens": True, "max_tokens": False} | switches
    record = {"word_embedding_dimension": 16} | {f"pooling_mode_{name}": value for name, value in switches.items()}
    files.write_json(folder / "1_Pooling" / "config.json", record)
    return folder


@pytest.fixture
def model(tmp_path):
    changes = {"model.embed_dim": 0, "model.pooling": "mean", "data.query_length": 40}
    folder = with_older_pooling(exported.export(exported.work_directory(tmp_path / "trained", **changes)))
    (folder / model_folder.SUMS).unlink()
    return with_titles(folder, {})  # which only our own exports have


def with_titles(folder, titles):
    """The folder with what it says of titles."""
    record = json.loads((folder / "config_sentence_transformers.json").read_text())
    record = {name: value for name, value in record.items() if name != "titles"} | titles
    files.write_json(folder / "config_sentence_transformers.json", record)
    return folder


def run_of(folder, path, **changes):
    """A run of a tiny set with a published model; all its stages are done."""
    rows = [{"_id": id, "title": title, "text": text} for id, title, text in TEXTS]
    files.write_text(path / "set" / "corpus.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    files.write_text(path / "set" / "queries.jsonl", '{"_id": "q", "text": "what is a fox?"}\n')
    files.write_text(path / "set" / "qrels" / "test.tsv", "query-id\tcorpus-id\tscore\nq\ta\t1\n")
    config = published.get_config(str(folder))
    config.sets.beir, config.index.dense = str(path / "set"), "exact"
    config.update_from_flattened_dict(changes)
    run = Run(config, path / "run", REPOSITORY / "requirements.lock")
    preflight.check(run, config.stages)
    runner.open_run(run)
    for stage in config.stages:
        runner.run_stage(run, stage)
    return run


def test_a_model_is_evaluated_without_an_example(model, tmp_path):
    run = run_of(model, tmp_path)
    found, ids = encoding.load(run.embeddings("set", "trained"), "candidates")
    theirs = retrieval.load(model)
    assert ids == ["a", "b", "c"] and np.allclose(found, theirs.encode_documents(JOINED), atol=1e-6)
    queries, _ = encoding.load(run.embeddings("set", "trained"), "queries")
    assert np.allclose(queries, theirs.encode_queries(["what is a fox?"]), atol=1e-6)
    systems = {row["system"] for row in json.loads((run.folder / "results.json").read_text())}
    assert {"bm25", "dense"} <= systems
    again = retrieval.load(run.folder).encode_documents([{"title": "The fox", "text": "The fox is a dog."}])
    assert np.allclose(again, found[:1], atol=1e-6)


def test_titles_can_be_pairs(model, tmp_path):
    run = run_of(model, tmp_path, **{"data.titles": "pair"})
    found, _ = encoding.load(run.embeddings("set", "trained"), "candidates")
    pairs = [{"title": title, "text": text} for _, title, text in TEXTS]
    assert np.allclose(found, retrieval.load(with_titles(model, {"titles": "pair"})).encode_documents(pairs), atol=1e-6)


def test_a_model_comes_from_the_hub(model, tmp_path, monkeypatch):
    contents = {path.relative_to(model).as_posix(): path.read_bytes() for path in model.rglob("*") if path.is_file()}
    hub.local.cache_clear()
    with toy_hub.served({"me/model": contents}, tmp_path / "cache", monkeypatch):
        config = published.get_config("hf:me/model")
    hub.local.cache_clear()
    assert config.vocab == config.train.init_from == "hf:me/model"
    assert config.model.hidden_size == 16 and config.model.pooling == "mean" and config.data.document_length == 40


def test_what_ours_would_not_start_from_is_refused(model, tmp_path):
    with pytest.raises(UserError, match=r"no modules\.json there"):
        published.get_config(str(tmp_path))
    with pytest.raises(UserError, match="it pools by max; one of cls, mean is needed"):
        published.get_config(str(with_older_pooling(model, mean_tokens=False, max_tokens=True)))
    with pytest.raises(UserError, match="it pools by mean_sqrt_len; one of cls, mean is needed"):
        published.get_config(str(with_older_pooling(model, mean_tokens=False, mean_sqrt_len_tokens=True)))
    with pytest.raises(UserError, match="it pools by cls and mean"):
        published.get_config(str(with_older_pooling(model, cls_token=True)))


def test_without_a_model_nothing_begins():
    with pytest.raises(UserError, match=r"config\.train\.steps=0 takes the parameters of config\.train\.init_from"):
        preflight.check_settings(published.get_config(), published.get_config().stages)


def test_a_model_without_towers_joins_no_titles():
    config = mlm.get_config("local")
    config.data.titles = "joined"
    with pytest.raises(UserError, match=r"config\.data\.titles=joined: only towers join them"):
        preflight.check_settings(config, ("train",))


def test_a_published_model_has_the_same_say_as_bm25(model, tmp_path):
    run = run_of(model, tmp_path)
    noted = files.read_json(run.folder / "stages" / "evaluate.json")["details"]["set, hybrid"]
    assert noted["weights"] == [0.5, 0.5] and not noted["validation"]
    loaded = retrieval.load(run.folder)
    scores = [
        [hit.score for hit in loaded.index(JOINED, kind="hybrid", **given).search("a fox", k=3)]
        for given in ({}, {"weight": 0.5}, {"weight": 0.1})
    ]
    assert scores[0] == scores[1] != scores[2]
