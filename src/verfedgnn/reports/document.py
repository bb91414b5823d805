"""A document of headings, paragraphs, tables and pictures, written as Markdown and as one self-contained HTML file.

Text is plain but for **bold** and `code`; everything else, also what a data set or a peer wrote, is shown as it is.
"""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from verfedgnn.core.files import write_bytes, writing

STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #5b6675; --line: #dde3ea; --back: #fff; --mark: #f2f6fb }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6ebf2; --soft: #9aa7b8; --line: #313b48; --back: #14181e; --mark: #1d242d }
  img { background: #fff; border-radius: 6px }
}
* { box-sizing: border-box }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 62rem; color: var(--ink); background: var(--back);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .5rem }
h2 { font-size: 1.3rem; margin: 2.5rem 0 .5rem; padding-top: 1rem; border-top: 1px solid var(--line) }
p { margin: .6rem 0; max-width: 48rem }
code { font: .9em ui-monospace, Menlo, Consolas, monospace; background: var(--mark); padding: .1em .3em; border-radius: 3px;
  overflow-wrap: anywhere }
pre { overflow-x: auto; background: var(--mark); padding: .8rem 1rem; border-radius: 6px; font-size: .85rem }
.table { overflow-x: auto; margin: 1rem 0 }
table { border-collapse: collapse; font-size: .92rem }
th, td { text-align: left; vertical-align: top; padding: .45rem .8rem .45rem 0; border-bottom: 1px solid var(--line) }
th { color: var(--soft); font-weight: 600 }
td { min-width: 5.5rem }
td.number { font-variant-numeric: tabular-nums; white-space: nowrap }
figure { margin: 1.2rem 0 } img { max-width: 100%; height: auto } figcaption { color: var(--soft); font-size: .9rem }
ul { padding-left: 1.2rem; max-width: 48rem }
"""


@dataclass(frozen=True)
class Heading:
    """The start of a section."""

    text: str


@dataclass(frozen=True)
class Paragraph:
    """Sentences."""

    text: str


@dataclass(frozen=True)
class Points:
    """A list."""

    items: Sequence[str]


@dataclass(frozen=True)
class Table:
    """Rows under a header."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Picture:
    """A drawing, as SVG; `name` is its file beside the Markdown."""

    name: str
    caption: str
    svg: str


@dataclass(frozen=True)
class Code:
    """Lines as they are."""

    text: str


Block = Heading | Paragraph | Points | Table | Picture | Code


@dataclass
class Document:
    """A title and what follows it."""

    title: str
    blocks: list[Block] = field(default_factory=list)

    def add(self, *blocks: Block | None) -> None:
        """Append; what could not be made (a picture without matplotlib) is None and left out."""
        self.blocks.extend(block for block in blocks if block is not None)

    def write(self, folder: Path, name: str) -> tuple[Path, Path]:
        """NAME.html and NAME.md with its pictures, in `folder`; returns both paths."""
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for picture in self.blocks:
                if isinstance(picture, Picture):
                    write_bytes(folder / f"{picture.name}.svg", picture.svg.encode())
            page, text = folder / f"{name}.html", folder / f"{name}.md"
            write_bytes(page, self.html().encode())
            write_bytes(text, self.markdown().encode())
        return page, text

    def markdown(self) -> str:
        """As Markdown."""
        return "\n\n".join([f"# {_plain(self.title)}", *(_markdown(block) for block in self.blocks)]) + "\n"

    def html(self) -> str:
        """As one page without scripts, fonts or pictures from elsewhere."""
        body = "\n".join(_html(block) for block in self.blocks)
        title = html.escape(self.title)
        head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        return (
            f'<!doctype html>\n<html lang="en"><head>{head}<title>{title}</title><style>{STYLE}</style></head>\n'
            f"<body><main>\n<h1>{title}</h1>\n{body}\n</main></body></html>\n"
        )


def _markdown(block: Block) -> str:
    match block:
        case Heading(text):
            return f"## {_plain(text)}"
        case Paragraph(text):
            return _plain(text)
        case Points(items):
            return "\n".join(f"- {_plain(item)}" for item in items)
        case Table(header, rows):
            lines = [header, ["---"] * len(header), *rows]
            return "\n".join(
                "| " + " | ".join(_plain(cell).replace("|", "\\|") for cell in line) + " |" for line in lines
            )
        case Picture(name, caption, _):
            return f"![{_plain(caption)}]({name}.svg)"
        case Code(text):
            return f"```\n{text.rstrip()}\n```"


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("<", "&lt;")


def _html(block: Block) -> str:
    match block:
        case Heading(text):
            return f"<h2>{_inline(text)}</h2>"
        case Paragraph(text):
            return f"<p>{_inline(text)}</p>"
        case Points(items):
            return "<ul>" + "".join(f"<li>{_inline(item)}</li>" for item in items) + "</ul>"
        case Table(header, rows):
            head = "".join(f'<th scope="col">{_inline(cell)}</th>' for cell in header)
            body = "".join("<tr>" + "".join(_cell(cell) for cell in row) + "</tr>" for row in rows)
            return (
                f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
            )
        case Picture(_, caption, svg):
            data = base64.b64encode(svg.encode()).decode()
            picture = f'<img alt="{html.escape(caption)}" src="data:image/svg+xml;base64,{data}">'
            return f"<figure>{picture}<figcaption>{_inline(caption)}</figcaption></figure>"
        case Code(text):
            return f"<pre>{html.escape(text)}</pre>"


def _cell(text: str) -> str:
    number = re.fullmatch(r"[*+\-−±.,\d\s%]+", text) is not None
    return f'<td class="number">{_inline(text)}</td>' if number else f"<td>{_inline(text)}</td>"


def _inline(text: str) -> str:
    safe = html.escape(text, quote=False)
    safe = re.sub(r"`([^`]+)`", r"<code>\1</code>", safe)
    return re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", safe)
