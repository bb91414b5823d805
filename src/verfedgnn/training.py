"""Training a federation on one machine: set up, rounds, checkpoints, the kept model, its figures."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from verfedgnn.config import Config, load_config
from verfedgnn.data import PartyData, check_parties
from verfedgnn.errors import ConfigError, Interrupted, RunError
from verfedgnn.evaluation.figures import figures, history_entry
from verfedgnn.files import writable, writing
from verfedgnn.prepare import Prepared, prepare
from verfedgnn.privacy.accounting import SIMULATED, privacy_report
from verfedgnn.protocol.coordinator import Coordinator
from verfedgnn.protocol.ledger import Ledger
from verfedgnn.protocol.party import Party
from verfedgnn.protocol.replica import parameters_digest
from verfedgnn.run import PartyModel, Run, begin_folder, other_code, read_history, write_history
from verfedgnn.runtime.checkpoint import read_checkpoint, write_checkpoint
from verfedgnn.runtime.local import LocalRuntime
from verfedgnn.store import read_parties, safe_names


@dataclass(frozen=True)
class Progress:
    """What a watcher is told after each round."""

    label: str
    """Which training: the federation, or a party alone."""
    round: int
    rounds: int
    valid: dict[str, float] | None
    """What a validation found, by name, if there was one."""
    best: dict[str, float]
    bytes: int


Watcher = Callable[[Progress], None]


def train(
    parties: Sequence[PartyData],
    config: Config | None = None,
    *,
    out: str | Path | None = None,
    device: str | torch.device = "cpu",
    stack: bool = True,
    overwrite: bool = False,
    parts: Sequence[NDArray[np.int8]] | None = None,
    party: type[Party] = Party,
    watch: Watcher | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Run:
    """Train `parties` together; with `out`, leave a run folder that can be resumed and loaded.

    `watch` is called after every round; when `stop()` turns true the round is finished, a checkpoint is written and
    `Interrupted` is raised. `stack=False` computes the parties one by one, bit for bit as separate processes would;
    so are parties too large to be stacked.
    `parts` gives the part of every rating where the configured split is not wanted; `party` is what a party runs, where that
    is a variant of the protocol's (not with `out`: a run folder does not say which).
    """
    config = Config.preset("paper") if config is None else config
    if not isinstance(config, Config):
        raise ConfigError('the configuration is a Config, such as Config.preset("paper", epochs=20)')
    config = config.with_code()
    check_parties(parties)
    folder = Path(out) if out is not None else None
    if folder is not None and party is not Party:
        raise ConfigError("a run folder does not say which variant of a party made it; leave out `out`")
    replaced = folder is not None and claim(folder, overwrite)
    training = _Training(prepare(parties, config, usable_device(device), parts), config, folder, stack, party)
    if folder is not None:
        if replaced:
            shutil.rmtree(folder)
        begin_folder(folder, config, parties, [party.parts for party in training.prepared])
    return training.run(watch, stop)


def resume(
    out: str | Path,
    *,
    device: str | torch.device = "cpu",
    stack: bool = True,
    watch: Watcher | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Run:
    """Continue an interrupted run from its last checkpoint, to the same result as without the interruption."""
    folder = Path(out)
    if not (folder / "config.toml").is_file():
        raise RunError(f"{folder} holds no run to resume; start one with `verfedgnn train --out {folder}`")
    if (folder / "metrics.json").is_file():
        return Run.load(folder)
    config = load_config(folder / "config.toml")
    other = other_code(config)
    if other is not None:
        raise RunError(f"{folder} was begun with {other}; go back to that version to continue it, or train anew with --overwrite")
    parties, parts = read_parties(folder / "parties")
    training = _Training(prepare(parties, config, usable_device(device), parts), config, folder, stack)
    training.restore()
    return training.run(watch, stop)


class _Training:
    """One training in progress."""

    def __init__(
        self, prepared: Sequence[Prepared], config: Config, folder: Path | None, stack: bool, party: type[Party] = Party
    ) -> None:
        self.prepared, self.config, self.folder = prepared, config, folder
        self.device = prepared[0].train.user.device
        self.coordinator = Coordinator(config, [p.party.name for p in prepared], self.device)
        members = [party(p.input, config, party_secret(config.seed, i), self.device) for i, p in enumerate(prepared)]
        self.runtime = LocalRuntime(self.coordinator, members, stack=stack)
        self.history: list[dict[str, Any]] = []
        self.seconds = 0.0
        self.releases = dict.fromkeys(self.coordinator.names, 0)
        self.exchanges = dict.fromkeys(self.coordinator.names, 0)

    def run(self, watch: Watcher | None, stop: Callable[[], bool]) -> Run:
        """All remaining rounds, then the figures."""
        coordinator, ledger = self.coordinator, self.runtime.ledger
        while not coordinator.done:
            began = time.perf_counter()
            closed = self.runtime.round()
            self.seconds += time.perf_counter() - began
            for name in coordinator.replies:
                reply, trips = coordinator.replies[name], self.config.exchange.refresh
                self.releases[name] += reply.gradient is not None
                self.exchanges[name] += (reply.neighbourhoods is not None) + trips * (reply.gradient is not None)
            if closed.valid_error is not None:
                self._remember(closed.round, closed.valid_error)
            done = coordinator.done
            if watch is not None:
                size = ledger.total()
                judged = self.config.training.judged
                valid = None if closed.valid_error is None else judged(closed.valid_error)
                watch(Progress("federation", closed.round, coordinator.rounds, valid, judged(coordinator.best.error), size))
            stopping = not done and stop()
            if self.folder is not None and (stopping or done or closed.round % self.config.training.checkpoint_every == 0):
                self._checkpoint()
            if stopping:
                raise Interrupted(f"stopped after round {closed.round} of {coordinator.rounds}", self._remedy())
        self.runtime.finish()
        return self._finished(watch, stop)

    def _remember(self, round: int, error: float) -> None:
        entry = history_entry(round, error, self.config, self.runtime.ledger, self.seconds)
        self.history.append(entry)
        if self.folder is not None:
            with writing(self.folder):
                write_history(self.folder, self.history)

    def _checkpoint(self) -> None:
        assert self.folder is not None
        states = {"_coordinator": self.coordinator.state()}
        for name, party in zip(self._files(), self.runtime.parties.values(), strict=True):
            states[name], states[f"{name}_models"] = party.state(), party.models()
        values = {"ledger": self.runtime.ledger.to_dict(), "releases": self.releases, "seconds": self.seconds}
        values["exchanges"] = self.exchanges
        write_checkpoint(self.folder / "checkpoint", self.coordinator.round, states, values)

    def restore(self) -> None:
        """Take up the last checkpoint; without one, start over."""
        assert self.folder is not None
        found = read_checkpoint(self.folder / "checkpoint")
        if found is None:
            return
        states, values = found
        self.coordinator.restore(states["_coordinator"])
        replica = self.coordinator.replica
        for name, party in zip(self._files(), self.runtime.parties.values(), strict=True):
            party.restore(states[name], states[f"{name}_models"])
            party.replica.load(**replica.arrays(), round=replica.round)
        self.runtime.ledger = Ledger.from_dict(values["ledger"])
        self.releases, self.seconds = values["releases"], values["seconds"]
        self.exchanges = values["exchanges"]
        self.history = [entry for entry in read_history(self.folder) if entry["round"] <= replica.round]

    def _remedy(self) -> str:
        if self.folder is None:
            return "nothing is kept: train with a folder to be able to continue"
        return f"continue with `verfedgnn train --resume {self.folder}`"

    def _files(self) -> list[str]:
        return safe_names([p.party for p in self.prepared])

    def _finished(self, watch: Watcher | None, stop: Callable[[], bool]) -> Run:
        models = []
        for party in self.runtime.parties.values():
            assert party.best is not None, "the last round is always evaluated"
            models.append(PartyModel(**party.best[1]))
        gated = None
        if self.config.training.gate:
            from verfedgnn.evaluation.gate import gated_models  # which trains, too

            try:
                gated = gated_models(self.prepared, models, self.config, self.coordinator.ratings, watch=watch, stop=stop)
            except Interrupted:
                raise Interrupted("the federation is trained, the parties' gates are not chosen", self._remedy()) from None
            models = [each.model for each in gated]
        coordinator, ledger = self.coordinator, self.runtime.ledger
        first = next(iter(self.runtime.parties.values()))
        metrics = figures(
            self.prepared,
            models,
            self.config,
            ledger,
            rounds=coordinator.round,
            best_round=coordinator.best.round,
            seconds=self.seconds,
            privacy=privacy_report(
                self.config,
                releases=max(self.releases.values()),
                exchanges=max(self.exchanges.values()),
                users=first.data.users,
                rows=first.projection.rows if first.projection is not None else 0,
                protected=first.projection.protected if first.projection is not None else True,
                validations=len(self.history),
                randomness=SIMULATED,
            ),
            digest=parameters_digest(coordinator.best.parameters),
            gates=[each.gate for each in gated] if gated else None,
        )
        run = Run(
            self.config,
            [p.party for p in self.prepared],
            [p.parts for p in self.prepared],
            models,
            metrics,
            self.history,
            ledger,
            coordinator.best.parameters,
            self.device,
            alone=[each.alone for each in gated] if gated else None,
        )
        if self.folder is not None:
            run.complete_folder(self.folder)
        return run


def party_secret(seed: int, index: int) -> int:
    """The seed of a party's own randomness in a simulation; in a federation a party draws it by itself."""
    return int(np.random.default_rng([seed, 3, index]).integers(2**62))


def claim(folder: Path, overwrite: bool) -> bool:
    """Whether there is a run to be replaced; whatever else is there is left alone, and a place not to be written is an error."""
    writable(folder)
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    if not overwrite:
        raise RunError(f"{folder} exists already; choose another --out, --resume it, or replace it with --overwrite")
    try:
        load_config(folder / "config.toml")
    except ConfigError:
        raise RunError(f"{folder} is not a run folder, so --overwrite leaves it alone; choose another --out") from None
    return True


def usable_device(device: str | torch.device) -> torch.device:
    """The device of that name, if there is one here."""
    try:
        chosen = torch.device(device)
        if chosen.type not in ("cpu", "cuda"):
            raise RuntimeError("neither a processor nor a CUDA device")
        torch.zeros(1, device=chosen)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device '{device}' cannot be used here ({reason}); use --device cpu") from None
    return chosen
