"""Pictures of figures; they need matplotlib, which is the extra `plot`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

WAYS = {"biases": "#9e9e9e", "alone": "#e07b39", "federated": "#2a6fb0", "pooled": "#5aa469"}
"""The ways of `lift`, each with its colour in every picture."""


def draw_lift(lift: dict[str, Any], path: Path) -> bool:
    """Lift by number of own ratings, and by party, as a PNG or SVG; False where matplotlib is not installed."""
    figure = lift_figure(lift)
    if figure is not None:
        figure.savefig(path, dpi=120)
    return figure is not None


def lift_figure(lift: dict[str, Any]) -> Any:
    """The same as a figure; None where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[3, 2])
    rows = lift["by_own_ratings"]
    for way, colour in WAYS.items():
        left.plot(range(len(rows)), [row[way] for row in rows], "o-", color=colour, label=way)
    names = [band(row) for row in rows]
    left.set_xticks(
        range(len(rows)), [f"{name}\n({row['ratings']:,})" for name, row in zip(names, rows, strict=True)]
    )
    left.set(
        xlabel="a user's training ratings at the party (test ratings)",
        ylabel="test RMSE",
        title="By own ratings",
    )
    left.legend(frameon=False)
    parties = [row for row in lift["parties"] if row["gain"] is not None]
    gains = [row["gain"] for row in parties]
    places = range(len(parties))
    errors = [[g["rmse"] - g["low"] for g in gains], [g["high"] - g["rmse"] for g in gains]]
    right.errorbar(
        [g["rmse"] for g in gains], places, xerr=errors, fmt="o", color=WAYS["federated"], capsize=3
    )
    right.axvline(0, color="#444444", linewidth=0.8)
    right.set_yticks(places, [row["name"] for row in parties])
    right.invert_yaxis()
    right.set(xlabel="RMSE gained by joining (95 % interval)", title="By party")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def draw_study(errors: list[float | None], path: Path) -> bool:
    """The validation error of every trial of a study and the best so far; False where matplotlib is not installed."""
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
        color=WAYS["biases"],
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


def band(row: dict[str, Any]) -> str:
    """A range of own ratings for people."""
    low, high = row["from"], row["to"]
    return f"{low}" if low == high else f"{low}+" if high is None else f"{low}-{high}"
