"""Labelled examples as TFRecord shards: what fine-tuning reads.

A record is a query with one of its positives and all negatives that it keeps. Its texts are the positive, then the
negatives (of ReQA: a sentence as the title, and its passage):

    query                     token ids
    titles, title_lengths     token ids of all titles, one after the other, and how many each has
    texts, text_lengths       the same of the texts
    document_id               of each text; the same text has the same id, and so have the positives of one label
    known                     the row of `KnownPositives` that has the ids of all positives of the query, and of the
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
import dataclasses
import hashlib
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.common.runtime import hashing
from retrieval.data import holdout
from retrieval.data.examples.example_kind import GUIDE
from retrieval.data.examples.task_kind import IN_ORDER, SCORED
from retrieval.data.labelled.grouping import Example, digest
from retrieval.data.labelled.teacher_scores import TeacherScores
from retrieval.data.sets import splits
from retrieval.data.sets.beir import Candidate
from retrieval.data.shards import tfrecords
from retrieval.data.shards.external_sort import Sorter
from retrieval.data.tokenizers.prefixes import NONE, Prefixes
from retrieval.data.tokenizers.vocab import Vocabulary

_log = logging.getLogger(__name__)

STEM = "pairs"
PATTERN = f"{STEM}-*.tfrecord"
# From what gives the examples, to what gives a query's and its texts' rows in a table.
GuideRows = Callable[[Callable[[], Iterable[Example]]], Callable[[str, Sequence[Candidate]], list[int]]]
COUNTS = 3  # of each text, in a record
KNOWN = "known_positives.npz"


class KnownPositives:
    """The ids of all known positives of every query, once for all records: a row for each wording, by its hash.

    A record has the number of its query's row. With the ids themselves, n positives of a query would take n^2 numbers.

    Attributes:
      most: ids of the longest row.
    """

    def __init__(self, wordings_N: np.ndarray, ids_N: np.ndarray):
        """Args are one for each positive of each query, whichever is there twice; uint64, and ids below 2^31."""
        known_M2 = np.unique(np.stack([wordings_N, ids_N], axis=1), axis=0)
        self._wordings_W, starts_W = np.unique(known_M2[:, 0], return_index=True)
        self._ids_M, self._starts = known_M2[:, 1].astype(np.int32), np.append(starts_W, len(known_M2))
        self.most = int(np.diff(self._starts).max(initial=0))

    def row_of(self, wording: int) -> int:
        """The number of the row of a wording that is there."""
        return int(np.searchsorted(self._wordings_W, np.uint64(wording)))

    def ids_of(self, wording: int) -> set[int]:
        """The ids of the row of a wording that is there."""
        row = self.row_of(wording)
        return set(self._ids_M[self._starts[row] : self._starts[row + 1]].tolist())

    def write(self, folder: Path) -> None:
        """Writes the rows beside the records of a folder, whole or not at all."""
        with files.atomic(folder / KNOWN) as temporary, open(temporary, "wb") as file:
            np.savez(file, ids=self._ids_M, starts=self._starts, wordings=self._wordings_W)


def read_known(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """The ids [M] int32 of all rows, and where each row begins and the last one ends [W + 1]."""
    rows = files.read_arrays(folder / KNOWN, "--stage=pairs makes it again")
    return rows["ids"], rows["starts"]


def read_wordings(folder: Path) -> np.ndarray:
    """The wordings [W] uint64 of all queries below a folder; none of an older one, which kept none."""
    read = (files.read_arrays(path, "--stage=pairs makes it again") for path in sorted(folder.rglob(KNOWN)))
    return np.concatenate([np.zeros(0, np.uint64), *(rows["wordings"] for rows in read if "wordings" in rows)])


def known_of(groups: Iterable[Example]) -> KnownPositives:
    """The positives of all queries."""
    known = array.array("Q")
    for group in groups:
        for text in group.positives:
            known.extend((wording(group.query), document_id(text, group.label)))
    return KnownPositives(*np.asarray(known).reshape(-1, 2).T)


@dataclasses.dataclass
class PairWriter:
    """Writes labelled pairs as shards; knows how often every text is drawn in an epoch, 50 bytes a text of any length.

    Attributes:
      groups: every query once, each time that they are iterated over: three times.
      positives: of a query, those that get a record, the first; 0 for all.
      apart: gives examples, each time that it is called: twice. Then every positive of every example gets a record,
        with the example's own negatives; `groups` tells the known positives. Examples of queries that are not in
        `groups` are left out.
      in_order: whether records stand in the order of `apart`, and not in that of a hash.
      teacher: the scores of all pairs. Without one, records have the scores of their examples, if each has some.
      keep_lone: whether a record without a negative has its positive in that place. Where documents of a query
        are told apart by their ids, a copy of the positive counts in no loss of its query. So the record is trained on
        with the documents of other queries alone.
      simple: of each of `groups`, how many of its negatives, the first ones, are simple; the others are hard.
      prefixes: which texts begin with, where their tokens depend on them.
      known: the positives of all queries; by default those of `groups`.
      guide: the rows of texts in a table of embeddings, if records are to have them.
      is_scored: whether each example is two texts and how alike they are; for the statistics.
    """

    groups: Iterable[Example]
    vocabulary: Vocabulary
    positives: int = 0
    _: dataclasses.KW_ONLY
    apart: Callable[[], Iterable[Example]] | None = None
    in_order: bool = False
    teacher: TeacherScores | None = None
    keep_lone: bool = False
    simple: Sequence[int] | None = None
    prefixes: Prefixes = NONE
    known: KnownPositives | None = None
    guide: GuideRows | None = None
    is_scored: bool = False

    def __post_init__(self):
        self.pairs = self.with_negatives = self.negatives = self.left_out = self.scored = 0
        # Of the records that are made: tokens of all queries and of all positives, and the range of the scores.
        self.lengths, self.scores = np.zeros(2, np.int64), np.array([np.inf, -np.inf])
        keys, counts, self._queries = array.array("Q"), array.array("d"), set[int]()
        own = known_of(self._counted())
        self.known_positives = self.known or own
        for example in self.examples():
            golds, negatives = example[1:3]
            self.pairs += len(golds)
            self.scored += len(golds) * bool(example.scores)
            has_some = bool(negatives) or self.keep_lone
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
        self.has_scores = self.teacher is not None or self.scored == self.pairs
        self._counts = np.stack([np.bincount(places, column, len(self._keys)) for column in columns], axis=1)

    def write(self, folder: Path, num_shards: int) -> dict[str, Any]:
        """Writes shards of records, and `stats.json`, to `folder`; returns what was counted.

        There are as many shards as divide `num_shards` and leave none empty: lanes divide them.

        Raises:
          UserError: there is no query, or the teacher has no score of a pair.
        """
        if not self.pairs:
            raise UserError("no labelled example is left to train on: look at what was left out, and at config.split")
        if self.teacher:
            self.teacher.check(self.examples())
        elif 0 < self.scored < self.pairs:
            without = self.pairs - self.scored
            _log.warning("pairs: %d of %d have no scores, so those of the others are left out", without, self.pairs)
        num_shards = max(count for count in range(1, min(num_shards, self.pairs) + 1) if num_shards % count == 0)
        folder.mkdir(parents=True, exist_ok=True)
        with Sorter(folder) as sorter:
            for record in () if self.in_order else self.records():
                sorter.add(record)
            tfrecords.deal(self.records() if self.in_order else sorter, folder, num_shards, STEM)
        self.known_positives.write(folder)
        query_tokens, document_tokens = (self.lengths / self.pairs).round(2).tolist()
        statistics = {
            "pairs": self.pairs,
            "paragraphs": self.paragraphs,
            "positives left out": self.left_out,
            "most positives": self.known_positives.most,
            "has teacher": self.has_scores,
            **({"scores": self.scores.tolist()} if self.has_scores else {}),
            "pairs with negatives": self.with_negatives,
            "negatives per pair": round(self.negatives / self.pairs, 2),
            "shards": num_shards,
            "query_tokens": query_tokens,
            "document_tokens": document_tokens,
        } | {name: True for name, holds in ((IN_ORDER, self.in_order), (SCORED, self.is_scored)) if holds}
        files.write_json(folder / "stats.json", statistics)
        return statistics

    def _counted(self) -> Iterator[Example]:
        """The groups; notes their queries, and how many of their positives get no record."""
        for group in self.groups:
            self._queries.add(hashing.number(group.query))
            self.left_out += len(group.positives[self.positives :]) if self.positives and not self.apart else 0
            yield group

    def examples(self) -> Iterator[Example]:
        """Those that records are made of, with the positives that get one."""
        if self.apart:
            return (example for example in self.apart() if hashing.number(example.query) in self._queries)
        return map(self._first, self.groups)

    def _first(self, group: Example) -> Example:
        kept, count = group.positives[: self.positives or None], len(group.positives)
        return group._replace(positives=kept, scores=group.scores[: len(kept)] + group.scores[count:])

    def records(self) -> Iterator[tuple[bytes, bytes]]:
        """Each record, after what it is ordered by."""
        guided = self.guide(self.examples) if self.guide else None
        for example, first in zip(self.examples(), self.simple or itertools.repeat(None)):
            query, golds, negatives = example[:3]
            texts = [*golds, *negatives]
            (query_ids,) = self.prefixes.encode_query(self.vocabulary, [query])
            titles, bodies = [text.title for text in texts], [text.text for text in texts]
            tokens = list(self.prefixes.encode_document(self.vocabulary, titles, bodies))
            scores_N = np.array(self.teacher.of(query, texts) if self.teacher else example.scores, np.float32)
            ids = [document_id(text, example.label if at < len(golds) else "") for at, text in enumerate(texts)]
            for place, gold in enumerate(golds):
                places = [place, *range(len(golds), len(texts))] * (2 if self.keep_lone and not negatives else 1)
                own_titles, own_bodies = zip(*(tokens[at] for at in places))
                of_own = [texts[at] for at in places]
                integers = {
                    "query": query_ids,
                    "titles": list(itertools.chain.from_iterable(own_titles)),
                    "title_lengths": list(map(len, own_titles)),
                    "texts": list(itertools.chain.from_iterable(own_bodies)),
                    "text_lengths": list(map(len, own_bodies)),
                    "document_id": [ids[at] for at in places],
                    "known": [self.known_positives.row_of(wording(query))],
                }
                integers |= {} if first is None else {"simple": [first]}
                integers |= {GUIDE: guided(query, of_own)} if guided else {}
                rows = np.searchsorted(self._keys, np.array([_key(text) for text in of_own], np.uint64))
                floats = {"counts": self._counts[rows].ravel().tolist()}
                if self.has_scores:
                    floats["teacher"] = own = scores_N[places].tolist()
                    self.scores[:] = min(self.scores[0], *own), max(self.scores[1], *own)
                self.lengths += len(query_ids), sum(map(len, tokens[place]))
                order = hashlib.blake2b(query.encode() + b"\0" + digest(gold), digest_size=8)
                yield order.digest(), tfrecords.serialized(integers, floats)


def document_id(text: Candidate, label: str = "") -> int:
    """What stands for a text in the records, wherever it comes from; for one with a label, what stands for that."""
    return holdout.document_id((hashing.digest("label", label) if label else digest(text)).hex())


def wording(query: str) -> int:
    """What stands for a query in `KnownPositives`. Questions that an uncased model sees alike have the same."""
    return hashing.number(splits.wording(query))


def _key(text: Candidate) -> int:
    return int.from_bytes(digest(text), "big")
