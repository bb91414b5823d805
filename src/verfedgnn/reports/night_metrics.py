"""The result of a night as metrics for Prometheus, in a file that node_exporter reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verfedgnn.core.errors import ConfigError
from verfedgnn.core.files import make_folder, writing


def write_textfile(path: Path, decision: Mapping[str, Any]) -> None:
    """Write the decision of `promote` to a file, atomically: result, accuracy of both runs, and drift of each party."""
    try:
        from prometheus_client import CollectorRegistry, Gauge, write_to_textfile
    except ModuleNotFoundError:
        raise ConfigError(
            "--textfile needs prometheus-client, which is not installed. Run: pip install 'verfedgnn[serve]'"
        ) from None
    registry = CollectorRegistry()

    def gauge(name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"verfedgnn_night_{name}", text, labels, registry=registry)

    gauge("promoted", "1 if tonight's run was promoted, 0 if the served one was kept.").set(
        decision["promoted"]
    )
    gauge("time_seconds", "Time of the decision, in seconds since 1970.").set_to_current_time()
    accuracy = gauge("accuracy", "RMSE or NDCG@20 on the test ratings of both runs.", "metric", "run")
    for metric, part in decision["figures"]["shared"].items():
        for run, key in (("champion", "before"), ("challenger", "after")):
            if part["overall"][key] is not None:
                accuracy.labels(metric, run).set(part["overall"][key])
    texts = {
        "rating_distance": "Share of ratings that differ in distribution from the champion's (total variation).",
        "unknown_users": "Share of users that the champion does not have.",
        "unknown_items": "Share of items that the champion does not have.",
    }
    drift = {name: gauge(f"drift_{name}", text, "party") for name, text in texts.items()}
    for party in decision["drift"]:
        for name, found in drift.items():
            if party[name] is not None:
                found.labels(party["name"]).set(party[name])
    with writing(path):
        make_folder(path.parent)
        write_to_textfile(str(path), registry)
