"""A reader that trains the question tower too: the early and the joint loss against loops in numpy, and a run."""

import itertools
import json
import shutil

import jax
import numpy as np
import pytest
from support import toy_corpus
from support.devices import assert_same_on_any_mesh
from support.refreshed_runs import outcome
from support.tiny import execute, make_run

from retrieval.data.sets import answers, beir, qa
from retrieval.methods.reader import recipe, task
from retrieval.methods.reader.trained import READERS
from retrieval.recipes.parameters import make_mesh
from retrieval.recipes.recipe import build_model, recipe_of
from retrieval.runs.fitting import examples
from retrieval.runs.pipeline import preflight
from retrieval.runs.weights import initial_parameters
from retrieval.search import encoding
from retrieval.training.candidates import inner_products
from retrieval.training.loss_kind import LOSSES

B, K, L, W, N, E, T = 8, 2, 5, 3, 6, 4, 0.5
_RANDOM = np.random.default_rng(0)
SPANS = np.full((B, 3, 3), -1, np.int32)
SPANS[0, :2], SPANS[1, :1], SPANS[2, :3] = [(0, 1, 2), (1, 3, 3)], [(1, 2, 4)], [(0, 1, 1), (0, 2, 3), (1, 4, 4)]
SPANS[5, :1] = [(0, 2, 2)]
BATCH = {"inside": np.tile(np.array([0, 1, 1, 1, 1], np.int32), (B, K, 1)), "spans": SPANS}
BATCH |= {"retrieved": np.zeros((B, K), np.float32), "paragraph": np.tile(np.array([1, 0], np.int32), (B, 1))}
BATCH |= {"candidates": np.tile(np.arange(N, dtype=np.int32), (B, 1))}
BATCH |= {"holds": _RANDOM.integers(0, 2, (B, N)).astype(np.int32)}
BATCH |= {"embedding": _RANDOM.normal(size=(B, N, E)).astype(np.float32)}
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


@pytest.mark.parametrize(
    ("name", "shared_norm", "joint"),
    [("span_likelihood", True, False), ("span_likelihood", False, True), ("orqa_reader", True, True)],
)
def test_value_and_gradient_equal_loops_on_one_device_and_eight(name, shared_norm, joint):
    options = {"early": True, "temperature": T}
    options |= {} if name == "orqa_reader" else {"shared_norm": shared_norm, "joint": joint}

    def total(params, batch):
        scores = {key: batch[key] for key in ("start", "end", "pairs")}
        scores["retriever"] = inner_products(batch["question"] + params["shift"], batch["embedding"])
        loss_B, metrics = LOSSES[name](**options)(scores, batch)
        return loss_B.sum(), (loss_B, metrics["early"])

    rows, zero = BATCH | PARAMS, {"shift": np.zeros(E, np.float32)}
    by_shift = jax.value_and_grad(total, has_aux=True)
    (_, (loss_B, early_B)), gradient = assert_same_on_any_mesh(by_shift, zero, rows)
    wide = {key: value.astype(float) for key, value in PARAMS.items()}

    def of_all(shift):
        shifted = wide | {"question": wide["question"] + shift}
        return np.array([brute(shifted, b, name, shared_norm, joint) for b in range(B)])

    np.testing.assert_allclose(loss_B, of_all(0), rtol=1e-5, atol=1e-6)
    slopes = [(of_all(1e-5 * unit).sum() - of_all(-1e-5 * unit).sum()) / 2e-5 for unit in np.eye(E)]
    np.testing.assert_allclose(gradient["shift"], slopes, rtol=1e-4, atol=1e-4)
    assert early_B[3] == 0 and early_B[0] > 1


EARLY = 6
TOWERS = {"split.set": "squad", "split.ratio": 0.7, "split.validation": 0.2, "split.shards": 2, "sets.reqa": ""}
TOWERS |= {"stages": ("prepare", "sets", "train", "encode"), "encode.corpus": False, "encode.untrained": False}
READER = {"stages": ("spans", "train", "answer"), "corpus": "", "sets.reqa": "", "data.query_length": 20}
READER |= {"data.document_length": 64, "data.paragraphs": 2, "spans.depth": 2, "spans.early": EARLY}
READER |= {"spans.system": "exact", "split.shards": 2, "train.batch_size": 8, "train.steps": 24}
READER |= {"train.learning_rate": 3e-3, "train.temperature": 0.05, "train.early": True, "train.joint": True}
READER |= {"loop.log_every": 1, "loop.checkpoint_every": 8, "loop.keep_checkpoints": 9, "answer.systems": ("tuned",)}
READER |= {"answer.paragraphs": 3}


@pytest.fixture(scope="module")
def towers(inputs, prepared, tmp_path_factory):
    """Towers, and a file of questions."""
    place = tmp_path_factory.mktemp("towers")
    folder = shutil.copytree(prepared, place / "run")
    run = make_run("ict", inputs, folder, **TOWERS, **{"sets.squad": str(inputs / "squad.json")})
    execute(run)
    questions = [
        {"question": f"{asks} {toy_corpus.title(i)}?", "answer": [toy_corpus.title(i)]}
        for i in range(12)
        for asks in ("Which animal eats grass,", "Who is a", "What does nobody know of the", "Does it live, the")
    ]
    (place / "train.jsonl").write_text("\n".join(map(json.dumps, questions)))
    return place / "train.jsonl", run


@pytest.fixture(scope="module")
def trained(towers, inputs, tmp_path_factory):
    """A reader of names, each of which one of the 12 passages has."""
    questions, base = towers
    source = {"base": str(base.folder), "spans.questions": str(questions), "spans.set": "squad"}
    run = make_run("reader", inputs, tmp_path_factory.mktemp("reader") / "run", **READER | source)
    preflight.check(run, run.config.stages)
    execute(run)
    return run


def candidates_of(run):
    """The embeddings of the set's passages, and their texts."""
    folder = run.as_seen_by("spans").embeddings("squad", "trained")
    return encoding.load(folder, "candidates")[0], list(beir.read_candidates(run.sets / "squad" / "corpus.jsonl"))


def test_a_batch_has_the_first_candidates_and_which_hold_an_answer(trained, towers):
    embeddings_NE, passages = candidates_of(trained)
    vocabulary, (queries, known) = trained.load_vocabulary(), qa.read_questions([towers[0]])
    batch = jax.device_get(next(examples.make_batches(trained, vocabulary, make_mesh(trained.config))))
    config = recipe.towers_of(trained).config
    row_of = lambda text: tuple(vocabulary.single(vocabulary.encode(text), config.data.query_length))  # noqa: E731
    asked = {row_of(text): id for id, text in queries.items()}
    shard = np.load(trained.folder / "spans" / task.CANDIDATES)
    ids = [asked[tuple(question[question >= 0].tolist())] for question in batch["question"]]
    texts = [queries[id] for id in ids]
    query_BE = recipe.embedded(open_before(trained), config, trained.config, vocabulary, texts)
    fields = (batch[name] for name in ("candidates", "holds", "embedding"))
    for id, query_E, rows, holds, found in zip(ids, query_BE, *fields):
        best = np.argsort(-embeddings_NE @ query_E, kind="stable")[:EARLY]
        np.testing.assert_array_equal(found, embeddings_NE[best])
        np.testing.assert_array_equal(found, shard[rows])
        np.testing.assert_array_equal(holds, [bool(answers.places(known[id], passages[row].text)) for row in best])
    assert 0 < batch["holds"].mean() < 1


def open_before(run):
    """The reader as it begins, with the question tower of the base."""
    model = build_model(run.config, run.vocab_size)
    recipe_of(run.config).begin(run, model)
    return model


def test_the_question_tower_learns_beside_the_reader(trained):
    losses = [line["early"] for line in outcome(trained)[1] if "early" in line]
    assert np.mean(losses[-6:]) < 0.9 * np.mean(losses[:6])
    before, after = (
        jax.tree.leaves(initial_parameters.parameters_of(model.retriever))
        for model in (open_before(trained), READERS.read(trained, "", "config.base").model)
    )
    assert all(np.abs(a - b).max() > 0 for a, b in zip(before, after, strict=True) if a.size > 1)
