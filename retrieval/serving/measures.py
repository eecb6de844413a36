"""What a server tells Prometheus."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
KIND = CONTENT_TYPE_LATEST


class Measures:
    """Counts of one server."""

    def __init__(self, passages: Callable[[], int], opened: Callable[[], float], waiting: Callable[[], int]):
        self._registry = registry = CollectorRegistry()
        self._requests = Counter("retrieval_requests", "Requests.", ["path", "status"], registry=registry)
        self._seconds = Histogram(
            "retrieval_request_seconds", "Time to answer.", ["path"], registry=registry, buckets=_SECONDS
        )
        name, told = "retrieval_connections_closed", "Connections that were closed before a request was there."
        self._closed = Counter(name, told, ["reason"], registry=registry)
        self._batches = Histogram(
            "retrieval_batch_queries", "Queries that were searched at once.", registry=registry, buckets=_SIZES
        )
        Gauge("retrieval_passages", "Passages that are searched.", registry=registry).set_function(passages)
        name, told = "retrieval_index_opened_timestamp_seconds", "When the index that answers was opened."
        Gauge(name, told, registry=registry).set_function(opened)
        Gauge("retrieval_waiting", "Requests that wait to be computed.", registry=registry).set_function(waiting)

    def answered(self, path: str, status: int, seconds: float) -> None:
        """A request has been answered."""
        self._requests.labels(path, status).inc()
        self._seconds.labels(path).observe(seconds)

    def closed(self, reason: str) -> None:
        """A connection has been closed before a request was there."""
        self._closed.labels(reason).inc()

    def batch(self, size: int) -> None:
        """So many queries were searched at once."""
        self._batches.observe(size)

    def text(self) -> bytes:
        """All counts, as Prometheus reads them."""
        return generate_latest(self._registry)
