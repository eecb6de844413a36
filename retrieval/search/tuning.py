"""How much of an approximate index to search: the cheapest setting that reaches a recall on a sample of queries.

Settings are compared by what a query has to read, not by a clock, so the choice is the same on a busy machine.
"""

import bisect
import functools
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from retrieval.search.exact import ExactIndex, Rows, matching_queries

_log = logging.getLogger(__name__)

# With fewer queries than this, the recall that was measured says little about the next query's.
_FEWEST = 100


class Setting(NamedTuple):
    """Partitions that a query looks into, and candidates of these that get their exact score."""

    leaves: int
    reordered: int


class Choice(NamedTuple):
    """A setting, its recall on the sample, and whether that is enough."""

    setting: Setting
    recall: float
    enough: bool


class Sample(NamedTuple):
    """Queries [S, E], what exact search finds for them [S, K], and their own rows [S] (-1: it is no candidate)."""

    queries_SE: np.ndarray
    exact_SK: np.ndarray
    own_S: np.ndarray

    @property
    def weights(self) -> np.ndarray:
        """The share of the whole's recall that each query has, 1 for the largest.

        A shard of an index may have one of a query's exact results, or all. It is right as often as the merged lists
        need where it finds enough of all those results together.
        """
        counts_S = (self.exact_SK >= 0).sum(axis=1)
        return counts_S / counts_S.max()

    def recalls(self, search: Callable[[np.ndarray, int], tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
        """The share [S] of the exact results that `search` finds; a query that is a candidate does not find itself."""
        k = self.exact_SK.shape[1]
        _, rows_SX = search(self.queries_SE, k + int((self.own_S >= 0).any()))
        return recalls(self.exact_SK, _without(self.own_S, rows_SX, k))


def fewest(count: int) -> int:
    """How many queries say enough, where so many are asked for."""
    return min(count, _FEWEST)


def draw(embeddings_NE: Rows, queries_QE: np.ndarray, count: int, k: int, exact: ExactIndex | None = None) -> Sample:
    """`count` (1 or more) of the queries, always the same ones, and their exact results.

    Of fewer than a hundred queries nothing could be learnt. Candidates serve in their place: they are nearer to each
    other than to a query, so what suffices for them may not for queries.

    Args:
      exact: exact search over the embeddings, where there is one already.

    Raises:
      UserError: the queries have another size than the candidates, or one holds NaN.
    """
    generator = np.random.default_rng(0)
    if len(queries_QE) >= fewest(count):
        queries_QE = matching_queries(queries_QE, embeddings_NE.shape[1])
        chosen_S = _choose(generator, len(queries_QE), count)
        queries_SE, own_S = queries_QE[chosen_S], np.full(len(chosen_S), -1)
    else:
        _log.warning("%d queries are too few to tune an index for: candidates serve as queries", len(queries_QE))
        own_S = _choose(generator, len(embeddings_NE), count)
        queries_SE = np.concatenate([embeddings_NE[row : row + 1] for row in own_S])
    k = min(k, len(embeddings_NE) - 1)
    _, rows_SX = (exact or ExactIndex(embeddings_NE)).search(queries_SE, k + 1)
    return Sample(queries_SE, _without(own_S, rows_SX, k), own_S)


def choose(
    measure: Callable[[Setting], np.ndarray],
    leaves: Sequence[int],
    depths: Sequence[int],
    cost: Callable[[Setting], float],
    target: float,
    weights_S: np.ndarray | None = None,
) -> Choice:
    """The cheapest setting whose (weighted) mean recall lies two standard errors above the target, or else the dearest.

    Args:
      measure: the recall of every query of a sample.
      leaves, depths: numbers of partitions and of candidates to choose from, ascending; recall grows with the first, so
        for every depth the least number that is enough is found by bisection.
      cost: what a setting costs, ascending in both.
      weights_S: of the queries, in place of equal ones.
    """

    @functools.cache
    def measured(setting: Setting) -> Choice:
        recalls_S = measure(setting)
        recall, error = _mean(recalls_S, np.ones(len(recalls_S)) if weights_S is None else weights_S)
        return Choice(setting, recall, recall - 2 * error >= target)

    best = None
    for depth in depths:
        settings = [Setting(number, depth) for number in leaves]
        cheaper = [setting for setting in settings if best is None or cost(setting) < cost(best)]
        place = bisect.bisect_left(cheaper, True, key=lambda setting: measured(setting).enough)
        if place < len(cheaper):
            best = cheaper[place]
    return measured(best or Setting(leaves[-1], depths[-1]))


def recalls(exact_QK: np.ndarray, approximate_QK: np.ndarray) -> np.ndarray:
    """The share [Q] of each query's exact results (rows, -1 where there is none) that the approximate ones hold."""
    if len(exact_QK) != len(approximate_QK):
        raise ValueError(f"{len(exact_QK)} exact lists and {len(approximate_QK)} approximate ones")
    return np.array([np.isin(exact[exact >= 0], rows).mean() for exact, rows in zip(exact_QK, approximate_QK)])


def _mean(values_S: np.ndarray, weights_S: np.ndarray) -> tuple[float, float]:
    """A weighted mean and its standard error (of a ratio: Cochran 1977, Sampling Techniques, section 6.3)."""
    mean = (values_S * weights_S).sum() / weights_S.sum()
    deviations_S = (values_S - mean) * weights_S / weights_S.mean()
    return float(mean), float(np.sqrt((deviations_S**2).mean()) / np.sqrt(len(values_S)))


def _choose(generator: np.random.Generator, number: int, count: int) -> np.ndarray:
    return np.sort(generator.choice(number, min(count, number), replace=False))


def _without(own_S: np.ndarray, rows_SX: np.ndarray, k: int) -> np.ndarray:
    """The first `k` rows of each list, the query's own left out."""
    order_SX = np.argsort(rows_SX == own_S[:, None], axis=1, kind="stable")
    return np.take_along_axis(rows_SX, order_SX, axis=1)[:, :k]
