"""The interface of trackers, the choice of one by name, and what a run logs."""

from __future__ import annotations

import json
import tomllib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from verfedgnn.core.errors import ConfigError, PluginWarning
from verfedgnn.core.files import make_folder, write_bytes, writing

TRACKERS = {"mlflow": "MlflowTracker", "tensorboard": "TensorBoardTracker", "wandb": "WandbTracker"}
"""Class of each tracker, in the module `NAME_tracker`."""
_RECORD = "-tracking.json"
"""File beside a run folder with the tool's own id of the run, so that a resumed training continues it."""


class Tracker(Protocol):
    """One run in a tracking tool."""

    def start(self, name: str, folder: Path, run_id: str | None) -> str | None:
        """Begin a run, or continue the one with `run_id`; return its id, None if the tool has none."""

    def parameters(self, values: Mapping[str, str]) -> None:
        """Log the settings of a run as parameters."""

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """Log the figures of one round."""

    def artefacts(self, files: Sequence[Path]) -> None:
        """Store files with the tracked run."""

    def end(self, finished: bool) -> None:
        """Close the tracked run; `finished` is False after an interruption or an error."""


class TrackedRun:
    """A training that logs to a tracker. An error of the tool ends the tracking, never the training."""

    def __init__(self, tracker: Tracker | None) -> None:
        self._tracker = tracker

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """Log the figures of one round."""
        self._attempt(lambda tracker: tracker.metrics(values, step))

    def result(self, folder: Path, metrics: Mapping[str, Any], files: Sequence[Path] = ()) -> None:
        """Log the figures of a finished run, its metrics.json and config.toml, and further files such as the report."""
        kept = [folder / "metrics.json", folder / "config.toml", *files]
        figures = {f"test/{name.replace('@', '_')}": value for name, value in metrics.get("test", {}).items()}
        figures |= {f"bytes/{way}": metrics["bytes"][way] for way in ("up", "down")}
        known = {name: float(value) for name, value in figures.items() if value is not None}
        self._attempt(lambda tracker: tracker.metrics(known, metrics["rounds"]))
        self._attempt(lambda tracker: tracker.artefacts([file for file in kept if file.is_file()]))

    def end(self, finished: bool) -> None:
        """End the run in the tool."""
        self._attempt(lambda tracker: tracker.end(finished))

    def _attempt(self, call: Callable[[Tracker], None]) -> None:
        if self._tracker is None:
            return
        try:
            call(self._tracker)
        except Exception as error:
            self._tracker = None
            text = f"tracking failed and is switched off ({type(error).__name__}: {error}); the training continues"
            warnings.warn(text, PluginWarning, stacklevel=2)


@contextmanager
def tracked(name: str, folder: Path | None, settings: str, *, resumed: bool) -> Iterator[TrackedRun]:
    """Log a training with the tracker `name` while the block runs. `settings` is its configuration as TOML."""
    if name == "none":
        yield TrackedRun(None)
        return
    if folder is None:
        raise ConfigError("--track needs a run folder; add --out RUN")
    tracker = _open(name)
    try:
        run_id = tracker.start(folder.resolve().name, folder, _read_id(folder, name) if resumed else None)
        tracker.parameters(_flatten(tomllib.loads(settings)))
    except Exception as error:
        raise ConfigError(
            f"--track {name} failed: {type(error).__name__}: {error}; check its server"
        ) from None
    run = TrackedRun(tracker)
    finished = False
    try:
        if run_id is not None:
            _write_id(folder, name, run_id)
        yield run
        finished = True
    finally:
        run.end(finished)


def _open(name: str) -> Tracker:
    if name not in TRACKERS:
        raise ConfigError(f"there is no tracker '{name}'; use one of: none, {', '.join(TRACKERS)}")
    try:
        module = import_module(f"verfedgnn.runs.tracking.{name}_tracker")
        tracker: Tracker = getattr(module, TRACKERS[name])()
    except ImportError:
        raise ConfigError(
            f"--track {name} needs more software. Run: pip install 'verfedgnn[{name}]'"
        ) from None
    return tracker


def _read_id(folder: Path, name: str) -> str | None:
    file = folder.with_name(folder.name + _RECORD)
    return json.loads(file.read_text("utf-8")).get(name) if file.is_file() else None


def _write_id(folder: Path, name: str, run_id: str) -> None:
    with writing(folder):
        make_folder(folder.parent)
        write_bytes(folder.with_name(folder.name + _RECORD), json.dumps({name: run_id}).encode())


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in tree.items():
        found |= (
            _flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: str(value)}
        )
    return found
