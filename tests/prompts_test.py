"""Prompts by name: from a folder into a run, its evaluation sets and its export, and before texts that ask for one."""

import json
import shutil

import numpy as np
import pytest
from conftest import REPOSITORY
from support import exported, toy_corpus
from support.exported import VOCABULARY

import retrieval
from configs import published
from retrieval.common.errors import UserError
from retrieval.common.runtime import model_folder
from retrieval.config import experiment
from retrieval.data.tokenizers import prompts
from retrieval.runs.pipeline import preflight, runner
from retrieval.runs.pipeline.run import Run
from retrieval.runs.weights import prompted, trained_run
from retrieval.search import encoding
from retrieval.stages import mine

pytestmark = pytest.mark.usefixtures("one_device")

SETTINGS = "config_sentence_transformers.json"
PROMPTS = {"query": "the fox: ", "document": "a dog: ", "clustering": "dog fox: ", "STS": "", "Toy-query": "the sep: "}
DOCUMENTS = ["the dog", {"title": "the fox", "text": "a dog, 10-9"}]


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    """Published models, by whether the tokens of prompts are pooled; both have the same weights."""
    changes = {"model.tied": True, "model.pooling": "mean", "model.embed_dim": 0, "data.titles": "joined"}
    run = exported.work_directory(tmp_path_factory.mktemp("base") / "run", **changes)
    whole = shutil.copytree(exported.export(run), run.folder.with_name("whole"))
    (whole / model_folder.SUMS).unlink()
    record = json.loads((whole / SETTINGS).read_text())
    (whole / SETTINGS).write_text(json.dumps(record | {"prompts": PROMPTS, "default_prompt_name": "query"}))
    behind = shutil.copytree(whole, whole.with_name("behind"))
    pooling = json.loads((behind / "1_Pooling" / "config.json").read_text())
    (behind / "1_Pooling" / "config.json").write_text(json.dumps(pooling | {"include_prompt": False}))
    return {True: whole, False: behind}


def with_prompts(folder, query, document):
    """The folder with two prompts alone, which a model of one prompt a side reads."""
    other = shutil.copytree(folder, folder.with_name(f"{folder.name}-{abs(hash((query, document)))}"))
    record = json.loads((other / SETTINGS).read_text())
    record |= {"prompts": {"query": query, "document": document}, "default_prompt_name": None}
    (other / SETTINGS).write_text(json.dumps(record))
    return retrieval.load(other)


@pytest.mark.parametrize("includes", [pytest.param(True, marks=pytest.mark.long), False])
def test_a_named_prompt_is_as_if_it_were_the_only_one(bases, includes):
    model = retrieval.load(bases[includes])
    assert model.prompts == PROMPTS
    other = with_prompts(bases[includes], "dog fox: ", "dog fox: ")
    usual = with_prompts(bases[includes], "the fox: ", "a dog: ")
    for side, texts in (("encode_query", ["fox", "the dog"]), ("encode_document", DOCUMENTS)):
        ours, named, plain = (getattr(each, side) for each in (model, other, usual))
        np.testing.assert_allclose(ours(texts), plain(texts), atol=1e-6)
        np.testing.assert_allclose(ours(texts, prompt_name="clustering"), named(texts), atol=1e-6)
        np.testing.assert_allclose(ours(texts, prompt="dog fox: "), named(texts), atol=1e-6)
        assert np.abs(ours(texts, prompt_name="STS") - ours(texts)).max() > 1e-2
        np.testing.assert_array_equal(ours(texts, prompt=""), ours(texts, prompt_name="STS"))
    documents, queries = model.encode_document(["fox"], prompt_name="query"), model.encode_query(["fox"])
    np.testing.assert_allclose(documents, queries, atol=1e-6)


def test_a_prompt_counts_in_the_length_and_stands_before_a_title(bases):
    model = retrieval.load(bases[True])
    query = "fox " * 20  # 16 tokens are read
    behind = model.encode_query([f"dog fox: {query}"], prompt="")
    np.testing.assert_allclose(model.encode_query([query], prompt_name="clustering"), behind, atol=1e-6)
    joined = model.encode_document(["dog fox: the fox a dog, 10-9"], prompt="")
    np.testing.assert_allclose(model.encode_document(DOCUMENTS[1:], prompt_name="clustering"), joined, atol=1e-6)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"prompt_name": "clusterign"}, "^unknown prompt 'clusterign': did you mean clustering.* STS, Toy-query"),
        ({"prompt_name": "query", "prompt": "a"}, "^prompt_name='query' and prompt='a' are both given: leave one out"),
        ({"prompt": "fox " * 14}, r"14 tokens, and with 2 special ones no token is left of .*query_length=16: take"),
        ({"prompt": "  "}, "the prompt '  ' is nothing to put before a text"),
    ],
)
def test_what_is_no_prompt(bases, given, message):
    with pytest.raises(UserError, match=message):
        retrieval.load(bases[True]).encode_query(["fox"], **given)


def test_a_model_that_pools_from_elsewhere_has_its_own_prompts_alone():
    config = experiment.defaults()
    config.data.update(query_prefix="the fox: ", prompts=("x=a dog: ",))
    config.model.pool_from = (2, 2)
    with pytest.raises(UserError, match=r"pool_from=\(2, 2\) is not where the prompts end"):
        prompted.with_prompts(config, VOCABULARY, query="a dog: ")


@pytest.mark.parametrize("value", [("query=a",), ("a",), ("=a",), ("a=1", "a=2"), "a=1", (1,)])
def test_what_is_no_table_of_prompts(value):
    config = experiment.defaults()
    assert prompts.are_prompts(("a=1=2", "b="))
    with pytest.raises((UserError, TypeError), match=r"config\.data\.prompts|type"):
        config.data.prompts = value
        experiment.check(config)


def test_the_prompts_of_a_set_are_found_as_mteb_finds_them():
    data = {"query_prefix": "q", "document_prefix": "", "prompts": ("NQ-query=1", "NQ=2", "nq-query=3", "scifact=4")}
    names = [prompts.of_set(data, name) for name in ("nq", "SciFact", "trec")]
    assert [tuple(each.values()) for each in names] == [("NQ-query", "NQ"), ("scifact",) * 2, ("query", "document")]
    assert [prompts.chosen(data, side, name) for side, name in names[0].items()] == ["1", "2"]


def test_training_sources_leave_theirs_under_their_names(tmp_path):
    """Into the run, its export and the evaluation of a set of that name; what was trained with counts."""
    toml = '[nq]\nfiles = "nq.jsonl"\nquery_prompt = "ask: "\n[fever]\nfiles = "fever.jsonl"\n'
    changes = {"pairs.sources": toml, "data.query_prefix": "the fox: ", "data.prompts": ("nq-query=x: ", "y=z: ")}
    run = exported.work_directory(tmp_path / "run", **changes, **{"model.tied": True})
    expected = {"query": "the fox: ", "document": "", "nq-query": "ask: ", "y": "z: ", "nq-document": ""}
    expected |= {"fever-query": "the fox: ", "fever-document": ""}
    assert retrieval.load(run.folder).prompts == retrieval.load(exported.export(run)).prompts == expected
    assert prompts.of_set(trained_run.of_towers(run).data, "NQ") == {"query": "nq-query", "document": "nq-document"}


def test_prompts_that_cannot_be_kept_are_told(bases, tmp_path, caplog):
    folder = shutil.copytree(bases[False], tmp_path / "model")
    record = json.loads((folder / SETTINGS).read_text())
    (folder / SETTINGS).write_text(json.dumps(record | {"prompts": {"a=b": "a: ", "query": "q: "}}))
    assert retrieval.load(folder).prompts == {"query": "q: ", "document": ""}
    assert "a prompt cannot be named 'a=b' here, and is left out" in caplog.text
    # With nothing before queries and documents nobody could tell that prompts are not pooled.
    record |= {"prompts": {"x": "a: "}, "default_prompt_name": None}
    (folder / SETTINGS).write_text(json.dumps(record))
    assert list(retrieval.load(folder).prompts) == ["query", "document"]
    assert "its prompts are not pooled, which needs one of queries or documents here: none is kept" in caplog.text


@pytest.fixture(scope="module", params=[pytest.param(True, marks=pytest.mark.long), False], ids=["pooled", "not"])
def tuned(request, bases, tmp_path_factory):
    """A run from a published model, over two sets of the same candidates, of which one has prompts of its own.

    Of embeddings eight dimensions are kept.
    """
    place = tmp_path_factory.mktemp("tuned")
    for name in ("toy", "other"):
        toy_corpus.write_set(place / name, PASSAGES, QUERIES, {"q1": "p1", "q2": "p2"})
    config = published.get_config(str(bases[request.param]))
    config.sets.beir, config.index.dense = f"{place / 'toy'},{place / 'other'}", "exact"
    config.encode.truncate, config.data.prompts = 8, (*config.data.prompts, "toy-document=the: ")
    config.stages = ("sets", "adopt", "encode", "index", "evaluate", "export")
    run = Run(config, place / "run", REPOSITORY / "requirements.lock")
    preflight.check(run, config.stages)
    runner.open_run(run)
    for stage in config.stages:
        runner.run_stage(run, stage)
    return run


QUERIES = {"q1": "where is the fox", "q2": "a dog"}
PASSAGES = {"p1": "the fox", "p2": "a dog, 10-9", "p3": "the end"}


def test_a_set_is_encoded_with_the_prompts_of_its_name(tuned):
    model = retrieval.load(tuned.folder)
    for name, query, document in (("toy", "the sep: ", "the: "), ("other", "the fox: ", "a dog: ")):
        queries_QE, _ = encoding.load(tuned.embeddings(name, "trained"), "queries")
        candidates_NE, _ = encoding.load(tuned.embeddings(name, "trained"), "candidates")
        expected = model.encode_query(list(QUERIES.values()), prompt=query)
        np.testing.assert_allclose(queries_QE, expected, atol=1e-6)
        expected_NE = model.encode_document(list(PASSAGES.values()), prompt=document)
        np.testing.assert_allclose(candidates_NE, expected_NE, atol=1e-6)
        np.testing.assert_allclose(mine.embedded(tuned, name, list(QUERIES.values())), expected, atol=1e-6)


def test_an_export_has_all_prompts_of_its_base_and_its_run(tuned):
    record = json.loads((tuned.folder / "export" / SETTINGS).read_text())
    expected = {**PROMPTS, "toy-document": "the: "}
    assert record["prompts"] == expected and record["default_prompt_name"] == "query"
    run, export = retrieval.load(tuned.folder), retrieval.load(tuned.folder / "export")
    assert run.prompts == export.prompts == expected
    for name in expected:
        for side in ("encode_query", "encode_document"):
            ours, theirs = (getattr(model, side)(["fox", "a dog"], prompt_name=name) for model in (run, export))
            np.testing.assert_allclose(ours, theirs, atol=1e-6)
    card = (tuned.folder / "export" / "README.md").read_text()
    assert "Other prompts, which `prompt_name` takes: clustering 'dog fox: '" in card


def test_a_run_on_a_base_has_prompts_of_its_own_besides(tuned, tmp_path):
    config = tuned.config.copy_and_resolve_references()
    config.base, config.stages, config.data.prompts = str(tuned.folder), ("export",), ("clustering=x: ", "new=y: ")
    run = Run(config, tmp_path / "run", tuned.lock)
    found = prompts.named(trained_run.of_towers(run).data)
    assert found["clustering"] == "x: " and found["new"] == "y: " and found["Toy-query"] == "the sep: "
