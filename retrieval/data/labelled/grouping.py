"""Labelled examples: a query, texts that answer it, and others that look as if they did (hard negatives).

Files of several formats give them one by one (`dpr`, `jsonl_pairs`, `msmarco`). Training and evaluation need them by
query, because a text that one line calls a negative may be a positive of the same query in another.
"""

import collections
import contextlib
import dataclasses
import heapq
import itertools
import logging
import operator
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgpack

from retrieval.common.errors import UserError
from retrieval.common.runtime import hashing
from retrieval.data.sets import answers as answer
from retrieval.data.sets.beir import Candidate, Judged, RetrievalSet
from retrieval.data.shards.external_sort import Sorter

_log = logging.getLogger(__name__)
Keys = Collection[bytes | str]  # of texts


class Example(NamedTuple):
    """A query and what is known about texts; the id of a text is empty where its file gives none.

    Answers are texts that a passage may hold, where a file gives them. Scores are a teacher's, of the positives, then
    of the negatives; empty where a file gives none. A label is the class of the query and of its positives: all texts
    of it are positives of each other.
    """

    query: str
    positives: tuple[Candidate, ...]
    negatives: tuple[Candidate, ...] = ()
    answers: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()
    label: str = ""


@dataclasses.dataclass
class Counts:
    """What readers leave out and what grouping brings together, for the log and the record of a stage.

    Attributes:
      first: of what readers leave out, where the first one stands.
    """

    examples: int = 0
    queries: int = 0
    left_out: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    first: dict[str, str] = dataclasses.field(default_factory=dict)

    def leave_out(self, what: str, at: str, number: int = 1) -> None:
        """So many more of `what`, which were read at `at`."""
        if number:
            self.left_out[what] += number
            self.first.setdefault(what, at)

    def log(self, name: str) -> None:
        """Says what was read, by the name of where it was read, and what was left out."""
        _log.info("%s: %d examples of %d queries", name, self.examples, self.queries)
        self.log_left_out(name)

    def log_left_out(self, name: str) -> None:
        """Says what was left out, by the name of where it was read."""
        for what, number in (+self.left_out).items():
            first = f", the first at {self.first[what]}" if what in self.first else ""
            _log.warning("%s: left out %d %s%s", name, number, what, first)


def example(
    query: str,
    positives: Iterable[Candidate],
    negatives: Iterable[Candidate],
    at: str,
    counts: Counts,
    answers: Iterable[str] = (),
    scores: Sequence[float] = (),
    is_of_negatives: bool = False,
) -> Example | None:
    """An example that was read at `at`, without its empty texts; None, and counted, where no positive is left.

    Args:
      scores: as `Example` has them.
      is_of_negatives: whether it may have negatives alone: another example of its query has the positives.

    Raises:
      UserError: the query is empty.
    """
    if not query.strip():
        raise UserError(f"{at}: the query is empty; write one, or drop the example")
    positives, negatives = list(positives), list(negatives)
    has_text = [bool(text.title.strip() or text.text.strip()) for text in (*positives, *negatives)]
    counts.leave_out("empty texts", at, has_text.count(False))
    right = [text for text, holds in zip(positives, has_text) if holds]
    wrong = [text for text, holds in zip(negatives, has_text[len(positives) :]) if holds]
    if not right and not (is_of_negatives and wrong):
        counts.leave_out("examples without a positive", at)
        return None
    if _has_local_ids([*right, *wrong]):
        counts.leave_out("ids of examples in which one is of two texts", at)
        right, wrong = ([dataclasses.replace(text, id="") for text in side] for side in (right, wrong))
    return Example(query, tuple(right), tuple(wrong), tuple(answers), tuple(itertools.compress(scores, has_text)))


def _has_local_ids(texts: Sequence[Candidate]) -> bool:
    """Whether an id is of two texts, of which none is a part of the other: in such files each list counts anew."""
    of_id: dict[str, str] = {}
    for text in texts:
        known = of_id.setdefault(text.id, text.text) if text.id else text.text
        if known not in text.text and text.text not in known:
            return True
    return False


def digest(text: Candidate) -> bytes:
    """What two texts have in common only if title and text are the same, whatever their ids."""
    return hashing.digest(text.title, text.text)


def number(text: Candidate) -> int:
    """The same as a number of 64 bits."""
    return hashing.number(text.title, text.text)


def of_set(value: RetrievalSet | Judged, rule: str, text_of: Callable[[str], Candidate]) -> Iterator[Example]:
    """The queries of a set with the candidates that `rule` judges relevant, whose texts `text_of` gives by id."""
    for query, grades in value.qrels[rule].items():
        positives = tuple(text_of(id) for id, grade in grades.items() if grade > 0)
        if positives:
            yield Example(value.queries[query], positives)


@dataclasses.dataclass(frozen=True)
class Groups:
    """Examples by query, in the order of a hash, as often as they are asked for. Made by `grouped`."""

    _sorter: Sorter
    _pool: int
    counts: Counts
    _key: Callable[[Candidate], bytes | str]
    _keeps: Callable[[str], bool] = lambda query: True
    _leave_out: tuple[str, Callable[[str], bool]] = "", lambda query: False

    def where(self, keeps: Callable[[str], bool]) -> "Groups":
        """The same with the queries alone of which `keeps` is true. The counts are those of all queries."""
        return dataclasses.replace(self, _keeps=keeps)

    def without(self, what: str, is_left_out: Callable[[str], bool]) -> "Groups":
        """The same without the queries of which that is true. They are counted as `what`."""
        return dataclasses.replace(self, _leave_out=(what, is_left_out))

    def __iter__(self) -> Iterator[Example]:
        return (group for group in self._all() if self._keeps(group.query))

    def apart(self, pool: int) -> Iterator[Example]:
        """The examples of these queries, each with its own texts alone; a positive of the query is no negative.

        Args:
          pool: negatives that an example keeps.
        """
        ignored = collections.Counter[str]()
        for query, parts in self._parts(ignored):
            if self._keeps(query):
                left = {self._key(text) for text in self._merge(query, parts, sys.maxsize, ignored).negatives}
                yield from (self._merge(query, [part], pool, ignored, left) for part in parts)

    def _parts(self, left_out: collections.Counter) -> Iterator[tuple[str, list]]:
        """Every query with its examples, as the sorter has them; counts the queries that are left out."""
        what, is_left_out = self._leave_out
        for (_, query), records in itertools.groupby(self._sorter, key=operator.itemgetter(0, 1)):
            if is_left_out(query):
                left_out[what] += 1
                continue
            parts = [msgpack.unpackb(packed) for *_, packed in records]
            if any(positives for positives, *_ in parts):
                yield query, parts
            else:
                left_out["queries without a positive"] += 1

    def _all(self) -> Iterator[Example]:
        counts, left_out = self.counts, collections.Counter[str]()
        counts.queries = 0
        for query, parts in self._parts(left_out):
            counts.queries += 1
            yield self._merge(query, parts, self._pool, left_out)
        for what, number in (+left_out).items():
            counts.left_out[what] = number

    def _merge(
        self, query: str, parts: Sequence[list], pool: int, left_out: collections.Counter, left: Keys | None = None
    ) -> Example:
        """Texts and answers of all examples of a query, each once, with the first score that it has.

        Args:
          left_out: counts texts that are called positive and negative, and negatives that the query does not keep.
          left: keys of the negatives that no example of the query calls positive; None where these are all of them.
        """
        positives, negatives = (
            {self._key(text): text for part in parts for text in itertools.starmap(Candidate, part[side])}
            for side in (0, 1)
        )
        ids = {text.id for text in positives.values() if text.id}
        kept = {
            key: text
            for key, text in negatives.items()
            if key not in positives and text.id not in ids and (left is None or key in left)
        }
        drawn = heapq.nsmallest(pool, kept, key=lambda key: (hashing.digest(query, str(key)), key))
        score_of: dict[bytes | str, float] = {}
        for *sides, _, scores, _ in parts:
            for text, score in zip(itertools.chain(*sides), scores):
                score_of.setdefault(self._key(Candidate(*text)), score)
        scores = tuple(score_of[key] for key in (*positives, *drawn) if key in score_of)
        left_out["negatives that are positives of their query"] += len(negatives) - len(kept)
        left_out[f"negatives beyond the {pool} that a query keeps"] += len(kept) - len(drawn)
        return Example(
            query,
            tuple(positives.values()),
            tuple(kept[key] for key in drawn),
            tuple(dict.fromkeys(text for part in parts for text in part[2])),
            scores if len(scores) == len(positives) + len(drawn) else (),
            next((label for *_, label in parts if label), ""),
        )


@contextlib.contextmanager
def grouped(
    examples: Iterable[Example],
    folder: Path,
    pool: int,
    counts: Counts,
    key: Callable[[Candidate], bytes | str] = digest,
    seed: int = 0,
) -> Iterator[Groups]:
    """The examples with those of a query brought together, sorted in a temporary file of `folder`.

    The positives of a query stand in the order of its examples, and none of them, by key or by id, is one of its
    negatives, whichever example calls it so.

    Args:
      pool: negatives that a query keeps, drawn by a hash.
      key: what tells texts apart.
      seed: of the order of the queries.
    """
    with Sorter(folder) as sorter:
        for query, positives, negatives, *others in examples:
            texts = [[(text.id, text.title, text.text) for text in side] for side in (positives, negatives)]
            counts.examples += 1
            sorter.add((hashing.digest(str(seed), query), query, counts.examples, msgpack.packb([*texts, *others])))
        yield Groups(sorter, pool, counts, key)


def evaluation_set(name: str, groups: Iterable[Example], rule: str = "test") -> RetrievalSet:
    """The queries of `groups`, to be answered from all their positives and negatives; held in memory.

    Texts that are the same are one candidate. Ids come from the texts, and order those of a query: equal scores keep
    the order of candidates, which must not tell what is relevant. Answers are those that the examples have. Of a query
    with a label all candidates of that label are relevant but the query itself, which has its candidate's id.
    """
    candidates: list[Candidate] = []
    value = RetrievalSet(name, {}, candidates, {rule: {}})
    sums, of_label, labels = set(), collections.defaultdict(dict), {}
    for query, positives, negatives, answers, _, label in groups:
        id = (digest(Candidate("", "", query)) if label else hashing.digest(query)).hex()
        value.queries[id] = query
        if (known := answer.of_texts(answers)).values:
            value.answers[id] = known
        value.qrels[rule][id] = {digest(text).hex(): 1 for text in positives}
        if label:
            labels[id] = label
            of_label[label] |= value.qrels[rule][id]
        for sum, text in sorted({digest(text): text for text in (*positives, *negatives)}.items()):
            if sum not in sums:
                sums.add(sum)
                candidates.append(dataclasses.replace(text, id=sum.hex()))
    for id, label in labels.items():
        value.qrels[rule][id] = {other: 1 for other in of_label[label] if other != id}
    return value


def passages(groups: Iterable[Example]) -> Iterator[Candidate]:
    """The texts of `groups`, each once. One without an id of its own gets one that is made from it."""
    sums, ids = set(), set()
    for _, positives, negatives, *_ in groups:
        for text in (*positives, *negatives):
            if (sum := digest(text)) in sums:
                continue
            sums.add(sum)
            id = text.id if text.id and text.id not in ids else sum.hex()
            ids.add(id)
            yield dataclasses.replace(text, id=id)
