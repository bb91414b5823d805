"""Shell completion of names. Nothing here loads torch, because a TAB must not wait for it."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager, redirect_stdout
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
    "best-gated",
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
SHAPES = ("yelp", "yelpzip")
"""Names of methods, experiments, benchmarks and data shapes. A test compares them with the packages that define them."""


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


@contextmanager
def joined_bash_words(environment: MutableMapping[str, str]) -> Iterator[None]:
    """Complete the words after --set as one word, although bash splits them at `=`.

    Bash replaces only the part after `=`, so the part before it is removed from what the completion prints.
    """
    prefix = _join_words(environment) if environment.get("_VERFEDGNN_COMPLETE") == "complete_bash" else ""
    if not prefix:
        yield
        return
    printed = io.StringIO()
    try:
        with redirect_stdout(printed):
            yield
    finally:
        for line in printed.getvalue().splitlines():
            print(line.removeprefix(prefix))


def _join_words(environment: MutableMapping[str, str]) -> str:
    """Join the words that bash split at `=` and return the beginning of the current one up to its `=`."""
    words = environment.get("COMP_WORDS", "").split("\n")
    position = int(environment.get("COMP_CWORD", "0"))
    joined: list[str] = []
    current = position
    for index, word in enumerate(words):
        after_set = len(joined) > 1 and joined[-2] == "--set"
        if after_set and (word == "=" or (joined[-1].endswith("=") and not word.startswith("-"))):
            joined[-1] += word
        else:
            joined.append(word)
        if index == position:
            current = len(joined) - 1
    if len(joined) == len(words):
        return ""
    environment["COMP_WORDS"] = "\n".join(joined)
    environment["COMP_CWORD"] = str(current)
    name, equals, _ = joined[current].partition("=") if current < len(joined) else ("", "", "")
    return name + equals if equals else ""


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
