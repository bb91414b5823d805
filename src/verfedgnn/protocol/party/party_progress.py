"""Everything that training changes at a party. It outlives a lost connection, and checkpoints hold it."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from verfedgnn.core.random_streams import PartyStream
from verfedgnn.core.rating_scale import typical_rating
from verfedgnn.protocol.checkpoint_state import CheckpointState, EvaluatedModel
from verfedgnn.protocol.party.exchange_state import (
    ExchangeState,
    SentNeighbourhoods,
    UserGradient,
    get_records,
    put_records,
)
from verfedgnn.protocol.party.party_setup import PartySetup
from verfedgnn.protocol.party.private_parameters import PrivateParameters
from verfedgnn.protocol.round.user_starts import START_SUM

BIASES = {"item_bias", "rater_item_bias"}
"""Names of the private biases of items."""


@dataclass(frozen=True)
class TripSnapshot:
    """A party's state before a trip. If the coordinator repeats the trip, the party goes back to it."""

    round: int
    trip: int
    private: PrivateParameters
    sent: dict[int, SentNeighbourhoods]
    released: dict[int, UserGradient]

    def put(self, state: CheckpointState, name: str) -> None:
        """Store the snapshot in a checkpoint, without round and trip."""
        self.private.put(state, name)
        put_records(state, f"{name}.sent", self.sent)
        put_records(state, f"{name}.released", self.released)


@dataclass
class PartyProgress:
    """A party's private parameters, exchange and evaluated models in one training."""

    private: PrivateParameters
    device: torch.device
    blocks: int
    """Number of blocks of users."""
    exchange: ExchangeState = field(default_factory=ExchangeState)
    evaluated: EvaluatedModel | None = None
    """The model as last evaluated; None before the first validation."""
    best: EvaluatedModel | None = None
    """The model of the best validation that this party took part in; None before the first."""
    first_rounds: EvaluatedModel | None = None
    """The model as last evaluated in rounds that left out withheld users; None if there were none."""
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
        starts = BIASES & set(start) if setup.config.starts_from_means else set()
        for name in starts:
            start[name].copy_(setup.item_starts)
        averaged = setup.config.training.average > 0
        private = PrivateParameters.initial(setup.model, start, setup.device, averaged)
        for name in starts:
            private.accumulators[name].fill_(START_SUM)
        return cls(private, setup.device, setup.config.training.user_blocks)

    def keep_best(self, best_round: int) -> None:
        """Keep the last evaluated model if its round is the best so far."""
        if self.evaluated is not None and self.evaluated[0] == best_round:
            self.best = self.evaluated

    def confirm_announced(self, round: int) -> None:
        """Note that the coordinator started `round`, so it confirmed the hash of any earlier validation."""
        if self.announced is not None and self.announced[0] < round:
            self.verified = self.announced

    def start_trip(self, round: int, trip: int) -> None:
        """Take a snapshot before a new trip, or go back to the snapshot of a repeated one."""
        self.snapshots = [s for s in self.snapshots if s.round == round and s.trip >= trip]
        if self.snapshots and self.snapshots[-1].trip == trip:
            snapshot = self.snapshots[-1]
            self.private = snapshot.private.clone()
            self.exchange.sent = dict(snapshot.sent)
            self.exchange.released = dict(snapshot.released)
        else:
            sent = dict(self.exchange.sent)
            released = dict(self.exchange.released)
            self.snapshots.append(TripSnapshot(round, trip, self.private.clone(), sent, released))

    # -- checkpoints -------------------------------------------------------------------------------------

    def models(self) -> CheckpointState:
        """Return the evaluated models: large, and new only after a validation."""
        state = CheckpointState()
        state.put_model("evaluated", self.evaluated)
        state.put_model("best", self.best)
        state.put_model("first_rounds", self.first_rounds)
        return state

    def checkpoint(self) -> CheckpointState:
        """Return everything else that training changed."""
        state = CheckpointState()
        self.private.put(state, "private")
        state.values |= {
            "training": self.training,
            "verified": self.verified,
            "snapshots": [[snapshot.round, snapshot.trip] for snapshot in self.snapshots],
        }
        for n, snapshot in enumerate(self.snapshots):
            snapshot.put(state, f"snapshot.{n}")
        self.exchange.put(state)
        return state

    def restore(self, state: CheckpointState, models: CheckpointState) -> None:
        """Replace this progress with that of a checkpoint."""
        values = state.values
        self.private = self.private.get(state, "private")
        self.evaluated = models.get_model("evaluated", self.device)
        self.best = models.get_model("best", self.device)
        self.first_rounds = models.get_model("first_rounds", self.device)
        self.exchange = ExchangeState.get(state, self.blocks, self.device)
        self.training = values["training"]
        verified = values["verified"]
        self.verified = None if verified is None else (verified[0], verified[1])
        self.snapshots = [
            self._read_snapshot(state, f"snapshot.{n}", round, trip)
            for n, (round, trip) in enumerate(values["snapshots"])
        ]

    def _read_snapshot(self, state: CheckpointState, name: str, round: int, trip: int) -> TripSnapshot:
        sent = get_records(state, f"{name}.sent", SentNeighbourhoods, self.blocks, self.device)
        released = get_records(state, f"{name}.released", UserGradient, self.blocks, self.device)
        return TripSnapshot(round, trip, self.private.get(state, name), sent, released)
