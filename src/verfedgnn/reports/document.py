"""A document of headings, paragraphs, lists, tables and pictures, written as one self-contained HTML page.

Text may contain **bold** and `code`. Everything else is escaped, including text from data sets and from other parties.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from verfedgnn.core.files import make_folder, write_bytes, writing
from verfedgnn.core.option_names import make_printable

Tone = Literal["good", "likely-good", "same", "mixed", "unclear", "likely-bad", "bad"]
_NUMBER = re.compile(r"[*(+\-−]*\d[\d.,]*(?: (?:B|kB|MB|GB|s|%))?(?:[^a-z]|to|of)*")
_EMPTY = ("", "-", "–")


@dataclass(frozen=True)
class Heading:
    """The heading of a section."""

    text: str


@dataclass(frozen=True)
class Paragraph:
    """A paragraph of text."""

    text: str


@dataclass(frozen=True)
class Points:
    """A bulleted list."""

    items: Sequence[str]


@dataclass(frozen=True)
class Banner:
    """The verdict on top of a document: a headline in the colour of its tone, with a sentence below."""

    tone: Tone
    headline: str
    text: str


@dataclass(frozen=True)
class Table:
    """A table with a header row. Columns of numbers are aligned right, and the first column names the row."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    tones: Mapping[str, Tone] = field(default_factory=dict)
    """The tone of each cell that is a verdict; empty without verdicts."""

    @property
    def numeric(self) -> list[bool]:
        """Whether each column holds numbers only."""
        columns = [[row[place] for row in self.rows] for place in range(len(self.header))]
        return [
            any(cell not in _EMPTY for cell in cells)
            and all(cell in _EMPTY or _NUMBER.fullmatch(cell) for cell in cells)
            for cells in columns
        ]


@dataclass(frozen=True)
class Picture:
    """A chart of `svg_charts`, which escapes its text; nothing without one."""

    caption: str
    svg: str


@dataclass
class Fold:
    """Blocks that a reader opens; closed at first. None, such as a table without data, is skipped."""

    title: str
    blocks: list[Block | None] = field(default_factory=list)

    def add(self, *blocks: Block | None) -> None:
        """Append blocks to the end of the document."""
        self.blocks.extend(blocks)


Block = Heading | Paragraph | Points | Banner | Table | Picture | Fold


@dataclass
class Document(Fold):
    """A title followed by blocks."""

    def write(self, path: Path) -> Path:
        """Write the document as one HTML page, and return its path."""
        with writing(path):
            make_folder(path.parent)
            write_bytes(path, make_printable(self.html()).encode())
        return path

    def html(self) -> str:
        """Return the document as one HTML page that loads no scripts, fonts or pictures."""
        return _make_environment().get_template("document.html").render(title=self.title, blocks=self.blocks)

    def fragment(self) -> str:
        """Return the blocks as HTML for a notebook cell, without the title."""
        return _make_environment().get_template("notebook.html").render(blocks=self.blocks)


@cache
def _make_environment() -> Environment:
    loader = PackageLoader("verfedgnn.reports")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"inline": _render_inline, "kind": lambda block: type(block).__name__}
    return environment


def _render_inline(text: str) -> Markup:
    """Return escaped text in which **bold** and `code` are marked up, and per cent signs stay with their numbers."""
    safe = re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text)))
    safe = re.sub(r"(?<=\d) %", "&nbsp;%", safe)  # the character itself would not be printable
    return Markup(re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", safe))
