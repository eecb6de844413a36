"""Trained towers as folders: what is in them, without the libraries that load them (`interop_export_test`)."""

import json
import shutil

import jax
import numpy as np
import pytest
from support import exported, tei_folder

import retrieval
from configs import dpr, published
from retrieval.common.errors import UserError
from retrieval.common.runtime import model_folder
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.recipes.parameters import parameters_of
from retrieval.runs.pipeline import records
from retrieval.runs.weights import initial_parameters, trained_run
from retrieval.runs.weights import published_weights as bert_weights


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two towers with all that a tower can have."""
    changes = {"model.tied": False, "model.normalize": True, "model.pooling": "cls", "model.embed_norm": True}
    return exported.work_directory(tmp_path_factory.mktemp("two") / "my *run*", **changes)


@pytest.fixture(scope="module")
def folder(run):
    return exported.export(run)


@pytest.fixture(scope="module")
def tied(tmp_path_factory):
    """One tower with as little as a tower can have."""
    changes = {"model.tied": True, "model.normalize": False, "model.pooling": "mean", "model.embed_dim": 0}
    changes |= {"model.type_vocab_size": 1, "model.layer_norm_epsilon": 1e-5, "model.dtype": "bfloat16"}
    return exported.work_directory(tmp_path_factory.mktemp("tied") / "run", **changes)


@pytest.fixture(scope="module")
def tied_folder(tied):
    return exported.export(tied)


def read(path):
    return json.loads(path.read_text())


def modules(folder):
    return [(module["path"], module["type"].rpartition(".")[2]) for module in read(folder / "modules.json")]


def towers_of(run):
    return trained_run.load_towers(run, len(exported.VOCABULARY))


def test_two_towers_have_a_folder_each_and_a_router(folder):
    assert modules(folder) == [("", "Router")] and not list(folder.glob("*.safetensors"))
    parts = ["1_Pooling", "2_Dense", "3_LayerNorm", "4_Normalize"]
    for route, length in (("query", 16), ("document", 40)):
        assert modules(folder / route) == [("", "Transformer"), *((part, part[2:]) for part in parts)]
        assert read(folder / route / "sentence_bert_config.json")["max_seq_length"] == length


@pytest.mark.parametrize(
    ("made", "written"), [("run", "folder"), pytest.param("tied", "tied_folder", marks=pytest.mark.long)]
)
def test_an_export_is_loaded_from_python(made, written, request):
    made, model = request.getfixturevalue(made), retrieval.load(request.getfixturevalue(written))
    documents = [{"id": each.id, "title": each.title, "text": each.text} for each in exported.DOCUMENTS]
    queries_QE, documents_NE = exported.embed(made, exported.QUERIES, exported.DOCUMENTS)
    tolerance = 1e-5 if made.config.model.dtype == "float32" else 0.05
    np.testing.assert_allclose(model.encode_query(exported.QUERIES), queries_QE, atol=tolerance)
    np.testing.assert_allclose(model.encode_document(documents), documents_NE, atol=tolerance)
    assert model.index(["the fox", "a dog"], kind="bm25").search("fox")[0].text == "the fox"
    for call, message in (
        (model.index, "an export, which has no passages of its own: give documents to index"),
        (lambda: model.rerank("fox", ["dog"]), "there is no reranker: load the work directory of a run that"),
    ):
        with pytest.raises(UserError, match=message):
            call()


def test_text_embeddings_inference_reads_what_it_knows(folder, tied_folder, tmp_path):
    assert tei_folder.problems(tied_folder) == []
    lacking = ["modules.json: sentence_transformers.models.LayerNorm"]
    assert [tei_folder.problems(folder / route) for route in ("query", "document")] == [lacking] * 2
    changes = {"model.tied": False, "model.pooling": "last", "model.normalize": True, "model.truncate_dim": 5}
    served = exported.export(exported.work_directory(tmp_path / "served", **changes))
    assert [tei_folder.problems(served / route) for route in ("query", "document")] == [[], []]


@pytest.mark.parametrize("name", ["document/config.json", "document/2_Dense/model.safetensors", model_folder.SUMS])
def test_a_flipped_bit_of_an_export_is_noticed(folder, tmp_path, name):
    copy = shutil.copytree(folder, tmp_path / "copy")
    retrieval.load(copy)
    content = bytearray((copy / name).read_bytes())
    content[len(content) // 2] ^= 1
    (copy / name).write_bytes(content)
    config = dpr.get_config()
    config.model.tied, config.train.init_from = False, str(copy)
    readers = (lambda: retrieval.load(copy), lambda: published.get_config(str(copy)))
    for read_folder in (*readers, lambda: bert_weights.folders(config)):
        with pytest.raises(UserError, match=rf"{copy}.*(delete {copy / model_folder.SUMS}|not valid JSON)"):
            read_folder()


@pytest.mark.long
def test_a_run_can_start_from_what_another_exported(run, folder, tmp_path):
    names = ("tied", "normalize", "pooling", "embed_norm")
    changes = {f"model.{name}": run.config.model[name] for name in names} | {"vocab": str(folder / "query")}
    for place, start in (("one", str(folder)), ("each", f"{folder / 'query'},{folder / 'document'}")):
        other = exported.work_directory(tmp_path / place, shift=0, **changes, **{"train.init_from": start})
        initial_parameters.start_of(other.config).check(other)
        jax.tree.map(np.testing.assert_array_equal, *(parameters_of(towers_of(each)) for each in (run, other)))


def test_the_card(run, tied, tmp_path):
    exported.write_results(run)
    run.config.export.license, run.config.train.init_from = "cc-by-sa-4.0", "/home/me/<b>model"
    text = (exported.export(run) / "README.md").read_text()
    metadata, _, body = text.removeprefix("---\n").partition("---\n")
    assert "license: cc-by-sa-4.0\n" in metadata and "library_name: sentence-transformers\n" in metadata
    assert "- reqa\n" in metadata and "model" not in metadata.partition("datasets:")[2]
    assert "# my \\*run\\*\n" in body and "### reqa\\|x, pair\n" in body
    assert "| dense | 1 | 7 | 25.00 |" in body and "| bm25 |  | 7 | **50.00** |" in body and "Seconds" not in body
    assert "parameters from: &lt;b&gt;model" in body and "/home" not in text and "<b>" not in text
    assert "| model.hidden_size | 16 |" in body and "init_from |" not in body
    plain = (exported.export(tied) / "README.md").read_text()
    assert "license:" not in plain and "None was given (`export.license`)" in plain and "not been evaluated" in plain
    assert "Queries are cut to 16 tokens and documents to 40" in plain and "Trained with bfloat16" in plain


def test_whole_or_not_at_all(tied, monkeypatch, caplog):
    folder = exported.export(tied)
    (folder / "config.json").write_text("{}")
    (tied.folder / ".tmp-1-export").mkdir()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Vocabulary, "export", interrupt)
        exported.export(tied)
    assert "config.json: damaged" in caplog.text and not folder.exists()
    assert not [path for path in tied.folder.iterdir() if path.name.startswith(".tmp")]
    assert not records.is_done(tied, "export")
    exported.export(tied)
    before = (folder / "config.json").stat().st_mtime_ns
    exported.export(tied)
    assert (folder / "config.json").stat().st_mtime_ns == before
    exported.write_results(tied)  # an evaluation, which the card shows
    assert "| dense |" in (exported.export(tied) / "README.md").read_text()


def interrupt(*_, **options):
    raise KeyboardInterrupt
