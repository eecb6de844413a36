"""Runs that refresh their negatives."""

import numpy as np

from retrieval.data.sets import beir
from retrieval.recipes import examples
from retrieval.stages import hard_negatives
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
    file = run.sets / examples.divided_set(run) / "corpus.jsonl"
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
