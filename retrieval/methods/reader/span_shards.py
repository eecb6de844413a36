"""Questions with retrieved paragraphs and the places of their answers, as TFRecord shards: what a reader trains on.

A record is a question:

    rows, row_lengths    token ids of the rows of its paragraphs, as `reader_rows` makes them, one after the other
    spans                paragraph, first and last token in its row, of the matched spans, one after the other: of all
                         but where a question has very many (`match`)
    retrieved            the retriever's score of each paragraph, best first

Where the question tower is to be trained too, also (Xiong et al. 2020, equation 3):

    question             token ids of the question, as that tower takes it
    candidates           rows of CANDIDATES, the embeddings of paragraphs: its own paragraphs, then those behind them
    holds                places among these candidates of those that hold an answer
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from retrieval import files, hashing
from retrieval.data.labelled.pair_shards import deal
from retrieval.data.sets import answers
from retrieval.data.sets.answers import Answers
from retrieval.data.sets.beir import Candidate
from retrieval.data.shards.external_sort import Sorter
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.errors import UserError
from retrieval.libraries import tf
from retrieval.methods.reader import reader_rows
from retrieval.methods.reader.reader_rows import Row, RowLengths
from retrieval.time_limit import TooSlowError

STEM = "spans"
PATTERN = f"{STEM}-*.tfrecord"
CANDIDATES = "candidates.npy"  # float32 [M, E], beside the shards
WITHOUT, SLOW = "questions without an answer in their paragraphs", "questions whose pattern takes too long"
CUT, BEHIND, MORE = "paragraphs cut to a row", "spans behind the cut", "spans beyond those that a question keeps"
UNMARKED = "paragraphs with an answer that keep no span and count as without: raise config.spans.most"
DEEP, FEWER = "questions with an answer behind their paragraphs alone", "questions with fewer candidates than asked for"


class Compared(NamedTuple):
    """What the question tower is trained with: its tokens, rows of embeddings, and the places of those that hold."""

    question: Sequence[int]
    candidates: Sequence[int]
    holds: Sequence[int]


class Retrieved(NamedTuple):
    """A question with its answers, and what a retriever found: paragraphs and their scores, best first.

    Attributes:
      compared: gives what the question tower is trained with, where it is; raises TooSlowError as `match`.
    """

    question: str
    answers: Answers
    paragraphs: Sequence[Candidate]
    scores: Sequence[float]
    compared: Callable[[], Compared] | None = None


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
      most: spans that are kept, first of all one of every paragraph that has some.
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
    kept = _kept(spans, most)
    counts[MORE] += len(spans) - len(kept)
    counts[UNMARKED] += len({paragraph for paragraph, *_ in spans} - {paragraph for paragraph, *_ in kept})
    return Matched(rows, kept)


def _kept(spans: Sequence[tuple[int, int, int]], most: int) -> list[tuple[int, int, int]]:
    """The first span of every paragraph, then the second ones, and so on, up to `most`; in the order they had.

    A paragraph without its span would be a negative that holds the answer.
    """
    seen: collections.Counter[int] = collections.Counter()
    ranked = []
    for place, (paragraph, *_) in enumerate(spans):
        ranked.append((seen[paragraph], place))
        seen[paragraph] += 1
    return [spans[place] for place in sorted(place for _, place in sorted(ranked)[:most])]


def write(
    questions: Iterable[Retrieved],
    vocabulary: Vocabulary,
    folder: Path,
    num_shards: int,
    lengths: RowLengths,
    most: int,
    asked: bool = True,
    deep: int = 0,
) -> dict[str, Any]:
    """Writes a record for every question with an answer in its paragraphs, and `stats.json`; returns it.

    Where a question has candidates, an answer in one of them is enough. The records stand in the order of a hash. What
    is left out is counted, and of questions the first is named.

    Args:
      most: spans of a question, as `match` has it.
      asked: whether the rows have the questions.
      deep: candidates that a question should have, 0 for none.

    Raises:
      UserError: no question has an answer in its paragraphs.
    """
    counts: collections.Counter[str] = collections.Counter()
    first: dict[str, str] = {}

    def records() -> Iterator[tuple[bytes, bytes]]:
        for retrieved in questions:
            why, found, compared = WITHOUT, None, None
            try:
                found = match(vocabulary, retrieved, lengths, most, counts, asked)
                compared = retrieved.compared() if retrieved.compared else None
            except TooSlowError:
                why, found = SLOW, None
            if not (found and (found.spans or (compared and compared.holds))):
                counts[why] += 1
                first.setdefault(why, retrieved.question)
                continue
            counts["questions"] += 1
            counts["spans"] += len(found.spans)
            counts["paragraphs"] += len(found.rows)
            counts["paragraphs with an answer"] += len({paragraph for paragraph, *_ in found.spans})
            if compared:
                counts[DEEP] += not found.spans
                counts[FEWER] += len(compared.candidates) < deep
                counts["candidates"] += len(compared.candidates)
                counts["candidates with an answer"] += len(compared.holds)
            yield hashing.digest(retrieved.question), _record(found, retrieved.scores, compared)

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


def _record(found: Matched, scores: Sequence[float], compared: Compared | None) -> bytes:
    columns = {
        "rows": [id for row in found.rows for id in row.ids],
        "row_lengths": [len(row.ids) for row in found.rows],
        "spans": [value for span in found.spans for value in span],
        **(compared._asdict() if compared else {}),
    }
    features = {name: tf.train.Feature(int64_list=tf.train.Int64List(value=values)) for name, values in columns.items()}
    features["retrieved"] = tf.train.Feature(float_list=tf.train.FloatList(value=list(scores)))
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString(deterministic=True)
