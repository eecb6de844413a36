"""The stage `teacher`: the scores of all labelled pairs, which distillation has beside the examples of `pairs`.

A teacher is a reranker, which reads a query and a document together, or an embedder, whose scores are inner products.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from retrieval.common.errors import UserError
from retrieval.common.runtime import devices, hosts
from retrieval.config.fields import of_fields
from retrieval.data.corpora import source_paths
from retrieval.data.labelled import teacher_scores
from retrieval.data.labelled.grouping import Example
from retrieval.data.sets.candidate import Candidate
from retrieval.runs.pairs import labelled_groups
from retrieval.runs.pipeline.run import Run
from retrieval.runs.pipeline.stage import STAGES, Stage
from retrieval.runs.weights.text_embedder import kind_of
from retrieval.runs.weights.trained_model import TrainedKind

_log = logging.getLogger(__name__)

FOLDER, _FIELD = "teacher", "config.teacher.model"
_PAIRS = ("files", "sources", "format", "fields", "queries", "collection", "pool", "in_order")


def teach(run: Run) -> dict[str, Any]:
    """Writes `teacher/scores.jsonl`; returns how many pairs it has."""
    folder = run.folder / FOLDER
    folder.mkdir(exist_ok=True)
    # Examples in the order of their files have negatives beyond those that a query keeps.
    with labelled_groups.opened(run, folder, every=run.config.pairs.in_order) as (groups, counts):
        queries, sizes = [], []
        for group in groups:
            queries.append(group.query)
            sizes.append(len(group.positives) + len(group.negatives))
        if not sum(sizes):
            counts.log("teacher")
            raise UserError("no labelled example is left to score: look at what was left out, and at config.split")
        scored = []
        for number, (kind, model) in enumerate(_teachers(run)):
            teacher, own = kind.open(run, model, _FIELD), folder / f"scores{number or ''}"
            scored.append(teacher.score_all(own, queries, lambda: _pairs(groups), sum(sizes)))
        scores_P = together([scores_P for scores_P, _ in scored], sizes)
        lines = ((queries[place], text, float(score)) for (place, text), score in zip(_pairs(groups), scores_P))
        hosts.on_first(lambda: teacher_scores.write(folder / "scores.jsonl", lines))
    _log.info("teacher: %d pairs of %d queries", sum(sizes), len(queries))
    seconds = [seconds for _, seconds in scored]
    of_pair = round(sum(seconds), 6) if all(seconds) else None
    return {"pairs": sum(sizes), "queries": len(queries), "seconds per pair": of_pair}


def together(scores: Sequence[np.ndarray], sizes: Sequence[int]) -> np.ndarray:
    """The scores [P] of several teachers as one: their means, once each query's lie between 0 and 1 (SPLADE-v3).

    Those of one teacher stay as they are. Of documents that a teacher scores alike each gets 0.

    Args:
      scores: of each teacher, of the documents of all queries, one query after the other.
      sizes: how many documents a query has, at least one.
    """
    if len(scores) == 1:
        return scores[0]
    starts_Q = np.cumsum([0, *sizes[:-1]])
    normalised = []
    for scores_P in scores:
        least_Q, most_Q = (extreme.reduceat(scores_P, starts_Q) for extreme in (np.minimum, np.maximum))
        least_P, range_P = np.repeat(least_Q, sizes), np.repeat(most_Q - least_Q, sizes)
        normalised.append((scores_P - least_P) / np.where(range_P > 0, range_P, 1))
    return np.mean(normalised, axis=0)


def _pairs(groups: Iterable[Example]) -> Iterator[tuple[int, Candidate]]:
    """The place of a query and a document, of all pairs."""
    for place, group in enumerate(groups):
        for text in (*group.positives, *group.negatives):
            yield place, text


def check_named(model: str) -> None:
    """Checks that there is a teacher."""
    if not source_paths.split(model):
        raise UserError(f"{_FIELD} is empty: name a folder of a reranker or embedder, hf:NAME, or a work directory")


def _teachers(run: Run) -> list[tuple[TrainedKind, str]]:
    """The teachers, each with its kind."""
    return [(kind_of(model, _FIELD, run), model) for model in source_paths.split(run.config.teacher.model)]


def check(run: Run) -> None:
    """Checks that every teacher can score pairs."""
    for kind, model in _teachers(run):
        kind.check(run, model, _FIELD)


def inputs(run: Run) -> list[Path]:
    """The files that tell whether examples or a teacher have changed."""
    models = (path for kind, model in _teachers(run) for path in kind.inputs(run, model, _FIELD))
    return [*labelled_groups.inputs(run.config), *models]


def fetch(run: Run) -> None:
    """Copies down the teachers that are on a store."""
    for kind, model in _teachers(run):
        kind.fetch(run, model, _FIELD)


STAGES.register(
    "teacher",
    Stage(
        teach,
        check_config=(of_fields(check_named, "teacher.model"),),
        check=(check, devices.check),
        fields=(
            *("teacher", "encode.shard_size", "split", *(f"pairs.{name}" for name in _PAIRS), "sets.mind_split"),
            *("data.query_length", "data.document_length", "rerank.length", "model.dtype"),
        ),
        also_reads=("encode.batch_tokens",),
        reads=("prepare", "sets", "mine"),
        files=inputs,
        fetch=fetch,
        writes=(FOLDER,),
        on_every_host=True,
    ),
)
