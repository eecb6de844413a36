"""The task 'spans': questions with retrieved paragraphs, in which their answers are to be found.

A row is `[CLS] question [SEP] title [SEP] text [SEP]`, or without the title and its [SEP]. The paragraph of a row is
what stands between its last two [SEP]: there alone can an answer be.

The stage `spans` writes TFRecord shards. A record is a question:

    rows, row_lengths    token ids of the rows of its paragraphs, one after the other
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
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.common.libraries import tf
from retrieval.common.parsing.foreign_text import TooSlowError
from retrieval.common.runtime import hashing
from retrieval.common.runtime.filler import FILLER
from retrieval.data.examples.example_kind import ExampleKind, Field, tokens, types
from retrieval.data.examples.task_kind import Maker, RecordFiles, TaskData, TaskInputs, TaskKind, register
from retrieval.data.examples.token_rows import Record
from retrieval.data.sets import answers
from retrieval.data.sets.answers import Answers
from retrieval.data.sets.beir import Candidate
from retrieval.data.shards import tfrecords
from retrieval.data.shards.external_sort import Sorter
from retrieval.data.tokenizers.vocab import SEPARATOR, Vocabulary

STEM = "spans"
PATTERN = f"{STEM}-*.tfrecord"
CANDIDATES = "candidates.npy"  # float32 [M, E], beside the shards
WITHOUT, SLOW = "questions without an answer in their paragraphs", "questions whose pattern takes too long"
CUT, BEHIND, MORE = "paragraphs cut to a row", "spans behind the cut", "spans beyond those that a question keeps"
UNMARKED = "paragraphs with an answer that keep no span and count as without: a question keeps 32 places"
DEEP = "questions with an answer behind their paragraphs alone"
WARNED_OF = (WITHOUT, SLOW, CUT, BEHIND, MORE, UNMARKED, DEEP)
POSITIVE = "positive"  # of data.draw
MOST = 32  # spans that a question keeps, first one of every paragraph that has some
_TITLE = 4  # a title takes at most this part of a row


class Row(NamedTuple):
    """A row of tokens.

    Attributes:
      ids: with the special tokens.
      first: where in the row the text begins.
      places: of each token of the text that is in the row, its first character, and the one behind its last.
      cut: how many tokens of the text are left out.
    """

    ids: list[int]
    first: int
    places: list[tuple[int, int]]
    cut: int

    def tokens_of(self, start: int, end: int) -> tuple[int, int] | None:
        """The first and the last token of a row that characters [start, end) of the text need.

        None where not all of them are in the row, or no token has them.
        """
        inside = [place for place, (first, behind) in enumerate(self.places) if behind > start and first < end]
        if not inside or (self.places[inside[-1]][1] < end and self.cut):
            return None
        return self.first + inside[0], self.first + inside[-1]

    def characters_of(self, first: int, last: int) -> tuple[int, int]:
        """The characters [start, end) of the text that two tokens of the row and those between have."""
        return self.places[first - self.first][0], self.places[last - self.first][1]


class Rows(NamedTuple):
    """How a question and a paragraph become a row.

    Attributes:
      question: tokens of a question with its [CLS] and [SEP] at most.
      row: tokens of a row at most.
    """

    vocabulary: Vocabulary
    question: int
    row: int

    def begin(self, question: str) -> list[int]:
        """`[CLS] question [SEP]`, cut to its length."""
        return self.vocabulary.single(self.vocabulary.encode(question.replace(SEPARATOR, " ")), self.question)

    def of(self, beginning: Sequence[int], paragraph: Candidate) -> Row:
        """The row of a question, as `begin` gives it, with a paragraph, which is cut to the rest."""
        title = self.vocabulary.encode(paragraph.title.replace(SEPARATOR, " "))[: self.row // _TITLE]
        before, end = [*beginning, *([*title, self.vocabulary.sep_id] if title else [])], self.vocabulary.sep_id
        # A separator would be a [SEP] of its own; a blank has as many characters.
        ids, places = self.vocabulary.encode_with_places(paragraph.text.replace(SEPARATOR, " "))
        room = max(0, self.row - len(before) - 1)
        return Row([*before, *ids[:room], end], len(before), places[:room], max(0, len(ids) - room))


def inside_paragraph(ids_RL: np.ndarray, sep_id: int) -> np.ndarray:
    """1 for the tokens of padded rows that stand between their last two [SEP], int32 [R, L]."""
    return _between((ids_RL == sep_id).astype(np.int32), np.cumsum).astype(np.int32)


def _between(is_sep_L: Any, cumsum: Callable) -> Any:
    """Which tokens stand between the last two [SEP], [..., L]; `cumsum` is numpy's or TensorFlow's."""
    behind_L = cumsum(is_sep_L[..., ::-1], axis=-1)[..., ::-1]
    return (behind_L == 1) & (is_sep_L == 0) & (cumsum(is_sep_L, axis=-1) > 0)


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


_Span = tuple[int, int, int]  # a paragraph, its first and its last token


def match(making: Rows, retrieved: Retrieved, counts: collections.Counter) -> tuple[list[Row], list[_Span]]:
    """The rows of a question's paragraphs, and the places of its answers in these; what is cut is counted.

    Of many places the first of every paragraph is kept, then the second ones, and so on, up to `MOST`: a paragraph
    without its span would be a negative that holds the answer.

    Raises:
      TooSlowError: a regular expression takes too long.
    """
    beginning = making.begin(retrieved.question)
    rows = [making.of(beginning, paragraph) for paragraph in retrieved.paragraphs]
    spans: dict[_Span, int] = {}  # how many its paragraph has before it
    before: collections.Counter[int] = collections.Counter()
    for number, (row, paragraph) in enumerate(zip(rows, retrieved.paragraphs)):
        counts[CUT] += row.cut > 0
        for start, end in answers.places(retrieved.answers, paragraph.text):
            tokens = row.tokens_of(start, end)
            counts[BEHIND] += not tokens
            if tokens and (number, *tokens) not in spans:
                spans[number, *tokens] = before[number]
                before[number] += 1
    kept = set(sorted(spans, key=spans.__getitem__)[:MOST])
    counts[MORE] += len(spans) - len(kept)
    counts[UNMARKED] += len(before) - len({paragraph for paragraph, *_ in kept})
    return rows, [span for span in spans if span in kept]


def write(questions: Iterable[Retrieved], making: Rows, folder: Path, num_shards: int) -> dict[str, Any]:
    """Writes a record for every question with an answer in its paragraphs, and `stats.json`; returns it.

    Where a question has candidates, an answer in one of them is enough. The records stand in the order of a hash. What
    is left out is counted, and of questions the first is named.

    Raises:
      UserError: no question has an answer in its paragraphs.
    """
    making.vocabulary.require("a reader", *ANSWERED.needs)
    counts: collections.Counter[str] = collections.Counter()
    first: dict[str, str] = {}
    folder.mkdir(parents=True, exist_ok=True)
    with Sorter(folder) as in_order_of_hash:
        for retrieved in questions:
            try:
                record, why = _record(making, retrieved, counts), WITHOUT
            except TooSlowError:
                record, why = None, SLOW
            if record:
                in_order_of_hash.add((hashing.digest(retrieved.question), record))
            else:
                counts[why] += 1
                first.setdefault(why, retrieved.question)
        if not counts["questions"]:
            without = f"no question has an answer in its paragraphs, of {counts[WITHOUT] + counts[SLOW]}"
            raise UserError(f"{without}: raise config.spans.depth, or take another set")
        num_shards = max(n for n in range(1, min(num_shards, counts["questions"]) + 1) if num_shards % n == 0)
        tfrecords.deal(in_order_of_hash, folder, num_shards, STEM)
    statistics = {**counts, "spans per question": round(counts["spans"] / counts["questions"], 2)}
    statistics |= {"shards": num_shards, "first": first, "lengths": {"question": making.question, "row": making.row}}
    files.write_json(folder / "stats.json", statistics)
    return statistics


def _record(making: Rows, retrieved: Retrieved, counts: collections.Counter) -> bytes | None:
    """The record of a question, which is counted; None where no answer is in its paragraphs or candidates."""
    rows, spans = match(making, retrieved, counts)
    compared = retrieved.compared() if retrieved.compared else None
    if not spans and not (compared and compared.holds):
        return None
    counts.update({"questions": 1, "spans": len(spans), "paragraphs": len(rows)})
    counts["paragraphs with an answer"] += len({paragraph for paragraph, *_ in spans})
    columns = {"rows": [id for row in rows for id in row.ids], "row_lengths": [len(row.ids) for row in rows]}
    columns["spans"] = [value for span in spans for value in span]
    if compared:
        counts.update({DEEP: not spans, "candidates": len(compared.candidates)})
        counts["candidates with an answer"] += len(compared.holds)
        columns |= compared._asdict()
    return tfrecords.serialized(columns, {"retrieved": retrieved.scores})


_COMPARED = ("question", "candidates", "holds")  # what the question tower is trained with, where it is
_RECORD = dict.fromkeys(("rows", "row_lengths", "spans", *_COMPARED), "int64") | {"retrieved": "float32"}
_ROWS = ("paragraph", "pair")


def _made(row: Record, sep_id: int) -> Record:
    """Of [SEP] = 3 and pair [[2 7 3 5 3 9 6 3]] the fields

        pair_types [[0 0 0 1 1 1 1 1]]   inside [[0 0 0 0 0 1 1 0]]

    `inside` has the tokens between the last two [SEP] of a row.
    """
    inside = _between(tf.cast(row["pair"] == sep_id, tf.int32), tf.cumsum)
    return {"pair_types": types(row["pair"], sep_id), "inside": tf.cast(inside, tf.int32)}


ANSWERED = ExampleKind(
    "spans",
    "questions with paragraphs and the places of their answers",
    {
        "pair": tokens(_ROWS),
        "spans": Field(shape=("spans", 3)),
        "paragraph": Field(),
        "retrieved": Field("float32"),
        **dict.fromkeys(_COMPARED, Field(is_optional=True)),
        "question": tokens(is_optional=True),
    },
    {"pair_types": Field(shape=_ROWS), "inside": Field(shape=_ROWS)},
    _made,
    needs=("cls", "sep", "unk"),
)


@register
class AnswerSpans(TaskKind):
    """The rows of some paragraphs, and where in them the answers stand."""

    name = "spans"
    kind = ANSWERED
    is_labelled = True
    shards = RecordFiles(PATTERN, _RECORD)
    options = ("paragraphs", "draw")

    def epoch(self, stored: TaskData, negatives: int) -> int:
        """As `TaskKind.epoch`: every question that was written."""
        if not stored.labelled:
            raise self.no_example("no stage has written questions with paragraphs: put 'spans' before 'train'")
        return files.read_json(stored.labelled / "stats.json")["questions"]

    def maker(self, inputs: TaskInputs) -> Maker:
        """As `TaskKind.maker`."""
        positive_first = inputs.options["draw"] == POSITIVE

        def make(record: Record, seed: tf.Tensor, lengths: Mapping[str, int]) -> Record:
            order = _positive_first(record, seed) if positive_first else tf.range(tf.size(record["row_lengths"]))
            return example(record, order, lengths)

        return make


def _positive_first(record: Record, seed: tf.Tensor) -> tf.Tensor:
    """A paragraph with an answer, then those without, then the others with one; each part at random."""
    count = tf.size(record["row_lengths"])
    holders = tf.reshape(record["spans"], [-1, 3])[:, 0]
    holds = tf.reduce_any(tf.range(count)[:, None] == holders[None], axis=1)
    drawn = tf.random.stateless_uniform([count], seed)
    positive = tf.argmax(tf.where(holds, drawn, -1.0), output_type=tf.int32)
    places = tf.where(tf.range(count) == positive, -1.0, drawn + tf.where(holds, 1.0, 0.0))
    return tf.argsort(places)


def example(record: Record, order: tf.Tensor, lengths: Mapping[str, int]) -> Record:
    """The first paragraphs of an order, and the spans in them, numbered as they stand in the example.

    Where there are fewer paragraphs, or spans, or scores, than an example has room for, the rest is empty: rows of
    filler, spans of -1, scores of -inf. So it is with candidates: rows of -1. `holds` becomes a 1 for each that does.
    """
    K, length, S, N = (lengths[name] for name in ("paragraph", "pair", "spans", "retrieved"))
    ragged: Any = tf.RaggedTensor  # whose constructors the stubs lack
    rows = ragged.from_row_lengths(record["rows"], record["row_lengths"]).to_tensor(FILLER, shape=[None, length])
    chosen = tf.pad(order[:K], [[0, tf.maximum(0, K - tf.size(order))]], constant_values=-1)
    rows = tf.concat([rows, tf.fill([1, length], tf.constant(FILLER, rows.dtype))], 0)  # the last is that of -1
    spans = tf.reshape(record["spans"], [-1, 3])
    is_there = spans[:, :1] == chosen[None]
    spans = tf.concat([tf.argmax(is_there, axis=1, output_type=tf.int32)[:, None], spans[:, 1:]], 1)
    kept: Any = tf.boolean_mask(spans, tf.reduce_any(is_there, axis=1))[:S]
    scores = record["retrieved"][:N]
    empty: Any = [[0, S - tf.shape(kept)[0]], [0, 0]]
    return {
        "pair": tf.gather(rows, tf.where(chosen < 0, tf.shape(rows)[0] - 1, chosen)),
        "spans": tf.pad(kept, empty, constant_values=-1),
        "paragraph": tf.maximum(chosen, 0),
        "retrieved": tf.pad(scores, [[0, N - tf.size(scores)]], constant_values=-float("inf")),
        **(_of_tower(record, lengths) if "candidates" in lengths else {}),
    }


def _of_tower(record: Record, lengths: Mapping[str, int]) -> Record:
    """What the question tower is trained with."""
    N, question = lengths["candidates"], record["question"][: lengths["question"]]
    candidates = record["candidates"][:N]
    return {
        "question": tf.pad(question, [[0, lengths["question"] - tf.size(question)]], constant_values=FILLER),
        "candidates": tf.pad(candidates, [[0, N - tf.size(candidates)]], constant_values=-1),
        "holds": tf.cast(tf.reduce_any(tf.range(N)[:, None] == record["holds"][None], axis=1), tf.int32),
    }
