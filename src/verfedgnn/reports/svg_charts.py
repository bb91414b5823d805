"""Charts as SVG text: intervals and lines. They need no drawing library.

A chart is 400 units wide, so that its labels can be read on a phone. Text and axes take the colour of the text around them, and
marks have colours that are visible on light and dark ground. Each chart has a title and a description for screen readers.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from markupsafe import escape

from verfedgnn.evaluation.chance import format_percent
from verfedgnn.evaluation.verdict import LIKELY_BETTER, LIKELY_WORSE, NO, NO_DIFFERENCE, YES

GOOD_COLOUR = "#2f9e62"
BAD_COLOUR = "#cf5f3c"
UNCLEAR_COLOUR = "#8a94a3"
_PAYS_COLOURS = {YES: GOOD_COLOUR, LIKELY_BETTER: GOOD_COLOUR, LIKELY_WORSE: BAD_COLOUR, NO: BAD_COLOUR}
_SURE = (YES, NO, NO_DIFFERENCE)
"""Verdicts whose dot is filled; that of the others is a ring."""
CURVE_COLOURS = ("#3b82c4", GOOD_COLOUR)
_WIDTH = 400
_CHARACTER = 6.3

Curve = tuple[Sequence[float], Sequence[float]]


class Interval(NamedTuple):
    """A named value with its interval and the verdict."""

    name: str
    value: float
    low: float
    high: float
    pays: str
    unit: str = "%"


@dataclass
class _Canvas:
    """Shapes that are collected into one SVG."""

    height: float
    shapes: list[str] = field(default_factory=list)

    def line(
        self, x1: float, y1: float, x2: float, y2: float, colour: str = "", width: float = 1, dash: str = ""
    ) -> None:
        """Draw a line; without a colour it is a faint line of the grid."""
        look = f'stroke="{colour}"' if colour else 'stroke="currentColor" stroke-opacity=".16"'
        more = f' stroke-dasharray="{dash}"' if dash else ""
        self.shapes.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {look} stroke-width="{width}"{more}/>'
        )

    def dot(self, x: float, y: float, colour: str, radius: float = 4, *, filled: bool = True) -> None:
        look = f'fill="{colour}"' if filled else f'fill="none" stroke="{colour}" stroke-width="2"'
        self.shapes.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" {look}/>')

    def path(self, points: Sequence[tuple[float, float]], colour: str) -> None:
        places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.shapes.append(f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="2"/>')

    def text(self, x: float, y: float, words: str, anchor: str = "start", *, soft: bool = False) -> None:
        faint = ' fill-opacity=".75"' if soft else ""
        self.shapes.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{faint}>{escape(words)}</text>'
        )

    def legend(self, names: Mapping[str, str], y: float) -> float:
        """Draw names with their colours in a row, and return the y below them."""
        x = 4.0
        for name, colour in names.items():
            self.dot(x + 4, y - 4, colour)
            self.text(x + 13, y, name)
            x += 32 + _CHARACTER * len(name)
        return y + 18

    def svg(self, title: str, description: str) -> str:
        """Return the chart, with its title and description for screen readers."""
        key = hashlib.sha256(f"{title}\n{description}".encode()).hexdigest()[:10]
        size = f'viewBox="0 0 {_WIDTH} {self.height:.0f}" width="{_WIDTH}" height="{self.height:.0f}"'
        look = 'font-family="system-ui, sans-serif" font-size="12" fill="currentColor"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {look} role="img" aria-labelledby="t{key} d{key}">'
        named = [
            f'<title id="t{key}">{escape(title)}</title>',
            f'<desc id="d{key}">{escape(description)}</desc>',
        ]
        return "\n".join([head, *named, *self.shapes, "</svg>"])


@dataclass(frozen=True)
class _Axis:
    """A linear scale from values to the width or height of a chart, with round ticks."""

    low: float
    high: float
    start: float
    end: float

    @classmethod
    def over(cls, values: Sequence[float], start: float, end: float) -> _Axis:
        low = min(values, default=0.0)
        high = max(values, default=1.0)
        spare = 0.06 * (high - low) or 0.5 * abs(high) or 1.0
        return cls(low - spare, high + spare, start, end)

    def place(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self, most: int = 5) -> list[float]:
        rough = (self.high - self.low) / most
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough)
        numbers = range(math.ceil(self.low / step), math.floor(self.high / step) + 1)
        return [round(number * step, 10) for number in numbers]


def draw_intervals(title: str, rows: Sequence[Interval], axis: str) -> str:
    """Draw a dot and an interval for each row, around a line at 0; "" without rows."""
    if not rows:
        return ""
    row_height = 38
    bottom = 6 + row_height * len(rows)
    canvas = _Canvas(bottom + 42)
    values = [0.0, *(row.low for row in rows), *(row.high for row in rows)]
    scale = _Axis.over(values, 14, _WIDTH - 14)
    ticks = scale.ticks()
    for tick in ticks:
        canvas.text(scale.place(tick), bottom + 16, f"{tick:+g}" if tick else "0", "middle")
    texts = [f"{format_percent(row.value, row.low, row.high, row.unit)}, {row.pays}" for row in rows]
    for number, (row, text) in enumerate(zip(rows, texts, strict=True)):
        colour = _PAYS_COLOURS.get(row.pays, UNCLEAR_COLOUR)
        top = 6 + row_height * number
        height = top + 26
        canvas.text(2, top + 12, _shorten(row.name, max(8, 60 - len(text))))
        canvas.text(_WIDTH - 2, top + 12, text, "end")
        for tick in ticks:
            look = "" if tick else "currentColor"
            canvas.line(scale.place(tick), top + 17, scale.place(tick), top + 35, look)
        low, middle, high = (scale.place(value) for value in (row.low, row.value, row.high))
        filled = row.pays in _SURE
        gap = 0 if filled else 4.5  # a ring interrupts the line
        canvas.line(low, height, max(low, middle - gap), height, colour, 2.5)
        canvas.line(min(high, middle + gap), height, high, height, colour, 2.5)
        for end in (low, high):
            canvas.line(end, height - 5, end, height + 5, colour, 2)
        canvas.dot(middle, height, colour, 4.5, filled=filled)
    canvas.text(_WIDTH / 2, bottom + 35, axis, "middle", soft=True)
    return canvas.svg(title, "; ".join(f"{row.name}: {text}" for row, text in zip(rows, texts, strict=True)))


def draw_lines(
    title: str,
    curves: Mapping[str, Curve],
    x_label: str,
    y_label: str,
    marks: Mapping[str, float],
) -> str:
    """Draw one or two named curves, and `marks` as named vertical lines; "" without points."""
    every_x = [x for xs, _ in curves.values() for x in xs]
    every_y = [y for _, ys in curves.values() for y in ys]
    if not every_x:
        return ""
    colours = dict(zip(curves, CURVE_COLOURS, strict=False))
    canvas = _Canvas(0)
    top = canvas.legend(colours, 14) if len(curves) > 1 else 14.0
    canvas.text(2, top, y_label, soft=True)
    top += 10
    bottom = top + 180
    canvas.height = bottom + 44
    left, right = 48.0, _WIDTH - 12.0
    across = _Axis.over(every_x, left, right)
    upward = _Axis.over(every_y, bottom, top)
    for tick in upward.ticks():
        canvas.line(left, upward.place(tick), right, upward.place(tick))
        canvas.text(left - 6, upward.place(tick) + 4, f"{tick:,g}", "end")
    for tick in across.ticks():
        canvas.text(across.place(tick), bottom + 16, f"{tick:,g}", "middle")
    canvas.line(left, bottom, right, bottom, "currentColor")
    for row, (name, mark) in enumerate(marks.items()):
        x = across.place(mark)
        canvas.line(x, top, x, bottom, UNCLEAR_COLOUR, 1.5, "4 3")
        late = x > (left + right) / 2
        canvas.text(
            x - 5 if late else x + 5, top + 11 + 14 * row, name, "end" if late else "start", soft=True
        )
    for name, (xs, ys) in curves.items():
        points = [(across.place(x), upward.place(y)) for x, y in zip(xs, ys, strict=True)]
        canvas.path(points, colours[name])
        if len(points) <= 12:
            for x, y in points:
                canvas.dot(x, y, colours[name], 3)
    canvas.text((left + right) / 2, bottom + 36, x_label, "middle", soft=True)
    values = []
    for name, (xs, ys) in curves.items():
        texts = [f"{y:.4g} at {x:,g}" for x, y in zip(xs, ys, strict=True)]
        values.append(f"{name}: {', '.join(texts if len(texts) <= 8 else texts[:: len(texts) - 1])}")
    return canvas.svg(title, f"{y_label} by {x_label}. {'; '.join(values)}")


def _shorten(name: str, most: int) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"
