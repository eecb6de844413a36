"""The stage `rerank`: a reranker's scores of the first results of systems.

At each depth n the first n results of a run are put in the order of the scores, and the rest is dropped (Zhan et al.
2020, section 4.4). A pair is scored once, whatever the number of systems and depths that have it.
"""

import itertools
import logging
from collections.abc import Container, Iterator, Sequence
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
from retrieval.methods.reranker.trained import RERANKERS, Reranker
from retrieval.runs.pipeline.run import Run
from retrieval.runs.pipeline.stage import STAGES, Stage
from retrieval.runs.ranking import ranked_lists
from retrieval.runs.ranking.collection import set_names
from retrieval.runs.ranking.ranked_lists import Ranking, RunFile, others
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

    folder: Path
    value: Judged
    lists: list[Ranking]
    scores: list[np.ndarray]
    references: list[Ranking]
    seconds: float | None


def rerank(run: Run) -> dict[str, Any]:
    """Writes `reranked/`: runs by depth, `results.json`, `per_query/` and the scores of all pairs.

    Returns the tables of the report: metrics by depth, and consistency factors.
    """
    fields, folder = run.config.rerank, run.folder / FOLDER
    runs = _runs(run, fields)
    of_files = {file.system for file in ranked_lists.run_files(run.owner("evaluate").config.runs.files)}
    reranker = None if is_system(fields.model) else RERANKERS.open(run, fields.model, _RERANKER)
    reranked = [
        _rerank_set(fields, run.sets / name, of_set, of_files, reranker, folder / "scores" / name)
        for name, of_set in runs.items()
    ]
    return hosts.on_first(lambda: _finish(folder, reranked, fields, run.config.evaluate.metrics))


def check_settings(fields: ConfigDict) -> None:
    """Checks systems, depths and metrics, which the group `rerank` of the config has.

    Raises:
      UserError: there is no system or no depth, or a metric is unknown.
    """
    for name in ("systems", "depths"):
        if not fields[name]:
            raise UserError(f"config.rerank.{name}=() reranks nothing: name one or more")
    if by_answers := metrics.by_kind(fields.measures)[1]:
        raise UserError(
            f"config.rerank.measures: {by_answers[0]} looks for answers, not judgements: take another metric"
        )


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
    """Of every set that can be reranked: the system -> its run.

    It has a run of a system which is to be reranked, and one of the system whose ranks count.

    Raises:
      UserError: no set has a run of a system, or of both.
    """
    wanted = {fields.model: "rerank.model"} if is_system(fields.model) else {}
    wanted |= dict.fromkeys(fields.trained_on, "rerank.trained_on") | dict.fromkeys(fields.systems, "rerank.systems")
    runs = ranked_lists.evaluated_runs(run, set_names(run.sets), wanted)
    runs = {name: of_set for name, of_set in runs.items() if any(system in of_set for system in fields.systems)}
    without = [name for name, of_set in runs.items() if is_system(fields.model) and fields.model not in of_set]
    if len(without) == len(runs):
        raise UserError(
            f"config.rerank.model={fields.model}: no set has runs of it and of config.rerank.systems; name others"
        )
    for name in without:
        _log.warning("set %s: no run of config.rerank.model=%s, so it is not reranked", name, fields.model)
    return {name: of_set for name, of_set in runs.items() if name not in without}


def _rerank_set(
    fields: ConfigDict,
    folder: Path,
    runs: dict[str, RunFile],
    of_files: Container[str],
    reranker: Reranker | None,
    store: Path,
) -> Reranked:
    """The new scores of a set.

    Args:
      folder: of the set.
      of_files: systems whose runs come from outside.
      reranker: None where another run has the order.
      store: where the scores of the set lie.
    """
    # Runs that `evaluate` has written: where they name more than the set has, that was allowed there.
    value, lists = ranked_lists.read([*runs.values()], beir.read_judged(folder))
    by_name, deepest = {each.system: each for each in lists}, max(fields.depths)
    systems = [system for system in fields.systems if system in by_name]
    first = [_first(by_name[system], value, deepest, system in of_files) for system in systems]
    references = [by_name[system] for system in fields.trained_on if system in by_name]
    if reranker is None:
        scores, seconds = _by_ranks(by_name[fields.model], value.name, first), None
    else:
        scores, seconds = _by_model(folder / "corpus.jsonl", store, value, reranker, first)
    return Reranked(folder, value, first, scores, references, seconds)


def _first(lists: Ranking, value: Judged, depth: int, is_of_file: bool) -> Ranking:
    """The first results of a system, without the query itself."""
    # What this project searched has fewer where there is no more to find; of a file nobody knows.
    if is_of_file and (most := lists.rows.shape[1]) < depth:
        raise UserError(
            f"config.rerank.depths: the run of '{lists.system}' for the set '{value.name}' has {most} results at most, "
            f"not {depth}: take smaller depths, or a longer run"
        )
    scores_QK, rows_QK = others(lists.lists, value, depth)
    more = ((0, 0), (0, depth - rows_QK.shape[1]))
    scores_QK, rows_QK = np.pad(scores_QK, more, constant_values=-np.inf), np.pad(rows_QK, more, constant_values=-1)
    return lists._replace(scores=scores_QK, rows=rows_QK)


def _by_ranks(other: Ranking, name: str, lists: Sequence[Ranking]) -> list[np.ndarray]:
    """Minus the places that another system gave; what it did not give comes last and keeps its order.

    Its scores may be equal, or closer than float32 can tell; its ranks are not.
    """
    scores, missing = [], 0
    for each in lists:
        scores_QK = np.full(each.rows.shape, -np.inf, np.float32)
        for number, rows in enumerate(each.rows.tolist()):
            places = {row: place for place, row in enumerate(other.rows[number].tolist(), 1) if row >= 0}
            behind = range(other.rows.shape[1] + 1, other.rows.shape[1] + len(rows) + 1)
            scores_QK[number] = [-places.get(row, place) for row, place in zip(rows, behind)]
            missing += sum(row >= 0 and row not in places for row in rows)
        scores.append(scores_QK)
    if missing:
        _log.warning("set %s: %d pairs are not in the run of config.rerank.model, and come last", name, missing)
    return scores


def _by_model(
    corpus: Path, store: Path, value: Judged, reranker: Reranker, lists: Sequence[Ranking]
) -> tuple[list[np.ndarray], float | None]:
    """A model's scores of all lists, and the seconds that a pair takes, as `Reranker.score_all` has them."""
    N = len(value.candidates)
    keys_P = np.unique(np.concatenate([_keys(each.rows, N) for each in lists]))
    with CandidateTexts(corpus) as texts:
        ranked_lists.check_texts(texts, value, (keys_P % N).tolist())
        queries = list(value.queries.values())
        pairs = lambda: (divmod(int(key), N) for key in keys_P)  # noqa: E731 (begun anew by each call)
        values_P, seconds = reranker.score_all(store, queries, pairs, len(keys_P), texts.__getitem__)
    scores = []
    for each in lists:
        scores_QK = np.full(each.rows.shape, -np.inf, np.float32)
        scores_QK[each.rows >= 0] = values_P[np.searchsorted(keys_P, _keys(each.rows, N))]
        scores.append(scores_QK)
    return scores, seconds


def _keys(rows_QK: np.ndarray, candidates: int) -> np.ndarray:
    """A number for every pair of a query and a candidate in some lists, in their order."""
    keys_QK = np.arange(len(rows_QK), dtype=np.int64)[:, None] * candidates + rows_QK
    return keys_QK[rows_QK >= 0]


def _finish(
    folder: Path, reranked: Sequence[Reranked], fields: ConfigDict, names: Sequence[str]
) -> dict[str, list[dict[str, Any]]]:
    """Writes runs and metrics, which have names; returns the tables."""
    rows, table, consistency = [], [], []
    for each in reranked:
        rankings = [ranking for depth in fields.depths for ranking in _rankings(each, depth)]
        for ranking in rankings:
            ranked_lists.write_run(folder / "runs" / each.value.name, each.value, ranking)
        scores = evaluate.measure(each.folder, each.value, rankings, names, max(fields.depths))
        rows += evaluate.write_values(folder, each.value.name, scores)
        table += _by_depth(each, fields.depths, fields.measures)
        consistency += _consistency(each, fields.depths, fields.trained_depth)
    files.write_json(folder / result_files.NAME, rows)
    return {"depths": table, "consistency": consistency}


def _rankings(each: Reranked, depth: int) -> Iterator[Ranking]:
    """Every system's list at a depth."""
    for lists, scores_QK in zip(each.lists, each.scores):
        scores_QD, rows_QD = depths.reranked(scores_QK, lists.rows, depth)
        seconds = each.seconds and each.seconds * int((rows_QD >= 0).sum())
        yield Ranking(f"{lists.system}+rerank@{depth}", scores_QD, rows_QD, seconds)


def _by_depth(each: Reranked, wanted: Sequence[int], measures: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Recall and metrics of every system at every depth, before and after (Table 2 and Figure 1)."""
    queries, value = list(each.value.queries), each.value
    for (lists, scores_QK), (rule, qrels) in itertools.product(zip(each.lists, each.scores), value.qrels.items()):
        before, after = (
            depths.by_depth(new_QK, lists.rows, wanted, queries, value.candidates, qrels, measures)
            for new_QK in (lists.scores, scores_QK)
        )
        for depth in wanted:
            row: dict[str, Any] = {"set": value.name, "split": rule, "system": lists.system, "depth": depth}
            row["recall"] = round(after[depth][f"R@{depth}"], 6)
            yield row | {
                name: {measure: round(of[depth][measure], 6) for measure in measures}
                for name, of in (("before", before), ("after", after))
            }


def _consistency(each: Reranked, wanted: Sequence[int], trained_depth: int) -> Iterator[dict[str, Any]]:
    """The share of each list that the reranker may have seen in training (equation 5, Figure 2)."""
    for reference, lists in itertools.product(each.references, each.lists):
        first_QM = reference.rows[:, :trained_depth]
        factors = depths.consistency_factor(lists.rows, first_QM, wanted)
        row = {"set": each.value.name, "system": lists.system, "trained on": reference.system}
        shares = {str(depth): round(factor, 6) for depth, factor in factors.items()}
        yield row | {"trained depth": first_QM.shape[1], "factors": shares}


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
