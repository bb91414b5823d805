"""Figures of the server itself, for Prometheus; routes, not ids. Several workers' are added up, in files of a common folder."""

from __future__ import annotations

import os
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

SHARED = "PROMETHEUS_MULTIPROC_DIR"
"""The variable that names the folder; prometheus_client reads it when it is imported."""
SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2)


class Figures:
    """Requests by route and status, their duration, and how many questions were computed together."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        requests = Counter(
            "verfedgnn_requests", "Requests answered.", ["route", "status"], registry=self._registry
        )
        seconds = Histogram(
            "verfedgnn_request_seconds",
            "Time to an answer.",
            ["route"],
            buckets=SECONDS,
            registry=self._registry,
        )
        self._of = cache(lambda route, status: (requests.labels(route, str(status)), seconds.labels(route)))
        self._batch = Histogram(
            "verfedgnn_batch_questions",
            "Questions computed together.",
            buckets=(1, 2, 4, 8, 16, 32, 64),
            registry=self._registry,
        )

    def request(self, route: str, status: int, seconds: float) -> None:
        """One request is answered."""
        count, duration = self._of(route, status)
        count.inc()
        duration.observe(seconds)

    def batch(self, size: int) -> None:
        """One batch goes to be computed."""
        self._batch.observe(size)

    def text(self) -> tuple[str, bytes]:
        """Content type and text of /metrics."""
        registry = self._registry
        if SHARED in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return CONTENT_TYPE_PLAIN_0_0_4, generate_latest(registry)
