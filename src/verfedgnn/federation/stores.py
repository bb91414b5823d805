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
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.core.errors import RunError
from verfedgnn.core.files import make_folder, sync_folder, write_bytes, writing
from verfedgnn.core.key_stream import KEY_BYTES, derive_key
from verfedgnn.core.random_streams import simulated_secret
from verfedgnn.federation.agreement import MARK, Stage, list_stages
from verfedgnn.federation.certificates import write_secret
from verfedgnn.federation.roster import MemberIdentity
from verfedgnn.protocol.coordinator import Coordinator
from verfedgnn.protocol.masks import ListCommitments
from verfedgnn.protocol.party_state import PartyProgress
from verfedgnn.protocol.release_ledger import ReleaseEntry, ReleaseLedger, Values
from verfedgnn.protocol.replica import CheckpointState
from verfedgnn.runs.checkpoint import Checkpoint, CheckpointFile
from verfedgnn.runs.ledger import Ledger
from verfedgnn.runs.metrics_file import Trained, history_entry, summarise_cost
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.runs.party_tables import read_party_tables
from verfedgnn.runs.prepared_data import Prepared, prepare
from verfedgnn.runs.run import begin_folder, read_history, write_history, write_json, write_public
from verfedgnn.runs.run_folder import FINAL, LAST_RELEASE, LISTS, RESULT

LEDGER = "releases.jsonl"
RELEASES = "releases"
"""Name of the number of releases that were on disk when a file was written."""


class TrainingRecord:
    """What a member has recorded of one training, in memory and in the folder from which it resumes."""

    kept: tuple[str, ...] = ("seconds", "repeats")
    """Fields that a checkpoint holds as they are."""

    def __init__(self, stage: Stage, run: Path, checkpoints: str, ledger: Ledger) -> None:
        self.stage, self.config, self.folder = stage, stage.config, stage.folder(run)
        self.ledger = ledger
        self.history: list[dict[str, Any]] = []
        """Validations, in the order of their rounds."""
        self.seconds = 0.0
        """Time spent in rounds."""
        self.repeats = 0
        """Number of restarted rounds."""
        self._checkpoints = CheckpointFile(self.folder / checkpoints)

    def add_validation(self, round: int, error: float) -> None:
        """Record a validation, in place of those of a round that is repeated and of later ones."""
        entry = history_entry(round, error, self.config, self.ledger, self.seconds)
        self.history = [*(e for e in self.history if e["round"] < round), entry]
        with writing(self.folder):
            write_history(self.folder, self.history)

    def write_checkpoint(self, round: int, state: CheckpointState, **values: Any) -> None:
        """Write the state of the protocol and the record."""
        values |= {name: getattr(self, name) for name in self.kept}
        self._checkpoints.write(round, state, values)

    def read_checkpoint(self) -> Checkpoint | None:
        """Load the record of the last checkpoint, and return the checkpoint; None if there is none."""
        checkpoint = self._checkpoints.read()
        if checkpoint is not None:
            for name in self.kept:
                setattr(self, name, checkpoint.values[name])
            if (self.folder / "history.jsonl").is_file():
                self.history = [e for e in read_history(self.folder) if e["round"] <= checkpoint.round]
        return checkpoint


class CoordinatorRecord(TrainingRecord):
    """What the coordinator has recorded of one training, and its figures."""

    kept = ("seconds", "repeats", "abandoned", "ended")

    def __init__(self, stage: Stage, run: Path, agreement: str, ledger: Ledger) -> None:
        """Create the folder for the agreement with that digest; raise `RunError` if it belongs to another one."""
        super().__init__(stage, run, "checkpoint", ledger)
        folder, config = self.folder, self.config
        self.abandoned = 0
        """Number of rounds without an update."""
        self.finished: set[str] = set()
        """Parties that have received the result."""
        self.ended: str | None = None
        """Why the training ended before its last round; None if it did not."""
        self.metrics = folder / "metrics.json"
        mark = folder / MARK
        with writing(folder):
            make_folder(folder)
            marked = mark.exists() and mark.read_text("utf-8").strip() == agreement
            if (folder / "config.toml").exists() and not marked:
                other = f"{folder} belongs to another agreement than federation.toml"
                raise RunError(f"{other}; choose another --out")
            write_bytes(folder / "config.toml", config.to_toml().encode())
            write_bytes(mark, f"{agreement}\n".encode())

    def restore(self, coordinator: Coordinator) -> bool:
        """Load the last checkpoint, also into `coordinator`; return whether there is anything to resume.

        A training that was cancelled before it started has figures and no checkpoint.
        """
        if self.metrics.is_file():
            metrics = json.loads(self.metrics.read_text("utf-8"))
            self.finished = {party["name"] for party in metrics["parties"] if party["has_result"]}
            self.ended = metrics.get("ended")
        checkpoint = self.read_checkpoint()
        if checkpoint is not None:
            coordinator.restore(checkpoint.state)
        return checkpoint is not None or self.metrics.is_file()

    def write_result(self, coordinator: Coordinator, refused: Mapping[str, int]) -> None:
        """Write the public parameters of the best round, the ledger and the figures."""
        best = coordinator.best
        metrics = {
            "valid": self.config.judged(best.error) if best.round else None,
            **summarise_cost(self.ledger, coordinator.round, len(coordinator.names), self.seconds),
            "best_round": best.round,
            "public": coordinator.public_digest,
            "parties": [{"name": name, "has_result": name in self.finished} for name in coordinator.names],
            "repeats": self.repeats,
            "abandoned": self.abandoned,
            "refused": dict(refused),
            "config": self.config.fingerprint(),
            "seed": self.config.seed,
            **({} if self.ended is None else {"ended": self.ended}),
        }
        with writing(self.folder):
            write_public(self.folder, coordinator.public)
            write_json(self.folder / "ledger.json", self.ledger.to_dict())
            write_json(self.metrics, metrics)


# -- a party -----------------------------------------------------------------------------------------------------------------


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
        config = self.identity.agreement.sized_config
        if "noise" in config.unprotected:
            return simulated_secret(config.seed, self.identity.index)
        return derive_key(hashlib.sha256(self.identity.key_file.read_bytes()).digest(), "withheld users")

    @property
    def is_aligned(self) -> bool:
        """Whether aligned users are stored."""
        return (self.folder / MARK).is_file()

    @property
    def has_training(self) -> bool:
        """Whether there is a checkpoint or a model in addition to aligned users."""
        return self.is_finished or (self.folder / "checkpoint").is_dir()

    @property
    def next_stage(self) -> Stage | None:
        """The first training without a result; None if all have finished."""
        return next((stage for stage in self.stages if self.record(stage).read_result() is None), None)

    @property
    def is_trained(self) -> bool:
        """Whether all trainings have finished; the gates may not be chosen yet."""
        return self.is_finished or self.next_stage is None

    @property
    def is_finished(self) -> bool:
        """Whether the gates are chosen and the served model is stored."""
        return (self.folder / "metrics.json").is_file()

    def save_alignment(self, prepared: Prepared, alignment: str) -> None:
        """Store the aligned data and a new secret, from which noise and batches derive."""
        agreement = self.identity.agreement
        self.clear()
        with writing(self.folder):
            make_folder(self.folder)
            self.folder.chmod(0o700)  # where somebody else created it
            begin_folder(self.folder, agreement.sized_config, [prepared.party], [prepared.parts])
            write_secret(self.folder / "secret", secrets.token_bytes(KEY_BYTES))
            write_bytes(self.folder / MARK, f"{agreement.digest()}\n{alignment}\n".encode())

    def clear(self) -> None:
        """Remove the alignment and everything that depends on it."""
        with writing(self.folder):
            for name in (MARK, "secret"):
                (self.folder / name).unlink(missing_ok=True)
            for name in ("parties", "checkpoint", LISTS, FINAL):
                shutil.rmtree(self.folder / name, ignore_errors=True)

    def load(self, device: torch.device | str = "cpu") -> tuple[Prepared, str]:
        """Return the stored data and the name of its alignment; raise `RunError` if the agreement has changed."""
        agreement, alignment = (self.folder / MARK).read_text("utf-8").split()
        if agreement != self.identity.agreement.digest():
            other = f"{self.folder} belongs to another agreement than the given federation.toml"
            raise RunError(f"{other}; choose another --out")
        parties, parts = read_party_tables(self.folder / "parties")
        (prepared,) = prepare(parties, self.identity.agreement.sized_config, torch.device(device), parts)
        return prepared, alignment

    def record(self, stage: Stage, ledger: Ledger | None = None) -> PartyRecord:
        """Return the record of a training; `ledger` is that of its messages."""
        return PartyRecord(self, stage, Ledger() if ledger is None else ledger)

    def remove_results(self) -> None:
        """Remove the results of single trainings, once the run is complete, and what is left of a skipped one."""
        for record in map(self.record, self.stages):
            result = record.read_result()
            shutil.rmtree(record.results.folder, ignore_errors=True)
            shutil.rmtree(record.folder / LAST_RELEASE, ignore_errors=True)  # kept by a kill
            if result is not None and not result.rounds:
                shutil.rmtree(record.folder, ignore_errors=True)


class PartyRecord(TrainingRecord):
    """What a party has recorded of one training: also the evaluated models, and its result until the run is complete."""

    def __init__(self, store: PartyStore, stage: Stage, ledger: Ledger) -> None:
        super().__init__(stage, store.folder, "checkpoint/party", ledger)
        self.store = store
        self.results = CheckpointFile(self.folder / "checkpoint" / RESULT)
        self._models = CheckpointFile(self.folder / "checkpoint" / "models")
        """The evaluated models, which are written after each validation only."""
        self._saved_models: int | None = None
        """Round of the models in the last checkpoint."""

    @property
    def secret(self) -> bytes:
        """The secret of this party's randomness in the training; with unprotected noise it derives from the agreed seed."""
        if "noise" in self.config.unprotected:
            return simulated_secret(self.config.seed, self.store.identity.index)
        secret = (self.store.folder / "secret").read_bytes()
        return secret if self.stage.first else derive_key(secret, self.stage.name)  # no two share noise

    def begin(self) -> None:
        """Create the folder of the training."""
        with writing(self.folder):
            make_folder(self.folder)
            if not self.stage.first:
                write_bytes(self.folder / "config.toml", self.config.to_toml().encode())
            if not (self.folder / "history.jsonl").is_file():
                write_history(self.folder, [])

    def write_progress(self, round: int, progress: PartyProgress, releases: ReleaseLedger) -> None:
        """Write the progress after a round, and the evaluated models if they are new."""
        newest = progress.evaluated[0]
        if newest != self._saved_models:
            self._models.write(newest, progress.models(), {})
            self._saved_models = newest
        self.write_checkpoint(round, progress.checkpoint(), **{RELEASES: len(releases.entries)})

    def restore(self, progress: PartyProgress, releases: ReleaseLedger) -> int:
        """Restore the newest checkpoint and return its round, 0 without one; raise `RunError` if `releases` are older."""
        newest, models = self.read_checkpoint(), self._models.read()
        if newest is None or models is None:
            return 0
        releases.check_age(newest.values[RELEASES], str(self.folder / "checkpoint" / "party"))
        progress.restore(newest.state, models.state)
        self._saved_models = models.round
        return newest.round

    def write_result(self, rounds: int, public: Tensor, model: Mapping[str, Tensor], **figures: Any) -> None:
        """Store the result without its history, all of it or nothing; `figures` are further fields of `Trained`."""
        tensors = {"public": public, **model}
        state = CheckpointState({name: values.cpu().numpy() for name, values in tensors.items()})
        figures["seconds"] = self.seconds
        self.results.write(rounds, state, {"ledger": self.ledger.to_dict(), "figures": figures})
        # From now on nobody can ask for a round of this training again.
        for last in list(self.folder.rglob(LAST_RELEASE)):
            shutil.rmtree(last)

    def read_result(self, device: torch.device | str = "cpu") -> Trained | None:
        """Return the stored result; None if the training has not finished. It has no model if it was skipped."""
        stored = self.results.read()
        if stored is None:
            return None
        arrays = {name: torch.from_numpy(values).to(device) for name, values in stored.state.arrays.items()}
        public = arrays.pop("public")
        return Trained(
            [PartyModel.from_arrays(arrays)] if arrays else [],
            public,
            stored.round,
            history=read_history(self.folder),
            ledger=Ledger.from_dict(stored.values["ledger"]),
            **stored.values["figures"],
        )


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
            handle = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o600)
            with open(handle, "wb") as file:
                file.truncate(self._size)
                file.seek(self._size)
                file.write(line)
                file.flush()
                os.fsync(handle)
            if not self._size:
                sync_folder(self.path.parent)
        self._size += len(line)


def open_ledger(folder: Path, config: Config) -> ReleaseLedger:
    """Return the ledger that `folder` holds, or a new one. Each release is a line, on disk before the release leaves the party.

    The values of the last round are kept beside it, before masks, so that a repeated round gets the same release also after a restart.
    """
    file = LineFile(folder / LEDGER)
    last = CheckpointFile(folder / LAST_RELEASE)

    def store(entry: ReleaseEntry, values: Values, before: int) -> None:
        last.write(entry.round, CheckpointState(dict(values)), {RELEASES: before})
        file.append({"time": datetime.now(UTC).isoformat(timespec="seconds"), **asdict(entry)})

    try:
        lines = [json.loads(line) for line in file.lines]
        entries = [ReleaseEntry(**{k: v for k, v in line.items() if k != "time"}) for line in lines]
    except (ValueError, TypeError, AttributeError) as error:
        raise RunError(
            f"{file.path} cannot be read ({error}), so this party does not know what it has released; "
            "start a new training with another --out (an older copy of the file would not know all releases)"
        ) from None
    ledger = ReleaseLedger(config, entries, store=store)
    try:
        release = last.read()
    except RunError:  # lost on a failing disk; the coordinator then abandons the round
        return ledger
    if release is not None:
        ledger.check_age(release.values[RELEASES], str(last.folder))
        ledger.last = dict(release.state.arrays)
        ledger.last_round = release.round
    return ledger


class SurvivorLog(ListCommitments):
    """The survivor lists that a party committed to, in a file that is flushed before any share leaves the party."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = LineFile(path)
        for line in self._file.lines:
            training, round, survivors = json.loads(line)
            self.lists[training, round] = survivors

    def commit(self, training: str, round: int, survivors: Sequence[int]) -> None:
        """Commit to a list; append it to the file and flush that first."""
        if (training, round) not in self.lists:
            self._file.append([training, round, list(survivors)])
        super().commit(training, round, survivors)
