"""Runs that refresh their negatives."""

import importlib

import numpy as np
from conftest import REPOSITORY

from retrieval.data.sets import beir
from retrieval.pipeline.run import Run

TINY = {
    "prepare": dict(shards=8, vocab_size=300, longest_passage=40, shortest_paragraph=10, least_passage=5),
    "data": dict(query_length=16, document_length=48, lanes=2, shuffle_buffer=64, negatives=2),
    "model": dict(encoder="bow_mlp", hidden_size=16, mlp_size=32, embed_dim=8),
    "train": dict(steps=7, batch_size=8, learning_rate=1e-2),
    "loop": dict(log_every=1, checkpoint_every=2, validate_every=5),
    "encode": dict(batch_tokens=1024, shard_size=12),
    "mine": dict(negatives=4, last=8),
    "split": dict(ratio=0.75, validation=0.2),
}


def make_run(folder, inputs, /, name="dpr_mined", **changes):
    config = importlib.import_module(f"configs.{name}").get_config("local")
    for group, values in TINY.items():
        config[group].update(values)
    config.sets.reqa = str(inputs / "squad.json")
    config.index.dense = "exact"
    config.update_from_flattened_dict(changes)
    return Run(config, folder, REPOSITORY / "requirements.lock")


def judged(run):
    """Question -> texts of its positives; and all candidates."""
    training = beir.read_folder(run.training)
    candidates = list(beir.read_candidates(run.sets / "reqa" / "corpus.jsonl"))
    text = {candidate.id: (candidate.title, candidate.text) for candidate in candidates}
    golds = {training.queries[id]: {text[c] for c in grades} for id, grades in training.qrels["train"].items()}
    return golds, candidates


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
