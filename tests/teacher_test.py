"""A teacher's scores: their file, the records that carry them, and distillation from end to end on a toy set."""

import itertools
import json
import shutil

import jax.numpy as jnp
import numpy as np
import pytest
from support import embedder_folders
from support.tiny import complete, execute, make_run

import retrieval
from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.data.labelled.grouping import Example
from retrieval.data.labelled.teacher_scores import TeacherScores, write
from retrieval.data.sets import beir
from retrieval.data.sets.beir import Candidate
from retrieval.models.text import Text
from retrieval.recipes.parameters import make_mesh
from retrieval.recipes.recipe import has_teacher, recipe_of
from retrieval.runs.fitting import examples
from retrieval.search import encoding
from retrieval.stages.teacher import together

TEXTS = [Candidate("d1", "", "one"), Candidate("", "a title", "two"), Candidate("d3", "", "three")]
GROUP = Example("a question", tuple(TEXTS[:1]), tuple(TEXTS[1:]))


def test_scores_come_back_bit_for_bit(tmp_path):
    values = np.random.default_rng(0).normal(size=3).astype(np.float32)
    count = write(tmp_path / "scores.jsonl", (("a question", *pair) for pair in zip(TEXTS, values)))
    scores = TeacherScores(tmp_path / "scores.jsonl")
    np.testing.assert_array_equal(scores.of("a question", TEXTS[::-1]), values[::-1], strict=True)
    assert count == 3 and scores.check([GROUP]) is None
    first = json.loads((tmp_path / "scores.jsonl").read_text().splitlines()[0])
    assert first == {"query": "a question", "docid": "d1", "score": pytest.approx(values[0], rel=1e-8)}


def test_missing_pairs_are_counted_and_the_first_is_named(tmp_path):
    write(tmp_path / "x.jsonl", [("a question", TEXTS[0], 1.0)])
    scores = TeacherScores(tmp_path / "x.jsonl")
    message = r"x\.jsonl: no score of the query 'a question' with the document without an id that begins 'a title'"
    with pytest.raises(UserError, match=rf"{message}, one of 2 of the query\."):
        scores.check([GROUP])
    with pytest.raises(UserError, match="with the document 'd3'"):
        scores.of("a question", [TEXTS[0], TEXTS[2]])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"query": "q", "score": 1}', 'line 2: .*or "text" in place of an id'),
        ('{"query": "q", "docid": "d", "score": 1e39}', "line 2: the score is '1e.39'; it must be a finite number"),
        ('{"query": "q", "docid": "d1", "score": 2}', "line 2: this pair has another score above"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, line, message):
    (tmp_path / "x.jsonl").write_text('{"query": "q", "docid": "d1", "score": 1}\n' + line + "\n")
    with pytest.raises(UserError, match=message):
        TeacherScores(tmp_path / "x.jsonl")
    (tmp_path / "x.jsonl").write_text("\n")
    with pytest.raises(UserError, match="no score in it"):
        TeacherScores(tmp_path / "x.jsonl")


@pytest.fixture(scope="module")
def mined(inputs, prepared, tmp_path_factory):
    """The toy questions with BM25's negatives."""
    changes = {"stages": ("prepare", "sets", "index", "mine"), "split.ratio": 0.5, "split.validation": 0.25}
    folder = shutil.copytree(prepared, tmp_path_factory.mktemp("mined") / "run")
    run = make_run("dpr_mined", inputs, folder, **changes | {"mine.last": 20})
    execute(run)
    return run


@pytest.fixture(scope="module")
def teacher(mined, tmp_path_factory):
    """A cross-encoder of the run's vocabulary, and its folder."""
    return embedder_folders.cross_encoder(tmp_path_factory.mktemp("models") / "teacher", mined.load_vocabulary(), 48)


def student(mined, inputs, folder, teacher, **changes):
    changes = {
        "base": str(mined.folder),
        "corpus": "",
        "stages": ("teacher", "pairs", "train"),
        "teacher.model": str(teacher),
        "train.loss": "margin_mse",
        "train.batch_size": 8,
        "data.negatives": 2,
        "loop.validate_every": 0,
        "model.encoder": "bow_mlp",
        **changes,
    }
    return make_run("dpr_mined", inputs, folder, **changes)


@pytest.fixture(scope="module")
def distilled(mined, inputs, teacher, tmp_path_factory):
    return complete(student(mined, inputs, tmp_path_factory.mktemp("student") / "run", teacher[0]))


def test_batches_carry_the_scores_of_the_teacher(distilled, teacher):
    """Each is that of the query and the document that stand beside it."""
    vocabulary, (_, model) = distilled.load_vocabulary(), teacher
    batch = next(examples.make_batches(distilled, vocabulary, make_mesh(distilled.config)))
    assert batch["teacher"].shape == (8, 3) and batch["teacher"].dtype == np.float32
    for query, documents, scores in zip(*(np.asarray(batch[name]) for name in ("query", "document", "teacher"))):
        beginning = [id for id in query.tolist() if id >= 0]
        rows = np.full((3, 48), -1, np.int32)
        for row, ids in zip(rows, documents.tolist()):
            body = [id for id in ids[1:] if id not in (-1, vocabulary.sep_id)]
            pair = [*[*beginning, *body][:47], vocabulary.sep_id]
            row[: len(pair)] = pair
        types = np.where((np.arange(48) >= len(beginning)) & (rows >= 0), 1, 0)
        expected = model.scores(Text.from_ids(jnp.asarray(rows), jnp.asarray(types, jnp.int32)))
        np.testing.assert_allclose(scores, expected, atol=1e-4)
    assert np.asarray(batch["teacher"]).std() > 0.01


def test_a_file_serves_as_the_stage_does(distilled, mined, inputs, tmp_path):
    """A reranker can learn from a teacher, too."""
    path = distilled.folder / "teacher" / "scores.jsonl"
    changes = {"stages": ("pairs",), "pairs.teacher": str(path), "teacher.model": "", "train.loss": "kl_divergence"}
    run = student(mined, inputs, tmp_path / "run", "", **changes)
    complete(run)
    ours, theirs = (sorted((of.folder / "pairs").glob("*.tfrecord")) for of in (run, distilled))
    assert [one.read_bytes() for one in ours] == [one.read_bytes() for one in theirs]
    config = run.config.copy_and_resolve_references()
    config.recipe, config.model.encoder = "reranker", "transformer"
    reader = run.__class__(config, run.folder, run.lock)
    assert has_teacher(recipe_of(config))
    batch = next(examples.make_batches(reader, run.load_vocabulary(), make_mesh(config)))
    assert batch["pair"].shape == (8, 3, 48) and batch["teacher"].shape == (8, 3)


def scores_of(folder):
    """The lines of `scores.jsonl`: the query, the document's id, and the score."""
    lines = map(json.loads, (folder / "scores.jsonl").read_text(encoding="utf-8").splitlines())
    return [(line["query"], line["docid"], line["score"]) for line in lines]


@pytest.fixture(scope="module")
def embedder(tmp_path_factory):
    """A folder of sentence-transformers, of another family and vocabulary than the student."""
    return embedder_folders.modernbert(tmp_path_factory.mktemp("embedder") / "model")


@pytest.fixture(scope="module")
def taught_by_embedder(mined, inputs, embedder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("taught") / "run"
    return complete(student(mined, inputs, folder, embedder, **{"stages": ("teacher",), "train.loss": "kl_divergence"}))


def test_an_embedder_teaches_by_its_cosines(taught_by_embedder, embedder, tmp_path):
    """What it is its folder tells; a text is embedded once, and has no more tokens than the run's."""
    run, short = taught_by_embedder, shutil.copytree(embedder, tmp_path / "short")
    lengths = {"max_seq_length": 48, "query_length": 16, "document_length": 48}
    files.write_json(short / "sentence_bert_config.json", lengths)
    texts = {item.id: item for item in beir.read_candidates(run.sets / "reqa" / "corpus.jsonl")}
    found, model = scores_of(run.folder / "teacher"), retrieval.load(short)
    queries = model.encode_query([query for query, *_ in found])
    records = [{"title": texts[id].title, "text": texts[id].text} for _, id, _ in found]
    expected = (queries * model.encode_document(records)).sum(axis=1)
    np.testing.assert_allclose([score for *_, score in found], expected, atol=1e-5)
    assert np.std(expected) > 0.01
    distinct = {(record["title"], record["text"]) for record in records}
    assert len(encoding.StoredRows(run.folder / "teacher" / "scores", "documents")) == len(distinct) < len(found)


def test_several_teachers_are_one(taught_by_embedder, distilled, mined, inputs, teacher, embedder, tmp_path):
    """Its scores are the means of those of each, once those of a query go from 0 to 1."""
    both = student(mined, inputs, tmp_path / "run", f"{teacher[0]},{embedder}", stages=("teacher",))
    execute(both)
    alone = [scores_of(run.folder / "teacher") for run in (distilled, taught_by_embedder)]
    place, found = 0, scores_of(both.folder / "teacher")
    assert [line[:2] for line in found] == [line[:2] for line in alone[0]] == [line[:2] for line in alone[1]]
    for _, lines in itertools.groupby(found, key=lambda line: line[0]):
        own = [score for *_, score in lines]
        parts = [np.array([score for *_, score in lines[place : place + len(own)]]) for lines in alone]
        expected = np.mean([(part - part.min()) / (part.max() - part.min()) for part in parts], axis=0)
        np.testing.assert_allclose(own, expected, atol=1e-4)
        place += len(own)
    assert place == len(found)


def test_documents_that_a_teacher_scores_alike():
    scores = [np.array([2.0, 2.0, 1.0, 3.0]), np.array([0.0, 4.0, 5.0, 4.0])]
    assert together(scores, [2, 2]).tolist() == [0, 0.5, 0.5, 0.5]
