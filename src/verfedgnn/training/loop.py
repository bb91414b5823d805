"""The training loop on one machine: run rounds, validate, write checkpoints, and return the best models."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.core.errors import ConfigError, Interrupted
from verfedgnn.core.files import make_folder, writing
from verfedgnn.core.option_names import option
from verfedgnn.privacy.accounting import SIMULATED, privacy_report
from verfedgnn.protocol.party import FinishedTraining, Party
from verfedgnn.runs.checkpoint import CheckpointFile, join_states
from verfedgnn.runs.ledger import Ledger
from verfedgnn.runs.metrics_file import Trained, history_entry
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.runs.party_tables import safe_names
from verfedgnn.runs.prepared_data import Prepared
from verfedgnn.runs.run import read_history, write_history
from verfedgnn.training.local_runtime import local_federation
from verfedgnn.training.progress import Progress, Stop, Watcher, never, resume_hint

CHECKPOINT_SECONDS = 60.0
"""Time between two checkpoints. A training that is stopped or done writes one, too."""


class TrainingLoop:
    """One training in progress. With a `folder`, it writes checkpoints from which it can be resumed."""

    def __init__(
        self,
        prepared: Sequence[Prepared],
        config: Config,
        *,
        folder: Path | None = None,
        party: type[Party] = Party,
        start: Tensor | None = None,
    ) -> None:
        self.prepared = prepared
        self.config = config
        self.folder = folder
        inputs = [each.input for each in prepared]
        device = prepared[0].train.user.device
        self.runtime = local_federation(inputs, config, device, party=party, start=start)
        self.coordinator = self.runtime.coordinator
        self.history: list[dict[str, Any]] = []
        self.seconds = 0.0
        self.saved = time.monotonic()
        """Time of the last checkpoint."""
        names = self.coordinator.names
        self.releases = {name: Counter({"gradients": 0, "neighbourhoods": 0}) for name in names}
        self._files = safe_names([party.party for party in prepared])
        if folder is not None:
            self._checkpoints = CheckpointFile(folder / "checkpoint")
            self._restore(folder)

    def run(self, watch: Watcher | None = None, stop: Stop = never) -> Trained:
        """Run all remaining rounds and return the best models.

        When `stop()` turns true, finish the round, write a checkpoint and raise `Interrupted`.
        """
        coordinator = self.coordinator
        while not coordinator.done:
            began = time.perf_counter()
            closed = self.runtime.round()
            self.seconds += time.perf_counter() - began
            for name, reply in coordinator.replies.items():
                self.releases[name]["gradients"] += reply.gradient is not None
                self.releases[name]["neighbourhoods"] += reply.neighbourhoods is not None
            # without validation ratings, an error says nothing
            error = None if self.config.split.kind == "all" else closed.valid_error
            if error is not None:
                entry = history_entry(closed.round, error, self.config, self.runtime.ledger, self.seconds)
                self.history.append(entry)
                if self.folder is not None:
                    with writing(self.folder):
                        write_history(self.folder, self.history)
            if watch is not None:
                watch(self._progress(closed.round, error))
            done = coordinator.done
            stopping = not done and stop()
            due = time.monotonic() - self.saved >= CHECKPOINT_SECONDS
            if self.folder is not None and (stopping or done or due):
                self.write_checkpoint()
            if stopping:
                what = f"stopped after round {closed.round} of {coordinator.rounds}"
                raise Interrupted(what, resume_hint(self.folder))
        finished = self.runtime.finish()
        if watch is not None:
            watch(self._progress(coordinator.round, None))  # with the bytes of the last messages
        return self._trained(finished)

    def _progress(self, round: int, error: float | None) -> Progress:
        judged = self.config.judged
        name = "lists" if self.config.ranks else "federation"
        return Progress(
            label=f"{name}, all ratings" if self.config.split.kind == "all" else name,
            round=round,
            rounds=self.coordinator.rounds,
            valid=None if error is None else judged(error),
            best=judged(self.coordinator.best.error),
            bytes=self.runtime.ledger.total(),
        )

    def _trained(self, finished: Sequence[FinishedTraining]) -> Trained:
        best = self.coordinator.best
        party = next(iter(self.runtime.parties.values()))
        privacy = privacy_report(
            party.replica.protection,
            releases=max(counts["gradients"] for counts in self.releases.values()),
            exchanges=max(counts["neighbourhoods"] for counts in self.releases.values()),
            exchange=party.exchange,
            validations=len(self.history),
            randomness=SIMULATED,
            parties=[each.input for each in self.prepared],
        )
        shared = finished[0].model["users"]
        for each in finished[1:]:
            if torch.equal(each.model["users"], shared):
                each.model["users"] = shared  # one copy in memory
        return Trained(
            models=[PartyModel.from_arrays(each.model) for each in finished],
            public=self.coordinator.public,
            rounds=self.coordinator.round,
            best_round=best.round,
            seconds=self.seconds,
            history=self.history,
            ledger=self.runtime.ledger,
            privacy=privacy,
        )

    def write_checkpoint(self) -> None:
        """Write a checkpoint of the last finished round."""
        states = {"_coordinator": self.coordinator.checkpoint()}
        for name, party in zip(self._files, self.runtime.parties.values(), strict=True):
            states[name] = party.progress.checkpoint()
            states[f"{name}_models"] = party.progress.models()
        releases = {name: dict(counts) for name, counts in self.releases.items()}
        values = {"ledger": self.runtime.ledger.to_dict(), "seconds": self.seconds, "releases": releases}
        self._checkpoints.write(self.coordinator.round, join_states(states), values)
        self.saved = time.monotonic()

    def _restore(self, folder: Path) -> None:
        """Begin in a folder, or restore the last checkpoint that it holds."""
        if not (folder / "history.jsonl").is_file():
            make_folder(folder)
            write_history(folder, [])
        found = self._checkpoints.read()
        if found is None:
            return
        values = found.values
        self.coordinator.restore(found.part("_coordinator"))
        replica = self.coordinator.replica
        for name, party in zip(self._files, self.runtime.parties.values(), strict=True):
            party.progress.restore(found.part(name), found.part(f"{name}_models"))
            party.replica.load(replica.arrays(), replica.round)
            party.replica.best = (self.coordinator.best.round, self.coordinator.public)
        self.runtime.ledger = Ledger.from_dict(values["ledger"])
        self.seconds = values["seconds"]
        self.releases = {name: Counter(counts) for name, counts in values["releases"].items()}
        self.history = [entry for entry in read_history(folder) if entry["round"] <= replica.round]


def usable_device(device: str | torch.device) -> torch.device:
    """Return the device called `device`; raise `ConfigError` if this machine does not have it."""
    try:
        chosen = torch.device(device)
        if chosen.type not in ("cpu", "cuda"):
            raise RuntimeError("only cpu and cuda are supported")
        torch.zeros(1, device=chosen)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        cause = f"device '{device}' cannot be used here ({reason})"
        raise ConfigError(f"{cause}; use {option('device', 'cpu')}") from None
    return chosen
