"""Tables of means over seeds, as Markdown and CSV."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from verfedgnn.core.files import write_bytes, writing
from verfedgnn_research.baselines import Declaration, Method, methods


def mean_std(values: Iterable[float | None], digits: int = 4) -> str:
    """Return mean and standard deviation as `0.9152 ± 0.0013`, or a dash without values."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    spread = f" ± {statistics.stdev(known):.{digits}f}" if len(known) > 1 else ""
    return f"{statistics.mean(known):.{digits}f}{spread}"


def markdown(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(
        "| " + " | ".join(str(value).replace("|", "\\|") for value in line) + " |\n" for line in lines
    )


def comma_separated(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a table as CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    return text.getvalue()


def write_text(path: Path, text: str) -> None:
    """Write a file atomically and create its folder."""
    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, text.encode())


def declarations(methods: Sequence[Method]) -> tuple[list[str], list[list[str]]]:
    """Return the header and rows of the paper's Table 1 from the declarations of the methods."""
    lines: dict[str, Callable[[Declaration], str]] = {
        "High-order interaction": lambda d: _mark(d.high_order),
        "Gradient protection": lambda d: _mark(d.gradient_protection),
        "Cross graph neighborhood": lambda d: _mark(d.cross_graph),
        "Data storage": lambda d: d.storage.capitalize(),
    }
    return ["", *(m.title for m in methods)], [
        [name, *(of(m.declares) for m in methods)] for name, of in lines.items()
    ]


def _mark(value: bool) -> str:
    return "√" if value else "×"


def in_order(names: Iterable[str]) -> list[Method]:
    """Return the methods with these names, in the order of tables."""
    wanted = set(names)
    return [m for name, m in methods().items() if name in wanted]
