"""A hook of the documentation site that adds files outside docs/ to it and adapts links.

A page of docs/ links to `../results/core.md`, which GitHub follows. On the site docs/ is the root: `docs/model.md` becomes
`model.md`, and `results/core.md` keeps its path.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files

LINK = re.compile(r"(?<=\]\()([^)#\s]+)(?=[)#])")
"""Target of a link, without its anchor."""
FENCE = re.compile(r"^(```.*?^```[^\n]*)$", re.MULTILINE | re.DOTALL)
ALSO = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "examples/my_gnn.py", "examples/my_baseline.py")
"""Files that are added even if no page links to them."""


def on_files(files: Files, config: Any) -> Files:
    """Add every file outside docs/ that a page links to, directly or through other pages."""
    root = _root(config)
    waiting = [Path(file.abs_src_path) for file in files.documentation_pages()]
    waiting += [root / name for name in ALSO] + sorted((root / "results").glob("*.md"))
    seen: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        uri = _uri(path.relative_to(root))
        if files.get_file_from_path(uri) is None:
            files.append(File.generated(config, uri, abs_src_path=str(path)))
        if path.suffix == ".md":
            waiting += [target for _, target in _inside(path, path.read_text("utf-8"), root)]
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Return a page with links adapted to the site and empty lines before lists and tables."""
    if page.file.abs_src_path is None:
        return markdown
    root, path = _root(config), Path(page.file.abs_src_path)
    here = PurePosixPath(page.file.src_uri).parent
    for link, target in set(_inside(path, markdown, root)):
        there = os.path.relpath(_uri(target.relative_to(root)), here)
        markdown = re.sub(rf"(?<=\]\(){re.escape(link)}(?=[)#])", there, markdown)
    return spaced(markdown)


def spaced(markdown: str) -> str:
    """Insert an empty line before every list and table that follows a paragraph, as Python's Markdown requires."""
    parts = FENCE.split(markdown)
    return "".join(part if part.startswith("```") else _spaced(part) for part in parts)


def _spaced(text: str) -> str:
    lines: list[str] = []
    for line in text.split("\n"):
        before = lines[-1] if lines else ""
        for begins, goes_on in ((r"([-*]|\d+\.) ", r"([-*]|\d+\.) | "), (r"\|", r"\|")):
            if re.match(begins, line) and before.strip() and not re.match(goes_on, before):
                lines.append("")
        lines.append(line)
    return "\n".join(lines)


def _inside(path: Path, markdown: str, root: Path) -> Iterator[tuple[str, Path]]:
    """Yield a page's links to files of the repository, with the files."""
    for link in LINK.findall(markdown):
        target = (path.parent / link).resolve()
        if "://" not in link and target.is_file() and target.is_relative_to(root):
            yield link, target


def _uri(path: Path) -> str:
    """Return the path of a repository file on the site."""
    if path.as_posix() == "README.md":
        return "index.md"
    if path.parts[0] == "docs":
        return path.relative_to("docs").as_posix()
    return path.as_posix().lower() if len(path.parts) == 1 and path.suffix == ".md" else path.as_posix()


def _root(config: Any) -> Path:
    return Path(config.config_file_path).resolve().parent
