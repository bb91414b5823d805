"""A worker of a coordinator, other than the first: it holds the rows of its own users, and does what the first worker asks for."""

from __future__ import annotations

from pathlib import Path

from verfedgnn.core.worker_group import WorkerGroup
from verfedgnn.federation.agreement import Agreement
from verfedgnn.federation.coordinator_checkpoints import CHECKPOINT, CoordinatorCheckpoints
from verfedgnn.federation.event_log import log_event
from verfedgnn.federation.stages import Stage, list_stages
from verfedgnn.protocol.checkpoint_state import CheckpointState
from verfedgnn.protocol.coordinator.divided_rows import BEGIN, begin, obey
from verfedgnn.protocol.coordinator.public_rows import PublicRows
from verfedgnn.protocol.round.worker_orders import Order, Ordered, wait_for_order
from verfedgnn.runs.checkpoint_slots import SlotCheckpoint


def run_coordinator_worker(
    folder: Path, agreement: Agreement, workers: WorkerGroup, device: str = "cpu"
) -> None:
    """Obey the first worker until it ends the work. The run folder must be the same for all workers."""
    stages = {stage.name: stage for stage in list_stages(agreement)}
    trainings: dict[str, WorkerTraining] = {}
    while (ordered := wait_for_order(workers)).order is not Order.END:
        name = ordered.values["stage" if "stage" in ordered.values else "training"]
        if ordered.order is Order.STAGE:
            trainings[name] = WorkerTraining(folder, stages[name], workers, device)
        else:
            trainings[name].obey(ordered)


class WorkerTraining:
    """One training of a worker."""

    def __init__(self, folder: Path, stage: Stage, workers: WorkerGroup, device: str) -> None:
        self.stage = stage
        self.workers = workers
        self.device = device
        self.rows: PublicRows | None = None
        """None until all parties have joined."""
        self._checkpoints = CoordinatorCheckpoints(stage.folder(folder) / CHECKPOINT, stage.name, workers)
        self._found: SlotCheckpoint | None = self._checkpoints.read()

    def obey(self, ordered: Ordered) -> None:
        """Do what the first worker asked for, and answer it."""
        values = ordered.values
        if ordered.order is Order.ROWS and values["call"] == BEGIN:
            self.rows = begin(self.stage.config, self.workers, values["values"], self.device)
            users = self.rows.replica.model.users
            log_event("worker ready", stage=self.stage.name, worker=self.workers.rank, users=users)
            return
        assert self.rows is not None, "rows are made before they are used"
        if ordered.order is Order.ROWS:
            obey(self.rows, self.workers, ordered)
        elif ordered.order is Order.RESTORE:
            assert self._found is not None, "all workers have the checkpoint"
            self.rows.restore(self._found.state, values["round"])
            self._found = None
        elif ordered.order is Order.CHECKPOINT:
            state = CheckpointState()
            self.rows.put(state)
            self._checkpoints.write(values["round"], state, {})
