"""What a stranger's files can do: they are read or refused, and nothing in them is run or leads out of its folder."""

import contextlib
import gzip
import io
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
import seqio
import tensorflow as tf
from conftest import REPOSITORY
from flax import nnx
from support import toy_corpus
from support.payload import Payload
from support.store_cases import Position

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.data.corpora import tfds_source
from retrieval.data.examples import batches, seqio_tasks
from retrieval.data.examples.example_kind import PAIRS, pair_lengths
from retrieval.data.examples.packing import PackedLane, Packing, rows_for
from retrieval.data.examples.seqio_classes import Converter
from retrieval.data.examples.task_kind import TaskData
from retrieval.data.labelled import pair_shards
from retrieval.data.labelled.grouping import of_set
from retrieval.data.sets import beir
from retrieval.data.sets.beir import Candidate, RetrievalSet
from retrieval.data.shards import local_runner
from retrieval.data.tokenizers.vocab import WordPiece
from retrieval.models.encoder_folder import EncoderFolder
from retrieval.models.transformer import Transformer
from retrieval.models.transformer_config import TransformerConfig
from retrieval.search import encoding
from retrieval.search.bm25 import Bm25Index
from retrieval.search.scann import ScannIndex
from retrieval.search.vector_codes import Form
from retrieval.training.checkpoint import Checkpointer

GOLDEN = REPOSITORY / "tests" / "golden"


def as_pickle(payload):
    return pickle.dumps(payload)


def as_array(payload):
    file = io.BytesIO()
    np.save(file, np.array([payload], dtype=object), allow_pickle=True)
    return file.getvalue()


def as_archive(payload):
    file, value = io.BytesIO(), np.array([payload], dtype=object)
    names = ("data", "indices", "indptr", "shape", "format", "_is_array", "query", "document", "document_id", "log_q")
    np.savez(file, value, **dict.fromkeys(names, value))
    return file.getvalue()


def as_gzip(payload):
    return gzip.compress(pickle.dumps(payload))


FORMS = (as_pickle, as_array, as_archive, as_gzip)
LIKELY = {".npy": as_array, ".npz": as_archive}  # forms by the suffix of a file, beside a pickle


@pytest.mark.parametrize("form", FORMS)
def test_the_payload_does_what_it_should(form, tmp_path):
    content = form(Payload(tmp_path / "marker"))
    if form in (as_pickle, as_gzip):
        pickle.loads(gzip.decompress(content) if form is as_gzip else content)
    else:
        loaded = np.load(io.BytesIO(content), allow_pickle=True)
        loaded if form is as_array else loaded["data"]
    assert (tmp_path / "marker").exists()


# Everything that the project reads: what makes it in a folder, and what reads it.


class Loader(NamedTuple):
    """Something that is written to a folder and read from there.

    Attributes:
      ignored: files whose content nobody asks for.
      sealed: checksums fit what a stranger has changed.
    """

    write: Callable[[Path], Any]
    read: Callable[[Path], Any]
    ignored: str = r".*manifest\.json"
    sealed: bool = True


def write_manifest(folder):
    (folder / "file").write_text("x")
    files.write_manifest(folder)


def write_embeddings(folder):
    texts = [(f"c{i}", [[1, 2]]) for i in range(5)]
    sizes = dict(shard_size=3, batch_tokens=32, longest=16)
    encoding.encode(folder, "candidates", texts, 5, list, lambda ids: np.ones((len(ids), 4), np.float32), **sizes)


def write_codes(folder):
    texts, sizes = [(f"c{i}", [[1, 2]]) for i in range(5)], dict(shard_size=3, batch_tokens=32, longest=16)
    form = Form("int8", 4, ranges_2E=np.array([[0] * 4, [0.5] * 4], np.float32))
    embed = lambda ids: np.ones((len(ids), 4), np.float32)  # noqa: E731
    encoding.encode(folder, "candidates", texts, 5, list, embed, form=form, **sizes)


def write_bm25(folder):
    Bm25Index.build(["red fox", "blue dog", "green cat"], "text").save(folder / "index")


def write_scann(folder):
    """With partitions, so that every kind of file is there."""
    ScannIndex.build(np.random.default_rng(0).normal(size=(5_000, 4)).astype(np.float32)).save(folder / "index")


def write_docids(folder):
    """With the file that ScaNN itself would unpickle."""
    ScannIndex.build(np.eye(4, dtype=np.float32)).save(folder / "index")
    (folder / "index" / "scann_docids.pkl").write_bytes(b"")
    files.write_manifest(folder / "index")


def read_scann(folder):
    return ScannIndex.load(folder / "index").search(np.ones((1, 4), np.float32), 3)


STATE = {"w": jnp.arange(12.0).reshape(3, 4), "step": jnp.zeros((), jnp.int32)}


def write_checkpoint(folder):
    with contextlib.closing(Checkpointer(folder / "checkpoints", best="RR")) as checkpointer:
        checkpointer.save(5, STATE, Position(), {"RR": 0.5})


def read_checkpoint(folder):
    with contextlib.closing(Checkpointer(folder / "checkpoints", best="RR")) as checkpointer:
        return checkpointer.restore(STATE, Position(), step=checkpointer.best_step())


PACKING = Packing(2, {"ids": rows_for(2, 4, 1.0, 4, "pack")})


def lane():
    """A position of tf.data, and examples that wait to be packed."""
    rows = np.arange(1, 41, dtype=np.int32).reshape(10, 4)
    dataset = tf.data.Dataset.from_tensor_slices({"ids": rows}).shuffle(5, seed=0).repeat()
    return PackedLane(batches._Lane("lane-00000", dataset, 2), PACKING)


def write_positions(folder):
    next(begun := lane())
    begun.save(folder)


def read_positions(folder):
    (restored := lane()).restore(folder)
    return next(restored)


def labelled():
    queries = {f"q{i}": f"What is {toy_corpus.title(i)}?" for i in range(4)}
    candidates = [Candidate(f"c{i}", toy_corpus.title(i), f"It is animal {i}.") for i in range(4)]
    return RetrievalSet("toy", queries, candidates, {"train": {f"q{i}": {f"c{i}": 1} for i in range(4)}})


VOCABULARY = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij"])


def write_shards(folder):
    texts = {text.id: text for text in labelled().candidates}
    pair_shards.PairWriter(list(of_set(labelled(), "train", texts.get)), VOCABULARY).write(folder, 1)


def read_shards(folder):
    name, _ = seqio_tasks.register(TaskData(folder, {"tasks": {}}, folder), VOCABULARY, {"pairs": 1.0})
    lengths = pair_lengths(8, 8)
    dataset = seqio.get_dataset(name, lengths, Converter(PAIRS, lengths, 3), shuffle=False, num_epochs=1, verbose=False)
    return next(batches._Lane("lane", dataset, 2))


def write_weights(folder):
    shutil.copytree(GOLDEN / "bert", folder, dirs_exist_ok=True)
    (folder / "expected.safetensors").unlink()


def read_weights(folder):
    bert = EncoderFolder.open(folder)
    encoder = nnx.eval_shape(lambda: Transformer(TransformerConfig(**bert.sizes), rngs=nnx.Rngs(0)))
    return bert.encoder(nnx.to_pure_dict(nnx.state(encoder, nnx.Param)))


def write_collection(folder):
    beir.write_folder(folder / "set", labelled())


def read_collection(folder):
    return beir.read_folder(folder / "set"), beir.read_judged(folder / "set")


# Orbax makes do without some of its files, and never looks at others where it is told what to restore.
UNREAD = r".*(manifest\.json|_CHECKPOINT_METADATA|commit_success\.txt|_sharding|ocdbt\.process_0/.*)"
LOADERS = {
    "json": Loader(
        lambda folder: files.write_json(folder / "value.json", {"a": 1}),
        lambda folder: files.read_json(folder / "value.json"),
    ),
    "manifest": Loader(write_manifest, lambda folder: files.verify_manifest(folder, ""), "-", sealed=False),
    "embeddings": Loader(write_embeddings, lambda folder: encoding.load(folder, "candidates")),
    "codes": Loader(write_codes, lambda folder: encoding.load(folder, "candidates")),
    "bm25": Loader(write_bm25, lambda folder: Bm25Index.load(folder / "index")),
    "scann": Loader(write_scann, read_scann),
    "scann's docids": Loader(write_docids, read_scann, r"(?!.*scann_docids\.pkl).*"),
    "checkpoint": Loader(write_checkpoint, read_checkpoint, UNREAD),
    "positions": Loader(write_positions, read_positions),
    "shards": Loader(write_shards, read_shards),
    "items": Loader(
        lambda folder: local_runner.write_items(folder / "work" / "0.items", [("tag", "key", [1, 2])], 4),
        lambda folder: list(local_runner.read_items([folder / "work"], "tag")),
    ),
    "weights": Loader(write_weights, read_weights),
    "collection": Loader(write_collection, read_collection),
}


def refuses(loader, folder):
    try:
        loader.read(folder)
    except UserError:
        return True
    return False


@pytest.mark.parametrize("name", LOADERS)
def test_pickled_data_is_refused_and_not_run(name, tmp_path):
    loader, good, marker = LOADERS[name], tmp_path / "good", tmp_path / "marker"
    good.mkdir()
    loader.write(good)
    assert refuses(loader, good) == (name == "scann's docids")
    paths = sorted(path.relative_to(good) for path in good.rglob("*") if path.is_file())
    read = {path for path in paths if not re.fullmatch(loader.ignored, path.as_posix())}
    assert read
    for path, form in [(each, form) for each in paths for form in (as_pickle, LIKELY.get(each.suffix, as_gzip))]:
        folder = shutil.copytree(good, tmp_path / "bad")
        (folder / path).write_bytes(form(Payload(marker)))
        for manifest in folder.rglob("manifest.json") if loader.sealed else ():
            files.write_manifest(manifest.parent)
        refused = refuses(loader, folder)
        assert not marker.exists() and (refused or path not in read), (path, form)
        shutil.rmtree(folder)


# What stays in its folder, and what is in the bounds of its arrays.


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd"])
def test_a_list_of_sums_stays_in_its_folder(name, tmp_path):
    (tmp_path / "outside").write_text("x")
    (tmp_path / "folder" / "a").mkdir(parents=True)
    files.write_json(tmp_path / "folder" / "manifest.json", {name: "0"})
    with pytest.raises(UserError, match="is a file of another folder"):
        files.verify_manifest(tmp_path / "folder", "")


@pytest.mark.parametrize("name", ["{outside}", "../dataset.npy"])
def test_a_scann_index_opens_no_file_of_another_folder(name, tmp_path):
    index, outside = tmp_path / "index", tmp_path / "dataset.npy"
    ScannIndex.build(np.eye(4, dtype=np.float32)).save(index)
    shutil.copy(index / "dataset.npy", outside)
    assets = (index / "scann_assets.pbtxt").read_text()
    assert '"dataset.npy"' in assets
    name = name.format(outside=outside)
    (index / "scann_assets.pbtxt").write_text(assets.replace('"dataset.npy"', f'"{name}"'))
    files.write_manifest(index)
    with pytest.raises(UserError, match="no file of this folder"):
        ScannIndex.load(index)


@pytest.mark.parametrize(
    "change",
    [
        lambda arrays: {"indices": arrays["indices"] + 1_000_000},
        lambda arrays: {"indptr": arrays["indptr"][::-1].copy()},
        lambda arrays: {"shape": np.array([1 << 40, 3])},
        lambda arrays: {"data": np.full_like(arrays["data"], np.nan)},
    ],
)
def test_a_matrix_with_indices_beyond_it_is_refused(change, tmp_path):
    Bm25Index.build(["red fox", "blue dog", "green cat"], "text").save(tmp_path / "index")
    with np.load(tmp_path / "index" / "weights.npz", allow_pickle=False) as stored:
        arrays = dict(stored)
    np.savez(tmp_path / "index" / "weights.npz", **arrays | change(arrays))
    files.write_manifest(tmp_path / "index")
    with pytest.raises(UserError, match="not the weights of an index"):
        Bm25Index.load(tmp_path / "index")


def test_a_growing_archive_is_refused(tmp_path):
    np.savez_compressed(tmp_path / "bomb.npz", data=np.zeros(1 << 20))
    with pytest.raises(UserError, match="compressed"):
        files.read_arrays(tmp_path / "bomb.npz", "")


@pytest.mark.parametrize("key", ["pythonClassName", "type"])
def test_prepared_data_names_no_code_to_import(key, tmp_path, monkeypatch):
    version = tmp_path / "data" / "squad" / "plain_text" / "1.0.0"
    features = {"features": {"features": {"id": {key: "strangers_module.Feature"}}}}
    files.write_json(version / "features.json", features)
    (tmp_path / "strangers_module.py").write_text(f"import os; os.mkdir({str(tmp_path / 'marker')!r})")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=r"asks for the code of 'strangers_module\.Feature'"):
        next(iter(tfds_source.examples(f"tfds:squad?data_dir={tmp_path / 'data'}", "squad")))
    assert not (tmp_path / "marker").exists()
