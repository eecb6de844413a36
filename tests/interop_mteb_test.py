"""Our models in mteb, and our values beside those of mteb."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
from support import exported, run_results
from support.packages import package
from support.tiny import complete

import retrieval
from retrieval import LOCK
from retrieval.common import files
from retrieval.configs import published
from retrieval.data.sets import beir
from retrieval.data.sets.beir import Candidate, RetrievalSet
from retrieval.evaluation import per_query
from retrieval.models.module_folder import SETTINGS
from retrieval.runs.pipeline.run import Run

mteb = package("mteb")

METRICS = ("nDCG@10", "R@100", "RR@10")
PROMPTS = {"query": "the fox: ", "document": "", "Tiny-query": "dog dog dog "}
WORDS = "fox dog the red blue seen was in a house 7 of sea".split()


def texts(seed, count):
    generator = np.random.default_rng(seed)
    return [" ".join(generator.choice(WORDS, generator.integers(3, 12))) for _ in range(count)]


def tiny_set(own):
    """A set of 60 documents and 12 queries; with `own` the first six queries are documents, of the same ids."""
    documents = [Candidate(f"d{number}", "", text) for number, text in enumerate(texts(0, 60))]
    queries = {f"q{number}": text for number, text in enumerate(texts(1, 12))}
    if own:
        queries = {f"d{number}": documents[number].text for number in range(6)} | dict(list(queries.items())[6:])
    generator = np.random.default_rng(2)
    qrels = {q: {f"d{row}": int(generator.integers(1, 3)) for row in generator.integers(6, 60, 4)} for q in queries}
    return RetrievalSet("Tiny", queries, documents, {"test": qrels})


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A folder of sentence-transformers whose prompts are ours and one for a task of mteb's."""
    changes = {"model.embed_dim": 0, "model.pooling": "mean", "model.normalize": True, "data.query_length": 40}
    place = tmp_path_factory.mktemp("model")
    # A copy, of which no record of the run has sums.
    folder = shutil.copytree(exported.export(exported.work_directory(place / "run", **changes)), place / "export")
    settings = {"prompts": PROMPTS, "titles": "joined", "similarity_fn_name": "cosine"}
    files.write_json(folder / SETTINGS, json.loads((folder / SETTINGS).read_text()) | settings)
    (folder / "checksums.json").unlink()
    return folder


def ours(model, folder, value):
    """The values of a run of a set."""
    beir.write_folder(folder / value.name, value)
    config = published.get_config(str(model))
    config.sets.beir, config.evaluate.metrics = str(folder / value.name), METRICS
    return complete(Run(config, folder / "run", LOCK))


def task_of(mteb, value, ignore):
    """The set as a task of mteb that needs no hub."""
    from datasets import Dataset
    from mteb.abstasks.retrieval import AbsTaskRetrieval
    from mteb.abstasks.task_metadata import TaskMetadata

    class Tiny(AbsTaskRetrieval):
        metadata = TaskMetadata(
            name="Tiny",
            dataset={"path": "local/tiny", "revision": "1"},
            description="A set of this test",
            type="Retrieval",
            category="t2t",
            eval_langs=["eng-Latn"],
            main_score="ndcg_at_10",
        )
        ignore_identical_ids = ignore

        def load_data(self, **_):
            self.dataset = {
                "default": {
                    "test": {
                        "corpus": Dataset.from_list([{"id": each.id, "text": each.text} for each in value.candidates]),
                        "queries": Dataset.from_list([{"id": id, "text": text} for id, text in value.queries.items()]),
                        "relevant_docs": value.qrels["test"],
                        "top_ranked": None,
                    }
                }
            }
            self.data_loaded = True

    return Tiny()


@pytest.mark.parametrize("own", [False, True])
def test_values_are_those_of_mteb(model, tmp_path, own):
    """Also where queries are documents: mteb drops the id of the query, as ArguAna's task does, and so do we."""
    from mteb._evaluators.retrieval_metrics import calculate_retrieval_scores

    value = tiny_set(own)
    run = ours(model, tmp_path, value)
    (values,) = per_query.read_all([run.folder], "Tiny", "test")
    expected = values.of("dense", "nDCG@10")
    encoder = retrieval.MtebEncoder(model, name="me/tiny", revision="7")
    cache, task = mteb.ResultCache(tmp_path / "cache"), task_of(mteb, value, own)
    result = mteb.evaluate(encoder, task, cache=cache, co2_tracker=False, prediction_folder=tmp_path / "lists")
    (scores,) = result.task_results[0].scores["test"]
    # A result file has five digits, so every query's value is compared too.
    (lists,) = (json.loads(path.read_text())["default"]["test"] for path in (tmp_path / "lists").rglob("*.json"))
    lists = {query: {id: score for id, score in of.items() if not (own and id == query)} for query, of in lists.items()}
    theirs = calculate_retrieval_scores(lists, value.qrels["test"], [10]).all_scores
    assert {query: of["ndcg_cut_10"] for query, of in theirs.items()} == pytest.approx(expected, abs=1e-6)
    for metric, name in zip(METRICS, ("ndcg_at_10", "recall_at_100", "mrr_at_10")):
        assert scores[name] == pytest.approx(run_results.values(run.folder)["dense", "test", metric], abs=6e-6)
    place = tmp_path / "cache" / "results" / "me__tiny" / "7"
    written = json.loads((place / "Tiny.json").read_text())
    assert written["scores"]["test"][0]["main_score"] == scores["ndcg_at_10"]
    meta = json.loads((place / "model_meta.json").read_text())
    assert (meta["name"], meta["revision"], meta["embed_dim"]) == ("me/tiny", "7", 16)


@pytest.mark.parametrize("kind", ["exact", "bm25", "hybrid"])
def test_indexes_are_search_systems_of_mteb(model, tmp_path, kind):
    value = dataclasses.replace(tiny_set(False), name="other")  # an index has the usual prompts, whatever the task
    run = ours(model, tmp_path, value)
    search = retrieval.MtebSearch(model, kind=kind)
    result = mteb.evaluate(search, task_of(mteb, value, False), cache=None, co2_tracker=False)
    (scores,) = result.task_results[0].scores["test"]
    system = {"exact": "dense"}.get(kind, kind)
    if kind != "hybrid":  # whose weight a run of a published model sets
        expected = run_results.values(run.folder)[system, "test", "nDCG@10"]
        assert scores["ndcg_at_10"] == pytest.approx(expected, abs=6e-6)
    assert search.mteb_model_meta.name == "local/export" + ("" if kind == "exact" else f"-{kind}")
    assert len(search.mteb_model_meta.revision) == 16


def test_prompts_are_chosen_in_mtebs_order():
    from types import SimpleNamespace

    from mteb.models.abs_encoder import get_prompt_name
    from mteb.types import PromptType

    from retrieval.api.mteb_models import prompt_name

    names = ["NQ-query", "NQ", "Retrieval-query", "Retrieval", "query", "document"]
    metadata = SimpleNamespace(name="NQ", type="Retrieval")
    for start in range(len(names) + 1):
        prompts = dict.fromkeys(names[start:], "x")
        for side in (PromptType.query, PromptType.document, None):
            expected = get_prompt_name(prompts, metadata, side)
            assert prompt_name(prompts, "NQ", "Retrieval", side.value if side else None) == expected
