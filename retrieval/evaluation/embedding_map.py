"""A map of embeddings: their first two principal components, as a figure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from retrieval.evaluation import display
from retrieval.libraries import figures


class Points(NamedTuple):
    """What a map shows.

    Attributes:
      queries_QE: embeddings of queries.
      answers_QE: of a right answer of each.
      others_NE: of further candidates.
    """

    queries_QE: np.ndarray
    answers_QE: np.ndarray
    others_NE: np.ndarray


def figure(title: str, points: Points) -> figures.Figure:
    """The map: a line goes from each query to its right answer. The axes say how much of the variance they show."""
    places_P2, shares = principal_components(np.concatenate(points))
    names = [f"component {number}: {100 * share:.0f} % of the variance" for number, share in enumerate(shares, 1)]
    canvas, axes = display.figure(title, *names, size=(7, 6))
    ends = np.cumsum([len(part) for part in points])
    queries_Q2, answers_Q2, others_N2 = np.split(places_P2, ends[:-1])
    axes.scatter(*others_N2.T, s=5, color="0.6", linewidths=0, label="candidates")
    if len(queries_Q2):
        axes.plot(*np.stack([queries_Q2, answers_Q2]).transpose(2, 0, 1), color="0.6", linewidth=0.4, alpha=0.6)
    axes.scatter(*answers_Q2.T, s=12, color="C1", marker="s", linewidths=0, label="right answers")
    axes.scatter(*queries_Q2.T, s=12, color="C0", linewidths=0, label="queries")
    display.legend(canvas)
    return canvas


def principal_components(embeddings_NE: np.ndarray) -> tuple[np.ndarray, tuple[float, float]]:
    """Places [N, 2] along the two directions in which embeddings vary most, and their shares of the variance.

    Of both signs of a direction it is the one in which the largest place is above 0.
    """
    centred_NE = embeddings_NE - embeddings_NE.mean(0, dtype=np.float64)
    left_NK, sizes_K, _ = np.linalg.svd(centred_NE, full_matrices=False)
    places_N2 = np.zeros((len(embeddings_NE), 2))
    places_N2[:, : len(sizes_K)] = (left_NK * sizes_K)[:, :2]
    places_N2 *= np.where(places_N2.max(0) >= -places_N2.min(0), 1, -1)
    total = max(float(np.square(sizes_K).sum()), np.finfo(float).tiny)
    first, second, *_ = [*np.square(sizes_K) / total, 0.0, 0.0]
    return places_N2, (float(first), float(second))
