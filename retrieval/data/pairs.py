"""Labelled pairs as TFRecord shards: what fine-tuning reads.

A record is one relevant (query, candidate) pair: `query`, `title` and `ids` (of ReQA: the question, the sentence and
its passage) as token ids, the candidate's `document_id`, and `counts`, how often an epoch has that candidate.
"""

import collections
import hashlib
from pathlib import Path
from typing import Any

import tensorflow as tf

from retrieval import files
from retrieval.data import passages
from retrieval.data.beir import RetrievalSet
from retrieval.data.vocab import Vocabulary

PATTERN = "pairs-*.tfrecord"


def write_pairs(
    value: RetrievalSet, rule: str, vocabulary: Vocabulary, folder: Path, num_shards: int
) -> dict[str, Any]:
    """Writes the pairs that `rule` judges relevant, and `stats.json`; returns it.

    The pairs stand in the order of a hash, dealt out one by one: shards differ by one pair at most. There are never
    more shards than pairs, so none is empty.
    """
    pairs = [
        (query, candidate)
        for query, grades in value.qrels[rule].items()
        for candidate in grades
        if grades[candidate] > 0
    ]
    pairs.sort(key=lambda pair: (hashlib.blake2b("\0".join(pair).encode(), digest_size=8).digest(), pair))
    counts = collections.Counter(candidate for _, candidate in pairs)
    queries = dict(zip(value.queries, vocabulary.encode_batch(list(value.queries.values()))))
    titles = vocabulary.encode_batch([candidate.title for candidate in value.candidates])
    bodies = vocabulary.encode_batch([candidate.text for candidate in value.candidates])
    candidates = {c.id: tokens for c, *tokens in zip(value.candidates, titles, bodies)}
    num_shards = min(num_shards, len(pairs))
    for shard in range(num_shards):
        path = folder / f"pairs-{shard:05d}-of-{num_shards:05d}.tfrecord"
        with files.atomic(path) as temporary, tf.io.TFRecordWriter(str(temporary)) as writer:
            for query, candidate in pairs[shard::num_shards]:
                writer.write(_record(queries[query], candidate, *candidates[candidate], counts[candidate]))
    statistics = {
        "pairs": len(pairs),
        "shards": num_shards,
        "query_tokens": _mean([len(queries[query]) for query, _ in pairs]),
        "document_tokens": _mean([sum(map(len, candidates[candidate])) for _, candidate in pairs]),
    }
    files.write_json(folder / "stats.json", statistics)
    return statistics


def _record(query: list[int], candidate: str, title: list[int], ids: list[int], count: int) -> bytes:
    columns = {
        "query": query,
        "title": title,
        "ids": ids,
        "document_id": [passages.document_id(candidate)],
        "counts": [count],
    }
    features = {name: tf.train.Feature(int64_list=tf.train.Int64List(value=values)) for name, values in columns.items()}
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString(deterministic=True)


def _mean(lengths: list[int]) -> float:
    return round(sum(lengths) / len(lengths), 2)
