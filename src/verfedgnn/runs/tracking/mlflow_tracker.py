"""MLflow. `MLFLOW_TRACKING_URI` and `MLFLOW_EXPERIMENT_NAME` say where a run goes, as for every client of MLflow."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient
from mlflow.utils.time import get_current_time_millis

_MOST_PARAMETERS = 100
"""Parameters that MLflow takes in one request."""
_LONGEST = 500
"""Characters of a parameter that every version of MLflow stores."""


class MlflowTracker:
    """A run in MLflow, by its client, without MLflow's global state."""

    def start(self, name: str, folder: Path, run_id: str | None) -> str | None:
        """Create a run, or continue the one with `run_id`."""
        self._client = MlflowClient()
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
        """Log the settings of a run as parameters."""
        found = [Param(name, value[:_LONGEST]) for name, value in values.items()]
        for start in range(0, len(found), _MOST_PARAMETERS):
            self._client.log_batch(self._run, params=found[start : start + _MOST_PARAMETERS])

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """Log figures at a round."""
        now = get_current_time_millis()
        self._client.log_batch(self._run, metrics=[Metric(n, v, now, step) for n, v in values.items()])

    def artefacts(self, files: Sequence[Path]) -> None:
        """Upload the files of a run as artefacts."""
        for file in files:
            self._client.log_artifact(self._run, str(file))

    def end(self, finished: bool) -> None:
        """End the run; one that was stopped can be resumed."""
        self._client.set_terminated(self._run, "FINISHED" if finished else "KILLED")
