"""Labelled examples as TFRecord shards: what fine-tuning reads.

A record is a query with one of its positives and all negatives that it keeps. Its texts are the positive, then the
negatives (of ReQA: a sentence as the title, and its passage):

    query                     token ids
    titles, title_lengths     token ids of all titles, one after the other, and how many each has
    texts, text_lengths       the same of the texts
    document_id               of each text; the same text has the same id
    known                     the row of `known_positives` that has the ids of all positives of the query, and of the
                              same query spelled otherwise, trained on or not
    counts                    of each text: in how many records it is the positive; the same of the records with
                              negatives; and how many times these draw it, if each draws one negative. A copy of the
                              positive in that place counts as such a draw
    teacher                   of each text: the score that a teacher gives to it, where there is one
    guide_rows                the rows of the query and of each text in the table of a guide, where there is one
    simple                    how many of the negatives, the first ones, are simple; empty where that is not told
"""

from __future__ import annotations

import array
import contextlib
import hashlib
import itertools
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

STEM = "pairs"
PATTERN = f"{STEM}-*.tfrecord"
GUIDE = "guide_rows"
# From what gives the examples, to what gives a query's and its texts' rows in a table.
GuideRows = Callable[[Callable[[], Iterable[Example]]], Callable[[str, Sequence[Candidate]], list[int]]]
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
      teacher: the scores of all pairs, if records are to have them.
      keep_lone: whether a record without a negative has its positive in that place. Where documents of a query
        are told apart by their ids, a copy of the positive counts in no loss of its query. So the record is trained on
        with the documents of other queries alone.
      simple: of each of `groups`, how many of its negatives, the first ones, are simple; the others are hard.
      apart: as `in_order`, of records that stand in the order of a hash all the same.
      prefixes: which texts begin with, where their tokens depend on them.
      known: the positives of all queries, where these are not the ones of `groups` alone.
      guide: the rows of texts in a table of embeddings, if records are to have them.

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
    lengths = np.zeros(2, np.int64)
    folder.mkdir(parents=True, exist_ok=True)

    def records() -> Iterator[tuple[bytes, bytes]]:
        nonlocal lengths
        for (query, golds, negatives, _), first in zip(drawn.examples(), simple or itertools.repeat(None)):
            (query_ids,), of_texts = prefixes.encode_queries(vocabulary, [query]), [*golds, *negatives]
            titles, bodies = ([getattr(text, part) for text in of_texts] for part in ("title", "text"))
            texts = list(prefixes.encode_documents(vocabulary, titles, bodies))
            for gold, tokens in zip(golds, texts):
                own = [(gold, tokens), *zip(negatives, texts[len(golds) :])]
                own *= 2 if keep_lone and not negatives else 1
                scores = teacher.of(query, [text for text, _ in own]) if teacher else None
                rows = guided(query, [text for text, _ in own]) if guided else None
                yield _order(query, gold), _record(query_ids, own, drawn, drawn.row_of(query), scores, first, rows)
                lengths += len(query_ids), sum(map(len, tokens))

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
        "has teacher": teacher is not None,
        "pairs with negatives": drawn.with_negatives,
        "negatives per pair": round(drawn.negatives / drawn.pairs, 2),
        "shards": num_shards,
        "query_tokens": query_tokens,
        "document_tokens": document_tokens,
    } | ({IN_ORDER: True} if in_order else {})
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
    for query, positives, _, _ in groups:
        for text in positives:
            known.extend((wording(query), document_id(text)))
    return KnownPositives(*np.asarray(known).reshape(-1, 2).T)


class _Counter:
    """How often every text is drawn in an epoch, and the positives of every query: 50 bytes a text of any length.

    Its arguments are those of `write_pairs`; `given` is `in_order` or `apart`.

    Attributes:
      known: the positives of all queries.
      paragraphs: different texts that are a positive of a record.
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
        self.pairs = self.with_negatives = self.negatives = self.left_out = 0
        keys, counts, asked = array.array("Q"), array.array("d"), array.array("Q")

        def seen() -> Iterator[Example]:
            for group in groups:
                asked.append(hashing.number(group.query))
                self.left_out += len(group.positives[positives:]) if positives and not given else 0
                yield group

        found = known_of(seen())
        self.known = known or found
        self._asked = np.unique(np.asarray(asked))
        for _, golds, negatives, _ in self.examples():
            self.pairs += len(golds)
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
            yield from (group._replace(positives=group.positives[: self._positives]) for group in self._groups)

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
        "document_id": [document_id(text) for text, _ in texts],
        "known": [known],
    } | ({} if simple is None else {"simple": [simple]})
    columns |= {} if guide_rows is None else {GUIDE: guide_rows}
    features = {name: tf.train.Feature(int64_list=tf.train.Int64List(value=values)) for name, values in columns.items()}
    counts = tf.train.FloatList(value=[count for text, _ in texts for count in drawn.of(text)])
    features["counts"] = tf.train.Feature(float_list=counts)
    if teacher is not None:
        features["teacher"] = tf.train.Feature(float_list=tf.train.FloatList(value=teacher.tolist()))
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString(deterministic=True)


def document_id(text: Candidate) -> int:
    """What stands for a text in the records, wherever it comes from."""
    return passages.document_id(digest(text).hex())


def wording(query: str) -> int:
    """What stands for a query in `KnownPositives`. Questions that an uncased model sees alike have the same."""
    return hashing.number(splits.wording(query))


def _key(text: Candidate) -> int:
    return int.from_bytes(digest(text), "big")


def _order(query: str, text: Candidate) -> bytes:
    return hashlib.blake2b(query.encode() + b"\0" + digest(text), digest_size=8).digest()
