"""Fused systems: one ranked list out of those of two or more systems of a set."""

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict

from retrieval.config.fields import NOT_NEGATIVE, SHARE, SWITCH, TEXTS, Field, Kind, declare
from retrieval.errors import UserError, unknown_name
from retrieval.search import fusion
from retrieval.stages.fused_weight import FEWEST, best_weight
from retrieval.stages.rankings import Ranking

_log = logging.getLogger(__name__)

INTERLEAVE, RECIPROCAL_RANK, WEIGHTED_SUM = METHODS = ("interleave", "reciprocal_rank", "weighted_sum")

_SYSTEMS = Kind(
    "a tuple of two or more names, such as \"('bm25', 'dense')\", or ()",
    lambda value: TEXTS.fits(value) and len(value) != 1 and not any("," in name for name in value),
)
_METHODS = Kind(
    f"a tuple of some of {', '.join(METHODS)}",
    lambda value: TEXTS.fits(value) and bool(value) and set(value) <= set(METHODS) and len(set(value)) == len(value),
)
_WEIGHTS = Kind(
    "a tuple of numbers of 0 or more, such as 0.3,0.7, or ()",
    lambda value: isinstance(value, tuple | list) and all(NOT_NEGATIVE.fits(weight) for weight in value),
)
declare(
    "fuse",
    systems=Field((), _SYSTEMS, "systems to fuse, as tables name them; where they interleave the first one starts"),
    pairs=Field(False, SWITCH, "whether every two of them are fused, in both orders, instead of all together"),
    methods=Field(METHODS, _METHODS, "interleave (RepBERT, equation 6), reciprocal_rank, weighted_sum (min-max)"),
    constant=Field(60.0, NOT_NEGATIVE, "constant of reciprocal_rank: how little the first ranks stand out"),
    weights=Field((), _WEIGHTS, "of weighted_sum, one a system; (): validation questions choose, or all count alike"),
    dense_weight=Field(
        fusion.DENSE_WEIGHT, SHARE, "weight of the dense list in the hybrid, where no validation questions choose it"
    ),
)


class Fusing(NamedTuple):
    """What is to be fused, and how: the fields of `config.fuse`."""

    systems: tuple[str, ...]
    pairs: bool
    methods: tuple[str, ...]
    constant: float
    weights: tuple[float, ...]


def fusing(fields: ConfigDict) -> Fusing:
    """What the fields of `config.fuse` say.

    Raises:
      UserError: a system is named twice, or the weights are not of the systems.
    """
    fuse = Fusing(**{name: fields[name] for name in Fusing._fields})
    if len(set(fuse.systems)) != len(fuse.systems):
        raise UserError(f"config.fuse.systems={tuple(fuse.systems)}: one is there twice; name each once")
    if fuse.weights and (fuse.pairs or len(fuse.weights) != len(fuse.systems) or not any(fuse.weights)):
        raise UserError(
            f"config.fuse.weights={tuple(fuse.weights)}: one weight for each of config.fuse.systems is needed, and one "
            "above 0; with config.fuse.pairs=True leave them out"
        )
    return fuse


def fuse(
    name: str, lists: Sequence[Ranking], fusing: Fusing, golds: Sequence[Sequence[int]], depth: int
) -> Iterator[Ranking]:
    """Fused lists of `depth` results.

    Args:
      name: of the set.
      lists: of all systems of the set.
      golds: rows of the right candidates of each validation question; may be empty.

    Raises:
      UserError: a system is none of the set.
    """
    by_name = {ranking.system: ranking for ranking in lists}
    for system in fusing.systems:
        if system not in by_name:
            raise unknown_name(f"system of set '{name}' in config.fuse.systems", system, by_name)
    for method in fusing.methods if fusing.systems else ():
        for group in _groups(fusing, method):
            parts = [by_name[system] for system in group]
            weights, validation = _weights(parts, fusing.weights, golds, depth) if method == WEIGHTED_SUM else ((), 0)
            _log.info("set %s: %s of %s", name, method, ", ".join(group))
            scores, rows = _fuser(method, fusing.constant, weights)([_run(part) for part in parts], depth)
            yield Ranking(
                f"{method}({'+'.join(group)})",
                scores,
                rows,
                step=next((part.step for part in parts if part.step is not None), None),
                weights=weights,
                validation=validation,
                parts=tuple(group),
            )


def _groups(fusing: Fusing, method: str) -> Iterator[tuple[str, ...]]:
    if not fusing.pairs:
        return iter([tuple(fusing.systems)])
    # Only what starts matters, and it does where lists interleave alone.
    return (itertools.permutations if method == INTERLEAVE else itertools.combinations)(fusing.systems, 2)


def _fuser(method: str, constant: float, weights: Sequence[float]) -> Callable[[Sequence[fusion.Run], int], fusion.Run]:
    return {
        INTERLEAVE: fusion.interleave,
        RECIPROCAL_RANK: lambda runs, depth: fusion.reciprocal_rank(runs, depth, constant),
        WEIGHTED_SUM: lambda runs, depth: fusion.weighted_sum(runs, weights, depth),
    }[method]


def _weights(
    parts: Sequence[Ranking], given: Sequence[float], golds: Sequence[Sequence[int]], depth: int
) -> tuple[tuple[float, ...], int]:
    """The weights of a sum, and how many validation questions chose them: two systems of this run can be weighed."""
    if given:
        return tuple(given), 0
    asked = [part.on_validation for part in parts if part.on_validation]
    if len(golds) < FEWEST or len(parts) != 2 or len(asked) != 2:
        return (1 / len(parts),) * len(parts), 0
    runs = [ask() for ask in asked]

    def fused(weight: float) -> np.ndarray:
        return fusion.weighted_sum(runs, (1 - weight, weight), depth)[1]

    weight = best_weight(fused, golds)
    return (1 - weight, weight), len(golds)


def _run(ranking: Ranking) -> fusion.Run:
    return ranking.scores, ranking.rows
