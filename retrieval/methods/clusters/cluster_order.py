"""Batches whose examples are of one cluster of paragraphs: those of the paper, and those of its authors' code.

ProQA (Xiong et al. 2020, algorithm 1). Shape letters: N paragraphs, M pairs, each of a paragraph, K clusters, E
dimensions of a centroid, T batches of B pairs.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

PAPER, AUTHORS = "paper", "authors"


class Clustered(NamedTuple):
    """Pairs and the clusters of their paragraphs.

    Attributes:
      cluster_N: of each paragraph; every number from 0 on has one.
      paragraph_M: of each pair.
    """

    cluster_N: np.ndarray
    paragraph_M: np.ndarray


def merge_small(cluster_N: np.ndarray, centroid_KE: np.ndarray, least: int) -> np.ndarray:
    """Clusters of at least so many paragraphs each, or one of all: the smallest joins its neighbour, again and again.

    The centroid of two that join is the mean of theirs, by size. The numbers are those of the clusters that are left,
    in their order, from 0 on, [N].
    """
    size_K = np.bincount(cluster_N, minlength=len(centroid_KE)).astype(np.float64)
    centroid_KE, into_K = centroid_KE.astype(np.float64), np.arange(len(centroid_KE))
    is_left_K = size_K > 0
    while is_left_K.sum() > 1:
        smallest = np.where(is_left_K, size_K, np.inf).argmin()
        if size_K[smallest] >= least:
            break
        is_left_K[smallest] = False
        distance_K = np.square(centroid_KE - centroid_KE[smallest]).sum(axis=1)
        next_to = np.where(is_left_K, distance_K, np.inf).argmin()
        both = [smallest, next_to]
        centroid_KE[next_to] = np.average(centroid_KE[both], axis=0, weights=size_K[both])
        size_K[next_to] += size_K[smallest]
        into_K[into_K == smallest] = next_to
    return np.unique(into_K[cluster_N], return_inverse=True)[1].astype(np.int32)


def drawn(pairs: Clustered, batches: int, size: int, random: np.random.Generator) -> np.ndarray:
    """The paper's batches, [T, B]: a cluster is drawn, then paragraphs of it, then a pair of each.

    Clusters are drawn by how many pairs they have. No paragraph is in a batch twice, unless its cluster has fewer.
    """
    by_paragraph_M = np.argsort(pairs.paragraph_M, kind="stable")
    count_N = np.bincount(pairs.paragraph_M, minlength=len(pairs.cluster_N))
    first_N = np.cumsum(count_N) - count_N
    by_cluster_N, ends_K = np.argsort(pairs.cluster_N, kind="stable"), np.cumsum(np.bincount(pairs.cluster_N))
    members = np.split(by_cluster_N, ends_K[:-1].astype(int))
    weight_K = np.bincount(pairs.cluster_N, weights=count_N)
    clusters_T = random.choice(len(weight_K), size=batches, p=weight_K / weight_K.sum())
    rows_TB = np.empty((batches, size), np.int64)
    for batch, cluster in enumerate(clusters_T):
        own = members[cluster]
        chosen = random.choice(own, size=size, replace=len(own) < size)
        rows_TB[batch] = first_N[chosen] + random.integers(count_N[chosen])
    return by_paragraph_M[rows_TB]


def cut(pairs: Clustered, batches: int, size: int, random: np.random.Generator) -> np.ndarray:
    """The batches of the authors' code, [T, B]: all pairs in a row, cluster after cluster, cut every B.

    In a cluster the first pairs of all paragraphs come first, then the second ones: those of a paragraph seldom meet. A
    batch may have the end of a cluster and the beginning of the next. Batches are shuffled once, and after the last the
    first comes again. What is left behind the last whole batch is not drawn.
    """
    shuffled_M = random.permutation(len(pairs.paragraph_M))
    paragraph_M = pairs.paragraph_M[shuffled_M]
    by_paragraph_M = np.argsort(paragraph_M, kind="stable")
    count_N = np.bincount(paragraph_M, minlength=len(pairs.cluster_N))
    rank_M = np.empty(len(paragraph_M), np.int64)
    rank_M[by_paragraph_M] = np.arange(len(paragraph_M)) - np.repeat(np.cumsum(count_N) - count_N, count_N)
    in_row_M = shuffled_M[np.lexsort((rank_M, pairs.cluster_N[paragraph_M]))]
    whole = len(in_row_M) // size
    batches_TB = random.permutation(in_row_M[: whole * size].reshape(whole, size))
    return np.resize(batches_TB, (batches, size))


Order = Callable[[Clustered, int, int, np.random.Generator], np.ndarray]
ORDERS: dict[str, Order] = {PAPER: drawn, AUTHORS: cut}
