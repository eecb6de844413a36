"""QuadrupletBERT's two phases: simple negatives, the turn, hard negatives of the model's own."""

import json

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from support.refreshed_runs import assert_same, cut_off, judged, make_run, open_questions, outcome, read_shards
from support.tiny import execute

from retrieval.common.libraries import tf
from retrieval.config import experiment
from retrieval.data.examples.task_kind import TASKS, TaskInputs
from retrieval.data.examples.token_rows import Specials
from retrieval.data.labelled import pair_shards
from retrieval.data.tokenizers.template import Template
from retrieval.runs.fitting import refresh, versions
from retrieval.runs.pipeline import preflight
from retrieval.runs.weights import train_state

STEPS = {"train.steps": 8, "mine.last": 30, "loop.validate_every": 1, "mine.patience": 1, "mine.refresh_every": 3}
STEPS |= {"mine.turn_rate": 1e-4}


@pytest.fixture(scope="module")
def ready(inputs, prepared, tmp_path_factory):
    """A run with simple negatives of the training questions."""
    folder, stages = tmp_path_factory.mktemp("ready") / "run", ("sets", "index", "mine", "pairs")
    run = make_run(folder, inputs, "quadruplet", **STEPS, base=str(prepared), stages=stages)
    execute(run)
    return run


def to_train(ready, inputs, folder):
    run = make_run(folder / "run", inputs, "quadruplet", **STEPS, base=str(ready.folder), stages=("train",))
    run.config.loop.keep_checkpoints = 20
    return run


@pytest.fixture(scope="module")
def whole(ready, inputs, tmp_path_factory):
    run = to_train(ready, inputs, tmp_path_factory.mktemp("whole"))
    preflight.check(run, ["train"])
    execute(run)
    return run


def turned(run):
    return json.loads((run.folder / "stages" / "train.json").read_text())["details"]["second phase after"]


def test_the_first_phase_has_no_hard_negatives(whole):
    at, (_, lines) = turned(whole), outcome(whole)
    hard = {line["step"]: line["distance_hard"] for line in lines if "distance_hard" in line}
    assert 1 < at < 8 and all(not hard[step] for step in range(1, at + 1)) and all(hard[s] for s in range(at + 1, 9))


def test_the_second_phase_begins_at_the_best_step(whole):
    at, restore = turned(whole), ocp.StandardCheckpointer().restore
    # With a patience of 1.
    begun, best = (restore(whole.folder / "checkpoints" / str(step) / "state") for step in (at, at - 1))
    jax.tree.map(np.testing.assert_array_equal, begun["params"], best["params"])
    assert int(begun["step"]) == at
    assert any(np.any(leaf) for leaf in jax.tree.leaves(best["opt_state"]))
    # The optimizer knows how many updates came before, and nothing else.
    assert sorted(float(leaf) for leaf in jax.tree.leaves(begun["opt_state"]) if np.any(leaf)) == [at]


def test_versions_hold_simple_and_hard_negatives_without_answers(whole):
    golds, candidates = judged(whole)
    texts = {candidate.text for candidate in candidates}
    vocabulary = whole.load_vocabulary()
    made = sorted((whole.folder / "refreshed").glob("0*"))
    shards = read_shards(whole, made[-1])
    with open_questions(whole) as (questions, _):
        for question in questions:
            key = tuple(vocabulary.encode(question.text))
            answers = question.answers.values
            allowed = {
                tuple(vocabulary.encode(text))
                for text in texts - {gold[1] for gold in golds[question.text]}
                if not any(answer.lower() in text.lower() for answer in answers)
            }
            assert shards[key] and {text for _, text in shards[key]} <= allowed
    counts = versions.statistics(whole.folder, int(made[-1].name))
    assert counts["simple negatives"] and counts["negatives"] and "results with an answer" in counts
    assert counts["step"] == turned(whole) + (int(made[-1].name) - 1) * 3


@pytest.mark.long
def test_a_run_cut_off_at_the_turn_ends_equal(ready, whole, inputs, tmp_path, monkeypatch):
    """The turn's scores are logged, its checkpoint is not there."""
    run = to_train(ready, inputs, tmp_path)
    cut_off(monkeypatch, run, train_state, "afresh", 1)
    execute(run)
    assert_same(run, whole)
    assert turned(run) == turned(whole)


@pytest.mark.parametrize(("resumed", "at"), [(40, None), (70, 50)])
def test_the_log_of_training_tells_whether_the_turn_has_come(resumed, at):
    """It came three validations after the best one so far; what is better later changes nothing."""
    scores = {10: 0.2, 20: 0.5, 30: 0.4, 40: 0.5, 50: 0.4, 60: 0.9, 70: 0.1}
    before = [(step, {"validation/RR": score} if step != 30 else {"validation/RR": score, "distance_hard": 0.0})
              for step, score in scores.items() if step <= resumed]  # fmt: skip
    config = experiment.defaults()
    config.mine.patience = 3
    assert refresh.SecondPhase(config, [*before, (resumed, {"loss": 1.0})], None).step == at


def record(simple, count=5):
    """A record with a positive and `count` negatives, whose only token is their number."""
    ids = tf.constant(range(10, 11 + count), tf.int64)
    ones, zeros = tf.ones(count + 1, tf.int64), tf.zeros(count + 1, tf.int64)
    texts = {"texts": ids, "text_lengths": ones, "titles": tf.constant([], tf.int64), "title_lengths": zeros}
    return texts | {
        "query": tf.constant([9], tf.int64),
        "document_id": ids,
        "counts": tf.ones(3 * (count + 1)),
        "known": tf.constant([0], tf.int64),
        "simple": tf.constant([simple]),
    }


@pytest.mark.parametrize(
    ("simple", "firsts", "seconds"), [(2, {11, 12}, {13, 14, 15}), (5, {11, 12, 13, 14, 15}, {10}), (0, None, None)]
)
def test_an_example_has_one_negative_of_each_kind(simple, firsts, seconds, tmp_path):
    pair_shards.KnownPositives(np.zeros(1, np.uint64), np.full(1, 10, np.uint64)).write(tmp_path)
    specials = Specials(Template((1,), (2,), (2,)), 3, 0, 0)
    make = TASKS["quadruplets"].maker(TaskInputs(None, specials, {}, {"quadruplets": 1.0}, tmp_path))
    lengths, of = {"query": 5, "document": 6, "document_id": 3}, record(simple)
    draw = tf.function(lambda seed: make(of, tf.stack([0, seed]), lengths)["document_id"])
    drawn = [draw(tf.constant(seed)).numpy() for seed in range(60)]
    assert {row[0] for row in drawn} == {10}
    if firsts:
        assert {row[1] for row in drawn} == firsts and {row[2] for row in drawn} == seconds
    else:  # hard negatives alone serve as both
        assert all(row[1] == row[2] > 10 for row in drawn)
