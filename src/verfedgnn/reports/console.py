"""Consoles for text that others may have written, and whether a progress bar can be drawn on one."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from verfedgnn.core.option_names import make_printable


class SafeConsole(Console):
    """A console whose texts contain no control characters, because others may have written them; its own styles stay."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Render as rich does, with printable text only."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(make_printable(segment.text), segment.style)


def error_console() -> Console:
    """Return the console for progress and remarks."""
    return SafeConsole(stderr=True, highlight=False)


def drawable(console: Console) -> bool:
    """Return whether a progress bar can be drawn: on a terminal that can move its cursor."""
    return console.is_interactive and sys.stderr.isatty()
