"""Everything that training changes at a party. It outlives a lost connection, and checkpoints hold it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.core.errors import RunError
from verfedgnn.core.random_streams import PartyStream
from verfedgnn.core.rating_scale import typical_rating
from verfedgnn.core.vectors import clip_rows
from verfedgnn.protocol.checkpoint_state import CheckpointState, EvaluatedModel, to_tensor
from verfedgnn.protocol.party_setup import PartySetup
from verfedgnn.protocol.replica import step


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

    def put(self, state: CheckpointState, prefix: str) -> None:
        """Store the parameters and their optimiser's state in a checkpoint."""
        for name, value in self.parameters.items():
            values = {"": value, ".accumulator": self.accumulators[name]}
            state.put_arrays({f"{prefix}.{name}{key}": each.cpu().numpy() for key, each in values.items()})

    def get(self, state: CheckpointState, prefix: str) -> PrivateParameters:
        """Return what `put` stored; raise `RunError` if its shapes differ from these."""
        for name, value in self.parameters.items():
            shape = state.arrays[f"{prefix}.{name}"].shape
            if shape != value.shape:
                raise RunError(
                    f"the checkpoint has {shape[0]:,} {name}, the ratings have {len(value):,}; give the same data"
                )
        parameters, accumulators = (
            {
                name: to_tensor(state.arrays[f"{prefix}.{name}{suffix}"], value.device)
                for name, value in self.parameters.items()
            }
            for suffix in ("", ".accumulator")
        )
        return PrivateParameters(parameters, accumulators)


@dataclass(frozen=True)
class SentNeighbourhoods:
    """A party's own neighbourhoods as it sent them, before masks."""

    trip: tuple[int, int]
    """Round and trip in which they were sent."""
    values: NDArray[np.integer[Any]]

    def put(self, state: CheckpointState, name: str) -> None:
        """Store this record in a checkpoint."""
        state.values[name] = self.trip
        state.put_arrays({name: self.values})

    @classmethod
    def get(cls, state: CheckpointState, name: str) -> SentNeighbourhoods | None:
        """Return the record that `put` stored, or None."""
        trip = state.values.get(name)
        return None if trip is None else cls((trip[0], trip[1]), state.arrays[name])


@dataclass(frozen=True)
class ReceivedNeighbourhoods:
    """The last sum of all parties' neighbourhoods that a party received."""

    digest: str
    """Hash of the sum; all parties that received the same sum have the same hash."""
    trip: tuple[int, int]
    """Round and trip of the sum."""
    others: Tensor | None
    """Estimated sum of the other parties' neighbourhoods (K, q, C); None if the party's own share is no longer known."""

    def put(self, state: CheckpointState, name: str) -> None:
        """Store this record in a checkpoint."""
        state.values[name] = [self.digest, *self.trip]
        if self.others is not None:
            state.put_arrays({name: self.others.cpu().numpy()})

    @classmethod
    def get(cls, state: CheckpointState, name: str, device: torch.device) -> ReceivedNeighbourhoods | None:
        """Return the record that `put` stored, or None."""
        known = state.values.get(name)
        if known is None:
            return None
        digest, round, trip = known
        others = state.arrays.get(name)
        return cls(digest, (round, trip), None if others is None else to_tensor(others, device))


@dataclass(frozen=True)
class TripSnapshot:
    """A party's state before a trip. If the coordinator repeats the trip, the party goes back to it."""

    round: int
    trip: int
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
    snapshots: list[TripSnapshot] = field(default_factory=list)
    """One snapshot for each trip of the current round."""

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

    def start_trip(self, round: int, trip: int) -> None:
        """Take a snapshot before a new trip, or go back to the snapshot of a repeated one, whose sum the coordinator lost."""
        self.snapshots = [s for s in self.snapshots if s.round == round and s.trip >= trip]
        if self.snapshots and self.snapshots[-1].trip == trip:
            self.private = self.snapshots[-1].private.clone()
            self.sent = self.snapshots[-1].sent
        else:
            self.snapshots.append(TripSnapshot(round, trip, self.private.clone(), self.sent))
        known = self.received
        if known is not None and (known.trip[0], -known.trip[1]) >= (round, -trip):
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
        state = CheckpointState()
        state.values |= {
            "training": self.training,
            "verified": self.verified,
            "snapshots": [[snapshot.round, snapshot.trip] for snapshot in self.snapshots],
        }
        self.private.put(state, "private")
        if self.sent is not None:
            self.sent.put(state, "sent")
        if self.received is not None:
            self.received.put(state, "received")
        for n, snapshot in enumerate(self.snapshots):
            snapshot.private.put(state, f"snapshot.{n}")
            if snapshot.sent is not None:
                snapshot.sent.put(state, f"snapshot.{n}.sent")
        return state

    def restore(self, state: CheckpointState, models: CheckpointState) -> None:
        """Replace this progress with that of a checkpoint."""
        values = state.values
        self.private = self.private.get(state, "private")
        self.sent = SentNeighbourhoods.get(state, "sent")
        self.received = ReceivedNeighbourhoods.get(state, "received", self.device)
        self.evaluated = models.get_model("evaluated", self.device)
        self.best = models.get_model("best", self.device)
        self.training = values["training"]
        verified = values["verified"]
        self.verified = None if verified is None else (verified[0], verified[1])
        self.snapshots = [
            TripSnapshot(
                round,
                trip,
                self.private.get(state, f"snapshot.{n}"),
                SentNeighbourhoods.get(state, f"snapshot.{n}.sent"),
            )
            for n, (round, trip) in enumerate(values["snapshots"])
        ]
