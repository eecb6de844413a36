"""Fused systems: one ranked list out of those of two or more systems of a set."""

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict

from retrieval.common.errors import UserError, unknown_name
from retrieval.runs.pipeline.records import details
from retrieval.runs.pipeline.run import Run
from retrieval.runs.ranking.ranked_lists import Ranking
from retrieval.search import fusion
from retrieval.search.side_by_side import DENSE, HYBRID

_log = logging.getLogger(__name__)

WEIGHTS = tuple(step / 20 for step in range(21))
FEWEST = 10  # validation questions by which a weight is chosen
CHOSEN_BY = "weights chosen by"  # what is told of a hybrid

INTERLEAVE, RECIPROCAL_RANK, WEIGHTED_SUM = METHODS = ("interleave", "reciprocal_rank", "weighted_sum")


class Fusing(NamedTuple):
    """What is to be fused, and how: the fields of `config.fuse`."""

    systems: tuple[str, ...]
    pairs: bool
    methods: tuple[str, ...]


def fusing(fields: ConfigDict) -> Fusing:
    """What the fields of `config.fuse` say.

    Raises:
      UserError: a system is named twice.
    """
    fuse = Fusing(**{name: fields[name] for name in Fusing._fields})
    if len(set(fuse.systems)) != len(fuse.systems):
        raise UserError(f"config.fuse.systems={tuple(fuse.systems)}: one is there twice; name each once")
    return fuse


def fuse(
    name: str, lists: Sequence[Ranking], fusing: Fusing, golds: Sequence[Sequence[int]], depth: int
) -> Iterator[Ranking]:
    """Fused lists of `depth` results.

    Args:
      name: of the set.
      lists: of all systems of the set.
      golds: rows of the right candidates of each validation question; may be empty.
    """
    by_name = {ranking.system: ranking for ranking in lists}
    for system in fusing.systems:
        if system not in by_name:
            raise unknown_name(f"system of set '{name}' in config.fuse.systems", system, by_name)
    for method in fusing.methods if fusing.systems else ():
        # Only what starts matters, and it does where lists interleave alone.
        pairs = itertools.permutations if method == INTERLEAVE else itertools.combinations
        for group in pairs(fusing.systems, 2) if fusing.pairs else [fusing.systems]:
            parts = [by_name[system] for system in group]
            weights, validation = _weights(parts, golds, depth) if method == WEIGHTED_SUM else ((), 0)
            _log.info("set %s: %s of %s", name, method, ", ".join(group))
            began = time.perf_counter()
            fused = _fused(method, [part.lists for part in parts], weights, depth)
            taken = [time.perf_counter() - began, *(part.seconds for part in parts)]
            seconds = None if None in taken else sum(filter(None, taken))
            step = next((part.step for part in parts if part.step is not None), None)
            about = {"step": step, "weights": weights, "validation": validation, "parts": tuple(group)}
            yield Ranking(f"{method}({'+'.join(group)})", *fused, seconds, **about)


def _fused(method: str, lists: Sequence[fusion.Run], weights: Sequence[float], depth: int) -> fusion.Run:
    if method == WEIGHTED_SUM:
        return fusion.weighted_sum(lists, weights, depth)
    return (fusion.interleave if method == INTERLEAVE else fusion.reciprocal_rank)(lists, depth)


class Weight(NamedTuple):
    """The weight of the dense list in a hybrid, where no validation questions of the run choose it, and who did."""

    dense: float = fusion.DENSE_WEIGHT
    chosen_by: str = "config.fuse.dense_weight"


USUAL = Weight()


def best_system(weight: Weight, words: str) -> str:
    """The system that validation questions found best, '' where none were asked; `words` is that without towers."""
    if weight.chosen_by == USUAL.chosen_by:
        return ""
    return words if weight.dense == 0 else DENSE if weight.dense == 1 else HYBRID


def weight_of(run: Run, runs: Iterable[Run]) -> Weight:
    """The weight that one of `runs` chose on validation questions for the model of `run`; else that of the field.

    A field that has another value than usual counts in any case.
    """
    model, field = run.owner("train").folder, Weight(run.config.fuse.dense_weight)
    for evaluated in (each.owner("evaluate") for each in runs) if field == USUAL else ():
        notes = details(evaluated, "evaluate") if evaluated.owner("train").folder == model else None
        for name, note in (notes or {}).items():
            if name.endswith(f", {HYBRID}") and note.get("validation"):
                return Weight(note["weights"][1], f"{note.get(CHOSEN_BY, 'questions')} of {evaluated.folder.name}")
    return field


def hybrid(
    words: Ranking, dense: Ranking, golds: Sequence[Sequence[int]], depth: int, weight: Weight = USUAL
) -> Ranking:
    """The lists of an index of words and of exact search as one.

    Args:
      golds: as of `fuse`.
      weight: where no validation questions choose it.
    """
    validation = 0
    if len(golds) >= FEWEST and words.on_validation and dense.on_validation:
        by_words, by_dense = words.on_validation(), dense.on_validation()
        of_dense = best_weight(lambda weight: fusion.hybrid(by_words, by_dense, weight, depth)[1], golds)
        validation, weight = len(golds), Weight(of_dense, f"{len(golds)} validation questions")
    began = time.perf_counter()
    fused = fusion.hybrid(words.lists, dense.lists, weight.dense, words.rows.shape[1])
    seconds = (words.seconds or 0) + (dense.seconds or 0) + time.perf_counter() - began
    parts = words.system, dense.system
    weights, notes = (1 - weight.dense, weight.dense), {CHOSEN_BY: weight.chosen_by}
    return Ranking(HYBRID, *fused, seconds, weights=weights, validation=validation, parts=parts, notes=notes)


def _weights(parts: Sequence[Ranking], golds: Sequence[Sequence[int]], depth: int) -> tuple[tuple[float, ...], int]:
    """The weights of a sum, and how many validation questions chose them: two systems of this run can be weighed."""
    searches = [part.on_validation for part in parts if part.on_validation]
    if len(golds) < FEWEST or len(parts) != 2 or len(searches) != 2:
        return (1 / len(parts),) * len(parts), 0
    runs = [ask() for ask in searches]
    weight = best_weight(lambda weight: fusion.weighted_sum(runs, (1 - weight, weight), depth)[1], golds)
    return (1 - weight, weight), len(golds)


def best_weight(fused: Callable[[float], np.ndarray], golds: Sequence[Sequence[int]]) -> float:
    """The smallest weight whose mean reciprocal rank lies within a standard error of the best.

    That is the rule of Breiman et al. 1984: of a dozen questions the best weight itself would be chance. The test
    questions have no say in it.

    Args:
      fused: gives the rows [Q, K] of the fused lists by the weight of the second one.
      golds: rows of each question's right candidates.
    """

    def reciprocal_ranks(weight: float) -> np.ndarray:
        hits_QK = np.stack([np.isin(rows, gold) for rows, gold in zip(fused(weight), golds)])
        return np.where(hits_QK.any(axis=1), 1 / (1 + hits_QK.argmax(axis=1)), 0)

    ranks_WQ = np.stack([reciprocal_ranks(weight) for weight in WEIGHTS])
    losses_WQ = ranks_WQ[ranks_WQ.mean(axis=1).argmax()] - ranks_WQ
    errors_W = losses_WQ.std(axis=1, ddof=1) / np.sqrt(len(golds))
    return WEIGHTS[int(np.argmax(losses_WQ.mean(axis=1) <= errors_W))]
