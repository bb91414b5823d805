"""Plots of lift and of a tuning study. They need matplotlib, which is in the extra `plot`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

WAYS = {"simple": "#9e9e9e", "alone": "#e07b39", "federated": "#2a6fb0", "pooled": "#5aa469"}
"""Colour of each way of `lift` in all plots."""
_METRICS = {"rmse": ("test RMSE", "means"), "ndcg@20": ("test NDCG@20", "popularity")}
"""Label of the axis, and the name of the simple model, by metric."""


def draw_lift(lift: dict[str, Any], path: Path) -> bool:
    """Write a plot of lift as PNG or SVG; return False if matplotlib is not installed."""
    figure = lift_figure(lift)
    if figure is not None:
        figure.savefig(path, dpi=120)
    return figure is not None


def lift_figure(lift: dict[str, Any]) -> Any:
    """Return a plot of lift as a matplotlib figure; None if matplotlib is not installed.

    Ratings and lists have a row each: accuracy by number of own ratings, gain by party, and gain by party for newcomers.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    halves = [lift, lift["lists"]] if "lists" in lift else [lift]
    figure = Figure(figsize=(14, 4 * len(halves)), layout="constrained")
    grid = figure.subplots(len(halves), 3, width_ratios=[3, 2, 2], squeeze=False)
    for row, part in zip(grid, halves, strict=True):
        _draw_activity(row[0], part)
        _draw_gains(row[1], part, f"By party, over {part['reference']}")
        _draw_gains(row[2], part["newcomers"], f"Newcomers, over {_METRICS[part['metric']][1]}")
        for axes in row:
            axes.spines[["top", "right"]].set_visible(False)
    return figure


def _draw_activity(axes: Any, part: Mapping[str, Any]) -> None:
    """Plot the accuracy of each way by a user's number of training ratings at the party."""
    label, simple = _METRICS[part["metric"]]
    rows = part["by_own_ratings"]
    for way, colour in WAYS.items():
        name = simple if way == "simple" else way
        axes.plot(range(len(rows)), [row[way] for row in rows], "o-", color=colour, label=name)
    axes.set_xticks(range(len(rows)), [f"{band(row)}\n({row['users']:,})" for row in rows])
    axes.set(xlabel="a user's training ratings at the party (users)", ylabel=label, title="By own ratings")
    axes.legend(frameon=False)


def _draw_gains(axes: Any, part: Mapping[str, Any], title: str) -> None:
    """Plot the gain of each party with its interval."""
    found = gains_in_percent(part)
    places = range(len(found))
    values = [value for _, value, _, _ in found]
    errors = [
        [value - low for _, value, low, _ in found],
        [high - value for _, value, _, high in found],
    ]
    axes.errorbar(values, places, xerr=errors, fmt="o", color=WAYS["federated"], capsize=3)
    axes.axvline(0, color="#444444", linewidth=0.8)
    axes.set_yticks(places, [name for name, *_ in found])
    axes.margins(y=0.2)
    axes.invert_yaxis()
    axes.set(xlabel="% gained by joining (95 % interval)", title=title)


def gains_in_percent(part: Mapping[str, Any]) -> list[tuple[str, float, float, float]]:
    """Return the name, gain and both ends of the interval of each party, in per cent of the reference."""
    found = []
    for row in part["parties"]:
        reference = row[part["reference"]]
        if row["gain"] is not None and reference:
            value, low, high = (100 * row["gain"][key] / reference for key in ("value", "low", "high"))
            found.append((row["name"], value, low, high))
    return found


def draw_study(errors: list[float | None], path: Path) -> bool:
    """Plot a study's trials and the best so far to `path`; return False if matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    known = [(number, error) for number, error in enumerate(errors, 1) if error is not None]
    axes.plot(
        [number for number, _ in known],
        [error for _, error in known],
        "o",
        color=WAYS["simple"],
        label="trial",
    )
    best = [
        (number, min(error for _, error in known[: place + 1])) for place, (number, _) in enumerate(known)
    ]
    axes.step(
        [number for number, _ in best],
        [error for _, error in best],
        where="post",
        color=WAYS["federated"],
        label="best so far",
    )
    axes.set(
        xlabel="trial",
        ylabel="validation error",
        title=f"{len(errors)} trials, {len(errors) - len(known)} given up early",
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120)
    return True


def band(row: Mapping[str, Any]) -> str:
    """Format a range of numbers of ratings, such as `3-5`."""
    low, high = row["from"], row["to"]
    return f"{low}" if low == high else f"{low}+" if high is None else f"{low}-{high}"
