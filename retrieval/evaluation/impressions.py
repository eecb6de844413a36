"""Metrics of MIND (Wu et al. 2020): how well the news on a page are ranked, for each impression.

They are those of the official evaluation, which sees ranks alone: 1, 2, 3 ... in the order of a prediction file.
"""

from collections.abc import Mapping, Sequence

import numpy as np

METRICS = ("AUC", "MRR", "nDCG@5", "nDCG@10")


def ranks(scores_N: np.ndarray) -> np.ndarray:
    """The rank of each of the news [N], from 1 on; equal scores keep the order of the page."""
    order_N = np.argsort(-scores_N, kind="stable")
    ranks_N = np.empty(len(order_N), np.int64)
    ranks_N[order_N] = np.arange(1, len(order_N) + 1)
    return ranks_N


def of_impression(ranks_N: np.ndarray, clicked_N: np.ndarray) -> dict[str, float]:
    """The metrics of an impression.

    MRR is the mean of 1 / rank over all news that were clicked, not of the first alone.

    Args:
      clicked_N: bool; some are True and some are not.
    """
    clicked_ranks, others = np.sort(ranks_N[clicked_N]), ranks_N[~clicked_N]
    gains = 1 / np.log2(1 + np.arange(1, len(clicked_ranks) + 1))
    before = (clicked_ranks[:, None] < others).sum()
    return {
        "AUC": before / (len(clicked_ranks) * len(others)),
        "MRR": (1 / clicked_ranks).mean(),
        **{f"nDCG@{k}": (1 / np.log2(1 + clicked_ranks[clicked_ranks <= k])).sum() / gains[:k].sum() for k in (5, 10)},
    }


def mean_with_interval(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean, and half the width of its 95 % interval (normal, over impressions), which one value has not."""
    values_I = np.asarray(values, float)
    if len(values_I) == 1:
        return float(values_I[0]), None
    return float(values_I.mean()), float(1.96 * values_I.std(ddof=1) / np.sqrt(len(values_I)))


def prediction_line(id: str, ranks_N: np.ndarray) -> str:
    """A line of the official prediction file."""
    return f"{id} [{','.join(map(str, ranks_N))}]"


def table(per_impression: Sequence[Mapping[str, float]]) -> dict[str, tuple[float, float | None]]:
    """Metric -> mean and interval over impressions."""
    return {name: mean_with_interval([metrics[name] for metrics in per_impression]) for name in METRICS}
