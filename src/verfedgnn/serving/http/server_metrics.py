"""Metrics of the server for Prometheus, by route and without ids; several workers share theirs through files in one folder."""

from __future__ import annotations

import os
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

SHARED_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""Environment variable that names the shared folder; prometheus_client reads it when it is imported."""
BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2)
"""Upper bounds of the histogram of response times, in seconds."""


class ServerMetrics:
    """Counts of requests by route and status, response times, and batch sizes."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        requests = Counter(
            "verfedgnn_requests", "Requests answered.", ["route", "status"], registry=self._registry
        )
        seconds = Histogram(
            "verfedgnn_request_seconds",
            "Response time in seconds.",
            ["route"],
            buckets=BUCKETS,
            registry=self._registry,
        )
        self._find = cache(lambda route, status: (requests.labels(route, str(status)), seconds.labels(route)))
        self._batch = Histogram(
            "verfedgnn_batch_questions",
            "Queries scored together.",
            buckets=(1, 2, 4, 8, 16, 32, 64),
            registry=self._registry,
        )

        # Workers do not know each other's items, so the largest number is shown: a lower bound.
        self._items = Gauge(
            "verfedgnn_catalogue_items",
            "Items that can be recommended.",
            ["party"],
            registry=self._registry,
            multiprocess_mode="max",
        )
        self._served = Gauge(
            "verfedgnn_served_items",
            "Distinct items recommended since the run is served, by the worker with the most.",
            ["party"],
            registry=self._registry,
            multiprocess_mode="max",
        )

    def set_items(self, party: str, count: int) -> None:
        """Begin with a new catalogue, of which nothing has been recommended."""
        self._items.labels(party).set(count)
        self._served.labels(party).set(0)

    def count_served_item(self, party: str) -> None:
        """Count an item that is recommended for the first time."""
        self._served.labels(party).inc()

    def count_request(self, route: str, status: int, seconds: float) -> None:
        """Count one answered request."""
        counter, histogram = self._find(route, status)
        counter.inc()
        histogram.observe(seconds)

    def count_batch(self, size: int) -> None:
        """Count one batch of `size` queries."""
        self._batch.observe(size)

    def render(self) -> tuple[str, bytes]:
        """Return the content type and the body of /metrics."""
        registry = self._registry
        if SHARED_FOLDER in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return CONTENT_TYPE_PLAIN_0_0_4, generate_latest(registry)
