"""A summary of each run folder below a folder, read from small files only; importing it loads neither NumPy nor torch."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from verfedgnn.core.errors import RunError
from verfedgnn.runs.run_folder import AFTER

DEPTH = 3
"""Levels of folders below the given one in which runs are looked for."""
_NOISED = ("laplace", "skellam")
"""Mechanisms of gradients that spend an epsilon."""


@dataclass(frozen=True)
class RunSummary:
    """What a list of runs shows of one of them; figures that are missing are None."""

    folder: str
    """Path, relative to the folder that was searched."""
    finished: bool
    date: str
    """Time of the last file that the training wrote, in UTC."""
    data: list[str]
    preset: str | None
    parties: list[str]
    users: int | None = None
    ratings: int | None = None
    rounds: int | None = None
    rmse: float | None = None
    ndcg: float | None = None
    """NDCG@20 of the lists that are served."""
    bytes: int | None = None
    """Bytes that parties sent and received, with those of the training of lists."""
    epsilon: float | None = None
    """Epsilon that gradients have spent; None if the mechanism has none."""
    after: str | None = None
    """Folder of the run before this one, or the hash of its public parameters if it is not in the list."""
    public: str | None = None
    """Hash of the public parameters."""
    links: tuple[str, ...] = ()
    """Symbolic links in the searched folders that lead to this run."""

    def to_dict(self) -> dict[str, Any]:
        """Return the summary for JSON."""
        return asdict(self)


def list_runs(folder: Path) -> list[RunSummary]:
    """Return a summary of `folder` or of every run below it, oldest first. Trainings of lists belong to their runs."""
    if not folder.is_dir():
        raise RunError(f"{folder} is not a folder; pass the folder that contains your runs")
    places = list(_find_runs(folder, DEPTH))
    links = list(_find_links(folder, DEPTH))
    found = []
    for place in places:
        named = tuple(sorted(_relative(link, folder) for link, target in links if target == place.resolve()))
        found.append(replace(_summarise(place, folder), links=named))
    found.sort(key=lambda run: (run.date, run.folder))
    by_public: dict[str | None, str] = {None: ""}
    for run in found:
        by_public.setdefault(run.public, run.folder)
    return [
        run if run.after is None else replace(run, after=by_public.get(run.after, run.after)) for run in found
    ]


def _find_runs(folder: Path, depth: int) -> Iterator[Path]:
    if _is_run(folder):
        yield folder
    elif depth:
        for entry in _subfolders(folder):
            if not entry.is_symlink():
                yield from _find_runs(Path(entry.path), depth - 1)


def _find_links(folder: Path, depth: int) -> Iterator[tuple[Path, Path]]:
    """Return the links to folders, and where they lead."""
    if depth and not _is_run(folder):
        for entry in _subfolders(folder):
            if entry.is_symlink():
                yield Path(entry.path), Path(entry.path).resolve()
            else:
                yield from _find_links(Path(entry.path), depth - 1)


def _is_run(folder: Path) -> bool:
    return (folder / "config.toml").is_file() and (folder / "history.jsonl").is_file()


def _subfolders(folder: Path) -> list[os.DirEntry[str]]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        return [entry for entry in entries if not entry.name.startswith(".") and entry.is_dir()]
    except OSError:
        return []


def _relative(path: Path, folder: Path) -> str:
    return path.name if path == folder else str(path.relative_to(folder))


def _summarise(place: Path, folder: Path) -> RunSummary:
    try:
        config = tomllib.loads((place / "config.toml").read_text("utf-8"))
        metrics = _read_json(place / "metrics.json")
        before = _read_json(place / AFTER)
    except (OSError, ValueError) as error:
        raise RunError(f"the run {place} cannot be read ({error}); restore or remove the folder") from None
    written = place / ("history.jsonl" if metrics is None else "metrics.json")
    parties = sorted(path.stem for path in (place / "parties").glob("[!_]*.parquet"))
    summary = RunSummary(
        folder=_relative(place, folder),
        finished=metrics is not None,
        date=datetime.fromtimestamp(written.stat().st_mtime, UTC).isoformat(timespec="seconds"),
        data=[],
        preset=config.get("base"),
        parties=parties,
        after=None if before is None else before.get("public"),
    )
    return summary if metrics is None else _add_metrics(summary, metrics)


def _add_metrics(summary: RunSummary, metrics: dict[str, Any]) -> RunSummary:
    """Add the figures of a finished run; a coordinator's run has costs only."""
    test = metrics.get("test", {})
    lists = metrics.get("lists", {})
    gradients = metrics.get("privacy", {}).get("gradients", {})
    spends = gradients.get("mechanism") in _NOISED and "composed" in gradients
    final = metrics.get("final", {})
    parts = (metrics, lists, final, final.get("lists", {}))
    costs = [part["bytes"] for part in parts if "bytes" in part]
    rows = metrics["parties"]
    return replace(
        summary,
        data=list(dict.fromkeys(str(data["name"]) for data in metrics.get("data", []))),
        parties=[row["name"] for row in rows],
        users=metrics.get("users"),
        ratings=sum(row["ratings"] for row in rows) if "test" in metrics else None,
        rounds=metrics.get("rounds"),
        rmse=test.get("rmse"),
        ndcg=test.get("ndcg@20"),
        bytes=sum(cost["up"] + cost["down"] for cost in costs) if costs else None,
        epsilon=gradients["composed"]["epsilon"] if spends else None,
        public=metrics.get("public"),
    )


def _read_json(file: Path) -> dict[str, Any] | None:
    return json.loads(file.read_text("utf-8")) if file.is_file() else None
