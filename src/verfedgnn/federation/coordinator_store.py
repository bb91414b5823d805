"""A coordinator's run folder: checkpoint, history, figures and public parameters. It never holds ratings or ids.

An operator reaches a running coordinator through files: a request to finish here, and revoked certificates in federation.toml.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verfedgnn.config import Config
from verfedgnn.core.errors import ConfigError, RunError
from verfedgnn.core.files import make_folder, write_bytes, writing
from verfedgnn.federation.agreement import FILE, load_agreement
from verfedgnn.federation.certificates import certificate_key
from verfedgnn.federation.event_log import log_warning
from verfedgnn.federation.roster import MemberIdentity
from verfedgnn.protocol.coordinator import Coordinator
from verfedgnn.runs.checkpoint_slots import CheckpointSlots
from verfedgnn.runs.ledger import Ledger
from verfedgnn.runs.metrics_file import summarise_cost
from verfedgnn.runs.run import read_history, write_history, write_json, write_public

_KEPT = ("seconds", "repeats", "abandoned", "ended")
"""Fields of a record that a checkpoint holds as they are."""


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

    def __init__(self, folder: Path, agreement: str, config: Config) -> None:
        """Create the folder for the agreement with that digest; raise `RunError` if it belongs to another one."""
        self.folder = folder
        self.config = config
        self._metrics = folder / "metrics.json"
        self._checkpoints = CheckpointSlots(folder / "checkpoint")
        mark = folder / "federation.txt"
        with writing(folder):
            make_folder(folder)
            marked = mark.exists() and mark.read_text("utf-8").strip() == agreement
            if (folder / "config.toml").exists() and not marked:
                remedy = "choose another --out"
                raise RunError(f"{folder} belongs to another agreement than federation.toml; {remedy}")
            write_bytes(folder / "config.toml", config.to_toml().encode())
            write_bytes(mark, f"{agreement}\n".encode())

    def restore(self, coordinator: Coordinator) -> TrainingRecord | None:
        """Load the last checkpoint into `coordinator` and return its record; None if there is nothing to resume.

        A training that was cancelled before it started has figures and no checkpoint.
        """
        found = self._checkpoints.read()
        metrics = json.loads(self._metrics.read_text("utf-8")) if self._metrics.is_file() else None
        if found is None and metrics is None:
            return None
        record = TrainingRecord()
        if metrics is not None:
            record.finished = {party["name"] for party in metrics["parties"] if party["has_result"]}
            record.ended = metrics.get("ended")
        if found is not None:
            coordinator.restore(found.state)
            record.ledger = Ledger.from_dict(found.values["ledger"])
            for name in _KEPT:
                setattr(record, name, found.values[name])
            if (self.folder / "history.jsonl").is_file():
                record.history = [e for e in read_history(self.folder) if e["round"] <= coordinator.round]
        return record

    def write_checkpoint(self, coordinator: Coordinator, record: TrainingRecord) -> None:
        """Write the state of the protocol and the record."""
        values = {"ledger": record.ledger.to_dict(), **{name: getattr(record, name) for name in _KEPT}}
        self._checkpoints.write(coordinator.round, coordinator.checkpoint(), values)

    def write_history(self, record: TrainingRecord) -> None:
        """Write the validations so far."""
        with writing(self.folder):
            write_history(self.folder, record.history)

    def write_result(self, coordinator: Coordinator, record: TrainingRecord, refused: dict[str, int]) -> None:
        """Write the public parameters of the best round, the ledger and the figures."""
        best = coordinator.best
        metrics = {
            "valid": self.config.judged(best.error) if best.round else None,
            **summarise_cost(record.ledger, coordinator.round, len(coordinator.names), record.seconds),
            "best_round": best.round,
            "public": coordinator.public_digest,
            "parties": [{"name": name, "has_result": name in record.finished} for name in coordinator.names],
            "repeats": record.repeats,
            "abandoned": record.abandoned,
            "refused": refused,
            "config": self.config.fingerprint(),
            "seed": self.config.seed,
        }
        if record.ended is not None:
            metrics["ended"] = record.ended
        with writing(self.folder):
            write_public(self.folder, coordinator.public)
            write_json(self.folder / "ledger.json", record.ledger.to_dict())
            write_json(self._metrics, metrics)

    def add_figures(self, name: str, other: CoordinatorStore) -> None:
        """Report the figures of another training under a name in those of this one."""
        figures, added = (json.loads(each._metrics.read_text("utf-8")) for each in (self, other))
        with writing(self.folder):
            write_json(self._metrics, figures | {name: added})


# -- what an operator asks for -----------------------------------------------------------------------------------------------


class RevocationWatch:
    """The coordinator's federation.toml, read again whenever it was replaced while a training runs."""

    def __init__(self, identity: MemberIdentity) -> None:
        self.parties = identity.agreement.parties
        self._file = identity.key_file.parent / FILE
        self._seen = self._version()

    def find(self) -> list[str]:
        """Return parties of the running agreement whose keys a new file no longer has; [] if the file is the same."""
        version = self._version()
        if version is None or version == self._seen:
            return []
        self._seen = version
        try:
            present = load_agreement(self._file, dates=False).parties
        except ConfigError as error:
            log_warning("federation.toml was replaced and cannot be read", reason=str(error))
            return []
        keys = {certificate_key(party.certificate) for party in present}
        return [party.name for party in self.parties if certificate_key(party.certificate) not in keys]

    def _version(self) -> tuple[int, int] | None:
        try:
            about = self._file.stat()
        except OSError:
            return None
        return about.st_mtime_ns, about.st_ino
