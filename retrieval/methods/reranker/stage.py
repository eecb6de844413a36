"""The stage `rerank`: a reranker's scores of the first results of systems.

At each depth n the first n results of a run are put in the order of the scores, and the rest is dropped (Zhan et al.
2020, section 4.4). A pair is scored once, whatever the number of systems and depths that have it.
"""

import itertools
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.common.runtime import devices, hosts
from retrieval.config.fields import of_fields
from retrieval.data.sets import beir
from retrieval.data.sets.beir import Judged
from retrieval.data.sets.row_texts import CandidateTexts
from retrieval.evaluation import depths, metrics, result_files
from retrieval.methods.reranker.trained import RERANKERS
from retrieval.runs.pipeline.run import Run
from retrieval.runs.pipeline.stage import STAGES, Stage
from retrieval.runs.ranking import ranked_lists
from retrieval.runs.ranking.collection import set_names
from retrieval.runs.ranking.ranked_lists import Ranking, RunFile, others
from retrieval.runs.weights.pair_scorer import PairScorer
from retrieval.runs.weights.trained_model import is_place
from retrieval.stages import evaluate

_log = logging.getLogger(__name__)

FOLDER, _RERANKER = result_files.RERANKED, "config.rerank.model"


class Reranked(NamedTuple):
    """The lists of some systems of a set, and their new scores.

    Attributes:
      lists: of each system, scores and rows [Q, deepest].
      scores: [Q, deepest] of each; what stands beside a row of -1 means nothing.
      references: the lists of the systems that the reranker was trained on.
      seconds: that a pair takes; None where another run has the order.
    """

    value: Judged
    lists: list[Ranking]
    scores: list[np.ndarray]
    references: list[Ranking]
    seconds: float | None


def rerank(run: Run) -> dict[str, Any]:
    """Writes `reranked/`: runs by depth, `results.json`, `per_query/` and the scores of all pairs.

    Returns the tables of the report: metrics by depth, and consistency factors.
    """
    fields, reranked = run.config.rerank, []
    of_files = {file.system for file in ranked_lists.run_files(run.owner("evaluate").config.runs.files)}
    reranker = None if is_system(fields.model) else RERANKERS.open(run, fields.model, _RERANKER)
    for name, runs in _runs(run, fields).items():
        # Runs that `evaluate` has written: where they name more than the set has, that was allowed there.
        value, lists = ranked_lists.read([*runs.values()], beir.read_judged(run.sets / name))
        by_name = {each.system: each for each in lists}
        systems = [system for system in fields.systems if system in by_name]
        first = [_first(by_name[each], value, max(fields.depths), each in of_files) for each in systems]
        references = [by_name[system] for system in fields.trained_on if system in by_name]
        if reranker:
            scores, seconds = _by_model(run, value, reranker, first)
        else:
            scores, seconds = _by_ranks(by_name[fields.model], name, first), None
        reranked.append(Reranked(value, first, scores, references, seconds))
    return hosts.on_first(lambda: _finish(run, reranked))


def check_settings(fields: ConfigDict) -> None:
    """Checks systems, depths and metrics, which the group `rerank` of the config has."""
    for name in ("systems", "depths"):
        if not fields[name]:
            raise UserError(f"config.rerank.{name}=() reranks nothing: name one or more")
    if by_answers := metrics.by_kind(fields.measures)[1]:
        raise UserError(f"config.rerank.measures: {by_answers[0]} is of answers, not judgements: take another metric")


def check(run: Run) -> None:
    """Checks that there is a reranker, and runs to rerank that are long enough."""
    wanted = tuple(run.config.rerank.depths)
    ranked_lists.check_evaluated(run, "rerank", max(wanted), f"rerank.depths={wanted}")
    if not is_system(run.config.rerank.model):
        RERANKERS.check(run, run.config.rerank.model, _RERANKER)


def is_system(model: str) -> bool:
    """Whether `rerank.model` names a system, whose ranks take the place of a model's."""
    return bool(model) and not is_place(model)


def inputs(run: Run) -> Sequence[Path]:
    """The files that tell whether the reranker has changed."""
    model = run.config.rerank.model
    return () if is_system(model) else RERANKERS.inputs(run, model, _RERANKER)


def _runs(run: Run, fields: ConfigDict) -> dict[str, dict[str, RunFile]]:
    """The runs, by their systems, of every set that has one to rerank and one of the system whose ranks count."""
    wanted = {fields.model: "rerank.model"} if is_system(fields.model) else {}
    wanted |= dict.fromkeys(fields.trained_on, "rerank.trained_on") | dict.fromkeys(fields.systems, "rerank.systems")
    runs = ranked_lists.evaluated_runs(run, set_names(run.sets), wanted)
    runs = {name: of_set for name, of_set in runs.items() if any(system in of_set for system in fields.systems)}
    without = [name for name, of_set in runs.items() if is_system(fields.model) and fields.model not in of_set]
    if len(without) == len(runs):
        raise UserError(f"config.rerank.model={fields.model}: no set has runs of it and of config.rerank.systems")
    for name in without:
        _log.warning("set %s: no run of config.rerank.model=%s, so it is not reranked", name, fields.model)
    return {name: of_set for name, of_set in runs.items() if name not in without}


def _first(lists: Ranking, value: Judged, depth: int, is_of_file: bool) -> Ranking:
    """The first results of a system, without the query itself."""
    # What this project searched has fewer where there is no more to find; of a file nobody knows.
    if is_of_file and (most := lists.rows.shape[1]) < depth:
        where = f"config.rerank.depths: the run of '{lists.system}' for the set '{value.name}' has {most} results"
        raise UserError(f"{where} at most, not {depth}: take smaller depths, or a longer run")
    scores_QK, rows_QK = others(lists.lists, value, depth)
    more = ((0, 0), (0, depth - rows_QK.shape[1]))
    scores_QK, rows_QK = np.pad(scores_QK, more, constant_values=-np.inf), np.pad(rows_QK, more, constant_values=-1)
    return lists._replace(scores=scores_QK, rows=rows_QK)


def _by_ranks(other: Ranking, name: str, lists: Sequence[Ranking]) -> list[np.ndarray]:
    """Minus the places that another system gave; what it did not give comes last and keeps its order.

    Its scores may be equal, or closer than float32 can tell; its ranks are not.
    """
    scores, missing = [np.full(each.rows.shape, -np.inf, np.float32) for each in lists], 0
    for each, scores_QK in zip(lists, scores):
        for number, rows in enumerate(each.rows.tolist()):
            places = {row: place for place, row in enumerate(other.rows[number].tolist(), 1) if row >= 0}
            last = other.rows.shape[1] + 1
            scores_QK[number] = [-places.get(row, place) for place, row in enumerate(rows, last)]
            missing += sum(row >= 0 and row not in places for row in rows)
    if missing:
        _log.warning("set %s: %d pairs are not in the run of config.rerank.model, and come last", name, missing)
    return scores


def _by_model(
    run: Run, value: Judged, reranker: PairScorer, lists: Sequence[Ranking]
) -> tuple[list[np.ndarray], float | None]:
    """A model's scores of all lists, and the seconds that a pair takes, as `PairScorer.score_all` has them."""
    # A number for every pair of a query and a candidate.
    N = len(value.candidates)
    keys = [np.arange(len(each.rows), dtype=np.int64)[:, None] * N + each.rows for each in lists]
    keys_P = np.unique(np.concatenate([keys_QK[each.rows >= 0] for keys_QK, each in zip(keys, lists)]))
    with CandidateTexts(run.sets / value.name / "corpus.jsonl") as texts:
        ranked_lists.check_texts(texts, value, (keys_P % N).tolist())
        pairs = lambda: (divmod(int(key), N) for key in keys_P)  # noqa: E731 (begun anew by each call)
        store, queries = run.folder / FOLDER / "scores" / value.name, list(value.queries.values())
        values_P, seconds = reranker.score_all(store, queries, pairs, len(keys_P), texts.__getitem__)
    scores = [np.full(each.rows.shape, -np.inf, np.float32) for each in lists]
    for scores_QK, keys_QK, each in zip(scores, keys, lists):
        scores_QK[each.rows >= 0] = values_P[np.searchsorted(keys_P, keys_QK[each.rows >= 0])]
    return scores, seconds


def _finish(run: Run, reranked: Sequence[Reranked]) -> dict[str, list[dict[str, Any]]]:
    """Writes runs and metrics; returns the tables."""
    folder, wanted = run.folder / FOLDER, run.config.rerank.depths
    rows, table, consistency = [], [], []
    for each in reranked:
        name, rankings = each.value.name, []
        for depth, (lists, scores_QK) in itertools.product(wanted, zip(each.lists, each.scores)):
            scores_QD, rows_QD = depths.reranked(scores_QK, lists.rows, depth)
            seconds = each.seconds and each.seconds * int((rows_QD >= 0).sum())
            rankings.append(Ranking(f"{lists.system}+rerank@{depth}", scores_QD, rows_QD, seconds))
            ranked_lists.write_run(folder / "runs" / name, each.value, rankings[-1])
        scores = evaluate.measure(run.sets / name, each.value, rankings, run.config.evaluate.metrics, max(wanted))
        rows += evaluate.write_values(folder, name, scores)
        table += _by_depth(each, wanted, run.config.rerank.measures)
        # The share of each list that the reranker may have seen in training (equation 5, Figure 2).
        for reference, lists in itertools.product(each.references, each.lists):
            first_QM = reference.rows[:, : run.config.rerank.trained_depth]
            factors = depths.consistency_factor(lists.rows, first_QM, wanted)
            row = {"set": name, "system": lists.system, "trained on": reference.system}
            shares = {str(depth): round(factor, 6) for depth, factor in factors.items()}
            consistency.append(row | {"trained depth": first_QM.shape[1], "factors": shares})
    files.write_json(folder / result_files.NAME, rows)
    return {"depths": table, "consistency": consistency}


def _by_depth(each: Reranked, wanted: Sequence[int], measures: Sequence[str]) -> list[dict[str, Any]]:
    """Recall and metrics of every system at every depth, before and after (Table 2 and Figure 1)."""
    rows, value = [], each.value
    for (lists, scores_QK), (rule, qrels) in itertools.product(zip(each.lists, each.scores), value.qrels.items()):
        judged = list(value.queries), value.candidates, qrels, measures
        before, after = (depths.by_depth(new_QK, lists.rows, wanted, *judged) for new_QK in (lists.scores, scores_QK))
        for depth in wanted:
            row: dict[str, Any] = {"set": value.name, "split": rule, "system": lists.system, "depth": depth}
            row["recall"] = round(after[depth][f"R@{depth}"], 6)
            for name, of in (("before", before), ("after", after)):
                row[name] = {measure: round(of[depth][measure], 6) for measure in measures}
            rows.append(row)
    return rows


STAGES.register(
    "rerank",
    Stage(
        rerank,
        check_config=(of_fields(check_settings, "rerank"),),
        check=(check, devices.check),
        fields=("rerank", "evaluate.metrics", "model.dtype", "encode.shard_size"),
        also_reads=("encode.batch_tokens",),
        reads=of_fields(ranked_lists.reads_runs, "rerank.model"),
        files=inputs,
        fetch=lambda run: RERANKERS.fetch(run, run.config.rerank.model, _RERANKER),
        writes=(FOLDER,),
        on_every_host=True,
    ),
)
