"""Questions with retrieved paragraphs and the places of their answers, as TFRecord shards: what a reader trains on.

A record is a question:

    rows, row_lengths    token ids of the rows of its paragraphs, as `reader_rows` makes them, one after the other
    spans                paragraph, first and last token in its row, of every matched span, one after the other
    retrieved            the retriever's score of each paragraph, best first
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from retrieval import files, hashing
from retrieval.data.labelled import reader_rows
from retrieval.data.labelled.pair_shards import deal
from retrieval.data.labelled.reader_rows import Row, RowLengths
from retrieval.data.sets import answers
from retrieval.data.sets.answers import Answers
from retrieval.data.sets.beir import Candidate
from retrieval.data.shards.external_sort import Sorter
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.errors import UserError
from retrieval.libraries import tf
from retrieval.time_limit import TooSlowError

STEM = "spans"
PATTERN = f"{STEM}-*.tfrecord"
WITHOUT, SLOW = "questions without an answer in their paragraphs", "questions whose pattern takes too long"
CUT, BEHIND, MORE = "paragraphs cut to a row", "spans behind the cut", "spans beyond the first of a question"


class Retrieved(NamedTuple):
    """A question with its answers, and what a retriever found: paragraphs and their scores, best first."""

    question: str
    answers: Answers
    paragraphs: Sequence[Candidate]
    scores: Sequence[float]


class Matched(NamedTuple):
    """The rows of a question's paragraphs, and its matched spans: paragraph, first and last token."""

    rows: list[Row]
    spans: list[tuple[int, int, int]]


def match(
    vocabulary: Vocabulary,
    retrieved: Retrieved,
    lengths: RowLengths,
    most: int,
    counts: collections.Counter,
    asked: bool = True,
) -> Matched:
    """Finds the answers in the paragraphs of a question.

    Args:
      most: spans that are kept, the first.
      counts: counts what is cut.
      asked: whether the rows have the question.

    Raises:
      TooSlowError: a regular expression takes too long.
    """
    question = reader_rows.question_tokens(vocabulary, retrieved.question if asked else "", lengths)
    rows = [reader_rows.row_of(vocabulary, question, paragraph, lengths) for paragraph in retrieved.paragraphs]
    spans = []
    for number, (row, paragraph) in enumerate(zip(rows, retrieved.paragraphs)):
        counts[CUT] += row.cut > 0
        for start, end in answers.places(retrieved.answers, paragraph.text):
            if tokens := row.tokens_of(start, end):
                spans.append((number, *tokens))
            else:
                counts[BEHIND] += 1
    spans = list(dict.fromkeys(spans))
    counts[MORE] += len(spans[most:])
    return Matched(rows, spans[:most])


def write(
    questions: Iterable[Retrieved],
    vocabulary: Vocabulary,
    folder: Path,
    num_shards: int,
    lengths: RowLengths,
    most: int,
    asked: bool = True,
) -> dict[str, Any]:
    """Writes a record for every question with an answer in its paragraphs, and `stats.json`; returns it.

    The records stand in the order of a hash. What is left out is counted, and of questions the first is named.

    Args:
      most: spans of a question, at most.
      asked: whether the rows have the questions.

    Raises:
      UserError: no question has an answer in its paragraphs.
    """
    counts: collections.Counter[str] = collections.Counter()
    first: dict[str, str] = {}

    def records() -> Iterator[tuple[bytes, bytes]]:
        for retrieved in questions:
            why, found = WITHOUT, None
            try:
                found = match(vocabulary, retrieved, lengths, most, counts, asked)
            except TooSlowError:
                why = SLOW
            if not (found and found.spans):
                counts[why] += 1
                first.setdefault(why, retrieved.question)
                continue
            counts["questions"] += 1
            counts["spans"] += len(found.spans)
            counts["paragraphs"] += len(found.rows)
            counts["paragraphs with an answer"] += len({paragraph for paragraph, *_ in found.spans})
            yield hashing.digest(retrieved.question), _record(found, retrieved.scores)

    folder.mkdir(parents=True, exist_ok=True)
    with Sorter(folder) as in_order_of_hash:
        for record in records():
            in_order_of_hash.add(record)
        if not counts["questions"]:
            raise UserError(
                f"no question has an answer in its paragraphs, of {counts[WITHOUT] + counts[SLOW]}: are the questions "
                "of this collection? Raise config.spans.depth, or take another set"
            )
        num_shards = max(n for n in range(1, min(num_shards, counts["questions"]) + 1) if num_shards % n == 0)
        deal(in_order_of_hash, folder, num_shards, STEM)
    statistics = {
        **counts,
        "spans per question": round(counts["spans"] / counts["questions"], 2),
        "shards": num_shards,
        "first": first,
        "lengths": lengths._asdict(),
    }
    files.write_json(folder / "stats.json", statistics)
    return statistics


def _record(found: Matched, scores: Sequence[float]) -> bytes:
    columns = {
        "rows": [id for row in found.rows for id in row.ids],
        "row_lengths": [len(row.ids) for row in found.rows],
        "spans": [value for span in found.spans for value in span],
    }
    features = {name: tf.train.Feature(int64_list=tf.train.Int64List(value=values)) for name, values in columns.items()}
    features["retrieved"] = tf.train.Feature(float_list=tf.train.FloatList(value=list(scores)))
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString(deterministic=True)
