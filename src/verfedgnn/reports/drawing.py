"""Pictures as SVG text; they need matplotlib, which is the extra `plot`."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

INK = {"found": "#d1603d", "guess": "#9e9e9e", "mark": "#2a6fb0"}


def blank(width: float, height: float) -> Any:
    """An empty figure; None where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    return Figure(figsize=(width, height), layout="constrained")


def as_svg(figure: Any) -> str:
    """The same picture gives the same text."""
    import matplotlib as mpl

    text = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "verfedgnn"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def pairs(names: Sequence[str], found: Sequence[float], guess: Sequence[float], axis: str) -> str | None:
    """What was found beside what could be guessed, a pair of bars a name."""
    figure = blank(8, 0.8 + 0.55 * len(names))
    if figure is None:
        return None
    axes = figure.subplots()
    places = range(len(names))
    axes.barh([p - 0.19 for p in places], found, 0.36, color=INK["found"], label="attack")
    axes.barh([p + 0.19 for p in places], guess, 0.36, color=INK["guess"], label="guess")
    for place, pair in enumerate(zip(found, guess, strict=True)):
        for value, shift in zip(pair, (-0.19, 0.19), strict=True):
            axes.text(value + 0.01, place + shift, f"{value:.2f}", va="center", fontsize=9)
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    axes.set(xlabel=axis, xlim=(0, 1.08))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    return as_svg(figure)


def trade(
    names: Sequence[str], learnt: Sequence[float], cost: Sequence[float], axes_names: tuple[str, str]
) -> str | None:
    """Points of what is learnt against what it costs, named."""
    figure = blank(8, 4)
    if figure is None:
        return None
    axes = figure.subplots()
    axes.axvline(0, color=INK["guess"], linewidth=0.8)
    axes.axhline(0, color=INK["guess"], linewidth=0.8)
    axes.plot(learnt, cost, "o", color=INK["mark"], ms=8)
    for number, (name, x, y) in enumerate(zip(names, learnt, cost, strict=True)):
        axes.annotate(name, (x, y), xytext=(8, 6 if number % 2 else -14), textcoords="offset points")
    axes.margins(x=0.25, y=0.2)
    axes.set(xlabel=axes_names[0], ylabel=axes_names[1])
    axes.spines[["top", "right"]].set_visible(False)
    return as_svg(figure)


Curves = Mapping[str, tuple[Sequence[float], Sequence[float]]]


def lines(
    curves: Curves,
    across: str,
    up: str,
    *,
    log: Sequence[str] = (),
    floor: float | None = None,
    dots: bool = True,
    marks: Mapping[str, float] | None = None,
) -> str | None:
    """Curves by name; `log` names the axes (x, y) that are logarithmic, `marks` are heights to compare with."""
    figure = blank(8, 4.2)
    if figure is None or not curves:
        return None
    axes = figure.subplots()
    for place, (name, height) in enumerate((marks or {}).items()):
        axes.axhline(height, color=INK["guess"], linewidth=0.9, linestyle=(0, (4, 2 + 2 * place)))
        axes.annotate(
            name,
            (1, height),
            xycoords=("axes fraction", "data"),
            ha="right",
            va="bottom",
            fontsize=8,
            color=INK["guess"],
        )
    for (name, (x, y)), look in zip(curves.items(), _looks(len(curves)), strict=True):
        axes.plot(x, y, look[1], color=look[0], label=name, ms=4 if dots else 0, linewidth=1.4)
    axes.set(**{f"{axis}scale": "log" for axis in log})
    places = sorted({value for x, _ in curves.values() for value in x})
    if "x" in log and len(places) <= 8:  # few enough to be named
        axes.set_xticks(places, [f"{value:,.0f}" for value in places])
        axes.set_xticks([], minor=True)
    if floor is not None:
        axes.set_ylim(bottom=floor)
    axes.set(xlabel=across, ylabel=up)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    return as_svg(figure)


def _looks(count: int) -> list[tuple[str, str]]:
    colours = ("#2a6fb0", "#d1603d", "#3b8f5a", "#8a5fb0", "#b08a2a", "#5b6675", "#c0437f")
    return [(colours[i % len(colours)], "o-" if i < len(colours) else "s--") for i in range(count)]
