"""Small charts as SVG text that need no drawing library."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from markupsafe import escape

GOOD_COLOUR = "#2a6fb0"
BAD_COLOUR = "#d1603d"
UNCLEAR_COLOUR = "#7d7d7d"
_WIDTH = 760
_ROW = 26
_CHARACTER = 7.2
"""Approximate width of a character of the labels, in pixels."""

Curve = tuple[Sequence[float], Sequence[float]]
"""The x and y values of a curve."""


@dataclass(frozen=True)
class Interval:
    """A named value with its interval."""

    name: str
    value: float
    low: float
    high: float

    @property
    def colour(self) -> str:
        """The colour of a gain, of a loss, or of an interval that includes 0."""
        return GOOD_COLOUR if self.low > 0 else BAD_COLOUR if self.high < 0 else UNCLEAR_COLOUR


@dataclass
class _Canvas:
    """Shapes that are collected into one SVG."""

    width: float
    height: float
    shapes: list[str] = field(default_factory=list)

    def line(
        self, x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 1, dash: str = ""
    ) -> None:
        more = f' stroke-dasharray="{dash}"' if dash else ""
        self.shapes.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="{width}"{more}/>'
        )

    def dot(self, x: float, y: float, colour: str, radius: float = 4) -> None:
        self.shapes.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{colour}"/>')

    def path(self, points: Sequence[tuple[float, float]], colour: str) -> None:
        places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.shapes.append(f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="1.6"/>')

    def text(self, x: float, y: float, words: str, anchor: str = "start", colour: str = "#333333") -> None:
        self.shapes.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(words)}</text>'
        )

    def svg(self) -> str:
        size = f'width="{self.width:.0f}" height="{self.height:.0f}" viewBox="0 0 {self.width:.0f} {self.height:.0f}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="13">'
        return "\n".join([head, '<rect width="100%" height="100%" fill="#ffffff"/>', *self.shapes, "</svg>"])


@dataclass(frozen=True)
class _Axis:
    """A linear scale from values to pixels, with round ticks."""

    low: float
    high: float
    start: float
    end: float

    @classmethod
    def over(cls, values: Sequence[float], start: float, end: float) -> _Axis:
        low = min(values)
        high = max(values)
        spare = 0.06 * (high - low) or 0.5 * abs(high) or 1.0
        return cls(low - spare, high + spare, start, end)

    def place(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self, most: int = 6) -> list[float]:
        rough = (self.high - self.low) / most
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough)
        first = math.ceil(self.low / step)
        last = math.floor(self.high / step)
        return [round(number * step, 10) for number in range(first, last + 1)]


def draw_intervals(rows: Sequence[Interval], axis: str) -> str | None:
    """Draw a dot and an interval for each row, around a line at 0; None without rows."""
    if not rows:
        return None
    left = 24 + min(240.0, _CHARACTER * max(len(row.name) for row in rows))
    right = _WIDTH - 24
    bottom = 12 + _ROW * len(rows)
    canvas = _Canvas(_WIDTH, bottom + 46)
    values = [0.0, *(row.low for row in rows), *(row.high for row in rows)]
    scale = _Axis.over(values, left, right)
    for tick in scale.ticks():
        canvas.line(scale.place(tick), 8, scale.place(tick), bottom, "#e6e6e6")
        canvas.text(scale.place(tick), bottom + 18, f"{tick:+g}" if tick else "0", "middle")
    canvas.line(scale.place(0), 8, scale.place(0), bottom, "#444444")
    for number, row in enumerate(rows):
        height = 12 + _ROW * (number + 0.5)
        canvas.text(left - 12, height + 4, _shorten(row.name), "end")
        canvas.line(scale.place(row.low), height, scale.place(row.high), height, row.colour, 2)
        for end in (row.low, row.high):
            canvas.line(scale.place(end), height - 5, scale.place(end), height + 5, row.colour, 2)
        canvas.dot(scale.place(row.value), height, row.colour)
    canvas.text((left + right) / 2, bottom + 38, axis, "middle")
    return canvas.svg()


def draw_lines(
    curves: Mapping[str, Curve],
    colours: Mapping[str, str],
    x_label: str,
    y_label: str,
    *,
    names: Sequence[str] | None = None,
    mark: float | None = None,
) -> str | None:
    """Draw named curves; `names` label the places 0, 1, ... of the x axis, and `mark` adds a dashed vertical line."""
    every_x = [x for xs, _ in curves.values() for x in xs]
    every_y = [y for _, ys in curves.values() for y in ys]
    if not every_x:
        return None
    top, bottom, left, right = 34.0, 250.0, 64.0, _WIDTH - 24.0
    canvas = _Canvas(_WIDTH, bottom + 46)
    across = _Axis.over(every_x, left, right)
    upward = _Axis.over(every_y, bottom, top)
    for tick in upward.ticks(5):
        canvas.line(left, upward.place(tick), right, upward.place(tick), "#e6e6e6")
        canvas.text(left - 8, upward.place(tick) + 4, f"{tick:g}", "end")
    places = list(range(len(names))) if names is not None else across.ticks()
    for number, tick in enumerate(places):
        canvas.text(
            across.place(tick), bottom + 18, f"{tick:,g}" if names is None else names[number], "middle"
        )
    canvas.line(left, bottom, right, bottom, "#444444")
    if mark is not None:
        canvas.line(across.place(mark), top, across.place(mark), bottom, UNCLEAR_COLOUR, 1, "4 3")
    legend = left
    for name, (xs, ys) in curves.items():
        points = [(across.place(x), upward.place(y)) for x, y in zip(xs, ys, strict=True)]
        canvas.path(points, colours[name])
        if names is not None:
            for x, y in points:
                canvas.dot(x, y, colours[name], 3)
        if len(curves) > 1:
            canvas.dot(legend + 4, 16, colours[name])
            canvas.text(legend + 13, 20, name)
            legend += 36 + _CHARACTER * len(name)
    canvas.text((left + right) / 2, bottom + 38, x_label, "middle")
    canvas.text(right, 20, y_label, "end")
    return canvas.svg()


def _shorten(name: str, most: int = 33) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"
