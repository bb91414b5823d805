"""Measure how large the house is, and fail where it has outgrown a limit.

    python tools/house.py

`make lint` runs it. Before you raise a limit, look for what can go.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import typer

ROOT = Path(__file__).resolve().parents[1]
NEWCOMER = ("README.md", "docs/index.md", "docs/is-it-for-me.md", "docs/faq.md", "docs/terminal.md")
NEWCOMER_TUTORIALS = ("quick-start", "walk-through", "does-joining-pay")


class Measure(NamedTuple):
    """A size of the project and its limit."""

    name: str
    size: int
    limit: int


def measure() -> list[Measure]:
    """Return the sizes of code, settings, commands and documents."""
    from verfedgnn.cli.command_app import PACKAGES
    from verfedgnn.cli.main import app
    from verfedgnn.config.tree import find_settings

    product = list((ROOT / "src" / "verfedgnn").rglob("*.py"))
    packages = list((ROOT / "packages").rglob("src/**/*.py"))
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    newcomer = [ROOT / page for page in NEWCOMER]
    newcomer += [ROOT / "docs" / "tutorials" / f"{name}.md" for name in NEWCOMER_TUTORIALS]
    root = typer.main.get_command(app)
    commands = dict(walk(root))
    others = {path: commands.pop(path) for path in list(commands) if path.split()[0] in PACKAGES}
    anywhere = len(root.get_params(typer.Context(root))) - 1  # without --help
    return [
        Measure("lines of the product", count(product, str.splitlines), 31_000),
        Measure("modules of the product", len(product), 165),
        Measure("lines of all packages", count(product + packages, str.splitlines), 40_000),
        Measure("settings", len(find_settings(None)), 40),
        Measure("commands", len(commands), 25),
        Measure("parameters of commands", anywhere + sum(commands.values()), 160),
        Measure("commands of the packages", len(others), 7),
        Measure("parameters of these", sum(others.values()), 60),
        Measure("words in README and docs", count(pages, str.split), 25_000),
        Measure("words that a newcomer reads", count(newcomer, str.split), 5_000),
    ]


def count(files: list[Path], split: Callable[[str], list[str]]) -> int:
    """Return how many pieces `split` makes of all files together."""
    return sum(len(split(file.read_text())) for file in files)


def walk(command: object, path: str = "") -> Iterator[tuple[str, int]]:
    """Return the path of each command and how many parameters it has."""
    children = getattr(command, "commands", None)
    if children:
        for name, child in children.items():
            yield from walk(child, f"{path} {name}".strip())
    else:
        yield path, len(command.params)  # type: ignore[attr-defined]


def main() -> int:
    """Print a line for each size. Return 1 if one is above its limit."""
    sizes = measure()
    for name, size, limit in sizes:
        print(f"{name:30} {size:>7,} of {limit:>7,}" + ("  TOO LARGE" if size > limit else ""))
    return int(any(size > limit for _, size, limit in sizes))


if __name__ == "__main__":
    sys.exit(main())
