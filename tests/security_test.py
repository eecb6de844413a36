"""What a stranger's files can do: they are read or refused, and nothing in them is run or leads out of its folder."""

import gzip
import io
import itertools
import json
import os
import pickle
import re
import shutil
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import seqio
import tensorflow as tf
from conftest import REPOSITORY
from flax import nnx
from ml_collections import ConfigDict
from support import google_checkpoint, toy_corpus
from support.nq_records import PEOPLE, city
from support.nq_records import write as write_nq

from configs import ict_bfs_wlp
from retrieval import files, main
from retrieval.data.corpora import articles, sources, tfds_source, wikipedia
from retrieval.data.examples import batches, tasks
from retrieval.data.examples.features import TwoTowerConverter, pair_lengths
from retrieval.data.examples.packing import PackedLane, Packing, rows_for
from retrieval.data.labelled import pair_shards
from retrieval.data.labelled.grouping import of_set
from retrieval.data.sets import beir, natural_questions, reqa
from retrieval.data.sets.beir import Candidate, RetrievalSet
from retrieval.data.shards import local_runner
from retrieval.data.tokenizers import vocabularies
from retrieval.data.tokenizers.vocab import WordPiece
from retrieval.errors import UserError
from retrieval.evaluation.run_report import write_report
from retrieval.models.hugging_face import BertFolder
from retrieval.models.transformer import Transformer, TransformerConfig
from retrieval.pipeline import records
from retrieval.pipeline.run import Run
from retrieval.search import encoding
from retrieval.search.bm25 import Bm25Index
from retrieval.search.scann import ScannIndex
from retrieval.studies import study_results
from retrieval.training.checkpoint import Checkpointer

GOLDEN = REPOSITORY / "tests" / "golden"

# Pickled data. Whoever unpickles it makes the folder that is its marker.


class Payload:
    """What unpickling this does is what its writer wants."""

    def __init__(self, marker):
        self._marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self._marker),)


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


@pytest.mark.parametrize("form", FORMS)
def test_the_payload_does_what_it_should(form, tmp_path):
    content = form(Payload(tmp_path / "marker"))
    if form in (as_pickle, as_gzip):
        pickle.loads(gzip.decompress(content) if form is as_gzip else content)
    else:
        loaded = np.load(io.BytesIO(content), allow_pickle=True)
        loaded if form is as_array else loaded["data"]
    assert (tmp_path / "marker").exists()


# Everything that the project reads: what makes it in a folder, what makes checksums fit again, and what reads it.


class Loader:
    """Something that is written to a folder and read from there; `ignored` are files whose content nobody asks for."""

    ignored = r".*manifest\.json"

    def write(self, folder):
        raise NotImplementedError

    def read(self, folder):
        raise NotImplementedError

    def seal(self, folder):
        for manifest in folder.rglob("manifest.json"):
            files.write_manifest(manifest.parent)


class Json(Loader):
    def write(self, folder):
        files.write_json(folder / "value.json", {"a": 1})

    def read(self, folder):
        return files.read_json(folder / "value.json")


class Manifest(Loader):
    ignored = "-"

    def write(self, folder):
        (folder / "file").write_text("x")
        files.write_manifest(folder)

    def read(self, folder):
        files.verify_manifest(folder, "")

    def seal(self, folder):
        pass


class WorkDirectory(Loader):
    def write(self, folder):
        files.write_json(folder / "config.json", json.loads(ict_bfs_wlp.get_config("local").to_json()))

    def read(self, folder):
        return main._config_of(folder, str(folder))


class Base(WorkDirectory):
    def read(self, folder):
        return Run(ConfigDict({"base": str(folder), "stages": []}), folder, Path("lock")).base


class Record(Loader):
    def write(self, folder):
        records.write_record(self.run(folder), "sets", {"inputs": {}, "done": True, "details": 1, "outputs": {}})

    def read(self, folder):
        return records.details(self.run(folder), "sets")

    def run(self, folder):
        return Run(ConfigDict({"stages": ["sets"]}), folder, Path("lock"))


class Embeddings(Loader):
    def write(self, folder):
        embed = lambda ids: np.ones((len(ids), 4), np.float32)  # noqa: E731
        texts = [(f"c{i}", [[1, 2]]) for i in range(5)]
        encoding.encode(
            folder,
            "candidates",
            texts,
            5,
            list,
            embed,
            shard_size=3,
            batch_tokens=32,
            longest=16,
            process=0,
            processes=1,
        )

    def read(self, folder):
        return encoding.load(folder, "candidates")


class Bm25(Loader):
    def write(self, folder):
        Bm25Index.build(["red fox", "blue dog", "green cat"], "text").save(folder / "index")

    def read(self, folder):
        return Bm25Index.load(folder / "index")


class Scann(Loader):
    """With partitions, so that every kind of file is there."""

    def write(self, folder):
        embeddings = np.random.default_rng(0).normal(size=(5_000, 4)).astype(np.float32)
        ScannIndex.build(embeddings).save(folder / "index")

    def read(self, folder):
        return ScannIndex.load(folder / "index").search(np.ones((1, 4), np.float32), 3)


class ScannDocids(Scann):
    """The file that ScaNN itself would unpickle."""

    def write(self, folder):
        ScannIndex.build(np.eye(4, dtype=np.float32)).save(folder / "index")
        (folder / "index" / "scann_docids.pkl").write_bytes(b"")
        files.write_manifest(folder / "index")

    ignored = r"(?!.*scann_docids\.pkl).*"


class Position:
    """The position in the data: one number."""

    value = 7

    def save(self, folder):
        (folder / "position.json").write_text(json.dumps(self.value))

    def restore(self, folder):
        self.value = files.read_json(folder / "position.json")


STATE = {"w": jnp.arange(12.0).reshape(3, 4), "step": jnp.zeros((), jnp.int32)}


class Checkpoint(Loader):
    # Orbax makes do without some, and never looks at others where it is told what to restore.
    ignored = r".*(manifest\.json|_CHECKPOINT_METADATA|commit_success\.txt|_sharding|ocdbt\.process_0/.*)"

    def write(self, folder):
        checkpointer = Checkpointer(folder / "checkpoints", best="RR")
        checkpointer.save(5, STATE, Position(), {"RR": 0.5})
        checkpointer.close()

    def read(self, folder):
        checkpointer = Checkpointer(folder / "checkpoints", best="RR")
        try:
            return checkpointer.restore(STATE, Position(), step=checkpointer.best_step())
        finally:
            checkpointer.close()


PACKING = Packing(2, {"ids": rows_for(2, 4, 1.0, 4, "pack")})


class Positions(Loader):
    """Those of tf.data, and the examples that wait to be packed."""

    def lane(self):
        rows = np.arange(1, 41, dtype=np.int32).reshape(10, 4)
        dataset = tf.data.Dataset.from_tensor_slices({"ids": rows}).shuffle(5, seed=0).repeat()
        return PackedLane(batches._Lane("lane-00000", dataset, 2), PACKING)

    def write(self, folder):
        lane = self.lane()
        next(lane)
        lane.save(folder)

    def read(self, folder):
        lane = self.lane()
        lane.restore(folder)
        return next(lane)


def labelled():
    queries = {f"q{i}": f"What is {toy_corpus.title(i)}?" for i in range(4)}
    candidates = [Candidate(f"c{i}", toy_corpus.title(i), f"It is animal {i}.") for i in range(4)]
    return RetrievalSet("toy", queries, candidates, {"train": {f"q{i}": {f"c{i}": 1} for i in range(4)}})


VOCABULARY = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij"])


class Shards(Loader):
    def write(self, folder):
        texts = {text.id: text for text in labelled().candidates}
        pair_shards.write_pairs(list(of_set(labelled(), "train", texts.get)), VOCABULARY, folder, 1)

    def read(self, folder):
        name, _ = tasks.register(folder, VOCABULARY, {"tasks": {"mlm": {"pairs": 0}}}, {"pairs": 1.0}, labelled=folder)
        lengths = pair_lengths(8, 8)
        dataset = seqio.get_dataset(name, lengths, TwoTowerConverter(3), shuffle=False, num_epochs=1, verbose=False)
        return next(batches._Lane("lane", dataset, 2))


class Items(Loader):
    def write(self, folder):
        local_runner.write_items(folder / "work" / "0.items", [("tag", "key", [1, 2])], 4)

    def read(self, folder):
        return list(local_runner.read_items([folder / "work"], "tag"))


class Articles(Loader):
    def write(self, folder):
        (folder / "articles").mkdir()
        (folder / "articles" / "0.jsonl").write_text(articles.to_json(toy_corpus.article(1)) + "\n")

    def read(self, folder):
        return list(sources.read_articles(folder / "articles" / "0.jsonl"))


class Vocabulary(Loader):
    def write(self, folder):
        VOCABULARY.save(folder / "vocab.txt")

    def read(self, folder):
        return WordPiece.load(folder / "vocab.txt")


class BytePairVocabulary(Loader):
    def write(self, folder):
        shutil.copy(GOLDEN / "byte_pairs" / "tokenizer.json", folder)

    def read(self, folder):
        return vocabularies.load(folder)


class Weights(Loader):
    name = "bert"

    def write(self, folder):
        shutil.copytree(GOLDEN / self.name, folder, dirs_exist_ok=True)
        (folder / "expected.safetensors").unlink()

    def read(self, folder):
        bert = BertFolder.open(folder)
        config = TransformerConfig(**bert.sizes)
        encoder = nnx.eval_shape(lambda: Transformer(config, rngs=nnx.Rngs(0)))
        return bert.encoder(nnx.to_pure_dict(nnx.state(encoder, nnx.Param)))


class ShardedWeights(Weights):
    name = "bert_sharded"


class TensorflowWeights(Weights):
    def write(self, folder):
        google_checkpoint.write(GOLDEN / "bert", folder)


class Collection(Loader):
    def write(self, folder):
        beir.write_folder(folder / "set", labelled())

    def read(self, folder):
        return beir.read_folder(folder / "set"), beir.read_judged(folder / "set")


class CompressedCollection(Collection):
    def write(self, folder):
        super().write(folder)
        for path in (folder / "set").glob("*.jsonl"):
            path.with_suffix(".jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()


class Squad(Loader):
    def write(self, folder):
        toy_corpus.write_squad(folder / "squad.json")

    def read(self, folder):
        return reqa.read_squad([folder / "squad.json"])


class NaturalQuestions(Loader):
    def write(self, folder):
        write_nq(folder / "nq.jsonl", city(PEOPLE))

    def read(self, folder):
        return natural_questions.read_nq([folder / "nq.jsonl"])


class Dump(Loader):
    def write(self, folder):
        toy_corpus.write_dump(folder / "dump.xml")

    def read(self, folder):
        return list(wikipedia.read_pages(folder / "dump.xml"))


class Results(Loader):
    def write(self, folder):
        row = dict(system="dense", dataset="reqa", split="pair", metric="RR", value=0.5)
        files.write_json(folder / "run" / "results.json", [row])

    def read(self, folder):
        return study_results.Results(folder, ["run"]).has("run")


class Metrics(Loader):
    ignored = r".*\.(png|md)"

    def write(self, folder):
        (folder / "metrics").mkdir()
        (folder / "metrics" / "train.jsonl").write_text('{"step": 1, "loss": 2}\n')

    def read(self, folder):
        write_report(folder, "title", [])


LOADERS = [
    Json, Manifest, WorkDirectory, Base, Record, Embeddings, Bm25, Scann, ScannDocids, Checkpoint, Positions, Shards,
    Items, Articles, Vocabulary, BytePairVocabulary, Weights, ShardedWeights, TensorflowWeights,
    Collection, CompressedCollection, Squad, NaturalQuestions, Dump, Results, Metrics,
]  # fmt: skip


@pytest.mark.parametrize("loader", LOADERS, ids=lambda loader: loader.__name__)
def test_pickled_data_is_refused_and_not_run(loader, tmp_path):
    loader, good, marker = loader(), tmp_path / "good", tmp_path / "marker"
    good.mkdir()
    loader.write(good)
    if not isinstance(loader, ScannDocids):
        loader.read(good)
    paths = sorted(path.relative_to(good) for path in good.rglob("*") if path.is_file())
    read = {path for path in paths if not re.fullmatch(loader.ignored, path.as_posix())}
    assert read
    for path, form in itertools.product(paths, FORMS):
        folder = shutil.copytree(good, tmp_path / "bad")
        (folder / path).write_bytes(form(Payload(marker)))
        loader.seal(folder)
        try:
            loader.read(folder)
            refused = False
        except UserError:
            refused = True
        assert not marker.exists() and (refused or path not in read), (path, form)
        shutil.rmtree(folder)


# What stays in its folder, and what is in the bounds of its arrays.


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "a/../../outside"])
def test_a_list_of_sums_stays_in_its_folder(name, tmp_path):
    (tmp_path / "outside").write_text("x")
    (tmp_path / "folder" / "a").mkdir(parents=True)
    files.write_json(tmp_path / "folder" / "manifest.json", {name: "0"})
    with pytest.raises(UserError, match="is a file of another folder"):
        files.verify_manifest(tmp_path / "folder", "")


@pytest.mark.parametrize("name", ["{outside}", "../dataset.npy", "..", "sub/dataset.npy"])
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
        lambda arrays: {"indices": arrays["indices"] - 1_000_000},
        lambda arrays: {"indptr": arrays["indptr"][::-1].copy()},
        lambda arrays: {"indptr": arrays["indptr"] * 1000},
        lambda arrays: {"shape": np.array([1 << 40, 3])},
        lambda arrays: {"data": arrays["data"][:-1]},
        lambda arrays: {"data": np.full_like(arrays["data"], np.nan)},
    ],
)
def test_a_matrix_whose_indices_lead_out_of_it_is_refused(change, tmp_path):
    Bm25Index.build(["red fox", "blue dog", "green cat"], "text").save(tmp_path / "index")
    with np.load(tmp_path / "index" / "weights.npz", allow_pickle=False) as stored:
        arrays = dict(stored)
    np.savez(tmp_path / "index" / "weights.npz", **arrays | change(arrays))
    files.write_manifest(tmp_path / "index")
    with pytest.raises(UserError, match="not the weights of an index"):
        Bm25Index.load(tmp_path / "index")


def test_an_archive_that_grows_when_it_is_read_is_refused(tmp_path):
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
