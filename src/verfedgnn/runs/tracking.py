"""Experiment tracking: parameters, curves and artefacts of a training in a tool that an organisation already has."""

from __future__ import annotations

import json
import os
import tomllib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from verfedgnn.core.errors import ConfigError, PluginWarning
from verfedgnn.core.files import make_folder, write_bytes, writing

_RECORD = "-tracking.json"
"""File beside a run folder with the tool's own id of the run, so that a resumed training continues it."""


class Tracker(Protocol):
    """One run in a tracking tool. The constructor raises `ImportError` if the tool is not installed."""

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


class _MlflowTracker:
    """MLflow, by its client. `MLFLOW_TRACKING_URI` and `MLFLOW_EXPERIMENT_NAME` say where a run goes, as for every client."""

    def __init__(self) -> None:
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient()

    def start(self, name: str, folder: Path, run_id: str | None) -> str | None:
        if run_id is not None:
            self._run = run_id
            self._client.update_run(run_id, "RUNNING")
            return run_id
        title = os.environ.get("MLFLOW_EXPERIMENT_NAME", "verfedgnn")
        found = self._client.get_experiment_by_name(title)
        experiment = self._client.create_experiment(title) if found is None else found.experiment_id
        self._run = self._client.create_run(experiment, run_name=name).info.run_id
        return self._run

    def parameters(self, values: Mapping[str, str]) -> None:
        for name, value in values.items():
            # every version of MLflow stores 500 characters
            self._client.log_param(self._run, name, value[:500])

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._client.log_metric(self._run, name, value, step=step)

    def artefacts(self, files: Sequence[Path]) -> None:
        for file in files:
            self._client.log_artifact(self._run, str(file))

    def end(self, finished: bool) -> None:
        self._client.set_terminated(self._run, "FINISHED" if finished else "KILLED")


class _TensorBoardTracker:
    """Event files in the folder RUN-tensorboard beside the run; those of a resumed training are joined to the first."""

    def __init__(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._open = SummaryWriter

    def start(self, name: str, folder: Path, run_id: str | None) -> str | None:
        place = folder.parent / f"{folder.name}-tensorboard"
        make_folder(place)
        self._writer = self._open(str(place))
        return None

    def parameters(self, values: Mapping[str, str]) -> None:
        rows = "\n".join(f"| {name} | {value} |" for name, value in values.items())
        self._writer.add_text("settings", f"| setting | value |\n|---|---|\n{rows}")

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def artefacts(self, files: Sequence[Path]) -> None:
        for file in files:
            if file.suffix == ".md":  # the report; TensorBoard stores no other files
                self._writer.add_text("report", file.read_text("utf-8"))

    def end(self, finished: bool) -> None:
        self._writer.close()


class _WandbTracker:
    """Weights & Biases. `WANDB_MODE=offline`, `WANDB_PROJECT` and its other variables work as usual; no source code is stored."""

    def __init__(self) -> None:
        import wandb

        self._wandb = wandb

    def start(self, name: str, folder: Path, run_id: str | None) -> str | None:
        project = os.environ.get("WANDB_PROJECT", "verfedgnn")
        quiet = self._wandb.Settings(silent=True, disable_code=True, disable_git=True)
        self._run = self._wandb.init(
            project=project, name=name, id=run_id, resume="allow", dir=folder.parent, settings=quiet
        )
        return str(self._run.id)

    def parameters(self, values: Mapping[str, str]) -> None:
        self._run.config.update(dict(values), allow_val_change=True)

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        # a training of lists begins with round 1 again, so the round is a figure of its own
        self._run.log({**values, "round": step})

    def artefacts(self, files: Sequence[Path]) -> None:
        for file in files:
            self._run.save(str(file), base_path=str(file.parent), policy="now")

    def end(self, finished: bool) -> None:
        self._run.finish(exit_code=0 if finished else 1)


TRACKERS: dict[str, Callable[[], Tracker]] = {
    "mlflow": _MlflowTracker,
    "tensorboard": _TensorBoardTracker,
    "wandb": _WandbTracker,
}


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
        return TRACKERS[name]()
    except ImportError:
        raise ConfigError(
            f"--track {name} needs more software. Run: pip install 'verfedgnn[{name}]'"
        ) from None


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
