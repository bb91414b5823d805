"""`--track`: settings, curves, results and the report in a tracking tool, which never stops a training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import verfedgnn as vf
from verfedgnn.core.errors import PluginWarning
from verfedgnn.data import synthetic_ratings
from verfedgnn.federation.status import StatusPublisher
from verfedgnn.protocol.coordinator import ClosedRound
from verfedgnn.runs import tracking
from verfedgnn.runs.tracking import TrackedRun, tracked

Command = Callable[..., tuple[int, str, str]]
SETTINGS = vf.Config.preset("paper").to_toml()


class Recorder:
    """A tracker that keeps everything."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def start(self, name: str, folder: Path, run_id: str | None) -> str | None:
        self.calls.append(("start", name, run_id))
        return run_id or "id-1"

    def parameters(self, values: Mapping[str, str]) -> None:
        self.calls.append(("parameters", dict(values)))

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        self.calls.append(("metrics", dict(values), step))

    def artefacts(self, files: Sequence[Path]) -> None:
        self.calls.append(("artefacts", {file.name: file.read_text("utf-8") for file in files}))

    def end(self, finished: bool) -> None:
        self.calls.append(("end", finished))

    def of(self, kind: str) -> list[tuple[Any, ...]]:
        return [call[1:] for call in self.calls if call[0] == kind]


class Broken(Recorder):
    """A tracker whose server goes away after the start."""

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        raise ConnectionError("gone")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    table = synthetic_ratings(users=60, items=60, ratings=1500, seed=1)
    rows = zip(table.user, table.item, table.rating, strict=True)
    file = tmp_path / "film.csv"
    file.write_text("\n".join(["user,item,rating", *(f"person{u},thing{v},{r:g}" for u, v, r in rows)]))
    return file


def words(data: Path) -> list[object]:
    return ["--data", data, "--parties", 3, "--preset", "paper", "--set", "epochs=4", "--set", "batch=400"]


def test_a_training_logs_settings_curves_results_and_the_report(
    data: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder()
    monkeypatch.setattr(tracking, "_open", lambda name: recorder)
    code, _, err = command("train", *words(data), "--out", tmp_path / "run", "--track", "mlflow", "--quiet")
    assert (code, err) == (0, "")
    run = vf.Run.load(tmp_path / "run")
    assert recorder.of("start") == [("run", None)]
    ((parameters,),) = recorder.of("parameters")
    assert parameters["training.epochs"] == "4"
    *curve, (final, _) = recorder.of("metrics")
    logged = [(step, values["federation/valid_rmse"]) for values, step in curve]
    assert logged == [(entry["round"], entry["valid_rmse"]) for entry in run.history]
    assert final["test/rmse"] == run.metrics["test"]["rmse"]
    ((files,),) = recorder.of("artefacts")
    assert set(files) == {"metrics.json", "config.toml", "report.html", "report.md"}
    assert not any("person" in text or "thing" in text for text in files.values()), (
        "no ids of users and items"
    )
    assert recorder.of("end") == [(True,)]


def test_a_resumed_training_continues_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    monkeypatch.setattr(tracking, "_open", lambda name: recorder)
    with pytest.raises(KeyboardInterrupt), tracked("mlflow", tmp_path / "run", SETTINGS, resumed=False):
        raise KeyboardInterrupt
    with tracked("mlflow", tmp_path / "run", SETTINGS, resumed=True):
        pass
    assert recorder.of("start") == [("run", None), ("run", "id-1")]
    assert recorder.of("end") == [(False,), (True,)]


def test_a_tracker_that_fails_does_not_stop_a_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Broken()
    monkeypatch.setattr(tracking, "_open", lambda name: broken)
    with tracked("mlflow", tmp_path / "run", SETTINGS, resumed=False) as run:
        with pytest.warns(PluginWarning, match="the training continues"):
            run.metrics({"rmse": 1.0}, 1)
        run.metrics({"rmse": 1.0}, 2)


def test_mistakes_are_said_before_the_training(data: Path, tmp_path: Path, command: Command) -> None:
    assert (
        "no tracker 'excel'"
        in command("train", *words(data), "--out", tmp_path / "run", "--track", "excel")[2]
    )
    assert "add --out" in command("train", *words(data), "--track", "mlflow")[2]
    assert not (tmp_path / "run").exists()


def test_a_member_of_a_federation_logs_its_own_status(tmp_path: Path) -> None:
    """Nothing but its own validation error, its bytes, and how many parties it sees."""
    recorder = Recorder()
    publisher = StatusPublisher(tmp_path, track=TrackedRun(recorder))
    status = {"stage": "ratings", "bytes": {"up": 5, "down": 7}, "parties": {"film": {"here": True}}}
    publisher.close_round(ClosedRound(3, None), lambda: status)
    publisher.close_round(ClosedRound(4, 0.9), lambda: status)
    values = {"valid_error": 0.9, "parties_here": 1, "bytes_up": 5, "bytes_down": 7}
    assert recorder.calls == [("metrics", {f"ratings/{name}": value for name, value in values.items()}, 4)]


# -- the tools themselves ------------------------------------------------------------------------------------------------


def log_two_nights(name: str, folder: Path) -> None:
    """Log a training that is stopped, resumed and finished."""
    file = folder / "run" / "metrics.json"
    file.parent.mkdir()
    file.write_text("{}")
    with suppress(KeyboardInterrupt), tracked(name, folder / "run", SETTINGS, resumed=False) as run:
        run.metrics({"federation/valid_rmse": 1.0}, 1)
        raise KeyboardInterrupt
    with tracked(name, folder / "run", SETTINGS, resumed=True) as run:
        run.metrics({"federation/valid_rmse": 0.9}, 2)
        run.result(folder / "run", {"test": {"rmse": 0.8}, "bytes": {"up": 1, "down": 2}, "rounds": 2})


@pytest.mark.filterwarnings("ignore")
def test_mlflow_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip(
        "mlflow.tracking", reason="MLflow is not installed: it is in the extra mlflow"
    )
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "nights")
    monkeypatch.chdir(tmp_path)
    log_two_nights("mlflow", tmp_path)
    client = mlflow.MlflowClient()
    (found,) = client.search_runs([client.get_experiment_by_name("nights").experiment_id])
    assert found.info.status == "FINISHED"
    assert found.data.params["base"] == "paper"
    curve = client.get_metric_history(found.info.run_id, "federation/valid_rmse")
    assert [(point.step, point.value) for point in curve] == [(1, 1.0), (2, 0.9)]
    assert found.data.metrics["test/rmse"] == 0.8
    assert [file.path for file in client.list_artifacts(found.info.run_id)] == ["metrics.json"]


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_keeps_it(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed: it is in the extra tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log_two_nights("tensorboard", tmp_path)
    found = EventAccumulator(str(tmp_path / "run-tensorboard")).Reload()
    assert [(e.step, round(e.value, 3)) for e in found.Scalars("federation/valid_rmse")] == [
        (1, 1.0),
        (2, 0.9),
    ]


@pytest.mark.filterwarnings("ignore")
def test_wandb_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed: it is in the extra wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    log_two_nights("wandb", tmp_path)
    assert list((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
