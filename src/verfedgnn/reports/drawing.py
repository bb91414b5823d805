"""Charts as SVG text, drawn by matplotlib, which is in the extra `plot`."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

ATTACK_COLOUR = "#d1603d"
GUESS_COLOUR = "#9e9e9e"
POINT_COLOUR = "#2a6fb0"
CURVE_COLOURS = ("#2a6fb0", "#d1603d", "#3b8f5a", "#8a5fb0", "#b08a2a", "#5b6675", "#c0437f")

Curves = Mapping[str, tuple[Sequence[float], Sequence[float]]]
"""The x and y values of each curve, by its name."""


def make_figure(width: float, height: float) -> Any:
    """Return an empty figure, or None if matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    return Figure(figsize=(width, height), layout="constrained")


def render_svg(figure: Any) -> str:
    """Return a figure as SVG text; equal figures give equal text."""
    import matplotlib as mpl

    text = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "verfedgnn"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def draw_attacks(
    names: Sequence[str], found: Sequence[float], guess: Sequence[float], axis: str
) -> str | None:
    """Draw the result of each attack beside that of a guess, as pairs of horizontal bars."""
    figure = make_figure(8, 0.8 + 0.55 * len(names))
    if figure is None:
        return None
    axes = figure.subplots()
    places = range(len(names))
    axes.barh([p - 0.19 for p in places], found, 0.36, color=ATTACK_COLOUR, label="attack")
    axes.barh([p + 0.19 for p in places], guess, 0.36, color=GUESS_COLOUR, label="guess")
    for place, pair in enumerate(zip(found, guess, strict=True)):
        for value, shift in zip(pair, (-0.19, 0.19), strict=True):
            axes.text(value + 0.01, place + shift, f"{value:.2f}", va="center", fontsize=9)
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    axes.set(xlabel=axis, xlim=(0, 1.08))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    return render_svg(figure)


def draw_tradeoff(
    names: Sequence[str], learnt: Sequence[float], cost: Sequence[float], axes_names: tuple[str, str]
) -> str | None:
    """Draw named points: what an attacker learns (x) against what preventing it costs (y)."""
    figure = make_figure(8, 4)
    if figure is None:
        return None
    axes = figure.subplots()
    axes.axvline(0, color=GUESS_COLOUR, linewidth=0.8)
    axes.axhline(0, color=GUESS_COLOUR, linewidth=0.8)
    axes.plot(learnt, cost, "o", color=POINT_COLOUR, ms=8)
    for number, (name, x, y) in enumerate(zip(names, learnt, cost, strict=True)):
        axes.annotate(name, (x, y), xytext=(8, 6 if number % 2 else -14), textcoords="offset points")
    axes.margins(x=0.25, y=0.2)
    axes.set(xlabel=axes_names[0], ylabel=axes_names[1])
    axes.spines[["top", "right"]].set_visible(False)
    return render_svg(figure)


def draw_curves(
    curves: Curves,
    x_label: str,
    y_label: str,
    *,
    log: Sequence[str] = (),
    floor: float | None = None,
    dots: bool = True,
    marks: Mapping[str, float] | None = None,
) -> str | None:
    """Draw named curves; `log` names the logarithmic axes (x, y), and `marks` adds named horizontal lines."""
    figure = make_figure(8, 4.2)
    if figure is None or not curves:
        return None
    axes = figure.subplots()
    for place, (name, height) in enumerate((marks or {}).items()):
        axes.axhline(height, color=GUESS_COLOUR, linewidth=0.9, linestyle=(0, (4, 2 + 2 * place)))
        axes.annotate(
            name,
            (1, height),
            xycoords=("axes fraction", "data"),
            ha="right",
            va="bottom",
            fontsize=8,
            color=GUESS_COLOUR,
        )
    for number, (name, (x, y)) in enumerate(curves.items()):
        colour = CURVE_COLOURS[number % len(CURVE_COLOURS)]
        style = "o-" if number < len(CURVE_COLOURS) else "s--"
        axes.plot(x, y, style, color=colour, label=name, ms=4 if dots else 0, linewidth=1.4)
    axes.set(**{f"{axis}scale": "log" for axis in log})
    places = sorted({value for x, _ in curves.values() for value in x})
    if "x" in log and len(places) <= 8:  # few enough to label each
        axes.set_xticks(places, [f"{value:,.0f}" for value in places])
        axes.set_xticks([], minor=True)
    if floor is not None:
        axes.set_ylim(bottom=floor)
    axes.set(xlabel=x_label, ylabel=y_label)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    return render_svg(figure)
