"""The run folders of members, from which they resume.

That of the coordinator has a checkpoint, history, figures and public parameters of each training, and never ratings or ids. That of a
party has aligned data, a secret, what it has released, checkpoints and finally its model; nothing in it leaves the party.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.core.errors import RunError
from verfedgnn.core.files import make_folder, sync_folder, write_all, write_bytes, writing
from verfedgnn.core.key_stream import KEY_BYTES, derive_key
from verfedgnn.core.random_streams import simulated_secret
from verfedgnn.federation.agreement import Stage, list_stages
from verfedgnn.federation.certificates import write_secret
from verfedgnn.federation.roster import MemberIdentity
from verfedgnn.protocol.coordinator import Coordinator
from verfedgnn.protocol.masks import ListCommitments
from verfedgnn.protocol.party_progress import PartyProgress
from verfedgnn.protocol.release_ledger import ReleaseEntry, ReleaseLedger, Values
from verfedgnn.protocol.replica import CheckpointState
from verfedgnn.runs.checkpoint import CheckpointSlots, SlotCheckpoint
from verfedgnn.runs.ledger import Ledger
from verfedgnn.runs.metrics_file import summarise_cost
from verfedgnn.runs.party_tables import read_party_tables
from verfedgnn.runs.prepared_data import Prepared, prepare
from verfedgnn.runs.run import begin_folder, read_history, write_history, write_json, write_public
from verfedgnn.runs.run_folder import FINAL, LAST_RELEASE, LISTS, RESULT

LEDGER = "releases.jsonl"
_RELEASES = "releases"
"""Name of the number of releases that were on disk when a file was written."""
_MARK = "federation.txt"
"""File that names the agreement of the folder and, at a party, its alignment."""
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
    """Number of restarted rounds."""
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
        mark = folder / _MARK
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
        checkpoint = self._checkpoints.read()
        metrics = json.loads(self._metrics.read_text("utf-8")) if self._metrics.is_file() else None
        if checkpoint is None and metrics is None:
            return None
        record = TrainingRecord()
        if metrics is not None:
            record.finished = {party["name"] for party in metrics["parties"] if party["has_result"]}
            record.ended = metrics.get("ended")
        if checkpoint is not None:
            coordinator.restore(checkpoint.state)
            record.ledger = Ledger.from_dict(checkpoint.values["ledger"])
            for name in _KEPT:
                setattr(record, name, checkpoint.values[name])
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
        figures, added = (json.loads(store._metrics.read_text("utf-8")) for store in (self, other))
        with writing(self.folder):
            write_json(self._metrics, figures | {name: added})


# -- a party -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StageResult:
    """What one training gave this party, before the gate."""

    rounds: int
    """Number of rounds; 0 if the training was skipped, because a party had nothing to train it on."""
    arrays: dict[str, Tensor]
    """The model (`PartyModel.arrays`), and the public parameters `public`."""
    ledger: Ledger
    figures: dict[str, Any]
    """best_round, seconds, privacy, digest, and ratings: the training ratings of all parties."""


class PartyStore:
    """The state of a party that survives a restart."""

    def __init__(self, folder: Path, identity: MemberIdentity) -> None:
        self.folder = folder
        self.identity = identity
        self.stages = list_stages(identity.agreement)
        """The trainings of the federation, in their order."""

    @property
    def withholding_secret(self) -> bytes:
        """The secret that draws the users whom this party withholds, the same in every training."""
        config = self.identity.agreement.config
        if "noise" in config.unprotected:
            return simulated_secret(config.seed, self.identity.index)
        return derive_key(hashlib.sha256(self.identity.key_file.read_bytes()).digest(), "withheld users")

    @property
    def is_aligned(self) -> bool:
        """Whether aligned users are stored."""
        return (self.folder / _MARK).is_file()

    @property
    def is_finished(self) -> bool:
        """Whether all trainings have finished and the served model is stored."""
        return (self.folder / "metrics.json").is_file()

    @property
    def is_trained(self) -> bool:
        """Whether all trainings have finished; the gates may not be chosen yet."""
        return self.is_finished or self.next_stage is None

    @property
    def has_training(self) -> bool:
        """Whether there is a checkpoint or a model in addition to aligned users."""
        return self.is_finished or (self.folder / "checkpoint").is_dir()

    def save_alignment(self, prepared: Prepared, alignment: str) -> None:
        """Store the aligned data and a new secret, from which noise and batches derive."""
        agreement = self.identity.agreement
        self.clear()
        with writing(self.folder):
            make_folder(self.folder)
            self.folder.chmod(0o700)  # where somebody else created it
        begin_folder(self.folder, agreement.config, [prepared.party], [prepared.parts])
        write_secret(self.folder / "secret", secrets.token_bytes(KEY_BYTES))
        with writing(self.folder):
            write_bytes(self.folder / _MARK, f"{agreement.digest()}\n{alignment}\n".encode())

    def clear(self) -> None:
        """Remove the alignment and everything that depends on it."""
        with writing(self.folder):
            for name in (_MARK, "secret"):
                (self.folder / name).unlink(missing_ok=True)
            for name in ("parties", "checkpoint", LISTS, FINAL):
                shutil.rmtree(self.folder / name, ignore_errors=True)

    def load(self, device: torch.device) -> tuple[Prepared, str]:
        """Return the stored data and the name of its alignment; raise `RunError` if the agreement has changed."""
        agreement, alignment = (self.folder / _MARK).read_text("utf-8").split()
        if agreement != self.identity.agreement.digest():
            other = f"{self.folder} belongs to another agreement than the given federation.toml"
            raise RunError(f"{other}; choose another --out")
        parties, parts = read_party_tables(self.folder / "parties")
        (prepared,) = prepare(parties, self.identity.agreement.config, device, parts)
        return prepared, alignment

    def read_secret(self, stage: Stage) -> bytes:
        """Return the secret of this party's randomness in a training; with unprotected noise it derives from the agreed seed."""
        if "noise" in stage.config.unprotected:
            return simulated_secret(stage.config.seed, self.identity.index)
        secret = (self.folder / "secret").read_bytes()
        return secret if stage.first else derive_key(secret, stage.name)  # no two trainings share noise

    def begin_stage(self, stage: Stage) -> Path:
        """Create the folder of a training and return it."""
        folder = stage.folder(self.folder)
        with writing(folder):
            make_folder(folder)
            if not stage.first:
                write_bytes(folder / "config.toml", stage.config.to_toml().encode())
            if not (folder / "history.jsonl").is_file():
                write_history(folder, [])
        return folder

    # -- results of single trainings, until the run is complete ------------------------------------------

    def write_result(self, stage: Stage, result: StageResult) -> None:
        """Store the result of a training, all of it or nothing."""
        state = CheckpointState({key: value.cpu().numpy() for key, value in result.arrays.items()})
        values = {"ledger": result.ledger.to_dict(), "figures": result.figures}
        CheckpointSlots(self._result_folder(stage)).write(result.rounds, state, values)
        # From now on nobody can ask for a round of this training again.
        for last in list(stage.folder(self.folder).rglob(LAST_RELEASE)):
            shutil.rmtree(last)

    def read_result(self, stage: Stage) -> StageResult | None:
        """Return the stored result of a training; None if the training has not finished."""
        stored = CheckpointSlots(self._result_folder(stage)).read()
        if stored is None:
            return None
        arrays = {key: torch.from_numpy(value) for key, value in stored.state.arrays.items()}
        ledger = Ledger.from_dict(stored.values["ledger"])
        return StageResult(stored.round, arrays, ledger, stored.values["figures"])

    @property
    def next_stage(self) -> Stage | None:
        """The first training without a result; None if all have finished."""
        return next((stage for stage in self.stages if self.read_result(stage) is None), None)

    def remove_results(self) -> None:
        """Remove the results of single trainings, once the run is complete, and what is left of a skipped one."""
        for stage in self.stages:
            result = self.read_result(stage)
            shutil.rmtree(self._result_folder(stage), ignore_errors=True)
            if result is not None and not result.rounds:
                shutil.rmtree(stage.folder(self.folder), ignore_errors=True)

    def _result_folder(self, stage: Stage) -> Path:
        return stage.folder(self.folder) / "checkpoint" / RESULT


class PartyCheckpoints:
    """The progress after each round, and the evaluated models after each validation, in `folder`."""

    def __init__(self, folder: Path, progress: PartyProgress, ledger: ReleaseLedger) -> None:
        self.progress = progress
        self.ledger = ledger
        self._rounds = CheckpointSlots(folder / "party")
        self._models = CheckpointSlots(folder / "models")
        self._saved_models: int | None = None
        """Round of the models in the last checkpoint."""

    def write(self, round: int, values: Mapping[str, Any]) -> None:
        """Write the progress after a round, with `values` beside it."""
        newest = self.progress.evaluated[0] if self.progress.evaluated is not None else 0
        if newest != self._saved_models:
            self._models.write(newest, self.progress.models(), {})
            self._saved_models = newest
        self._rounds.write(round, self.progress.checkpoint(), {**values, _RELEASES: len(self.ledger.entries)})

    def restore(self) -> SlotCheckpoint | None:
        """Restore the progress of the newest checkpoint; return None if there is none.

        Raise `RunError` if the ledger of releases is older.
        """
        checkpoint = self._rounds.read()
        models = self._models.read()
        if checkpoint is None or models is None:
            return None
        self.ledger.check_age(checkpoint.values[_RELEASES], str(self._rounds.folder))
        self.progress.restore(checkpoint.state, models.state)
        self._saved_models = models.round
        return checkpoint


# -- releases and commitments, on disk before they leave the party -----------------------------------------------------------


class LineFile:
    """An append-only file of JSON lines, each on disk before `append` returns. A line that a kill cut short is overwritten."""

    def __init__(self, path: Path) -> None:
        self.path = path
        data = path.read_bytes() if path.is_file() else b""
        self._size = data.rfind(b"\n") + 1
        """Bytes of complete lines."""
        self.lines = data[: self._size].splitlines()
        """The lines that the file had when it was opened."""

    def append(self, value: Any) -> None:
        """Append a value and flush it to disk."""
        line = json.dumps(value, separators=(",", ":")).encode() + b"\n"
        with writing(self.path):
            is_new = not self.path.exists()
            handle = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                os.ftruncate(handle, self._size)
                os.lseek(handle, self._size, os.SEEK_SET)
                write_all(handle, line)
                os.fsync(handle)
            finally:
                os.close(handle)
            if is_new:
                sync_folder(self.path.parent)
        self._size += len(line)


def open_ledger(folder: Path, config: Config) -> ReleaseLedger:
    """Return the ledger that `folder` holds, or a new one."""
    file = ReleaseFile(folder)
    ledger = ReleaseLedger(config, file.read(), store=file.append)
    file.read_last(ledger)
    return ledger


class ReleaseFile:
    """A ledger on disk: a line a release, flushed before the release leaves the party.

    The values of the last round are kept beside it, before masks, so that a repeated round gets the same release also after a restart.
    """

    def __init__(self, folder: Path) -> None:
        self._file = LineFile(folder / LEDGER)
        # Not durable: after a power cut the values may be lost, and the coordinator then abandons the round.
        self._last = CheckpointSlots(folder / LAST_RELEASE, durable=False)

    def read(self) -> list[ReleaseEntry]:
        """Return all entries."""
        try:
            lines = [json.loads(line) for line in self._file.lines]
            return [ReleaseEntry(**{k: v for k, v in line.items() if k != "time"}) for line in lines]
        except (ValueError, TypeError, AttributeError) as error:
            raise RunError(
                f"{self._file.path} cannot be read ({error}), so this party does not know what it has released; "
                "start a new training with another --out (an older copy of the file would not know all releases)"
            ) from None

    def read_last(self, ledger: ReleaseLedger) -> None:
        """Load the values of the last round into `ledger`, unless they are lost; raise `RunError` if the ledger is older than they are."""
        try:
            release = self._last.read()
        except RunError:
            return
        if release is not None:
            ledger.check_age(release.values[_RELEASES], str(self._last.folder))
            ledger.last = dict(release.state.arrays)
            ledger.last_round = release.round

    def append(self, entry: ReleaseEntry, values: Values, before: int) -> None:
        """Write a release after `before` others, and flush it to disk."""
        self._last.write(entry.round, CheckpointState(dict(values)), {_RELEASES: before})
        self._file.append({"time": datetime.now(UTC).isoformat(timespec="seconds"), **asdict(entry)})


class SurvivorLog(ListCommitments):
    """The survivor lists that a party committed to, in a file that is flushed before any share leaves the party."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = LineFile(path)
        for line in self._file.lines:
            training, round, survivors = json.loads(line)
            self._lists[training, round] = survivors

    def write(self, training: str, round: int, survivors: Sequence[int]) -> None:
        """Append a commitment and flush it to disk."""
        self._file.append([training, round, list(survivors)])
