"""Names that a shell completes, found without loading what they name: a TAB must not wait for torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

PRESETS = tuple(
    sorted(path.stem for path in (Path(__file__).parent.parent / "config" / "presets").glob("*.toml"))
)
METHODS = (
    "bias",
    "mf",
    "biased-mf",
    "central",
    "alone",
    "fedpergnn",
    "fedsage",
    "fedsage+",
    "verfedgnn",
    "best",
    "private",
)
EXPERIMENTS = (
    "table1",
    "table2",
    "table3",
    "table4",
    "table5",
    "table6",
    "table7",
    "figure2",
    "figure3",
    "figure4",
    "figure5",
)
QUESTIONS = ("yelp", "gpu", "growth", "bytes", "parties", "round", "peers", "curve")
SHAPES = ("yelp",)
"""The names of `baselines`, `paper`, `bench` and `data.shapes`; a test compares them with what is there."""


def among(names: Sequence[str]) -> Callable[[str], list[str]]:
    """Completion of one of these names."""
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]


def listed(names: Sequence[str]) -> Callable[[str], list[str]]:
    """Completion of the last of several names with commas between."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        given = before.split(",")
        return [f"{before}{comma}{name}" for name in names if name.startswith(last) and name not in given]

    return complete


def data_sets(incomplete: str) -> list[str]:
    """What is in the folder VERFEDGNN_DATA, and synthetic data; files are completed by the shell itself."""
    folder = os.environ.get("VERFEDGNN_DATA", "")
    try:
        found = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir()) if folder else []
    except OSError:
        found = []
    return among(["synthetic", *found])(incomplete)


def run_folders(incomplete: str) -> list[str]:
    """Run folders that begin so, and those one level below folders that do."""
    head, slash, tail = incomplete.rpartition("/")
    here = _folders(Path(head + slash or "."))
    found = []
    for entry in (
        entry for entry in here if entry.name.startswith(tail) and (tail or not entry.name.startswith("."))
    ):
        runs = [entry] if _is_run(entry) else [below for below in _folders(entry) if _is_run(below)]
        found += [f"{head}{slash}{run.relative_to(entry.parent)}" for run in runs]
    return found


def _folders(parent: Path) -> Iterator[Path]:
    try:
        yield from sorted(entry for entry in parent.iterdir() if entry.is_dir())
    except OSError:
        return


def _is_run(folder: Path) -> bool:
    return (folder / "config.toml").is_file()
