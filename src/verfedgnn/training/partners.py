"""Which partner is worth it: the gain of each party in a federation without each of the others.

Only for all parties on one machine. In a federation, sums with and without a party would reveal that party.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from verfedgnn.core.errors import ConfigError
from verfedgnn.evaluation.verdict import judged_tables
from verfedgnn.runs.run import Run
from verfedgnn.training.progress import Stop, Watcher, never
from verfedgnn.training.train import train


def compare_partners(run: Run, *, watch: Watcher | None = None, stop: Stop = never) -> list[dict[str, Any]]:
    """Train the judged federation again without each party in turn, on the same parts of the ratings.

    Return for each party, each partner and each table of the lift the gain with all partners and without this one, with the words.
    """
    judged = run.judged
    if len(judged.parties) < 3:
        raise ConfigError("--partners compares federations without one party; it needs three parties or more")
    if "lift" not in run.metrics:
        raise ConfigError("--partners needs a run with a gate; train with preset best")
    config = judged.config.with_values({"final": False})
    whole = run.metrics["lift"]
    rows = []
    for left_out, partner in enumerate(judged.parties):

        def named(event: Any, name: str = partner.name) -> None:
            if watch is not None:
                watch(replace(event, label=f"without {name}, {event.label}"))

        others = [p for p in range(len(judged.parties)) if p != left_out]
        parts = [judged.parts[p] for p in others]
        without = train([judged.parties[p] for p in others], config, parts=parts, watch=named, stop=stop)
        for (customers, table), (_, less) in zip(
            judged_tables(whole), judged_tables(without.metrics["lift"]), strict=True
        ):
            for row in less["parties"]:
                full = next(each for each in table["parties"] if each["name"] == row["name"])
                shown = {"with": _figures(full), "without": _figures(row)}
                rows.append(
                    {
                        "party": row["name"],
                        "partner": partner.name,
                        "customers": customers,
                        "metric": table["metric"],
                        **shown,
                    }
                )
    return rows


def _figures(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("users", "reference", "alone", "federated", "gain", "pays")}
