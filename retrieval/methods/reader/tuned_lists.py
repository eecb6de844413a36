"""The system 'tuned': what a reader's own question tower retrieves, among the embeddings that it was trained with."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from retrieval.data.sets.beir import Judged
from retrieval.errors import UserError
from retrieval.methods.reader import question_tower
from retrieval.methods.reader.readers import Reader
from retrieval.pipeline.records import verify_written
from retrieval.runtime import hosts
from retrieval.search.index_kind import EXACT, INDEXES
from retrieval.stage_outputs import Run
from retrieval.stages import indexes, pod_search
from retrieval.stages.collection import TRAINED, Collection, open_collection
from retrieval.stages.indexes import Together
from retrieval.stages.rankings import others
from retrieval.stages.run_files import Lists

TUNED = "tuned"


def collections(trainer: Run, names: Sequence[str]) -> dict[str, Collection]:
    """The sets by name whose passages the reader's towers have embedded.

    Args:
      trainer: the run that trained the reader.

    Raises:
      UserError: there is none.
    """
    source = _source(trainer)
    hosts.on_first(lambda: bool(verify_written(source.holder("encode").folder, ["embeddings"])))
    found = {name: open_collection(source, name) for name in names}
    found = {name: collection for name, collection in found.items() if collection.has_embeddings()}
    if not found:
        raise UserError(
            f"system '{TUNED}': {source.holder('encode').place} has embedded none of the sets {', '.join(names)}: name "
            "a base with the same sets, or another system in config.answer.systems"
        )
    return found


def search(trainer: Run, reader: Reader, collection: Collection, value: Judged, depth: int) -> Lists:
    """The first candidates of every query of a set, without the query itself.

    In a pod the first host embeds the queries, each host has its share of the candidates, and all get the lists.

    Raises:
      UserError: the embeddings are of other candidates.
    """
    collection.check_embeddings(value)
    towers = question_tower.towers_of(trainer).config

    def found(together: Together | None) -> tuple[np.ndarray, np.ndarray]:
        queries_QE = question_tower.embedded(
            reader.model, towers, reader.config, reader.vocabulary, list(value.queries.values())
        )
        deep, exact = min(depth + bool(value.own), len(value.candidates)), INDEXES[EXACT]
        shared = together(exact, collection, TRAINED) if together else None
        index = indexes.open_dense(exact, collection, {}, deep) if shared is None else shared
        return others(*index.search(queries_QE, deep), value.queries, value.own, depth)

    source = _source(trainer)
    scores_QK, rows_QK = found(None) if hosts.is_alone() else pod_search.to_all(source.embeddings, source.index, found)
    return Lists(TUNED, scores_QK, rows_QK, 0, int((rows_QK[:, 0] < 0).sum()))


def inputs(trainer: Run) -> list[Path]:
    """What tells whether the embeddings have changed."""
    return [_source(trainer).holder("encode").own_record("encode")]


def fetch(trainer: Run) -> None:
    """Copies down the embeddings, where these are on a store."""
    if copy := _source(trainer).holder("encode").copy:
        copy.get(["embeddings"])


def _source(trainer: Run) -> Run:
    """The run as the reader's stage `spans` saw it."""
    return trainer.holder("spans").before("spans")


def check(trainer: Run) -> None:
    """Checks that a reader has a question tower.

    Raises:
      UserError: it has none.
    """
    if not trainer.config.train.early:
        raise UserError(
            f"config.answer.systems names '{TUNED}', what a reader's own question tower retrieves, and {trainer.place} "
            "trains none: set config.train.early=True there, or name another system"
        )
