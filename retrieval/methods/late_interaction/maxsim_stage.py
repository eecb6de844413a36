"""The stage `maxsim`: the results of systems in the order of exact MaxSim, and perhaps all candidates in it.

Whatever finds the first results, their scores are the same. BM25's, ranked so, are the baseline of every index of
token vectors (MacAvaney & Tonellotto 2024).
"""

import itertools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from retrieval import files
from retrieval.data.sets import beir
from retrieval.data.sets.beir import Judged
from retrieval.errors import UserError
from retrieval.evaluation import result_files
from retrieval.methods.late_interaction import exact
from retrieval.methods.late_interaction.token_store import TokenStore
from retrieval.methods.late_interaction.tokens_stage import FOLDER as TOKENS
from retrieval.pipeline.run import Run
from retrieval.pipeline.stage import STAGES, Read, Stage
from retrieval.runtime import platforms
from retrieval.stages import evaluate, evaluated_runs, run_files
from retrieval.stages.collection import set_names
from retrieval.stages.rankings import Ranking, others
from retrieval.stages.run_files import RunFile

FOLDER, SYSTEM = result_files.LATE, "maxsim"


def maxsim(run: Run) -> dict[str, Any]:
    """Writes `late/`: runs, `results.json` and `per_query/`; returns the milliseconds of a query."""
    fields, folder, metrics = run.config.late, run.folder / FOLDER, run.config.evaluate.metrics
    names = set_names(run.sets)
    runs = evaluated_runs.by_set(run, names, dict.fromkeys(fields.systems, "late.systems")) if fields.systems else {}
    rows, told = [], {}
    for name in names:
        place = run.sets / name
        lists = list(_rank(fields, place, run.holder("tokens").folder / TOKENS / name, runs.get(name, {})))
        scores = []
        for value, ranking in lists:
            evaluate.write_run(folder / "runs" / name, value, ranking)
            scores += evaluate.by_judgements(value, ranking, metrics)
            told[f"{name}, {ranking.system}"] = round(1000 * (ranking.seconds or 0) / max(1, len(value.queries)), 3)
        for value, group in itertools.groupby(lists, lambda each: each[0]):
            if value.answers and (asked := evaluate.metrics_of_answers(value, metrics, fields.depth)):
                scores += evaluate.by_answers(place, value, [ranking for _, ranking in group], asked)
        evaluate.write_per_query(folder, name, scores)
        rows += [row for each in scores for row in evaluate.result_rows(name, each)]
    files.write_json(folder / result_files.NAME, rows)
    return told


def _rank(fields: ConfigDict, place: Path, tokens: Path, runs: dict[str, RunFile]) -> Iterator[tuple[Judged, Ranking]]:
    """The new lists of a set, each with the set, whose candidates may be more where a run names more."""
    judged = beir.read_judged(place)
    queries, documents = TokenStore(tokens, "queries"), TokenStore(tokens, "candidates")
    queries.check("queries", list(judged.queries))
    documents.check("candidates", judged.candidates)
    vectors, longest = queries.as_queries(), max(1, int(documents.sizes.max(initial=1)))
    value, lists = run_files.read([*runs.values()], judged, run_files.ALLOW) if runs else (judged, [])
    for each in lists:
        scores_QK, rows_QK = others(each.scores, each.rows, value.queries, value.own, fields.depth)
        _check_known(value, rows_QK, len(documents), each.system)
        began = time.perf_counter()
        scores_QK = exact.of_candidates(vectors, documents, rows_QK, longest)
        found = exact.best(scores_QK, rows_QK, fields.depth)
        yield value, Ranking(f"{each.system}+{SYSTEM}@{fields.depth}", *found, time.perf_counter() - began)
    if fields.exact:
        began = time.perf_counter()
        depth = min(fields.depth + bool(value.own), len(documents))
        found = others(*exact.ranked(vectors, documents, longest, depth), value.queries, value.own, fields.depth)
        yield value, Ranking(SYSTEM, *found, time.perf_counter() - began)


def _check_known(value: Judged, rows_QK: np.ndarray, known: int, system: str) -> None:
    """Checks that all results have vectors: a run of others may name candidates that the set has no text of.

    Raises:
      UserError: one has none.
    """
    if (most := int(rows_QK.max(initial=-1))) >= known:
        raise UserError(
            f"the run of '{system}' names the candidate '{value.candidates[most]}', which the set '{value.name}' has "
            "no text of: MaxSim cannot score it; take a set with all texts"
        )


def check_settings(config: ConfigDict) -> None:
    """Checks that something is ranked.

    Raises:
      UserError: nothing is.
    """
    if not config.late.systems and not config.late.exact:
        raise UserError("config.late.systems=() ranks nothing: name one or more, or set config.late.exact=True")


def check(run: Run) -> None:
    """Checks that there are runs to rank, long enough ones.

    Raises:
      UserError: there are not.
    """
    fields = run.config.late
    if fields.systems:
        evaluated_runs.check(run, "maxsim", fields.depth, f"late.depth={fields.depth}")


def read(config: ConfigDict) -> Sequence[str | Read]:
    """What the stage reads: vectors, and the runs of `evaluate` where some are ranked."""
    return [Read("sets", same=True), Read("tokens", required=True), *(["evaluate"] if config.late.systems else [])]


STAGES.register(
    "maxsim",
    Stage(
        maxsim,
        check_config=(check_settings,),
        check=(
            check,
            platforms.check,
        ),
        fields=("late.systems", "late.depth", "late.exact", "evaluate.metrics"),
        reads=read,
        writes=(FOLDER,),
    ),
)
