"""The items of a catalogue that have been recommended since the run is served, for /metrics."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from verfedgnn.serving.catalogue import Catalogue
from verfedgnn.serving.http.server_metrics import ServerMetrics


class ServedCoverage:
    """Counts the distinct items that a process has recommended, by party."""

    def __init__(self, catalogue: Catalogue, metrics: ServerMetrics) -> None:
        self._names = [party.name for party in catalogue.parties]
        self._seen = [np.zeros(party.table.n_items, bool) for party in catalogue.parties]
        self._metrics = metrics
        for name, seen in zip(self._names, self._seen, strict=True):
            metrics.set_items(name, len(seen))

    def note(self, best: Sequence[tuple[int, int, float]]) -> None:
        """Count the items of one answer, given as party, row and score, that are recommended for the first time."""
        for party, row, _ in best:
            if not self._seen[party][row]:
                self._seen[party][row] = True
                self._metrics.count_served_item(self._names[party])
