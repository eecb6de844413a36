"""The queries of several sources of labelled examples, as one."""

import collections
import heapq
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping

from retrieval.common.runtime import hashing
from retrieval.data.labelled.grouping import Counts, Example, Groups, digest
from retrieval.data.labelled.pair_shards import KnownPositives, document_id, wording


class MergedGroups:
    """Every query of some sources once, with the texts of all; in the order that each source has them in.

    Attributes:
      sources: by name.
      counts: of all sources together, once all queries were asked for. A query of several counts once.
      shared: queries that several sources have.
    """

    def __init__(self, sources: Mapping[str, Groups], seed: int, keeps: Callable[[str], bool] = lambda query: True):
        """Args:
        seed: of the order of the queries, which is that of each source.
        keeps: of which queries these are.
        """
        self.sources, self.counts, self.shared = sources, Counts(), 0
        self._seed, self._keeps = seed, keeps

    def where(self, keeps: Callable[[str], bool]) -> "MergedGroups":
        """The same with the queries alone of which `keeps` is true."""
        return MergedGroups(self.sources, self._seed, keeps)

    def of_source(self, name: str) -> Groups:
        """The queries of a source, without those that this leaves out."""
        return self.sources[name].where(self._keeps)

    def __iter__(self) -> Iterator[Example]:
        return (group for group in self._all() if self._keeps(group.query))

    def _all(self) -> Iterator[Example]:
        queries = shared = 0
        seed = str(self._seed)
        in_order = heapq.merge(*self.sources.values(), key=lambda each: (hashing.digest(seed, each.query), each.query))
        for query, examples in itertools.groupby(in_order, key=operator.attrgetter("query")):
            parts = list(examples)
            queries, shared = queries + 1, shared + (len(parts) > 1)
            yield _joined(query, parts)
        counted = [groups.counts for groups in self.sources.values()]
        self.shared = shared
        self.counts.queries, self.counts.examples = queries, sum(counts.examples for counts in counted)
        self.counts.left_out = sum((counts.left_out for counts in counted), collections.Counter())


class WithoutPositives:
    """The examples of a source, without negatives that another source knows as positives of the same query.

    Attributes:
      left_out: negatives, once all examples were asked for.
    """

    def __init__(self, groups: Groups, known: KnownPositives):
        self.left_out = 0
        self._groups, self._known = groups, known

    def __iter__(self) -> Iterator[Example]:
        return self._kept(self._groups)

    def apart(self, pool: int) -> Iterator[Example]:
        """The same of `Groups.apart`."""
        return self._kept(self._groups.apart(pool))

    def _kept(self, examples: Iterable[Example]) -> Iterator[Example]:
        left_out = 0
        for example in examples:
            known = self._known.ids_of(wording(example.query))
            kept = [place for place, text in enumerate(example.negatives) if document_id(text) not in known]
            left_out += len(example.negatives) - len(kept)
            places = [*range(count := len(example.positives)), *(count + place for place in kept)]
            scores = tuple(example.scores[place] for place in places) if example.scores else ()
            yield example._replace(negatives=tuple(example.negatives[place] for place in kept), scores=scores)
        self.left_out = left_out


def _joined(query: str, parts: list[Example]) -> Example:
    """Texts and answers of all parts, each once. Ids are a source's own, so texts alone tell what is the same."""
    if len(parts) == 1:
        return parts[0]
    positives, negatives = (
        {digest(text): text for part in parts for text in getattr(part, side)} for side in ("positives", "negatives")
    )
    kept = tuple(text for key, text in negatives.items() if key not in positives)
    answers = dict.fromkeys(answer for part in parts for answer in part.answers)
    label = next((part.label for part in parts if part.label), "")
    return Example(query, tuple(positives.values()), kept, tuple(answers), label=label)
