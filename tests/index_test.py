"""The stage `index`: what it builds, and what a killed one goes on with."""

import importlib
import json
import shutil

import numpy as np
import pytest
from conftest import REPOSITORY
from support.tiny import execute

from retrieval.runs.pipeline import records
from retrieval.runs.pipeline.run import Run
from retrieval.runs.ranking import indexes
from retrieval.runs.ranking.collection import CORPUS, TRAINED, open_collection
from retrieval.search import encoding, index_shards, scann
from retrieval.search.bm25 import Bm25Kind
from retrieval.search.index_kind import EXACT, INDEXES, register
from retrieval.search.scann import Scann
from retrieval.stages import index

needs_scann = pytest.mark.skipif(not scann.Scann().available(), reason="ScaNN cannot be imported here")

RNG = np.random.default_rng(0)


def write_collection(run, path, name, embeddings, queries=None):
    """A collection of texts, and embeddings of the candidates and the queries that say nothing about the texts."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"_id": str(i), "text": "some words"}) + "\n" for i in range(len(embeddings))))
    for kind, rows in (("candidates", embeddings), ("queries", queries)):
        if rows is not None:
            texts = ((str(i), [i]) for i in range(len(rows)))
            embed = lambda ids, rows=rows: rows[ids[:, 0]]  # noqa: E731
            tokens = lambda texts: [[ids] for ids in texts]  # noqa: E731
            settings = dict(shard_size=4000, batch_tokens=16_000, longest=1)
            encoding.encode(run.embeddings(name, TRAINED), kind, texts, len(rows), tokens, embed, **settings)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two sets, one of them tiny, and a corpus, to be copied."""
    config = importlib.import_module("configs.ict_bfs_wlp").get_config("local")
    config.evaluate.depth = 20
    run = Run(config, tmp_path_factory.mktemp("made") / "run", REPOSITORY / "requirements.lock")
    for name, candidates, queries in (("large", 6000, 150), ("tiny", 40, 30)):
        path = run.sets / name / "corpus.jsonl"
        write_collection(run, path, name, RNG.normal(size=(candidates, 8)), RNG.normal(size=(queries, 8)))
    write_collection(run, run.corpus / "passages-0.jsonl", CORPUS, RNG.normal(size=(5500, 8)))
    return run


@pytest.fixture
def run(made, tmp_path):
    folder = shutil.copytree(made.folder, tmp_path / "run")
    return Run(made.config.copy_and_resolve_references(), folder, made.lock)


def dense_index(run, name):
    """What the stage `search` asks."""
    collection = open_collection(run, name)
    kind = indexes.dense_kind_there(collection)
    return indexes.open_dense(kind, collection, indexes.options_of(kind, run.config))


@needs_scann
def test_a_killed_stage_keeps_its_shards_and_every_collection_gets_an_index(run, monkeypatch):
    monkeypatch.setattr(index_shards, "_MOST", 2500)
    build, sizes = Scann.build, []

    def counted(kind, embeddings, options):
        sizes.append(len(embeddings))
        if len(sizes) == 3:
            raise KeyboardInterrupt
        return build(kind, embeddings, options)

    monkeypatch.setattr(Scann, "build", counted)
    with pytest.raises(KeyboardInterrupt):
        index.index(run)
    (kept,) = {path.parent for path in run.index("large", "scann").glob("*-00001-*/manifest.json")}
    (kept / "hashed_dataset.npy").unlink(missing_ok=True)
    (kept / "dataset.npy").write_bytes(b"damaged")
    del sizes[:]
    sizes += [0] * 9  # so that nothing is cut off
    built = index.index(run)
    assert sizes[9:] == [2000, 2000, 40, 1833, 1833, 1834]  # of the large one the damaged shard and the last
    assert built["large, dense"].startswith("3 shards, the first of them: ScaNN, brute force, 2,000 candidates")
    assert "brute force, 40 candidates" in built["tiny, dense"]
    queries = encoding.load(run.embeddings("large", TRAINED), "queries")[0]
    exact = indexes.open_dense(INDEXES[EXACT], open_collection(run, "large"), {}).search(queries, 5)
    np.testing.assert_array_equal(dense_index(run, "large").search(queries, 5)[1], exact[1])


def test_a_stage_cut_off_goes_on_behind_its_last_index(run, monkeypatch):
    """BM25 of all collections was built, and one of them has been damaged since."""
    run.config.stages = ("sets", "index", "encode", "evaluate")
    whole, build, built = index.index(run), Bm25Kind.build, []
    damaged = run.index("tiny", "bm25")
    largest = max(damaged.iterdir(), key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-1] + b"?")

    def counted(kind, texts, options):
        built.append(texts.name)
        return build(kind, texts, options)

    monkeypatch.setattr(Bm25Kind, "build", counted)
    assert index.index(run) == whole and built == ["tiny"]


@pytest.mark.parametrize(
    ("stages", "needs"),
    [
        ("sets train encode index evaluate", ("encode",)),
        ("index evaluate", ("encode",)),  # of a base
        ("evaluate", ("encode",)),
        ("sets index mine pairs train encode evaluate", ()),
        ("sets index mine pairs train", ()),
        ("train encode index mine", ("encode",)),
    ],
)
def test_before_encode_or_mine_it_is_of_words_alone(stages, needs):
    assert index.needs(tuple(stages.split())) == needs


class Ids(Bm25Kind):
    """BM25 over ids."""

    name, title, system, document = "ids", "BM25 of ids", "bm25 (ids)", "id"

    def text(self, passage):
        return f"number{passage.id}"


def test_a_new_order_or_option_remakes_evaluate(inputs, tmp_path, own_table):
    """Although every index stays what it was; of a run that stands on the indexes of a base, too."""
    own_table(INDEXES)
    register(Ids)
    changes = {"sets.pydocs": False, "sets.reqa": str(inputs / "squad.json"), "index.words": ("bm25", "ids")}

    def made(folder, *stages, **more):
        config = importlib.import_module("configs.bm25").get_config()
        config.update_from_flattened_dict(changes | more | {"stages": stages})
        return Run(config, tmp_path / folder, REPOSITORY / "requirements.lock")

    def first_system(more):
        execute(made("base", "sets", "index", **more))
        above = made("above", "evaluate", base=str(tmp_path / "base"))
        assert not records.is_current(above, "evaluate")
        execute(above)
        return json.loads((above.folder / "results.json").read_text())[0]["system"]

    assert first_system({}) == "bm25"
    assert first_system({"index.words": ("ids", "bm25")}) == "bm25 (ids)"
    assert first_system({"index.bm25_k1": 0.9}) == "bm25"
    assert records.is_current(made("above", "evaluate", base=str(tmp_path / "base")), "evaluate")
