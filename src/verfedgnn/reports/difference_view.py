"""The differences of two runs as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from verfedgnn.evaluation.chance import format_gain
from verfedgnn.reports.phrases import format_metric

METRICS = {"rmse": "RMSE, lower is better", "ndcg@20": "NDCG@20, higher is better"}


class DifferenceTable(NamedTuple):
    """One table of the differences of two runs."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def difference_tables(found: Mapping[str, Any]) -> list[DifferenceTable]:
    """Return the tables of a difference: figures, data, recommendations and settings."""
    settings = [
        [row["setting"], *("-" if row[when] is None else str(row[when]) for when in ("before", "after"))]
        for row in found["configuration"]
    ]
    same = "" if settings else "Both runs have the same settings."
    return [
        *figure_tables(found["figures"], "Test ratings of both runs"),
        _data_table(found["data"]),
        _recommendation_table(found["recommendations"]),
        DifferenceTable("Settings that differ", ["setting", "before", "after"], settings, same),
    ]


def figure_tables(figures: Mapping[str, Any], cases: str) -> list[DifferenceTable]:
    """Return one table a metric: both runs, the gain with its interval and the verdict."""
    tables = []
    for metric, part in figures.items():
        named = list(part["parties"])
        if len(named) > 1:
            named.append({**part["overall"], "name": "overall"})
        rows = []
        for row in named:
            counts = [f"{row['cases']:,}", f"{row['users']:,}"]
            values = [format_metric(row["before"]), format_metric(row["after"])]
            rows.append([row["name"], *counts, *values, format_gain(row), row["better"]])
        header = ["party", "cases", "users", "before", "after", "gain", "better"]
        note = "gain: of the later run, with its 95 % interval, by a paired bootstrap over users."
        tables.append(DifferenceTable(f"{cases}: {METRICS[metric]}", header, rows, note))
    return tables


def _data_table(data: Mapping[str, Any]) -> DifferenceTable:
    kinds = ("ratings", "users", "items")
    changes = [(party["name"], what, party[what]) for party in data["parties"] for what in kinds]
    if len(data["parties"]) > 1:
        changes.append(("all", "users", data["users"]))
    counts = ["before", "after", "added", "removed", "changed"]
    rows = [
        [name, what, *(f"{change[count]:,}" if count in change else "-" for count in counts)]
        for name, what, change in changes
    ]
    changed = {what: data[f"parties_{what}"] for what in ("added", "removed")}
    notes = [f"Parties {what}: {', '.join(names)}." for what, names in changed.items() if names]
    return DifferenceTable("Data", ["party", "", *counts], rows, " ".join(notes))


def _recommendation_table(found: Mapping[str, Any]) -> DifferenceTable:
    rows = [
        [row["user"], f"{row['overlap']:.0%}", f"{row['ratings_added']:,}"] for row in found["most_affected"]
    ]
    note = "There is no user in both runs."
    if found["overlap"] is not None:
        note = (
            f"The {found['top']} best items of a user overlap by {found['overlap']:.1%} on average, and {found['unchanged']:.1%} of "
            f"the lists hold the same items. Compared: {found['users_compared']:,} of {found['users_in_both']:,} users in both runs, "
            "drawn at random. The table names the users whose lists changed most."
        )
    return DifferenceTable("Recommendations", ["user", "overlap", "ratings added"], rows, note)
