"""Everything that training changes at a party. It outlives a lost connection, and checkpoints hold it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.core.errors import RunError
from verfedgnn.core.graph import clip_rows
from verfedgnn.core.pairs import typical_rating
from verfedgnn.core.random_streams import PartyStream
from verfedgnn.protocol.party_setup import PartySetup
from verfedgnn.protocol.replica import CheckpointState, EvaluatedModel, step, to_tensor


@dataclass(frozen=True)
class PrivateParameters:
    """Private parameters by name (`Model.private_shapes`), with Adagrad's sums of squares."""

    parameters: dict[str, Tensor]
    accumulators: dict[str, Tensor]

    @classmethod
    def initial(cls, parameters: Mapping[str, Tensor], device: torch.device) -> PrivateParameters:
        """Return the state before the first round."""
        moved = {name: value.to(device) for name, value in parameters.items()}
        return cls(moved, {name: torch.zeros_like(value) for name, value in moved.items()})

    def clone(self) -> PrivateParameters:
        """Return a copy that later steps do not change."""
        parameters, accumulators = (
            {name: value.clone() for name, value in values.items()}
            for values in (self.parameters, self.accumulators)
        )
        return PrivateParameters(parameters, accumulators)

    def step(self, gradients: Mapping[str, Tensor], config: Config) -> None:
        """Take one step in place; if the model has a bound, clip item embeddings to it."""
        training = config.training
        bound = config.model.bound
        for name, gradient in gradients.items():
            values = self.parameters[name]
            step(values, self.accumulators[name], gradient, training.optimizer, training.lr)
            if bound is not None and name == "items":
                values.copy_(clip_rows(values, bound))

    def arrays(self, prefix: str) -> dict[str, NDArray[Any]]:
        """Return the parameters and their optimiser's state as a checkpoint holds them."""
        kinds = {"": self.parameters, ".accumulator": self.accumulators}
        return {
            f"{prefix}.{name}{kind}": value.cpu().numpy()
            for kind, values in kinds.items()
            for name, value in values.items()
        }

    def read(self, stored: Mapping[str, NDArray[Any]], prefix: str) -> PrivateParameters:
        """Return what `arrays` stored; raise `RunError` if its shapes differ from these."""
        for name, value in self.parameters.items():
            shape = stored[f"{prefix}.{name}"].shape
            if shape != value.shape:
                raise RunError(
                    f"the checkpoint has {shape[0]:,} {name}, the ratings have {len(value):,}; give the same data"
                )
        parameters, accumulators = (
            {
                name: to_tensor(stored[f"{prefix}.{name}{kind}"], v.device)
                for name, v in self.parameters.items()
            }
            for kind in ("", ".accumulator")
        )
        return PrivateParameters(parameters, accumulators)


@dataclass(frozen=True)
class SentNeighbourhoods:
    """A party's own neighbourhoods as it sent them, before masks."""

    round: int
    """Round in which they were sent."""
    values: NDArray[np.integer[Any]]


@dataclass(frozen=True)
class ReceivedNeighbourhoods:
    """The last sum of all parties' neighbourhoods that a party received."""

    digest: str
    """Hash of the sum; all parties that received the same sum have the same hash."""
    round: int
    """Round of the sum."""
    others: Tensor | None
    """Estimated sum of the other parties' neighbourhoods (K, q, C); None if the party's own share is no longer known."""


@dataclass(frozen=True)
class RoundSnapshot:
    """A party's state before a round. If the coordinator repeats the round, the party goes back to it."""

    round: int
    private: PrivateParameters
    sent: SentNeighbourhoods | None


@dataclass
class PartyProgress:
    """A party's private parameters, exchange and evaluated models in one training."""

    private: PrivateParameters
    device: torch.device
    sent: SentNeighbourhoods | None = None
    """The party's own neighbourhoods as last sent."""
    received: ReceivedNeighbourhoods | None = None
    """The last sum of all parties' neighbourhoods."""
    evaluated: EvaluatedModel | None = None
    """The model as last evaluated; None before the first validation."""
    best: EvaluatedModel | None = None
    """The model of the best validation that this party took part in; None before the first."""
    training: str | None = None
    """Name of the training; None before the party first joins one."""
    announced: tuple[int, str] | None = None
    """Round and hash of the public parameters in its last validation reply."""
    verified: tuple[int, str] | None = None
    """Round and hash of the last validation where the coordinator confirmed the hash."""
    snapshot: RoundSnapshot | None = None
    """The state before the current round; None before the first."""

    @classmethod
    def initial(cls, setup: PartySetup) -> PartyProgress:
        """Draw the private parameters before the first round."""
        rng = setup.randomness.generator(PartyStream.ITEM_EMBEDDINGS)
        start = setup.model.initial_private(rng, setup.data.items, typical_rating(setup.data.scale))
        return cls(PrivateParameters.initial(start, setup.device), setup.device)

    @property
    def others(self) -> Tensor | None:
        """The estimated sum of the others' neighbourhoods (K, q, C); None if it is not known."""
        return None if self.received is None else self.received.others

    def keep_best(self, best_round: int) -> None:
        """Keep the last evaluated model if its round is the best so far."""
        if self.evaluated is not None and self.evaluated[0] == best_round:
            self.best = self.evaluated

    def confirm_announced(self, round: int) -> None:
        """Note that the coordinator started `round`, so it confirmed the hash of any earlier validation."""
        if self.announced is not None and self.announced[0] < round:
            self.verified = self.announced

    def start_round(self, round: int) -> None:
        """Take a snapshot before a new round, or go back to the snapshot of a repeated one, whose sum the coordinator lost."""
        known = self.snapshot
        if known is not None and known.round == round:
            self.private, self.sent = known.private.clone(), known.sent
        else:
            self.snapshot = RoundSnapshot(round, self.private.clone(), self.sent)
        if self.received is not None and self.received.round >= round:
            self.received = None

    # -- checkpoints -----------------------------------------------------------------------------------------

    def models(self) -> CheckpointState:
        """Return the evaluated models: large, and new only after a validation."""
        state = CheckpointState()
        state.put_model("evaluated", self.evaluated)
        state.put_model("best", self.best)
        return state

    def checkpoint(self) -> CheckpointState:
        """Return everything else that training changed."""
        values: dict[str, Any] = {"training": self.training, "verified": self.verified, "snapshot": 0}
        arrays = self.private.arrays("private")
        sent = {"sent": self.sent}
        if self.snapshot is not None:
            values["snapshot"] = self.snapshot.round
            arrays |= self.snapshot.private.arrays("snapshot")
            sent["snapshot.sent"] = self.snapshot.sent
        for name, record in sent.items():
            if record is not None:
                values[name], arrays[name] = record.round, record.values
        if self.received is not None:
            values["received"] = [self.received.digest, self.received.round]
            if self.received.others is not None:
                arrays["received"] = self.received.others.cpu().numpy()
        return CheckpointState(arrays, values)

    def restore(self, state: CheckpointState, models: CheckpointState) -> None:
        """Replace this progress with that of a checkpoint."""
        values, arrays = state.values, state.arrays
        self.private = self.private.read(arrays, "private")
        self.evaluated = models.get_model("evaluated", self.device)
        self.best = models.get_model("best", self.device)
        self.training = values["training"]
        self.verified = tuple(values["verified"]) if values["verified"] else None
        sent, before = (
            SentNeighbourhoods(values[name], arrays[name]) if name in values else None
            for name in ("sent", "snapshot.sent")
        )
        self.sent = sent
        self.received = self.snapshot = None
        if "received" in values:
            digest, round = values["received"]
            others = to_tensor(arrays["received"], self.device) if "received" in arrays else None
            self.received = ReceivedNeighbourhoods(digest, round, others)
        if values["snapshot"]:
            self.snapshot = RoundSnapshot(values["snapshot"], self.private.read(arrays, "snapshot"), before)
