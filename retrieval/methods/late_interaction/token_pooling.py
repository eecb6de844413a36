"""Fewer vectors of a document: the means of those that are alike (Clavié, Chaffin & Adams 2024)."""

import numpy as np


def pooled(vectors_TE: np.ndarray, factor: int) -> np.ndarray:
    """One vector for so many of a document, by Ward's clustering of cosine distances; the first stays as it is.

    Means are not of length 1.

    Args:
      vectors_TE: of length 1.
    """
    first_1E, others_TE = vectors_TE[:1], vectors_TE[1:]
    count = max(len(others_TE) // factor, 1)
    if count >= len(others_TE):
        return vectors_TE
    from scipy.cluster import hierarchy  # half a second, which others do without

    distances = 1 - (others_TE @ others_TE.T)[np.triu_indices(len(others_TE), k=1)]
    labels_T = hierarchy.fcluster(hierarchy.linkage(distances, method="ward"), t=count, criterion="maxclust")
    members_CT = np.unique(labels_T)[:, None] == labels_T
    means_CE = members_CT.astype(np.float32) @ others_TE / members_CT.sum(axis=1, keepdims=True)
    return np.concatenate([first_1E, means_CE.astype(vectors_TE.dtype)])
