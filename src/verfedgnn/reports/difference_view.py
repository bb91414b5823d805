"""The differences of two runs as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from verfedgnn.evaluation.gain_text import format_gain
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
    return [
        *figure_tables(found["figures"], "Test ratings of both runs"),
        _data_table(found["data"]),
        _recommendation_table(found["recommendations"]),
        _setting_table(found["configuration"]),
    ]


def figure_tables(figures: Mapping[str, Any], cases: str) -> list[DifferenceTable]:
    """Return one table a metric: both runs, the gain with its interval and the verdict."""
    tables = []
    for metric, part in figures.items():
        rows = [(row["name"], row) for row in part["parties"]]
        if len(rows) > 1:
            rows.append(("overall", part["overall"]))
        tables.append(
            DifferenceTable(
                f"{cases}: {METRICS[metric]}",
                ["party", "cases", "users", "before", "after", "gain", "better"],
                [_figure_cells(name, row) for name, row in rows],
                "gain: of the later run, with its 95 % interval, by a paired bootstrap over users.",
            )
        )
    return tables


def _figure_cells(name: str, row: Mapping[str, Any]) -> list[str]:
    return [
        name,
        f"{row['cases']:,}",
        f"{row['users']:,}",
        format_metric(row["before"]),
        format_metric(row["after"]),
        format_gain(row),
        row["better"],
    ]


def _data_table(data: Mapping[str, Any]) -> DifferenceTable:
    rows = []
    for party in data["parties"]:
        for what in ("ratings", "users", "items"):
            rows.append([party["name"], what, *_change_cells(party[what])])
    if len(data["parties"]) > 1:
        rows.append(["all", "users", *_change_cells(data["users"])])
    notes = [
        f"Parties {what}: {', '.join(names)}."
        for what, names in (("added", data["parties_added"]), ("removed", data["parties_removed"]))
        if names
    ]
    header = ["party", "", "before", "after", "added", "removed", "changed"]
    return DifferenceTable("Data", header, rows, " ".join(notes))


def _change_cells(change: Mapping[str, int]) -> list[str]:
    names = ("before", "after", "added", "removed", "changed")
    return [f"{change[name]:,}" if name in change else "-" for name in names]


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


def _setting_table(found: Sequence[Mapping[str, Any]]) -> DifferenceTable:
    rows = [[row["setting"], _value(row["before"]), _value(row["after"])] for row in found]
    note = "" if rows else "Both runs have the same settings."
    return DifferenceTable("Settings that differ", ["setting", "before", "after"], rows, note)


def _value(value: Any) -> str:
    return "-" if value is None else str(value)
