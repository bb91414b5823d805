"""The paper's figures as SVG and PNG, drawn with matplotlib (the extra `research`)."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verfedgnn_research.paper.paper_experiment import GNNS, TITLES, BySeed, PaperScope

if TYPE_CHECKING:
    from verfedgnn_research.paper.studies import Study

COLOURS = {"gcn": "#2a6fb0", "gat": "#d1603d", "ggnn": "#3a7d44"}


def draw_study_panels(
    study: Study,
    scope: PaperScope,
    found: Mapping[tuple[str, str, float], BySeed],
    published: Mapping[tuple[str, str], float],
    folder: Path,
) -> None:
    """Draw one panel per data set: the mean over seeds with its standard deviation, and the paper's Table
    2 where printed.
    """
    figure = _make_figure()
    from matplotlib.transforms import offset_copy

    for axes, data in zip(figure.subplots(1, len(scope.data), squeeze=False)[0], scope.data, strict=True):
        for place, gnn in enumerate(GNNS):
            known = {
                value: list(found[data, gnn, value].values())
                for value in study.points(scope)
                if found[data, gnn, value]
            }
            values = list(known)
            means = [statistics.mean(rmse) for rmse in known.values()]
            spread = [statistics.stdev(rmse) if len(rmse) > 1 else 0.0 for rmse in known.values()]
            axes.errorbar(values, means, spread, fmt="o-", color=COLOURS[gnn], capsize=3, label=gnn.upper())
            if (data, gnn) in published:
                aside = offset_copy(
                    axes.transData, figure, x=7 * (place - 1), units="points"
                )  # values may nearly coincide
                star = {
                    "ms": 11,
                    "color": COLOURS[gnn],
                    "mec": "black",
                    "mew": 0.5,
                    "transform": aside,
                    "zorder": 5,
                }
                axes.plot([study.standard], [published[data, gnn]], "*", **star)
        if study.log:
            axes.set_xscale("log")
            axes.set_xticks(study.points(scope), [f"{value:g}" for value in study.points(scope)])
            axes.minorticks_off()
        axes.set(xlabel=study.axis, ylabel="test RMSE", title=TITLES[data])
        axes.spines[["top", "right"]].set_visible(False)
        starred = any((data, gnn) in published for gnn in GNNS)
        note = f"bars: deviation over {scope.study_seeds} seeds" + (
            "\nstars: the paper's Table 2" if starred else ""
        )
        axes.legend(frameon=False, title=note, title_fontsize=8)
    _save(figure, folder / study.name)


def draw_communication(
    bits: Mapping[tuple[Any, ...], float], users: Sequence[int], ratios: Sequence[float], folder: Path
) -> None:
    """Draw the bits of a round by users (left) and by N/q (right)."""
    figure = _make_figure()
    left, right = figure.subplots(1, 2)
    for quantized, colour in ((True, COLOURS["gcn"]), (False, COLOURS["gat"])):
        name = "ternary" if quantized else "not quantized"
        for rate, style in ((1.0, "o-"), (0.5, "o--")):
            sizes = [bits["users", n, quantized, rate] / 1e6 for n in users]
            left.plot(users, sizes, style, color=colour, label=f"{name}, α = {rate:g}")
        right.plot(
            ratios, [bits["ratio", r, quantized] / 1e6 for r in ratios], "o-", color=colour, label=name
        )
        right.axhline(bits["ratio", None, quantized] / 1e6, color=colour, lw=0.8, ls=":")
    left.set(
        xlabel="users",
        ylabel="million bits a party and round",
        title="By user size (N/q = 5)",
        ylim=(0, None),
    )
    right.set(
        xlabel="N/q",
        ylabel="million bits a party and round",
        title="By dimension (dotted: no projection)",
        ylim=(0, None),
    )
    right.set_xscale("log")
    right.set_xticks(ratios, [f"{r:g}" for r in ratios])
    right.minorticks_off()
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
    _save(figure, folder / "figure5")


def _make_figure() -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(10, 3.8), layout="constrained")


def _save(figure: Any, path: Path) -> None:
    """Write a figure as SVG and PNG; equal figures give equal files."""
    import matplotlib as mpl

    path.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context({"svg.hashsalt": "verfedgnn"}):
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    figure.savefig(path.with_suffix(".png"), dpi=130)
