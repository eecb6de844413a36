"""Metrics of MIND (Wu et al. 2020): how well the news on a page are ranked, for each impression.

They are those of the official evaluation, which sees ranks alone: 1, 2, 3 ... in the order of a prediction file. Where
scores are equal, they are the expectation over all orders, for that of the page may tell what was clicked.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from retrieval.common.runtime import hashing

METRICS = ("AUC", "MRR", "nDCG@5", "nDCG@10")


def ranks(scores_N: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """The rank of each of the news [N], from 1 on; those of equal scores go by a hash of their names.

    Args:
      names: one for each of the news, such as its id and that of the page.
    """
    hashes_N = np.array([hashing.number(name) for name in names], np.uint64)
    ranks_N = np.empty(len(scores_N), np.int64)
    ranks_N[np.lexsort((hashes_N, -scores_N))] = np.arange(1, len(scores_N) + 1)
    return ranks_N


def of_impression(scores_N: np.ndarray, clicked_N: np.ndarray) -> dict[str, float]:
    """The metrics of an impression, the expectation over the orders of equal scores.

    MRR is the mean of 1 / rank over all news that were clicked, not of the first alone. What counts of an item depends
    on its own rank, and each place among those of its score is as likely: so the mean over these places is exact.

    Args:
      clicked_N: bool; some are True and some are not.
    """
    _, group_N, sizes_G = np.unique(-scores_N, return_inverse=True, return_counts=True)
    starts_G, places_N = np.cumsum(sizes_G) - sizes_G, np.arange(1, len(scores_N) + 1)
    clicked, others = scores_N[clicked_N], scores_N[~clicked_N]

    def of_clicked(weights_N: np.ndarray) -> np.ndarray:
        """What the clicked ones get of the weights of places, best first."""
        return (np.add.reduceat(weights_N, starts_G) / sizes_G)[group_N][clicked_N]

    gains_N = 1 / np.log2(1 + places_N)
    above = (clicked[:, None] > others).sum() + (clicked[:, None] == others).sum() / 2
    return {
        "AUC": above / (len(clicked) * len(others)),
        "MRR": of_clicked(1 / places_N).mean(),
        **{
            f"nDCG@{k}": of_clicked(np.where(places_N <= k, gains_N, 0)).sum() / gains_N[: min(k, len(clicked))].sum()
            for k in (5, 10)
        },
    }


def table(per_impression: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float | None]]:
    """Metric -> mean, and half the width of its 95 % interval (normal, over impressions), which one value has not."""
    rows: dict[str, dict[str, float | None]] = {}
    for name in METRICS:
        values_I = np.array([metrics[name] for metrics in per_impression])
        half = float(1.96 * values_I.std(ddof=1) / np.sqrt(len(values_I))) if len(values_I) > 1 else None
        rows[name] = {"value": float(values_I.mean()), "plus_minus": half}
    return rows
