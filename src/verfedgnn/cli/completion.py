"""Shell completion of names. Nothing here loads torch, because a TAB must not wait for it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

PRESETS = tuple(
    sorted(path.stem for path in (Path(__file__).parent.parent / "config" / "presets").glob("*.toml"))
)


def among(names: Sequence[str]) -> Callable[[str], list[str]]:
    """Return a completion of one of `names`."""
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]


def listed(names: Sequence[str]) -> Callable[[str], list[str]]:
    """Return a completion of the last name of a comma-separated list."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        given = before.split(",")
        return [f"{before}{comma}{name}" for name in names if name.startswith(last) and name not in given]

    return complete


def complete_data_sets(incomplete: str) -> list[str]:
    """Complete the data sets in the folder VERFEDGNN_DATA, and synthetic; the shell completes files."""
    folder = os.environ.get("VERFEDGNN_DATA", "")
    try:
        found = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir()) if folder else []
    except OSError:
        found = []
    return among(["synthetic", *found])(incomplete)


def complete_setting_names(incomplete: str) -> list[str]:
    """Complete the path of a setting from its beginning or from that of its last word."""
    from verfedgnn.config import settings

    return [
        path
        for path in settings()
        if path.startswith(incomplete) or path.split(".")[-1].startswith(incomplete)
    ]


def complete_setting(incomplete: str) -> list[str]:
    """Complete NAME=VALUE: names first, then the choices or the default of the one that is left."""
    from verfedgnn.config import settings
    from verfedgnn.config.reference import format_value

    name, equals, _ = incomplete.partition("=")
    known = settings()
    if equals:
        paths = [path for path in known if path == name or path.endswith(f".{name}")]
    else:
        paths = complete_setting_names(name)
        if len(paths) > 1:
            return paths
    if len(paths) != 1:
        return []
    setting = known[paths[0]]
    values = setting.choices or (() if setting.required else (format_value(setting.default),))
    return [f"{name if equals else paths[0]}={value}" for value in values]


def complete_run_folders(incomplete: str) -> list[str]:
    """Complete run folders, also one level below a folder that matches."""
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
