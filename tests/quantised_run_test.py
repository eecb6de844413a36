"""Runs whose embeddings are cut and stored as codes: the stages, a kill, the API, and what is refused."""

import json
import re
import shutil
from unittest import mock

import jax
import numpy as np
import pytest
from conftest import REPOSITORY
from support import toy_corpus
from support.tiny import CHEAP, execute, make_config

import retrieval
from retrieval.api.own_search import OwnSearch
from retrieval.common.errors import UserError
from retrieval.data.tokenizers.vocab import SPECIAL_TOKENS, WordPiece
from retrieval.recipes.parameters import parameters_of
from retrieval.runs.pipeline import preflight, records
from retrieval.runs.pipeline.run import Run
from retrieval.runs.weights import trained_run
from retrieval.runs.weights.exported_towers import LoadedTowers
from retrieval.search import encoding
from retrieval.search.encoding import StoredRows
from retrieval.search.vector_codes import Form
from retrieval.stages import encode

WORDS = "fox dog the sep a b c d e f g h i j k".split()
RNG = np.random.default_rng(0)
DOCUMENTS = [" ".join(RNG.choice(WORDS, 6)) for _ in range(60)]
QUERIES = [" ".join(RNG.choice(WORDS, 3)) for _ in range(6)]
CODED = {"encode.precision": "int8", "encode.truncate": 6, "encode.shard_size": 25}

pytestmark = pytest.mark.usefixtures("one_device", "nine_calibrate")


@pytest.fixture(scope="module")
def nine_calibrate():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encode, "_CALIBRATED", 9)
        yield


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Towers of 8 dimensions that have seen two batches."""
    folder = tmp_path_factory.mktemp("trained")
    WordPiece([*SPECIAL_TOKENS, *WORDS]).save(folder / "vocab.txt")
    lines = [json.dumps({"query": query, "positives": [text]}) for query, text in zip(QUERIES * 10, DOCUMENTS)]
    (folder / "pairs.jsonl").write_text("\n".join(lines))
    changes = {"vocab": str(folder / "vocab.txt"), "pairs.files": str(folder / "pairs.jsonl"), "data.negatives": 0}
    changes |= {"data.lanes": 1, "split.shards": 1, "train.batch_size": 8, "train.steps": 2, "loop.validate_every": 0}
    changes |= {"stages": ("sets", "pairs", "train"), "model.normalize": True, "encode.untrained": False}
    made = Run(make_config("dpr", **CHEAP | changes), folder / "run", REPOSITORY / "requirements.lock")
    execute(made)
    return made


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    passages, queries = (
        {f"{side}{n}": text for n, text in enumerate(of)} for side, of in (("c", DOCUMENTS), ("q", QUERIES))
    )
    answers = {f"q{number}": f"c{7 * number + 1}" for number in range(len(QUERIES))}
    return toy_corpus.write_set(tmp_path_factory.mktemp("set") / "toy", passages, queries, answers)


def run_of(trained, toy, folder, *stages, **changes):
    fixed = {"base": str(trained.folder), "sets.beir": str(toy), "evaluate.depth": 10, "index.dense": "exact"}
    fixed |= {"stages": stages, "encode.untrained": False, "encode.corpus": False}
    fixed |= {"evaluate.metrics": ("nDCG@10", "RR")}
    return Run(make_config("dpr", **fixed | changes), folder, REPOSITORY / "requirements.lock")


def embeddings_of(run):
    return {path.name: path.read_bytes() for path in run.embeddings("toy", "trained").iterdir()}


@pytest.fixture(scope="module")
def coded(trained, toy, tmp_path_factory):
    """int8 of the first 6 dimensions, which are searched as bfloat16 and scored again."""
    more = {"index.dense": "quantised", "index.precision": "bfloat16", "index.rescore": 2}
    stages = ("sets", "encode", "index", "evaluate", "report")
    run = run_of(trained, toy, tmp_path_factory.mktemp("coded") / "run", *stages, **CODED | more)
    execute(run)
    return run


def whole_embeddings(trained, texts, queries=False):
    """Of all 8 dimensions, by the API."""
    model = retrieval.load(trained.folder)
    return (model.encode_query if queries else model.encode_document)(texts)


def cut(vectors, size):
    return vectors[:, :size] / np.linalg.norm(vectors[:, :size], axis=1, keepdims=True)


def test_stored_are_codes_of_the_cut_embeddings(coded, trained):
    folder = coded.embeddings("toy", "trained")
    names = {"candidates.json", "candidates.ranges.npy", "queries.json"}
    assert names <= {path.name for path in folder.iterdir()}
    noted = json.loads((folder / "candidates.json").read_text())
    wanted = {"precision": "int8", "dim": 6, "truncated_from": 8, "normalised": True}
    assert len(noted.pop("maker")) == 16 and noted == wanted
    assert json.loads((folder / "queries.json").read_text())["precision"] == "float32"
    expected = cut(whole_embeddings(trained, DOCUMENTS), 6)
    ranges = np.load(folder / "candidates.ranges.npy")
    some = expected[:: -(-60 // 9)]
    np.testing.assert_allclose(ranges, [some.min(axis=0), some.max(axis=0)], atol=1e-6)
    stored = StoredRows(folder, "candidates")
    assert stored.stored(slice(0, 60)).dtype == np.int8
    step = (ranges[1] - ranges[0]) / 255
    assert (np.abs(stored[:] - np.clip(expected, ranges[0], ranges[1])) <= step / 2 + 2e-6).all()
    queries, _ = encoding.load(folder, "queries")
    np.testing.assert_allclose(queries, cut(whole_embeddings(trained, QUERIES, True), 6), atol=1e-6)


def test_a_quantised_index_stands_beside_exact_search(coded):
    notes, results = records.details(coded, "evaluate"), json.loads((coded.folder / "results.json").read_text())
    value = {(row["system"], row["metric"]): row["value"] for row in results}
    assert {system for system, _ in value} == {"bm25", "hybrid", "dense", "dense (quantised)"}
    assert value["dense (quantised)", "RR"] == value["dense", "RR"]
    assert notes["toy, dense (quantised)"]["recall_against_exact"] == 1


def test_a_killed_encode_goes_on_to_the_same_bytes(coded, trained, toy, tmp_path, monkeypatch):
    run = run_of(trained, toy, tmp_path / "run", "sets", "encode", **CODED)
    execute(run, "sets")
    write, written, samples = encoding.write, [], []

    def killed(path, *rest):
        if "candidates" in path.name:
            if written:
                raise KeyboardInterrupt
            written.append(path.name)
        write(path, *rest)

    monkeypatch.setattr(encoding, "write", killed)
    with pytest.raises(KeyboardInterrupt):
        execute(run, "encode")
    monkeypatch.setattr(encoding, "write", write)
    ranges_of = encode.vector_codes.ranges_of
    monkeypatch.setattr(encode.vector_codes, "ranges_of", lambda rows: samples.append(len(rows)) or ranges_of(rows))
    execute(run, "encode")
    assert embeddings_of(run) == embeddings_of(coded) and not samples  # the ranges are not made again
    ours, theirs = (records.record_of(each, "encode") for each in (run, coded))
    assert ours["details"] == theirs["details"] and ours["outputs"] == theirs["outputs"]


@pytest.mark.parametrize(
    ("form", "where"),
    [pytest.param({}, "its base", marks=pytest.mark.long), (CODED, "the run itself")],
    ids=["float32", "int8"],
)
def test_changed_documents_cost_their_own_encoding(trained, toy, tmp_path, caplog, where, form):
    """The vectors of one document in 60 are made, and all others copied. A killed run ends the same."""
    docs = shutil.copytree(toy, tmp_path / "toy")
    run = run_of(trained, docs, tmp_path / "run", "sets", "encode", **form)
    execute(run)
    before, _ = encoding.load(run.embeddings("toy", "trained"), "candidates")
    ranges = embeddings_of(run).get("candidates.ranges.npy")
    lines = (docs / "corpus.jsonl").read_text().splitlines()
    lines[7] = json.dumps({"_id": "c7", "text": "fox fox fox"})
    (docs / "corpus.jsonl").write_text("\n".join(lines[:30] + lines[31:]))
    if where == "its base":
        run = run_of(trained, docs, tmp_path / "again", "sets", "encode", **form | {"base": str(run.folder)})
    caplog.clear()
    caplog.set_level("INFO")
    execute(run, "sets")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(encoding, "write", mock.Mock(side_effect=KeyboardInterrupt))
        execute(run, "encode")
    execute(run, "encode")
    assert "toy, trained, candidates: reused 58 of 59 vectors" in caplog.text
    assert "toy, trained, queries: reused 6 of 6 vectors" in caplog.text
    stored = StoredRows(run.embeddings("toy", "trained"), "candidates")[:]
    np.testing.assert_array_equal(np.delete(stored, 7, axis=0), np.delete(before, [7, 30], axis=0))
    assert not np.array_equal(stored[7], before[7])
    if form:  # ranges stay those of the vectors that are reused
        assert embeddings_of(run)["candidates.ranges.npy"] == ranges
    else:  # the shape of a batch decides the last bits
        fresh = run_of(trained, docs, tmp_path / "fresh", "sets", "encode")
        execute(fresh)
        wanted, _ = encoding.load(fresh.embeddings("toy", "trained"), "candidates")
        np.testing.assert_allclose(stored, wanted, atol=1e-6)
    assert not (run.folder / "older").exists()


@pytest.mark.parametrize("change", [{"data.document_length": 5}, {"data.document_prefix": "the"}])
def test_another_model_length_or_prompt_reuses_nothing(trained, toy, tmp_path, change):
    base = run_of(trained, toy, tmp_path / "run", "sets", "encode")
    execute(base)
    maker = json.loads((base.embeddings("toy", "trained") / "candidates.json").read_text())["maker"]
    config, vocabulary = trained_run.of_towers(base), base.load_vocabulary()
    trained_params = parameters_of(trained_run.load_towers(base, len(vocabulary)))
    assert encode._maker(LoadedTowers(config, vocabulary, trained_params)) == maker
    assert encode._maker(LoadedTowers(config, vocabulary, jax.tree.map(lambda x: x + 1, trained_params))) != maker
    config.update_from_flattened_dict(change)
    assert encode._maker(LoadedTowers(config, vocabulary, trained_params)) != maker


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encode.truncate": 9}, r"config\.encode\.truncate=9: embeddings have 8 dimensions: take less"),
        ({"encode.precision": "binary", "encode.truncate": 6}, r"binary: 6 dimensions are no multiple of 8"),
        ({"encode.precision": "int3"}, r"int8"),
    ],
)
def test_what_cannot_be_stored_is_refused_before_a_stage(trained, toy, tmp_path, changes, message):
    run = run_of(trained, toy, tmp_path / "run", "sets", "encode", "index", **changes)
    with pytest.raises(UserError, match=message):
        preflight.check(run, run.config.stages)


def test_passages_that_a_set_has_too_are_encoded_once(trained, toy, tmp_path, caplog):
    caplog.set_level("INFO")
    execute(run := run_of(trained, toy, tmp_path / "run", "sets", "encode", **{"encode.corpus": True}))
    assert re.search(r"corpus, trained, candidates: reused (\d+) of \1 vectors", caplog.text)
    of_set, own = (StoredRows(run.embeddings(name, "trained"), "candidates")[:] for name in ("toy", "corpus"))
    assert len(of_set) == 60 and {row.tobytes() for row in own} <= {row.tobytes() for row in of_set}


@pytest.fixture(scope="module")
def searchable(trained, tmp_path_factory):
    """The run's own passages, cut: bfloat16, whose results int8 scores again."""
    folder = shutil.copytree(trained.folder, tmp_path_factory.mktemp("own") / "run")
    changes = {"encode.precision": "int8", "encode.corpus": True, "index.precision": "bfloat16", "index.rescore": 3}
    config = trained.config.copy_and_resolve_references()
    config.update_from_flattened_dict(changes | {"index.dense": "quantised", "encode.truncate": 6})
    config.stages = ("sets", "pairs", "train", "encode", "index")
    run = Run(config, folder, trained.lock)
    execute(run, "encode", "index")
    return run


def test_own_passages_are_searched_by_codes(searchable, trained):
    searcher = OwnSearch(searchable, 5)
    stored, _ = encoding.load(searchable.embeddings("corpus", "trained"), "candidates")
    form = Form("bfloat16", 6)
    codes = form.decode(form.encode(stored))
    queries = cut(whole_embeddings(trained, QUERIES, True), 6)
    for query, lists in zip(queries, searcher.search(QUERIES, 5)):
        hits = lists["dense"]
        first = np.argsort(-codes @ query, kind="stable")[:15]
        exact = np.sort(stored[first].astype(float) @ query)[::-1][:5]
        np.testing.assert_allclose([hit.score for hit in hits], exact, atol=1e-5)


def test_the_api_takes_precision_and_rescore(searchable, trained):
    model = retrieval.load(trained.folder)
    exact = model.index(DOCUMENTS).search(QUERIES[0], 5)
    rescored = model.index(DOCUMENTS, kind="quantised", precision="int8", rescore=8).search(QUERIES[0], 5)
    np.testing.assert_allclose([hit.score for hit in rescored], [hit.score for hit in exact], atol=1e-5)
    codes = model.index(DOCUMENTS, kind="quantised", precision="binary", rescore=0).search(QUERIES[0], 5)
    assert codes[0].score == pytest.approx(np.abs(model.encode_query(QUERIES[:1])).sum(), rel=0.9)
    for options, message in (
        ({"kind": "exact", "rescore": 2}, r"rescore=2: an index of kind 'exact' has none; leave it out"),
        ({"kind": "quantised", "precision": "int3"}, r"value in config\.index\.precision .*int3"),
        ({"kind": "quantised", "rescore": -1}, r"config\.index\.rescore=-1: a whole number of at least 0"),
    ):
        with pytest.raises(UserError, match=message):
            model.index(DOCUMENTS, **options)


def test_a_model_of_fewer_dimensions_does_not_search_the_runs_own(searchable, trained):
    whole, short = retrieval.load(searchable.folder), retrieval.load(searchable.folder, truncate_dim=4)
    np.testing.assert_allclose(short.encode_query(QUERIES), cut(whole.encode_query(QUERIES), 4), atol=1e-6)
    assert whole.index(kind="exact").search(QUERIES[0])
    with pytest.raises(UserError, match=r"candidates\.json: embeddings with dim 6, and the model .* have 4"):
        short.index(kind="exact")
    with pytest.raises(UserError, match=r"truncate_dim=7: embeddings have 6 dimensions: take less"):
        retrieval.load(searchable.folder, truncate_dim=7)
