"""A teacher's scores: their file, the records that carry them, and distillation from end to end on a toy set."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from conftest import write as write_file
from flax import nnx
from support.modules import spread
from support.tiny import execute, make_run

from retrieval.data.labelled.grouping import Example
from retrieval.data.labelled.teacher_scores import TeacherScores, write
from retrieval.data.sets import beir
from retrieval.data.sets.beir import Candidate
from retrieval.data.tokenizers import tokenizer_files
from retrieval.errors import UserError
from retrieval.methods.reranker.export_folder import write_cross_encoder
from retrieval.methods.reranker.model import CrossEncoder
from retrieval.models.text import Text
from retrieval.models.transformer import TransformerConfig
from retrieval.pipeline import preflight, records
from retrieval.recipes import examples
from retrieval.recipes.placement import make_mesh
from retrieval.recipes.recipe import recipe_of

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


def test_a_texts_score_is_found_by_id_or_words(tmp_path):
    lines = [
        {"query": "q", "text": "one", "score": 1},
        {"query": "q", "docid": "d3", "score": 3},
        {"query": "r", "docid": "d3", "score": 4},
    ]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    scores = TeacherScores(tmp_path / "x.jsonl")
    assert scores.of("q", [TEXTS[0], TEXTS[2]]).tolist() == [1, 3] and scores.of("r", [TEXTS[2]]).tolist() == [4]


@pytest.mark.parametrize("id", ["", None])
def test_an_empty_id_is_none(tmp_path, id):
    """The line is of its text alone, not of every text without an id."""
    line = {"query": "q", "docid": id, "title": "a title", "text": "two", "score": 2}
    (tmp_path / "x.jsonl").write_text(json.dumps(line) + "\n")
    scores = TeacherScores(tmp_path / "x.jsonl")
    assert scores.of("q", [TEXTS[1]]).tolist() == [2]
    with pytest.raises(UserError, match="no score of the query 'q' with the document without an id that begins 'four'"):
        scores.of("q", [Candidate("", "", "four")])


def test_ids_of_numbers_are_those_of_the_examples(tmp_path):
    lines = [{"query": "q", "docid": 1, "score": 3}, {"query": "q", "docid": 2.0, "score": 1.5}]
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, lines)))
    scores = TeacherScores(tmp_path / "x.jsonl")
    assert scores.of("q", [Candidate("2", "", "b"), Candidate("1", "", "a")]).tolist() == [1.5, 3]


def test_missing_pairs_are_counted_and_the_first_is_named(tmp_path):
    write(tmp_path / "x.jsonl", [("a question", TEXTS[0], 1.0)])
    scores = TeacherScores(tmp_path / "x.jsonl")
    message = r"x\.jsonl: no score of the query 'a question' with the document without an id that begins 'a title'"
    with pytest.raises(UserError, match=rf"{message}. 2 of 3 pairs have none\."):
        scores.check([GROUP])
    with pytest.raises(UserError, match="with the document 'd3'"):
        scores.of("a question", [TEXTS[0], TEXTS[2]])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: not valid JSON"),
        ('{"query": "q", "score": 1}', 'line 2: .*or "text" in place of an id'),
        ('{"query": "q", "docid": "d", "score": NaN}', "line 2: not valid JSON .NaN is no number of JSON"),
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


def test_a_trec_run_is_a_teacher(tmp_path, caplog):
    path = tmp_path / "bm25.trec"
    path.write_text("1 Q0 d1 1 3.5 tag\n9 Q0 d1 1 8 tag\n1 Q0 d3 2 -1e-3 tag\n")
    scores = TeacherScores(path, {"1": "q", "2": "r"})
    assert scores.of("q", [TEXTS[2], TEXTS[0]]).tolist() == pytest.approx([-1e-3, 3.5])
    assert "1 lines of queries that are not trained on, left out" in caplog.text
    with pytest.raises(UserError, match=r"bm25\.trec: a TREC run of other queries: its ids must be those of the set"):
        TeacherScores(path, {"7": "q"})
    for line, message in (
        ("1 d1 1", "line 4: 3 columns; a teacher's scores are JSON lines, or a TREC run of 6"),
        ("1 Q0 d1 1 high tag", "line 4: the score is 'high'; it must be a finite number"),
        ("1 Q0 d1 1 nan tag", "line 4: the score is 'nan'"),
        ("1 Q0 d3 1 7 tag", "line 4: this pair has another score above"),
    ):
        other = tmp_path / "wrong.trec"
        other.write_text(path.read_text() + line + "\n")
        with pytest.raises(UserError, match=message):
            TeacherScores(other, {"1": "q"})


def test_ids_that_a_run_cannot_tell_apart_have_no_score(tmp_path):
    path = tmp_path / "bm25.trec"
    path.write_text("1 Q0 d%201 1 3 tag\nq%202 Q0 d1 1 3 tag\n")
    with pytest.raises(UserError, match="line 2: two ids are the query 'q%202' in a run file"):
        TeacherScores(path, {"1": "q", "q 2": "r", "q%202": "s"})
    scores = TeacherScores(path, {"1": "q"})
    texts = [Candidate(id, "", "x") for id in ("d 1", "d%201")]
    assert scores.of("q", texts[:1]).tolist() == [3]
    with pytest.raises(UserError, match="documents of the query 'q' differ in a blank and %20 alone"):
        scores.of("q", texts)


@pytest.fixture(scope="module")
def mined(inputs, tmp_path_factory):
    """The toy questions with BM25's negatives."""
    changes = {"stages": ("prepare", "sets", "index", "mine"), "split.ratio": 0.5, "split.validation": 0.25}
    run = make_run("dpr_mined", inputs, tmp_path_factory.mktemp("mined") / "run", **changes | {"mine.last": 20})
    execute(run)
    return run


@pytest.fixture(scope="module")
def teacher(mined, tmp_path_factory):
    """A cross-encoder of the run's vocabulary, and its folder."""
    folder, vocabulary = tmp_path_factory.mktemp("models") / "teacher", mined.load_vocabulary()
    folder.mkdir()
    sizes = dict(num_layers=1, hidden_size=8, num_heads=2, mlp_size=12, max_length=48, dropout=0.0)
    model = spread(CrossEncoder(TransformerConfig(vocab_size=len(vocabulary), **sizes), 1, rngs=nnx.Rngs(0)))
    write_cross_encoder(folder, model)
    tokenizer_files.write_tokenizer(folder, vocabulary, length=48, types=2)
    return folder, model


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
    run = student(mined, inputs, tmp_path_factory.mktemp("student") / "run", teacher[0])
    preflight.check(run, run.config.stages)
    execute(run)
    return run


def test_batches_carry_the_scores_of_the_teacher(distilled, teacher):
    """Each is that of the query and the document that stand beside it."""
    vocabulary, (_, model) = distilled.load_vocabulary(), teacher
    batch = next(examples.make_batches(distilled, vocabulary, make_mesh(distilled.config)))
    assert batch["teacher"].shape == (8, 3) and batch["teacher"].dtype == np.float32
    for query, documents, scores in zip(*(np.asarray(batch[name]) for name in ("query", "document", "teacher"))):
        beginning = [id for id in query.tolist() if id]
        rows = np.zeros((3, 48), np.int32)
        for row, ids in zip(rows, documents.tolist()):
            body = [id for id in ids[1:] if id not in (0, vocabulary.sep_id)]
            pair = [*[*beginning, *body][:47], vocabulary.sep_id]
            row[: len(pair)] = pair
        types = np.where((np.arange(48) >= len(beginning)) & (rows > 0), 1, 0)
        expected = model.scores(Text.from_ids(jnp.asarray(rows), jnp.asarray(types, jnp.int32)))
        np.testing.assert_allclose(scores, expected, atol=1e-4)
    assert np.asarray(batch["teacher"]).std() > 0.01


def test_two_towers_learn_from_them(distilled, mined):
    lines = [json.loads(line) for line in (distilled.folder / "metrics" / "train.jsonl").read_text().splitlines()]
    assert all(np.isfinite(line["loss"]) and "spread" in line for line in lines)
    told = records.details(distilled, "teacher")
    assert told["queries"] == 9 and told["pairs"] > 9
    scores = (distilled.folder / "teacher" / "scores.jsonl").read_text().splitlines()
    assert len(scores) == told["pairs"]


def test_a_run_file_serves_as_the_stage_does(distilled, mined, inputs, tmp_path):
    """A reranker can learn from a teacher, too."""
    ids = {text: id for id, text in beir.read_queries(mined.training / "queries.jsonl").items()}
    scores = map(json.loads, (distilled.folder / "teacher" / "scores.jsonl").read_text().splitlines())
    path = write_file(
        tmp_path / "scores.trec",
        "".join(f"{ids[each['query']]} Q0 {each['docid']} 1 {each['score']!r} tag\n" for each in scores),
    )
    changes = {"stages": ("pairs",), "pairs.teacher": str(path), "teacher.model": "", "train.loss": "kl_divergence"}
    run = student(mined, inputs, tmp_path / "run", "", **changes)
    preflight.check(run, run.config.stages)
    execute(run)
    ours, theirs = (sorted((of.folder / "pairs").glob("*.tfrecord")) for of in (run, distilled))
    assert [one.read_bytes() for one in ours] == [one.read_bytes() for one in theirs]
    config = run.config.copy_and_resolve_references()
    config.recipe, config.model.encoder = "reranker", "transformer"
    reader = run.__class__(config, run.folder, run.lock)
    assert recipe_of(config).has_teacher
    batch = next(examples.make_batches(reader, run.load_vocabulary(), make_mesh(config)))
    assert batch["pair"].shape == (8, 3, 48) and batch["teacher"].shape == (8, 3)


def test_a_teacher_that_lacks_pairs_leaves_no_shards(distilled, mined, inputs, tmp_path):
    lines = (distilled.folder / "teacher" / "scores.jsonl").read_text().splitlines()
    (tmp_path / "some.jsonl").write_text("\n".join(lines[:-2]) + "\n")
    changes = {"stages": ("pairs",), "pairs.teacher": str(tmp_path / "some.jsonl")}
    run = student(mined, inputs, tmp_path / "run", "", **changes)
    with pytest.raises(UserError, match=rf"some\.jsonl: no score of .* 2 of {len(lines)} pairs have none"):
        execute(run)
    assert not list((run.folder / "pairs").iterdir())


def test_triples_in_their_order_all_have_scores(inputs, teacher, tmp_path):
    """More negatives of a query than `pairs.pool`; each line has its own. One of two questions is held out."""
    lines = "".join(f"{query}\tthe red fox\tno answer {number}\n" for number in range(5) for query in ("one", "two"))
    changes = {"corpus": "", "vocab": str(teacher[0]), "sets.reqa": "", "split.set": ""}
    changes |= {"pairs.files": str(write_file(tmp_path / "triples.tsv", lines)), "pairs.format": "triples"}
    changes |= {"pairs.in_order": True, "pairs.pool": 1, "train.loss": "margin_mse", "stages": ("teacher", "pairs")}
    run = make_run("dpr", inputs, tmp_path / "run", **changes, **{"teacher.model": str(teacher[0])})
    preflight.check(run, run.config.stages)
    execute(run)
    assert records.details(run, "teacher")["pairs"] == 12 and records.details(run, "pairs")["pairs"] == 5


def test_a_teacher_without_a_pair_says_so(inputs, teacher, tmp_path):
    path = write_file(tmp_path / "pairs.jsonl", '{"query": "one", "pos": [""], "neg": ["two"]}\n')
    changes = {"corpus": "", "vocab": str(teacher[0]), "sets.reqa": "", "split.set": "", "stages": ("teacher",)}
    run = make_run("dpr", inputs, tmp_path / "run", **changes, **{"pairs.files": str(path)})
    run.config.teacher.model = str(teacher[0])
    with pytest.raises(UserError, match="no labelled example is left to score"):
        execute(run)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stages": ("pairs", "train")}, "the labelled pairs have none: set config.pairs.teacher"),
        ({"mine.refresh_every": 2, "mine.refresh_share": 0.5}, "which negatives mined anew would lack"),
        ({"pairs.teacher": "absent.jsonl"}, "absent.jsonl: no such file or folder, in config.pairs.teacher"),
    ],
)
def test_a_missing_teacher_is_said_before_the_run(mined, inputs, teacher, tmp_path, changes, message):
    run = student(mined, inputs, tmp_path / "run", teacher[0], **changes)
    with pytest.raises(UserError, match=message):
        preflight.check(run, run.config.stages)


def test_pairs_of_no_teacher_are_refused(mined, inputs, teacher, tmp_path):
    run = student(mined, inputs, tmp_path / "run", teacher[0], **{"stages": ("pairs",), "train.loss": "two_way_nll"})
    execute(run)
    run.config.train.loss = "margin_mse"
    with pytest.raises(UserError, match="learns from a teacher's scores, and these pairs have none"):
        examples.make_batches(run, run.load_vocabulary(), make_mesh(run.config))
