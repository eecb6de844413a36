"""The recipe 'splade' and the stage `sparse`: from labelled pairs to lists beside those of BM25."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import scipy.sparse
from conftest import REPOSITORY
from safetensors.numpy import load_file, save_file
from support import tiny
from support.command_flags import one_line
from support.vector_models import check_loaded, check_served

import retrieval
from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.methods.splade import sparse_store, stage
from retrieval.methods.splade.folder import SparseFolder
from retrieval.methods.splade.term_encoder import TermEncoder
from retrieval.methods.splade.trained import SPARSE_MODELS
from retrieval.runs.pipeline import preflight
from retrieval.runs.pipeline.run import Run

CHANGES = {
    "stages": ("prepare", "sets", "pairs", "train", "sparse", "index", "evaluate", "report"),
    "split.set": "reqa",
    "split.ratio": 0.9,
    "split.validation": 0.1,
    "split.shards": 2,
    "train.steps": 8,
    "train.batch_size": 8,
    "train.chunk_size": 8,
    "train.learning_rate": 3e-3,
    "loop.checkpoint_every": 4,
    "loop.validate_every": 4,
    "encode.shard_size": 20,
    "encode.corpus": False,
}


def make_run(inputs, folder, **changes):
    return tiny.make_run("splade", inputs, folder, **{**CHANGES, **changes})


@pytest.fixture(scope="module")
def trained(inputs, tmp_path_factory):
    return tiny.complete(make_run(inputs, tmp_path_factory.mktemp("splade") / "run"))


def searched(run):
    """The lists of the stage, and what it notes of them."""
    with np.load(run.folder / "searched" / "sparse" / "reqa.npz") as lists:
        return lists["scores"], lists["rows"], json.loads(str(lists["facts"]))


def test_vectors_and_lists_are_written(trained):
    assert {row["system"] for row in files.read_json(trained.folder / "results.json")} == {"bm25", "splade"}
    assert "splade" in (trained.folder / "report.md").read_text()
    total = len((trained.sets / "reqa" / "corpus.jsonl").read_text().splitlines())
    weights = sparse_store.load(trained.folder / "sparse" / "reqa", total).toarray()
    assert weights.min() >= 0 and len(weights) > 20
    scores, rows, facts = searched(trained)
    assert facts["system"] == "splade" and facts["notes"]["terms of a passage"] > 0
    found = rows[:, 1:] >= 0
    assert found.any() and (scores[:, :-1] >= scores[:, 1:])[found].all()


def test_what_a_kill_left_is_gone_on_with(trained, tmp_path):
    """Shards that are there stay, and the others become the same bytes."""
    run = dataclasses.replace(trained, folder=shutil.copytree(trained.folder, tmp_path / "run"))
    folder = run.folder / "sparse" / "reqa"
    before = {path.name: path.read_bytes() for path in folder.glob("*.npz")}
    assert len(before) > 1
    sorted(folder.glob("*.npz"))[1].unlink()
    stage.search_sparse(run)
    assert {path.name: path.read_bytes() for path in folder.glob("*.npz")} == before
    np.testing.assert_array_equal(searched(run)[0], searched(trained)[0])


def test_empty_vectors_are_counted(trained, tmp_path, monkeypatch):
    """A query without a term finds nothing, a passage without one is never found; where all are so, that is said."""
    run = dataclasses.replace(trained, folder=shutil.copytree(trained.folder, tmp_path / "run"))
    encode, least = TermEncoder.encode_query, 1

    def some_empty(self, texts):
        weights = encode(self, texts).tolil()
        weights[:least] = 0
        return weights.tocsr()

    monkeypatch.setattr(TermEncoder, "encode_query", some_empty)
    assert stage.search_sparse(run)["reqa"]["queries without a term"] == 1
    scores, rows, facts = searched(run)
    assert (rows[0] == -1).all() and (scores[0] == -np.inf).all() and (rows[1] >= 0).any()
    assert facts["notes"]["queries without a term"] == 1
    shutil.rmtree(run.folder / "sparse")
    none = scipy.sparse.csr_array
    monkeypatch.setattr(TermEncoder, "encode_document", lambda self, items: none((len(items), len(self.vocabulary))))
    with pytest.raises(UserError, match="no passage has a term of any weight: the model has collapsed"):
        stage.search_sparse(run)


def test_another_kind_of_model_is_refused(inputs, tmp_path):
    run = make_run(inputs, tmp_path / "run", recipe="two_tower")
    with pytest.raises(UserError, match="a model of two towers; name the work directory of a splade"):
        SPARSE_MODELS.check(run, "", stage.MODEL)
    (folder := tmp_path / "late").mkdir()
    kinds = ("sentence_transformers.models.Transformer", "pylate.models.Dense.Dense")
    files.write_json(folder / "modules.json", [{"path": "", "type": kind} for kind in kinds])
    with pytest.raises(UserError, match=r"not a folder of sparse vectors \(MLMTransformer, SpladePooling\): .*Dense"):
        SPARSE_MODELS.check(run, str(folder), stage.MODEL)


def test_packed_rows_are_refused(inputs, tmp_path):
    run = make_run(inputs, tmp_path / "run", **{"data.pack.query": 0.5, "data.pack.document": 0.5})
    with pytest.raises(UserError, match="takes a text a row"):
        preflight.check(run, run.config.stages)


@pytest.mark.long
def test_queries_without_an_encoder(inputs, trained, tmp_path):
    """Their weights come from the labelled pairs, and are trained."""
    changes = {"model.sparse_queries": "idf", "base": str(trained.folder), "loop.validate_every": 0}
    run = make_run(inputs, tmp_path / "run", **changes, stages=("train", "sparse", "evaluate"))
    tiny.execute(run)
    notes = searched(run)[2]["notes"]
    assert notes["terms of a query"] > 3 and notes["query operations"] == 0 < notes["passage operations"]
    tiny.execute(run, "export")
    ours, theirs = retrieval.load(run.folder), retrieval.load(run.folder / "export")
    for texts in (["what does the red fox eat?", "grass grass"], ["a whale " * 40]):
        np.testing.assert_allclose(ours.encode_query(texts).toarray(), theirs.encode_query(texts).toarray(), atol=1e-5)
        expected, found = (model.encode_document(texts).toarray() for model in (ours, theirs))
        np.testing.assert_allclose(found, expected, atol=1e-5)
    router = run.folder / "export" / "router_config.json"
    (run.folder / "export" / "checksums.json").unlink()
    record = files.read_json(router)
    for structure, message in (
        ({"query": record["structure"]["document"][:1]}, "queries go through MLMTransformer"),
        ({"query": ["another"]}, "no modules of queries and documents"),
    ):
        files.write_json(router, record | {"structure": record["structure"] | structure})
        with pytest.raises(UserError, match=message):
            retrieval.load(run.folder / "export")
    files.write_json(router, record | {"structure": record["structure"] | {"query": record["structure"]["document"]}})
    assert SparseFolder.open(run.folder / "export").table is None


@pytest.fixture(scope="module")
def export(trained):
    tiny.execute(trained, "export")
    return trained.folder / "export"


def test_it_is_loaded_and_served(inputs, trained, export, tmp_path):
    weights_QV = check_loaded(trained.folder, export).encode_query(["red fox", ""])
    assert weights_QV.shape[0] == 2 and weights_QV.min() >= 0 and weights_QV.nnz
    changes = {"base": str(trained.folder), "corpus": "", "encode.corpus": True, "stages": ("index", "sparse")}
    check_served(make_run(inputs, tmp_path / "run", **changes), "sparse", "splade")


@pytest.fixture
def exported(export, tmp_path):
    """A copy of the exported folder that may be changed."""
    folder = shutil.copytree(export, tmp_path / "model")
    for sums in folder.glob("*sum*"):
        sums.unlink()
    return folder


def changed(path, **settings):
    files.write_json(path, (files.read_json(path) if path.exists() else {}) | settings)


def test_settings_of_a_folder_are_kept(exported, tmp_path):
    """Cosines, the most weights of a vector, and a length of either side; what is written again has them too."""
    texts = ["what does the red fox eat? " * 3, "grass"]
    usual = retrieval.load(exported).encode_document(texts).toarray()
    changed(exported / "config_sentence_transformers.json", similarity_fn_name="cosine", max_active_dims=3)
    kept = np.where(usual >= np.sort(usual)[:, -3:-2], usual, 0)
    wanted = kept / np.linalg.norm(kept, axis=1, keepdims=True)
    model = retrieval.load(exported)
    np.testing.assert_allclose(model.encode_document(texts).toarray(), wanted, atol=1e-6)
    found = SPARSE_MODELS.read_folder(tiny.make_config("splade"), exported)
    (again := tmp_path / "again").mkdir()
    found.write(again)
    np.testing.assert_allclose(retrieval.load(again).encode_document(texts).toarray(), wanted, atol=1e-6)
    changed(exported / "sentence_bert_config.json", query_length=4, document_length=5)
    texts = SparseFolder.open(exported).texts
    assert (texts["data.query_length"], texts["data.document_length"]) == (4, 5)


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("1_SpladePooling/config.json", {"pooling_strategy": "sum"}, "pooling_strategy is 'sum'"),
        ("1_SpladePooling/config.json", {"activation_function": "log1p_relu"}, "activation_function is 'log1p_relu'"),
        ("config_sentence_transformers.json", {"similarity_fn_name": "euclidean"}, "similarity_fn_name is 'euclidean'"),
        ("config_sentence_transformers.json", {"max_active_dims": 0}, "max_active_dims is 0; a whole number"),
        ("sentence_bert_config.json", {"transformer_task": "feature-extraction"}, "only 'fill-mask' is understood"),
    ],
)
def test_other_folders_are_refused(exported, file, change, message):
    changed(exported / file, **change)
    with pytest.raises(UserError, match=message):
        SparseFolder.open(exported)
    (exported / "modules.json").unlink()
    with pytest.raises(UserError, match=r"no modules\.json"):
        SparseFolder.open(exported)


@pytest.mark.long
def test_one_line_trains_a_folder_on_pairs(exported, tmp_path):
    """An embedder has lost the head that weighs tokens: that is said before any stage."""
    config = one_line(f"splade:local:{exported}", tmp_path)
    assert config.vocab == config.train.init_from == str(exported) and config.model.hidden_size == 16
    assert (config.data.query_length, config.data.document_length) == (48, 48)
    run = tiny.complete(Run(config, tmp_path / "run", REPOSITORY / "requirements.lock"))
    assert {row["system"] for row in files.read_json(run.folder / "results.json")} == {"bm25", "splade"}
    tensors = load_file(exported / "model.safetensors")
    save_file({name: x for name, x in tensors.items() if "predictions" not in name}, exported / "model.safetensors")
    (exported / "modules.json").unlink()
    run = Run(one_line(f"splade:local:{exported}", tmp_path), tmp_path / "other", REPOSITORY / "requirements.lock")
    with pytest.raises(UserError, match=r"has no head of a masked language model.*hf:distilbert.*--config=mlm"):
        preflight.check(run, run.config.stages)
