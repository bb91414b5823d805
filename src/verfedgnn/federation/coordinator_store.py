"""A coordinator's run folder: checkpoint, history, figures and public parameters. It never holds ratings or ids."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verfedgnn.config import Config
from verfedgnn.core.errors import RunError
from verfedgnn.core.files import make_folder, write_bytes, writing
from verfedgnn.federation.coordinator_checkpoints import CoordinatorCheckpoints
from verfedgnn.protocol.coordinator.coordinator import Coordinator
from verfedgnn.runs.ledger import Ledger
from verfedgnn.runs.metrics_file import summarise_cost
from verfedgnn.runs.run import read_history, write_history, write_json, write_public
from verfedgnn.runs.start_from import recorded_ancestor, write_public_state


@dataclass
class TrainingRecord:
    """What the coordinator has recorded of a training so far, besides the state of the protocol."""

    ledger: Ledger = field(default_factory=Ledger)
    history: list[dict[str, Any]] = field(default_factory=list)
    """Validations, in the order of their rounds."""
    seconds: float = 0.0
    """Time spent in rounds."""
    repeats: int = 0
    """Number of restarted trips."""
    abandoned: int = 0
    """Number of rounds without an update."""
    finished: set[str] = field(default_factory=set)
    """Parties that have received the result."""
    ended: str | None = None
    """Why the training ended before its last round; None if it did not."""


class CoordinatorStore:
    """The state of one training that survives a restart of the coordinator."""

    def __init__(
        self, folder: Path, agreement: str, config: Config, checkpoints: CoordinatorCheckpoints
    ) -> None:
        self.folder = folder
        self.agreement = agreement
        """Fingerprint of the federation file."""
        self.config = config
        self._checkpoints = checkpoints

    def claim(self) -> None:
        """Create the folder for this agreement; raise `RunError` if it belongs to another one."""
        config_file = self.folder / "config.toml"
        mark = self.folder / "federation.txt"
        with writing(self.folder):
            make_folder(self.folder)
            marked = mark.exists() and mark.read_text("utf-8").strip() == self.agreement
            if config_file.exists() and not marked:
                raise RunError(
                    f"{self.folder} belongs to another agreement than federation.toml; choose another --out"
                )
            write_bytes(config_file, self.config.to_toml().encode())
            write_bytes(mark, f"{self.agreement}\n".encode())

    def restore(self, coordinator: Coordinator) -> TrainingRecord | None:
        """Load the last checkpoint into `coordinator` and return its record; None without a checkpoint."""
        found = self._checkpoints.read()
        if found is None:
            return self._read_cancelled()
        coordinator.restore(found.state)
        self._checkpoints.restore_others(found.round)
        values = found.values
        record = TrainingRecord(
            ledger=Ledger.from_dict(values["ledger"]),
            seconds=values["seconds"],
            repeats=values["repeats"],
            abandoned=values["abandoned"],
            ended=values["ended"],
        )
        if (self.folder / "history.jsonl").is_file():
            record.history = [e for e in read_history(self.folder) if e["round"] <= coordinator.round]
        metrics_file = self.folder / "metrics.json"
        if metrics_file.is_file():
            parties = json.loads(metrics_file.read_text("utf-8"))["parties"]
            record.finished = {party["name"] for party in parties if party["has_result"]}
        return record

    def _read_cancelled(self) -> TrainingRecord | None:
        """Return the record of a training that was cancelled before it started; None without one."""
        metrics_file = self.folder / "metrics.json"
        if not metrics_file.is_file():
            return None
        metrics = json.loads(metrics_file.read_text("utf-8"))
        finished = {party["name"] for party in metrics["parties"] if party["has_result"]}
        return TrainingRecord(finished=finished, ended=metrics["ended"])

    def write_checkpoint(self, coordinator: Coordinator, record: TrainingRecord) -> None:
        """Write the state of the protocol and the record."""
        values = {
            "ledger": record.ledger.to_dict(),
            "seconds": record.seconds,
            "repeats": record.repeats,
            "abandoned": record.abandoned,
            "ended": record.ended,
        }
        self._checkpoints.write(coordinator.round, coordinator.checkpoint(), values)

    def write_history(self, record: TrainingRecord) -> None:
        """Write the validations so far."""
        with writing(self.folder):
            write_history(self.folder, record.history)

    def write_result(self, coordinator: Coordinator, record: TrainingRecord, refused: dict[str, int]) -> None:
        """Write the public parameters of the best round, the ledger and the figures."""
        config = self.config
        best = coordinator.best
        metrics = {
            "valid": config.training.judged(best.error) if best.round else None,
            **summarise_cost(record.ledger, coordinator.round, len(coordinator.names), record.seconds),
            "best_round": best.round,
            "public": coordinator.public_digest,
            "parties": [{"name": name, "has_result": name in record.finished} for name in coordinator.names],
            "repeats": record.repeats,
            "abandoned": record.abandoned,
            "refused": refused,
            "config": config.fingerprint(),
            "seed": config.seed,
        }
        if record.ended is not None:
            metrics["ended"] = record.ended
        ancestor = recorded_ancestor(self.folder)
        if ancestor is not None:
            metrics["from"] = ancestor
            if coordinator.forgotten:
                metrics["from"]["forgotten"] = coordinator.forgotten
        with writing(self.folder):
            write_public(self.folder, coordinator.public)
            write_json(self.folder / "ledger.json", record.ledger.to_dict())
            write_json(self.folder / "metrics.json", metrics)

    def write_start(self, coordinator: Coordinator) -> None:
        """Keep what a training that starts from this one needs, where every worker's checkpoint holds a part of it."""
        if self._checkpoints.workers is not None and coordinator.began:
            accumulator = coordinator.rows.full_copy()["accumulator"]
            write_public_state(self.folder, coordinator.round, coordinator.public, accumulator)

    def add_lists(self, lists: CoordinatorStore) -> None:
        """Report the training of lists, which `lists` keeps, in the figures of this one."""
        metrics = json.loads((self.folder / "metrics.json").read_text("utf-8"))
        metrics["lists"] = json.loads((lists.folder / "metrics.json").read_text("utf-8"))
        with writing(self.folder):
            write_json(self.folder / "metrics.json", metrics)
