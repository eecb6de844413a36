"""Labelled examples as TFRecord shards: what fine-tuning reads.

A record is a query with one of its positives and all negatives that it keeps. Its texts are the positive, then the
negatives (of ReQA: a sentence as the title, and its passage):

    query                     token ids
    titles, title_lengths     token ids of all titles, one after the other, and how many each has
    texts, text_lengths       the same of the texts
    document_id               of each text; the same text has the same id, and so have the positives of one label
    known                     the row of `known_positives` that has the ids of all positives of the query, and of the
                              same query spelled otherwise, trained on or not
    counts                    of each text: in how many records it is the positive; the same of the records with
                              negatives; and how many times these draw it, if each draws one negative. A copy of the
                              positive in that place counts as such a draw
    teacher                   of each text: the score that a teacher gives to it, where there is one; of two texts that
                              were compared, how alike they are
    guide_rows                the rows of the query and of each text in the table of a guide, where there is one
    simple                    how many of the negatives, the first ones, are simple; empty where that is not told
"""

from __future__ import annotations

import array
import contextlib
import hashlib
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from retrieval import files
from retrieval.data.corpora import passages
from retrieval.data.examples.task_kind import IN_ORDER
from retrieval.data.labelled.grouping import Example, digest
from retrieval.data.labelled.known_positives import KnownPositives
from retrieval.data.labelled.teacher_scores import TeacherScores
from retrieval.data.sets import splits
from retrieval.data.sets.beir import Candidate
from retrieval.data.shards.external_sort import Sorter
from retrieval.data.tokenizers.prefixes import NONE, Prefixes
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.errors import UserError
from retrieval.libraries import tf
from retrieval.runtime import hashing

_log = logging.getLogger(__name__)

STEM = "pairs"
PATTERN = f"{STEM}-*.tfrecord"
GUIDE = "guide_rows"
# From what gives the examples, to what gives a query's and its texts' rows in a table.
GuideRows = Callable[[Callable[[], Iterable[Example]]], Callable[[str, Sequence[Candidate]], list[int]]]
SCORED = "scored pairs"  # a statistic: each record is two texts and how alike they are, and has no right document
COUNTS = 3  # of each text, in a record


def write_pairs(
    groups: Iterable[Example],
    vocabulary: Vocabulary,
    folder: Path,
    num_shards: int,
    positives: int = 0,
    in_order: Callable[[], Iterable[Example]] | None = None,
    teacher: TeacherScores | None = None,
    keep_lone: bool = False,
    simple: Sequence[int] | None = None,
    apart: Callable[[], Iterable[Example]] | None = None,
    prefixes: Prefixes = NONE,
    known: KnownPositives | None = None,
    guide: GuideRows | None = None,
    is_scored: bool = False,
) -> dict[str, Any]:
    """Writes a record for every positive of every query, and `stats.json`; returns it.

    The records stand in the order of a hash, dealt out one by one: shards differ by one record at most. Where there are
    fewer records than shards, there are as many shards as divide `num_shards` and leave none empty: lanes divide them.

    Args:
      groups: every query once, each time that they are iterated over: three times.
      positives: of a query, those that get a record, the first; 0 for all.
      in_order: gives examples as files have them, each time that it is called: twice. Then every positive of every
        example gets a record, with the example's own negatives, in this order; `groups` tells the known positives.
        Examples of queries that are not in `groups` are left out.
      teacher: the scores of all pairs. Without one, records have the scores of their examples, if each has some.
      keep_lone: whether a record without a negative has its positive in that place. Where documents of a query
        are told apart by their ids, a copy of the positive counts in no loss of its query. So the record is trained on
        with the documents of other queries alone.
      simple: of each of `groups`, how many of its negatives, the first ones, are simple; the others are hard.
      apart: as `in_order`, of records that stand in the order of a hash all the same.
      prefixes: which texts begin with, where their tokens depend on them.
      known: the positives of all queries, where these are not the ones of `groups` alone.
      guide: the rows of texts in a table of embeddings, if records are to have them.
      is_scored: whether each example is two texts and how alike they are; for the statistics.

    Raises:
      UserError: there is no query, or the teacher has no score of a pair.
    """
    drawn = _Counter(groups, positives or None, in_order or apart, keep_lone, known)
    if not drawn.pairs:
        raise UserError("no labelled example is left to train on: look at what was left out, and at config.split")
    if teacher:
        teacher.check(drawn.examples())
    guided = guide(drawn.examples) if guide else None
    num_shards = max(count for count in range(1, min(num_shards, drawn.pairs) + 1) if num_shards % count == 0)
    has_scores = drawn.scored == drawn.pairs
    if 0 < drawn.scored < drawn.pairs and not teacher:
        without = drawn.pairs - drawn.scored
        _log.warning("pairs: %d of %d have no scores, so those of the others are left out", without, drawn.pairs)
    lengths, extremes = np.zeros(2, np.int64), np.array([np.inf, -np.inf])
    folder.mkdir(parents=True, exist_ok=True)

    def records() -> Iterator[tuple[bytes, bytes]]:
        nonlocal lengths
        for example, first in zip(drawn.examples(), simple or itertools.repeat(None)):
            query, golds, negatives = example[:3]
            (query_ids,), of_texts = prefixes.encode_queries(vocabulary, [query]), [*golds, *negatives]
            titles, bodies = ([getattr(text, part) for text in of_texts] for part in ("title", "text"))
            texts = list(prefixes.encode_documents(vocabulary, titles, bodies))
            scores = np.array(example.scores, np.float32) if has_scores else None
            scores = teacher.of(query, of_texts) if teacher else scores
            for place, (gold, tokens) in enumerate(zip(golds, texts)):
                places = [place, *range(len(golds), len(of_texts))] * (2 if keep_lone and not negatives else 1)
                own, of_own = [(of_texts[at], texts[at]) for at in places], None if scores is None else scores[places]
                labels = [example.label if at < len(golds) else "" for at in places]
                ids = [document_id(text, label) for (text, _), label in zip(own, labels)]
                rows = guided(query, [text for text, _ in own]) if guided else None
                record = _record(query_ids, own, ids, drawn, drawn.row_of(query), of_own, first, rows)
                yield _order(query, gold), record
                lengths += len(query_ids), sum(map(len, tokens))
                if of_own is not None:
                    extremes[:] = min(extremes[0], of_own.min()), max(extremes[1], of_own.max())

    if in_order:
        deal(records(), folder, num_shards, STEM)
    else:
        with Sorter(folder) as in_order_of_hash:
            for record in records():
                in_order_of_hash.add(record)
            deal(in_order_of_hash, folder, num_shards, STEM)
    drawn.known.write(folder)
    query_tokens, document_tokens = (lengths / drawn.pairs).round(2).tolist()
    statistics = {
        "pairs": drawn.pairs,
        "paragraphs": drawn.paragraphs,
        "positives left out": drawn.left_out,
        "most positives": drawn.known.most,
        "has teacher": teacher is not None or has_scores,
        **({"scores": extremes.tolist()} if teacher or has_scores else {}),
        "pairs with negatives": drawn.with_negatives,
        "negatives per pair": round(drawn.negatives / drawn.pairs, 2),
        "shards": num_shards,
        "query_tokens": query_tokens,
        "document_tokens": document_tokens,
    } | {name: True for name, holds in ((IN_ORDER, in_order), (SCORED, is_scored)) if holds}
    files.write_json(folder / "stats.json", statistics)
    return statistics


def deal(records: Iterable[tuple[Any, bytes]], folder: Path, num_shards: int, stem: str) -> None:
    """Writes records, each after what it is ordered by, to shards in turn; their names begin with `stem`."""
    with contextlib.ExitStack() as stack:
        writers = []
        for shard in range(num_shards):
            path = stack.enter_context(files.atomic(folder / f"{stem}-{shard:05d}-of-{num_shards:05d}.tfrecord"))
            writers.append(stack.enter_context(tf.io.TFRecordWriter(str(path))))
        for number, (_, record) in enumerate(records):
            writers[number % num_shards].write(record)


def known_of(groups: Iterable[Example]) -> KnownPositives:
    """The positives of all queries."""
    known = array.array("Q")
    for group in groups:
        for text in group.positives:
            known.extend((wording(group.query), document_id(text, group.label)))
    return KnownPositives(*np.asarray(known).reshape(-1, 2).T)


class _Counter:
    """How often every text is drawn in an epoch, and the positives of every query: 50 bytes a text of any length.

    Its arguments are those of `write_pairs`; `given` is `in_order` or `apart`.

    Attributes:
      known: the positives of all queries.
      paragraphs: different texts that are a positive of a record.
      scored: pairs whose example has scores.
    """

    def __init__(
        self,
        groups: Iterable[Example],
        positives: int | None,
        given: Callable[[], Iterable[Example]] | None = None,
        keep_lone: bool = False,
        known: KnownPositives | None = None,
    ):
        self._groups, self._positives, self._given = groups, positives, given
        self.pairs = self.with_negatives = self.negatives = self.left_out = self.scored = 0
        keys, counts, asked = array.array("Q"), array.array("d"), array.array("Q")

        def seen() -> Iterator[Example]:
            for group in groups:
                asked.append(hashing.number(group.query))
                self.left_out += len(group.positives[positives:]) if positives and not given else 0
                yield group

        found = known_of(seen())
        self.known = known or found
        self._asked = np.unique(np.asarray(asked))
        for example in self.examples():
            golds, negatives = example[1:3]
            self.pairs += len(golds)
            self.scored += len(golds) * bool(example.scores)
            has_some = bool(negatives) or keep_lone
            self.with_negatives += len(golds) * has_some
            self.negatives += len(golds) * len(negatives)
            for text in golds:
                keys.append(_key(text))
                counts.extend((1, has_some, has_some and not negatives))
            for text in negatives:
                keys.append(_key(text))
                counts.extend((0, 0, len(golds) / len(negatives)))
        self._keys, places = np.unique(np.asarray(keys), return_inverse=True)
        columns = np.asarray(counts).reshape(-1, COUNTS).T
        self.paragraphs = int((np.bincount(places, columns[0], len(self._keys)) > 0).sum())
        self._counts = np.stack([np.bincount(places, column, len(self._keys)) for column in columns], axis=1)

    def examples(self) -> Iterator[Example]:
        """Those that records are made of, with the positives that get one."""
        if self._given:
            yield from (example for example in self._given() if self._is_asked(example.query))
        else:
            yield from (self._first(group) for group in self._groups)

    def _first(self, group: Example) -> Example:
        kept, count = group.positives[: self._positives], len(group.positives)
        return group._replace(positives=kept, scores=group.scores[: len(kept)] + group.scores[count:])

    def _is_asked(self, query: str) -> bool:
        number = np.uint64(hashing.number(query))
        place = np.searchsorted(self._asked, number)
        return bool(place < len(self._asked) and self._asked[place] == number)

    def row_of(self, query: str) -> int:
        """The row of `known` that a query has."""
        return self.known.row_of(wording(query))

    def of(self, text: Candidate) -> np.ndarray:
        """The `counts` of a text."""
        return self._counts[np.searchsorted(self._keys, np.uint64(_key(text)))]


def _record(
    query: list[int],
    texts: Sequence[tuple[Candidate, Any]],
    ids: Sequence[int],
    drawn: _Counter,
    known: int,
    teacher: np.ndarray | None,
    simple: int | None,
    guide_rows: list[int] | None,
) -> bytes:
    columns = {
        "query": query,
        "titles": [id for _, (title, _) in texts for id in title],
        "title_lengths": [len(title) for _, (title, _) in texts],
        "texts": [id for _, (_, body) in texts for id in body],
        "text_lengths": [len(body) for _, (_, body) in texts],
        "document_id": ids,
        "known": [known],
    } | ({} if simple is None else {"simple": [simple]})
    columns |= {} if guide_rows is None else {GUIDE: guide_rows}
    features = {name: tf.train.Feature(int64_list=tf.train.Int64List(value=values)) for name, values in columns.items()}
    counts = tf.train.FloatList(value=[count for text, _ in texts for count in drawn.of(text)])
    features["counts"] = tf.train.Feature(float_list=counts)
    if teacher is not None:
        features["teacher"] = tf.train.Feature(float_list=tf.train.FloatList(value=teacher.tolist()))
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString(deterministic=True)


def document_id(text: Candidate, label: str = "") -> int:
    """What stands for a text in the records, wherever it comes from; for one with a label, what stands for that."""
    return passages.document_id((hashing.digest("label", label) if label else digest(text)).hex())


def wording(query: str) -> int:
    """What stands for a query in `KnownPositives`. Questions that an uncased model sees alike have the same."""
    return hashing.number(splits.wording(query))


def _key(text: Candidate) -> int:
    return int.from_bytes(digest(text), "big")


def _order(query: str, text: Candidate) -> bytes:
    return hashlib.blake2b(query.encode() + b"\0" + digest(text), digest_size=8).digest()
