"""Names in a run folder, whether it may be replaced, emptying it, and a list of run folders, read from small files only.

The import loads neither NumPy nor torch.
"""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from verfedgnn.core.errors import ConfigError, RunError
from verfedgnn.core.files import LOCK, check_links, check_writable, parsing, writing
from verfedgnn.core.option_names import option

LISTS = "lists"
"""Folder in a run's folder with the model that orders lists."""
FINAL = "final"
"""Folder in a run's folder with the training on all ratings, whose models are served."""
TRAININGS = ("", LISTS, FINAL, f"{FINAL}/{LISTS}")
"""Folders in a run's folder that hold the models of a training."""
REPORT = "report"
"""Folder in a run's folder with its report, which may name users."""
LAST_RELEASE = "last-release"
"""Folder in a party's training with the values that it released last, before masks, until the training has finished."""
RESULT = "result"
"""Folder in a party's checkpoint with the result of a training, until the run is complete."""
FORGET_RECORD = "forget.json"
"""File in a run's folder that says which users were forgotten, by keyed hashes."""
FORGOTTEN = "forgotten.json"
"""File in a run's folder with its list of forgotten users, which stays when the run is overwritten."""
FORGET_JOURNAL = "forget.journal.json"
"""File in a run's folder while users are being forgotten."""
SPLIT_SECRET = "split-test.key"
"""File in a run's folder with the secret of its split test, which stays when the run is overwritten."""
_KEPT = (LOCK, FORGOTTEN, SPLIT_SECRET)
"""Files that stay when a run is overwritten; without others, a folder counts as empty."""


def holds_run(folder: Path, overwrite: bool) -> bool:
    """Return whether `folder` holds a run to overwrite; raise `RunError` if it holds anything else or cannot be written."""
    check_writable(folder)
    if not folder.exists() or (folder.is_dir() and all(each.name in _KEPT for each in folder.iterdir())):
        return False
    if not overwrite:
        raise RunError(
            f"{folder} exists already; choose another folder, resume it, or replace it with {option('overwrite', True)}"
        )
    from verfedgnn.config import load_config

    check_links(folder)
    with suppress(ConfigError):
        load_config(folder / "config.toml")  # settings for `--config` may have this name, too
        if (folder / "history.jsonl").is_file():
            return True
    raise RunError(
        f"{folder} is not a run folder, so {option('overwrite', True)} leaves it alone; choose another folder"
    )


def check_outside(out: Path) -> None:
    """Raise `RunError` if a file about users would be written into a run folder, where `forget` does not look for it."""
    for place in out.resolve().parents:
        if _is_run(place):
            raise RunError(
                f"{out} is inside the run folder {place}, and `forget` would not find the users in it; choose another "
                f"{option('out')}"
            )


def empty_run(folder: Path) -> None:
    """Remove the run in a locked folder; what makes it a run folder goes last, in case of a kill."""
    with writing(folder):
        for each in sorted(folder.iterdir(), key=lambda each: each.name in ("config.toml", "history.jsonl")):
            if each.is_dir() and not each.is_symlink():
                shutil.rmtree(each)
            elif each.name not in _KEPT:
                each.unlink()


# -- a list of run folders ----------------------------------------------------------------------------------

DEPTH = 3
"""Levels of folders below the given one in which runs are looked for."""


@dataclass(frozen=True)
class RunSummary:
    """What a list of runs shows of one of them; figures that are missing are None."""

    folder: str
    """Path, relative to the folder that was searched."""
    finished: bool
    date: str
    """Time of the last file that the training wrote, in UTC."""
    preset: str | None
    parties: list[str]
    users: int | None
    ratings: int | None
    rmse: float | None
    ndcg: float | None
    """NDCG@20 of the lists that are served."""
    bytes: int | None
    """Bytes that parties sent and received in all trainings."""
    epsilon: float | None
    """Epsilon that gradients have spent; None if the mechanism has none."""


def list_runs(folder: Path) -> list[RunSummary]:
    """Return a summary of `folder` or of every run below it, oldest first. Trainings of lists belong to their runs."""
    if not folder.is_dir():
        raise RunError(f"{folder} is not a folder; pass the folder that contains your runs")
    runs = [_summarise(place, folder) for place in _find_runs(folder, DEPTH)]
    return sorted(runs, key=lambda run: (run.date, run.folder))


def _find_runs(folder: Path, depth: int) -> Iterator[Path]:
    """Yield the run folders; links are not followed."""
    if _is_run(folder):
        yield folder
    elif depth:
        with suppress(OSError):
            for place in sorted(folder.iterdir()):
                if place.is_dir() and not place.is_symlink() and not place.name.startswith("."):
                    yield from _find_runs(place, depth - 1)


def _is_run(folder: Path) -> bool:
    return (folder / "config.toml").is_file() and (folder / "history.jsonl").is_file()


def trainings_of(metrics: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the cost of each training of a run by name: of ratings, of lists, and of both on all ratings."""
    final = metrics.get("final", {})
    named = {
        "ratings": metrics,
        "lists": metrics.get("lists", {}),
        "all ratings": final,
        "lists, all ratings": final.get("lists", {}),
    }
    return {name: part for name, part in named.items() if "rounds" in part}


def _summarise(place: Path, folder: Path) -> RunSummary:
    file = place / "metrics.json"
    finished = file.is_file()
    check_links(place)
    with parsing(f"the run {place}", "restore or remove the folder"):
        config = tomllib.loads((place / "config.toml").read_text("utf-8"))
        metrics = json.loads(file.read_text("utf-8")) if finished else {}
        written = (file if finished else place / "history.jsonl").stat().st_mtime
        test = metrics.get("test", {})  # a coordinator's run has costs only
        gradients = metrics.get("privacy", {}).get("gradients", {})
        costs = [part["bytes"] for part in trainings_of(metrics).values()]
        names = [row["name"] for row in metrics.get("parties", [])]
        return RunSummary(
            folder=place.name if place == folder else str(place.relative_to(folder)),
            finished=finished,
            date=datetime.fromtimestamp(written, UTC).isoformat(timespec="seconds"),
            preset=config.get("base"),
            parties=names or sorted(path.stem for path in (place / "parties").glob("[!_]*.parquet")),
            users=metrics.get("users"),
            ratings=sum(row["ratings"] for row in metrics["parties"]) if test else None,
            rmse=test.get("rmse"),
            ndcg=test.get("ndcg@20"),
            bytes=sum(cost["up"] + cost["down"] for cost in costs) if costs else None,
            epsilon=gradients.get("composed", {}).get("epsilon") or None,
        )
