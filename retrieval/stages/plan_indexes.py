"""What the indexes of a collection take on a host, and what a server of them holds.

Each kind of index builds a small one, of the run's own texts where they are there, and says what all would take.
"""

import dataclasses
import functools
import itertools
import logging
from collections.abc import Iterator

from retrieval.data.sets.beir import Candidate
from retrieval.errors import UserError
from retrieval.search.index_kind import Cost, Planned, Texts
from retrieval.stage_outputs import Run
from retrieval.stages.collection import collections
from retrieval.stages.indexes import Built, built_by
from retrieval.stages.plan_collection import gib, shown_time
from retrieval.training import collection_work

_log = logging.getLogger(__name__)

_SAMPLE = 20_000  # texts of the collection that are read


@dataclasses.dataclass(frozen=True)
class PlannedIndex:
    """An index and what it takes.

    Attributes:
      title: of its kind.
      passages: of the collection.
      windows: of a passage, each with an embedding, at most; 1 for an index of words.
    """

    title: str
    passages: int
    cost: Cost
    windows: int = 1

    def rows(self) -> Iterator[tuple[str, str | None]]:
        """Name and value, for people."""
        name, cost = f"{self.title} of {collection_work.shown(self.passages, self.windows)}", self.cost
        if cost.seconds:
            yield f"{name}, to build on this machine", shown_time(cost.seconds)
            yield f"{name}, a host: peak of the build", gib(cost.building)
        yield f"{name}, a host: the index", gib(cost.held)


def indexes(run: Run, dimensions: int | None) -> tuple[PlannedIndex, ...]:
    """The indexes that the run would build of `plan.passages`; what nothing can be said of is logged.

    Args:
      dimensions: of the embeddings; None where there are none, and so no index of them.
    """
    config = run.config
    planned = Planned(config.plan.passages, dimensions or 0, config.evaluate.depth, _sample(run), config.encode.windows)
    words, dense = built_by(config)
    costs = [(built.kind, _cost(built, planned)) for built in (*words, *([dense] if dimensions else []))]
    return tuple(
        PlannedIndex(kind.title, planned.passages, cost, 1 if kind.of_words else planned.windows)
        for kind, cost in costs
        if cost
    )


def _sample(run: Run) -> Texts | None:
    """The first texts of the run's first collection."""
    collection = next(iter(collections(run)), None)
    if collection is None:
        return None

    def passages() -> Iterator[Candidate]:
        return itertools.islice(collection.candidates(), _SAMPLE)

    folds_accents = functools.cache(lambda: run.vocabulary is None or run.load_vocabulary().folds_accents)
    return Texts(collection.name, passages, folds_accents, collection.generated)


def _cost(built: Built, planned: Planned) -> Cost | None:
    try:
        cost = built.kind.cost(planned, built.options)
    except UserError as error:
        _log.warning("plan: %s is left out: %s", built.kind.title, error)
        return None
    if cost is None:
        lacks_texts = built.kind.of_words and planned.sample is None
        why = ", for the run has no texts yet (--stage=prepare or --stage=sets makes them)" if lacks_texts else ""
        _log.warning("plan: %s is left out%s", built.kind.title, why)
    return cost
