"""Runs that refresh their negatives."""

import json

import jax
import numpy as np
import pytest

from retrieval.data.sets import beir
from retrieval.runs.fitting import held_out_questions
from retrieval.runs.pairs import hard_negatives
from retrieval.runs.pipeline import records
from retrieval.runs.weights import train_state
from support import tiny

CHANGES = tiny.CHEAP | {
    "data.negatives": 2,
    "train.steps": 7,
    "train.batch_size": 8,
    "train.learning_rate": 1e-2,
    "loop.log_every": 1,
    "loop.validate_every": 5,
    "encode.shard_size": 12,
    "mine.negatives": 4,
    "mine.last": 8,
    "split.ratio": 0.75,
    "split.validation": 0.2,
    "index.dense": "exact",
    "corpus": "",
}


def make_run(folder, inputs, /, name="dpr_mined", **changes):
    return tiny.make_run(name, inputs, folder, **CHANGES | changes)


def judged(run):
    """Question -> texts of its positives; and all candidates."""
    training = beir.read_folder(run.training)
    candidates = list(beir.read_candidates(run.sets / "reqa" / "corpus.jsonl"))
    text = {candidate.id: (candidate.title, candidate.text) for candidate in candidates}
    golds = {training.queries[id]: {text[c] for c in grades} for id, grades in training.qrels["train"].items()}
    return golds, candidates


def open_questions(run):
    """The training questions of a run, and the candidates of their set, as mining has them."""
    file = run.sets / held_out_questions.divided_set(run) / "corpus.jsonl"
    return hard_negatives.open_questions(run.training, file, needs_answers=run.config.mine.answers)


def read_shards(run, folder):
    """Token ids of each record's query -> those of its negatives' titles and texts."""
    import tensorflow as tf

    found = {}
    for path in sorted(folder.glob("pairs-*.tfrecord")):
        for record in tf.data.TFRecordDataset(str(path)):
            fields = tf.train.Example.FromString(record.numpy()).features.feature
            titles, texts = (
                np.split(
                    fields[f"{name}s"].int64_list.value, np.cumsum(fields[f"{name}_lengths"].int64_list.value)[:-1]
                )
                for name in ("title", "text")
            )
            query = tuple(fields["query"].int64_list.value)
            found[query] = [(tuple(map(int, a)), tuple(map(int, b))) for a, b in zip(titles, texts)][1:]
    return found


def versions_of(run):
    """Step -> version of its batch, as the checkpoints have it."""
    paths = (run.folder / "checkpoints").glob("*/data/version.json")
    return {int(path.parent.parent.name): json.loads(path.read_text()) for path in paths}


class StopError(Exception):
    """In place of a kill."""


def cut_off(monkeypatch, run, module, name, call):
    """Trains until `name` of `module` is called for the `call`-th time."""
    real, calls, opened = getattr(module, name), [], []

    def stopping(*arguments, **options):
        calls.append(0)
        if len(calls) == call:
            raise StopError
        return real(*arguments, **options)

    def keep(*arguments, **options):
        opened.append(real_open(*arguments, **options))
        return opened[-1]

    real_open = train_state.open_checkpoints
    with monkeypatch.context() as patch, pytest.raises(StopError):
        patch.setattr(train_state, "open_checkpoints", keep)
        patch.setattr(module, name, stopping)
        tiny.execute(run)
    opened[0].close()  # what was being saved is saved


def outcome(run):
    """Every array of the newest checkpoint, and the metrics that do not depend on the clock."""
    import orbax.checkpoint as ocp

    step = train_state.open_checkpoints(run.folder, run.config).latest_step()
    arrays = jax.tree.leaves(ocp.StandardCheckpointer().restore(run.folder / "checkpoints" / str(step) / "state"))
    lines = [json.loads(line) for line in (run.folder / "metrics" / "train.jsonl").read_text().splitlines()]
    clock = ("_per_second", "input_wait")
    return arrays, [{n: v for n, v in line.items() if not n.endswith(clock)} for line in lines]


def assert_same(run, whole):
    for left, right in zip(*(outcome(each)[0] for each in (whole, run)), strict=True):
        np.testing.assert_array_equal(left, right)
    assert outcome(whole)[1] == outcome(run)[1]
    assert records.details(whole, "train")["step"] == records.details(run, "train")["step"]
