"""The stage `teacher`: a reranker's scores of all labelled pairs, once, for the models that learn from it.

Distillation trains on the labelled examples of the stage `pairs`, with these scores beside them.
"""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from retrieval.config.fields import of_fields
from retrieval.data.labelled import teacher_scores
from retrieval.data.labelled.grouping import Groups
from retrieval.data.sets.beir import Candidate
from retrieval.errors import UserError
from retrieval.methods.reranker import rerankers
from retrieval.methods.reranker.scored_pairs import Scorer
from retrieval.pipeline.stage import STAGES, Stage
from retrieval.runtime import hosts, platforms
from retrieval.stage_outputs import Run
from retrieval.stages import labelled_groups

_log = logging.getLogger(__name__)

FOLDER = "teacher"
_MODEL = "config.teacher.model"
_PAIRS = ("files", "format", "queries", "collection", "pool", "in_order")
_LABELLED = (*(f"pairs.{name}" for name in _PAIRS), "sets.mind_split")


def teach(run: Run) -> dict[str, Any]:
    """Writes `teacher/scores.jsonl`; returns how many pairs it has."""
    folder, fields = run.folder / FOLDER, run.config.teacher
    folder.mkdir(exist_ok=True)
    scorer = Scorer(run.config, rerankers.open_reranker(run, fields.model, _MODEL), fields.shard_size)
    # Examples in the order of their files have negatives beyond those that a query keeps.
    with labelled_groups.opened(run, folder, every=run.config.pairs.in_order) as (groups, counts):
        queries = [group.query for group in groups]
        total = sum(len(group.positives) + len(group.negatives) for group in groups)
        if not total:
            counts.log("teacher")
            raise UserError("no labelled example is left to score: look at what was left out, and at config.split")
        scores_P, seconds = scorer.score(folder / "scores", queries, _pairs(groups), total, lambda text: text)
        scored = ((queries[place], text, float(score)) for (place, text), score in zip(_pairs(groups), scores_P))
        hosts.on_first(lambda: teacher_scores.write(folder / "scores.jsonl", scored))
    _log.info("teacher: %d pairs of %d queries", total, len(queries))
    return {"pairs": total, "queries": len(queries), "seconds per pair": seconds and round(seconds, 6)}


def _pairs(groups: Groups) -> Iterator[tuple[int, Candidate]]:
    """The place of a query and a document, of all pairs."""
    for place, group in enumerate(groups):
        for text in (*group.positives, *group.negatives):
            yield place, text


def check_model(model: str) -> None:
    """Checks that there is a teacher.

    Raises:
      UserError: there is none.
    """
    if not model:
        raise UserError(
            f"{_MODEL} is empty: name the work directory of a reranker, or the folder of a cross-encoder, whose scores "
            "are to be learned"
        )


def inputs(run: Run) -> Sequence[Path]:
    """The labelled examples, and what tells whether the teacher has changed."""
    return [*labelled_groups.inputs(run.config), *rerankers.inputs(run, run.config.teacher.model, _MODEL)]


STAGES.register(
    "teacher",
    Stage(
        teach,
        check_config=(of_fields(check_model, "teacher.model"),),
        check=(
            lambda run: rerankers.check(run, run.config.teacher.model, _MODEL),
            platforms.check,
        ),
        fields=(
            "teacher",
            "split",
            *_LABELLED,
            "data.query_length",
            "data.document_length",
            "model.dtype",
        ),
        uses=("encode.batch_tokens",),
        reads=("prepare", "sets", "mine"),
        files=inputs,
        fetch=lambda run: rerankers.KIND.fetch(run, run.config.teacher.model, _MODEL),
        writes=(FOLDER,),
        everywhere=True,
    ),
)
