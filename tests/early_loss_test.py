"""A reader that trains the question tower too: the early and the joint loss against loops in numpy, and a run."""

import itertools
import json
import shutil
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import toy_corpus
from support.devices import assert_same_on_any_mesh
from support.refreshed_runs import assert_same, cut_off, outcome
from support.tiny import execute, make_run

from retrieval import files
from retrieval.data.sets import answers, beir, qa
from retrieval.errors import UserError
from retrieval.methods.reader import question_tower, span_shards, tuned_lists
from retrieval.methods.reader.answering import Answerer
from retrieval.methods.reader.early_candidates import EarlyCandidates
from retrieval.methods.reader.readers import open_reader
from retrieval.pipeline import preflight, records
from retrieval.recipes import examples, initial_parameters
from retrieval.recipes.placement import make_mesh
from retrieval.search import encoding
from retrieval.training import loop
from retrieval.training.candidates import inner_products
from retrieval.training.loss_kind import LOSSES

B, K, L, W, N, E, T = 8, 2, 5, 3, 6, 4, 0.5
_RANDOM = np.random.default_rng(0)
SPANS = np.full((B, 3, 3), -1, np.int32)
SPANS[0, :2], SPANS[1, :1], SPANS[2, :3] = [(0, 1, 2), (1, 3, 3)], [(1, 2, 4)], [(0, 1, 1), (0, 2, 3), (1, 4, 4)]
SPANS[5, :1] = [(0, 2, 2)]
BATCH = {
    "inside": np.tile(np.array([0, 1, 1, 1, 1], np.int32), (B, K, 1)),
    "spans": SPANS,
    "retrieved": np.zeros((B, K), np.float32),
    "paragraph": np.tile(np.array([1, 0], np.int32), (B, 1)),
    "candidates": np.tile(np.arange(N, dtype=np.int32), (B, 1)),
    "holds": _RANDOM.integers(0, 2, (B, N)).astype(np.int32),
    "embedding": _RANDOM.normal(size=(B, N, E)).astype(np.float32),
}
BATCH["candidates"][2, 4:] = -1  # fewer candidates
BATCH["holds"][2, 4:], BATCH["holds"][3] = 0, 0  # and a question without an answer among them
PARAMS = {
    "question": _RANDOM.normal(size=(B, E)).astype(np.float32),
    "start": _RANDOM.normal(size=(B, K, L)).astype(np.float32),
    "end": _RANDOM.normal(size=(B, K, L)).astype(np.float32),
    "pairs": _RANDOM.normal(size=(B, K, L, W)).astype(np.float32),
}


def softmax(values):
    return np.exp(values) / np.exp(values).sum()


def brute(params, b, name, shared_norm, joint):
    """The loss of a question, in float64, by loops over candidates and spans."""
    there = [n for n in range(N) if BATCH["candidates"][b, n] >= 0]
    score = np.array([params["question"][b] @ BATCH["embedding"][b, n].astype(float) / T for n in there])
    chance = dict(zip(there, softmax(score)))
    mass = sum(chance[n] for n in there if BATCH["holds"][b, n])
    early = -np.log(mass) if mass else 0.0
    spans = [tuple(span) for span in SPANS[b].tolist() if span[0] >= 0]
    if not spans:
        return early
    of = dict(zip(there, score))
    if name == "orqa_reader":
        places = [(k, i, w) for k, i, w in itertools.product(range(K), range(1, L), range(W)) if i + w < L]
        all_spans = softmax(np.array([params["pairs"][b][place] + of[1 - place[0]] for place in places]))
        total = sum(value for (k, i, w), value in zip(places, all_spans) if (k, i, i + w) in spans)
        return early - np.log(total)
    start, end = (np.zeros((K, L)) for _ in range(2))
    for values, ends in ((start, "start"), (end, "end")):
        if shared_norm:
            values[:, 1:] = softmax(params[ends][b, :, 1:])
        else:
            values[:, 1:] = [softmax(row) for row in params[ends][b, :, 1:]]
    weight = [chance[1 - k] if joint else 1.0 for k in range(K)]  # `paragraph` turns the two around
    return early - np.log(sum(weight[k] * start[k, i] * end[k, j] for k, i, j in spans))


def slopes(function, values, width=1e-5):
    """The gradient of a function of one array, by differences in float64."""
    found = np.zeros_like(values)
    for place in np.ndindex(values.shape):
        step = np.zeros_like(values)
        step[place] = width
        found[place] = (function(values + step) - function(values - step)) / (2 * width)
    return found


SETTINGS = {
    "1": ("span_likelihood", True, False),
    "2": ("span_likelihood", True, True),
    "4": ("span_likelihood", False, True),
    "orqa": ("orqa_reader", True, True),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_value_and_gradient_equal_loops_on_one_device_and_eight(setting):
    name, shared_norm, joint = SETTINGS[setting]
    options = {"early": True, "temperature": T}
    options |= {} if name == "orqa_reader" else {"shared_norm": shared_norm, "joint": joint}

    def total(params, batch):
        scores = {key: batch[key] for key in ("start", "end", "pairs")}
        scores["retriever"] = inner_products(batch["question"] + params["shift"], batch["embedding"])
        loss_B, metrics = LOSSES[name].function(scores, batch, **options)
        return loss_B.sum(), (loss_B, metrics["early"])

    rows, zero = BATCH | PARAMS, {"shift": np.zeros(E, np.float32)}
    by_shift = jax.value_and_grad(total, has_aux=True)
    (_, (loss_B, early_B)), gradient = assert_same_on_any_mesh(by_shift, zero, rows)
    wide = {key: value.astype(float) for key, value in PARAMS.items()}
    np.testing.assert_allclose(
        loss_B, [brute(wide, b, name, shared_norm, joint) for b in range(B)], rtol=1e-5, atol=1e-6
    )
    whole = lambda shift: sum(  # noqa: E731
        brute(wide | {"question": wide["question"] + shift}, b, name, shared_norm, joint) for b in range(B)
    )
    np.testing.assert_allclose(gradient["shift"], slopes(whole, np.zeros(E)), rtol=1e-4, atol=1e-4)
    assert early_B[3] == 0 and early_B[0] > 1


def test_the_joint_loss_moves_the_question_by_the_reader():
    def by_question(joint):
        def total(question_BE):
            scores = PARAMS | {"retriever": inner_products(question_BE, BATCH["embedding"])}
            return LOSSES["span_likelihood"].function(scores, BATCH, joint=joint, early=True)[0].sum()

        return np.asarray(jax.grad(total)(jnp.asarray(PARAMS["question"])))

    apart, joint = by_question(False), by_question(True)
    has_span_B = SPANS[:, 0, 0] >= 0
    np.testing.assert_array_equal(apart[~has_span_B], joint[~has_span_B])
    assert (np.abs(apart - joint)[has_span_B].max(axis=1) > 1e-4).all()
    assert not joint[3].any()  # neither a span nor a candidate that holds


EARLY = 6
TOWERS = {"split.set": "squad", "split.ratio": 0.7, "split.validation": 0.2, "split.shards": 2, "sets.reqa": ""}
TOWERS |= {"stages": ("prepare", "sets", "train", "encode"), "encode.corpus": False, "encode.untrained": False}
READER = {
    "stages": ("spans", "train", "answer"),
    "corpus": "",
    "sets.reqa": "",
    "data.query_length": 20,
    "data.document_length": 64,
    "data.paragraphs": 2,
    "spans.depth": 2,
    "spans.early": EARLY,
    "spans.system": "exact",
    "spans.gold": False,
    "split.shards": 2,
    "train.batch_size": 8,
    "train.steps": 24,
    "train.learning_rate": 3e-3,
    "train.temperature": 0.05,
    "train.early": True,
    "train.joint": True,
    "loop.log_every": 1,
    "loop.checkpoint_every": 8,
    "loop.keep_checkpoints": 9,
    "answer.systems": ("tuned",),
    "answer.paragraphs": 3,
}


@pytest.fixture(scope="module")
def towers(tmp_path_factory):
    inputs = toy_corpus.write_inputs(tmp_path_factory.mktemp("inputs"))  # a folder of its own: more is written there
    run = make_run(
        "ict", inputs, tmp_path_factory.mktemp("towers") / "run", **TOWERS, **{"sets.squad": str(inputs / "squad.json")}
    )
    execute(run)
    questions = [
        {"question": f"{asks} {toy_corpus.title(i)}?", "answer": [toy_corpus.title(i)]}
        for i in range(12)
        for asks in ("Which animal eats grass,", "Who is a", "What does nobody know of the", "Does it live, the")
    ]
    (inputs / "train.jsonl").write_text("\n".join(map(json.dumps, questions)))
    return inputs, run


def reader(towers, folder, **changes):
    """A reader of names, each of which one of the 12 passages has."""
    inputs, base = towers
    source = {"base": str(base.folder), "spans.questions": str(inputs / "train.jsonl"), "spans.set": "squad"}
    return make_run("reader", inputs, folder, **READER | source | changes)


@pytest.fixture(scope="module")
def trained(towers, tmp_path_factory):
    run = reader(towers, tmp_path_factory.mktemp("reader") / "run")
    preflight.check(run, run.config.stages)
    execute(run)
    return run


def candidates_of(run):
    """The embeddings of the set's passages, and their texts."""
    folder = run.before("spans").embeddings("squad", "trained")
    return encoding.load(folder, "candidates")[0], list(beir.read_candidates(run.sets / "squad" / "corpus.jsonl"))


def test_a_batch_has_the_first_candidates_and_which_hold_an_answer(trained, towers):
    embeddings_NE, passages = candidates_of(trained)
    vocabulary, (queries, known) = trained.load_vocabulary(), qa.read_questions(towers[0] / "train.jsonl")
    batch = jax.device_get(next(examples.make_batches(trained, vocabulary, make_mesh(trained.config))))
    config = question_tower.towers_of(trained).config
    asked = {
        tuple(vocabulary.single(vocabulary.encode(text), config.data.query_length)): id for id, text in queries.items()
    }
    shard = np.load(trained.folder / "spans" / span_shards.CANDIDATES)
    for question, rows, holds, found in zip(*(batch[n] for n in ("question", "candidates", "holds", "embedding"))):
        id = asked[tuple(question[question > 0].tolist())]
        (query_E,) = question_tower.embedded(open_before(trained), config, trained.config, vocabulary, [queries[id]])
        best = np.argsort(-embeddings_NE @ query_E, kind="stable")[:EARLY]
        np.testing.assert_array_equal(found, embeddings_NE[best])
        np.testing.assert_array_equal(found, shard[rows])
        np.testing.assert_array_equal(holds, [bool(answers.places(known[id], passages[row].text)) for row in best])
    assert 0 < batch["holds"].mean() < 1


def of_shards(folder, ids, passages) -> tuple[np.ndarray, Any, Any]:
    """A collection whose embeddings are in shards of three rows."""
    embeddings = np.arange(2 * len(ids), dtype=np.float32).reshape(len(ids), 2)
    count = -(-len(ids) // 3)
    for shard in range(count):
        part = slice(3 * shard, 3 * shard + 3)
        encoding.write(folder / f"candidates-{shard:05d}-of-{count:05d}.npy", ids[part], embeddings[part])
    candidates = [beir.Candidate(id, "", f"text of {id}") for id in passages]
    collection = SimpleNamespace(embeddings=lambda: folder, candidates=lambda: candidates, files=("corpus.jsonl",))
    return embeddings, collection, candidates


def test_candidates_are_numbered_as_they_come_first(towers, tmp_path):
    ids = list("abcdefgh")
    embeddings, collection, texts = of_shards(tmp_path, ids, ids)
    early = EarlyCandidates(towers[1], collection, texts, ["of what?", "of which?"])
    first = early.of(0, answers.of_texts(["b", "of h"]), [7, 0, 1])
    second = early.of(1, answers.of_texts(["text"]), [4, 7, 3])
    assert first.candidates == [0, 1, 2] and first.holds == [0, 2]
    assert second.candidates == [3, 0, 4] and second.holds == [0, 1, 2]
    assert early.write(tmp_path / span_shards.CANDIDATES) == 5
    np.testing.assert_array_equal(np.load(tmp_path / span_shards.CANDIDATES), embeddings[[7, 0, 1, 4, 3]])


@pytest.mark.parametrize(
    ("embedded", "passages", "message"),
    [
        ("aabcd", "abcd", "has several windows of a passage"),
        ("abdc", "abcd", "embedding 3 is not of passage 3 of corpus.jsonl"),
        ("abc", "abcd", "embedding 4 is not of passage 4"),
        ("abcde", "abcd", "embedding 5 is not of passage 5"),
    ],
)
def test_embeddings_of_other_passages_are_refused(towers, tmp_path, embedded, passages, message):
    _, collection, texts = of_shards(tmp_path, list(embedded), list(passages))
    with pytest.raises(UserError, match=message):
        EarlyCandidates(towers[1], collection, texts, [])


def open_before(run):
    """The reader as it begins, with the question tower of the base."""
    from retrieval.recipes.recipe import build_model

    model = build_model(run.config, run.vocab_size)
    question_tower.starter(run)(model)
    return model


def test_the_question_tower_learns_beside_the_reader(trained):
    losses = [line["early"] for line in outcome(trained)[1] if "early" in line]
    assert np.mean(losses[-6:]) < 0.9 * np.mean(losses[:6])
    before, after = (
        jax.tree.leaves(initial_parameters.parameters_of(model.retriever))
        for model in (open_before(trained), open_reader(trained, "", "config.base").model)
    )
    assert all(np.abs(a - b).max() > 0 for a, b in zip(before, after, strict=True) if a.size > 1)


def test_answers_come_from_what_the_tuned_tower_retrieves(trained):
    embeddings_NE, _ = candidates_of(trained)
    judged, read = beir.read_judged(trained.sets / "squad"), open_reader(trained, "", "config.base")
    towers = question_tower.towers_of(trained).config
    queries_QE = question_tower.embedded(
        read.model, towers, read.config, read.vocabulary, list(judged.queries.values())
    )
    scores_QN = queries_QE @ embeddings_NE.T
    lists = tuned_lists.search(trained, read, tuned_lists.collections(trained, ["squad"])["squad"], judged, 3)
    np.testing.assert_array_equal(lists.rows, np.argsort(-scores_QN, axis=1, kind="stable")[:, :3])
    np.testing.assert_allclose(lists.scores, -np.sort(-scores_QN, axis=1)[:, :3], rtol=1e-4)
    rows = files.read_json(trained.folder / "answered" / "results.json")
    assert {(row["system"], row["queries"]) for row in rows} == {("tuned+reader", len(judged.queries))}
    of_before = question_tower.embedded(
        open_before(trained), towers, read.config, read.vocabulary, list(judged.queries.values())
    )
    assert not np.allclose(of_before, queries_QE)


def test_a_reader_says_which_tower_found_its_passages(trained, caplog):
    with caplog.at_level("INFO", logger="retrieval"):
        Answerer(trained)
    assert "the reader trained its question tower too; passages are found with that of the embeddings" in caplog.text


@pytest.mark.long
def test_a_run_that_was_cut_off_ends_with_the_same_bits(trained, towers, tmp_path, monkeypatch):
    run = reader(towers, tmp_path / "run", stages=("spans", "train"))
    cut_off(monkeypatch, run, loop, "_means", 10)
    execute(run)
    assert_same(run, trained)


def test_candidates_are_counted(trained, towers, tmp_path):
    told = records.details(trained, "spans")
    assert told["candidates"] == EARLY * told["questions"] and told["embeddings"] <= len(candidates_of(trained)[1])
    assert told[span_shards.DEEP] > 0 and told[span_shards.FEWER] == 0
    assert told["candidates with an answer"] == told["questions"] > told[span_shards.DEEP]
    assert told[span_shards.WITHOUT] > 0 and len(told["first"]) == 1
    run = reader(towers, tmp_path / "run", **{"spans.early": 1000}, stages=("spans",))
    execute(run)
    told = records.details(run, "spans")
    assert told[span_shards.FEWER] == told["questions"] == told["candidates with an answer"]
    assert told["embeddings"] == 12 and span_shards.WITHOUT not in told


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"spans.early": 0}, "config.spans.early=0 candidates: set that to 2"),
        ({"model.embed_dim": 16}, r"has config\.model\.embed_dim=8, and here that is 16"),
        ({"data.query_length": 12}, "takes 16 tokens of a question"),
        ({"train.loss": "dpr_reader", "train.joint": False, "train.temperature": 1.0}, "early=True is a part of"),
        ({"train.early": False, "train.joint": False}, "trains none: set config.train.early=True"),
    ],
)
def test_a_tower_that_cannot_be_trained_is_refused(towers, tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        run = reader(towers, tmp_path / "run", **changes)
        preflight.check(run, run.config.stages)


def test_readers_share_the_candidates_of_one_run(trained, towers, tmp_path):
    """Whose candidates are of the towers, while each reader trains a question tower of its own."""
    changes = {"base": str(trained.folder), "stages": ("train", "answer"), "train.joint": False, "train.steps": 1}
    run = reader(towers, tmp_path / "run", **changes)
    preflight.check(run, run.config.stages)
    execute(run)
    (line,) = [line for line in outcome(run)[1] if "early" in line]
    assert line["early"] == next(line["early"] for line in outcome(trained)[1] if "early" in line)
    with pytest.raises(UserError, match="keeps 6 candidates of a question: take no more than that"):
        more = reader(towers, tmp_path / "more", **changes | {"spans.early": 7})
        preflight.check(more, more.config.stages)


def test_a_reader_starts_with_the_question_tower_of_another(trained, towers, tmp_path):
    """And ends with it where it takes no step; towers that do not fit are said before it begins."""
    base = towers[1]
    changes = {"base": str(trained.folder), "stages": ("train",), "train.steps": 0}
    changes["train.init_from"] = str(trained.folder)
    run = reader(towers, tmp_path / "run", **changes)
    preflight.check(run, run.config.stages)
    execute(run)
    ours, theirs = (
        initial_parameters.parameters_of(open_reader(each, "", "config.base").model) for each in (run, trained)
    )
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    with pytest.raises(UserError, match=r"a question tower with config\.data\.query_length=20, and here that is 24"):
        own = {"base": str(base.folder), "stages": ("spans", "train"), "data.query_length": 24}
        longer = reader(towers, tmp_path / "longer", **changes | own)
        preflight.check(longer, longer.config.stages)
    copied = shutil.copytree(base.folder, tmp_path / "copied")
    with pytest.raises(UserError, match=r"beside the embeddings of .*, and here they are of .*copied"):
        own = {"base": str(copied), "stages": ("spans", "train")}
        other = reader(towers, tmp_path / "other", **changes | own)
        preflight.check(other, other.config.stages)


def test_a_base_without_towers_is_refused(towers, tmp_path):
    inputs, base = towers
    words = make_run("bm25", inputs, tmp_path / "words", base=str(base.folder), corpus="", stages=("index",))
    execute(words)
    run = reader(towers, tmp_path / "run", **{"spans.system": "bm25"}, base=str(words.folder))
    preflight.check(run, run.config.stages)  # whose base's base has them
    alone = make_run("bm25", inputs, tmp_path / "alone", stages=("prepare", "sets", "index"))
    execute(alone)
    with pytest.raises(UserError, match="has no towers: name a run that has"):
        other = reader(towers, tmp_path / "other", **{"spans.system": "bm25"}, base=str(alone.folder))
        preflight.check(other, other.config.stages)
