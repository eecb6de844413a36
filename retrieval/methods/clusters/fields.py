"""The fields of clustered batches."""

from retrieval.config.fields import Field, declare, one_of, whole

_WITH = ("mine.refresh_makes", "clusters")
_ORDER = one_of("rule of batches", "retrieval.methods.clusters.cluster_order.ORDERS")

declare(
    "cluster",
    count=Field(10_000, whole(1), "clusters of paragraphs, before small ones are merged", goes_with=_WITH),
    iterations=Field(250, whole(1), "iterations of k-means at most; it ends where no paragraph moves", goes_with=_WITH),
    batches=Field("paper", _ORDER, "how batches are made of clusters: paper or authors", goes_with=_WITH),
)
