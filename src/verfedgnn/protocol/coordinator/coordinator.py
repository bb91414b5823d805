"""The coordinator's side of the protocol (Algorithm 1, server). It holds public parameters and sums, and nothing else.

    open -> RoundStart to each party -> receive each RoundReply -> close: add up, take the public step

It never sees ratings, degrees or item embeddings: no message carries them. `coordinator_states` lists what may follow what.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from verfedgnn.config import Config
from verfedgnn.core.errors import ConfigError, ProtocolError
from verfedgnn.core.random_streams import SharedStream, shared_generator
from verfedgnn.core.rating_scale import typical_rating
from verfedgnn.gnn.model import Model
from verfedgnn.protocol.checkpoint_state import CheckpointState
from verfedgnn.protocol.coordinator.admission import refusal, too_few
from verfedgnn.protocol.coordinator.best_validation import BestValidation
from verfedgnn.protocol.coordinator.coordinator_states import (
    COORDINATOR_STATES,
    CoordinatorAction,
    CoordinatorState,
)
from verfedgnn.protocol.coordinator.membership import Membership
from verfedgnn.protocol.coordinator.update_log import Update, UpdateLog
from verfedgnn.protocol.round.aggregation import (
    SumError,
    gradient_type,
    largest_array,
    neighbourhood_shape,
    sum_gradients,
    sum_neighbourhoods,
)
from verfedgnn.protocol.round.exchange_plan import exchanges_in_trip
from verfedgnn.protocol.round.message_checks import reply_problem
from verfedgnn.protocol.round.replica import Replica
from verfedgnn.protocol.round.start_state import PublicStart
from verfedgnn.protocol.round.user_blocks import UserBlock
from verfedgnn.protocol.wire.messages import Finish, Hello, RoundReply, RoundStart, Welcome


@dataclass(frozen=True)
class ClosedRound:
    """What the coordinator learnt from a finished round."""

    round: int
    valid_error: float | None
    """Validation error of all parties; None without a validation."""


@dataclass(frozen=True)
class NeighbourhoodSum:
    """A sum of neighbourhoods that the coordinator hands out."""

    parties: list[int]
    """Indices of the parties in the sum."""
    trip: tuple[int, int]
    """Round and trip in which they sent their neighbourhoods."""
    total: NDArray[np.integer[Any]]


class Coordinator:
    """Runs the rounds of one training.

    `names` are the parties, in the order that fixes every sum. `quorum` parties must be present for a round; by default all. The
    names `agreement` (of the federation file) and `training` guard against mixing up federations. With a `start`, the training
    continues from the public parameters of an earlier one.
    """

    def __init__(
        self,
        config: Config,
        names: Sequence[str],
        device: torch.device | str = "cpu",
        *,
        quorum: int | None = None,
        agreement: str | None = None,
        training: str = "local",
        start: PublicStart | None = None,
    ) -> None:
        self.config = config
        self.names = list(names)
        self.device = torch.device(device)
        self.agreement = agreement
        self.training = training
        self.start = start
        self.state = CoordinatorState.GATHERING
        self.members = Membership(names, len(self.names) if quorum is None else quorum)
        self.best = BestValidation(config.training)
        self.log = UpdateLog(config.training.user_blocks)
        self.round = 0
        self.trip = 0
        self.attempt = 0
        """How often the open trip was repeated."""
        self.neighbourhoods: dict[int, NeighbourhoodSum] = {}
        """The last sum of each block of users."""
        self.parameters_round: dict[str, int] = {}
        """Round of the public parameters that each party has."""
        self.sums_received: dict[str, dict[int, tuple[int, int]]] = {}
        """Round and trip of the summed neighbourhoods that each party has, by block of users."""
        self.drawn: list[int] = []
        """A_t, the active parties of the open trip."""
        self.open_parties: dict[str, RoundStart] = {}
        """What each party of the open trip was asked."""
        self.replies: dict[str, RoundReply] = {}
        """Replies to the open trip, or to the last one."""
        self.spoilt = False
        """Whether the masked values of the open trip did not add up."""
        self._gone: set[str] = set()
        """Parties lost since the open trip began. They do not know of it, even if they came back."""

    def _advance(self, action: CoordinatorAction) -> None:
        self.state = COORDINATOR_STATES.after(self.state, action)

    # -- joining and leaving -----------------------------------------------------------------------------

    def hello(self, message: Hello) -> None:
        """Check a party's first message against what is agreed on, and remember it; `welcome` lets the party in."""
        if message.party not in self.names:
            raise ProtocolError("a party that is not among the expected ones said hello")
        digests = self.best.digests
        reason = refusal(message, self.config, self.agreement, self.training, self.members.hellos, digests)
        if reason is not None:
            raise ProtocolError(f"{message.party}: {reason}")
        self.lose(message.party)
        self.members.join(message)
        if self.members.complete and not self.began:
            self._start_training()

    @property
    def began(self) -> bool:
        """Whether all parties have joined once, so that the replica exists."""
        return self.state is not CoordinatorState.GATHERING

    def _start_training(self) -> None:
        self._advance(CoordinatorAction.START_TRAINING)
        hellos = [self.members.hellos[name] for name in self.names]
        self.items = [hello.items for hello in hellos]
        self.model = Model(self.config.model, hellos[0].users)
        problem = too_few(self.config, min(self.active_count, self.members.quorum), len(self.names))
        if problem is not None:
            raise ConfigError(problem)
        typical = sum(typical_rating(hello.scale) for hello in hellos) / len(hellos)
        self.ratings = sum(hello.ratings for hello in hellos)
        self.replica = Replica.initial(
            self.config, self.model, self.items, self.ratings, typical, self.device
        )
        if self.start is not None:
            self.start.load_into(self.replica)
        self.best.parameters = self.replica.parameters.clone()
        self.rounds = self.replica.rounds

    def welcome(self, name: str) -> Welcome:
        """Let a party in, and return the answer to its Hello with a full copy of the public parameters."""
        self.parameters_round[name] = self.replica.round
        self.sums_received[name] = {}
        self.members.present.add(name)
        return Welcome(
            index=self.names.index(name),
            items=self.items,
            stay=self.members.hellos[name].stay,
            training=self.training,
            config=self.config.digest(),
            ratings=self.ratings,
            round=self.replica.round,
            **self.replica.arrays(),
            digest=self.replica.digest(),
            **self._new_mask_keys(name),
        )

    def _new_mask_keys(self, name: str) -> dict[str, Any]:
        return self.members.new_mask_keys(name) if self.config.masking else {}

    def lose(self, name: str, *, slow: bool = False) -> None:
        """Continue without a party until it joins again or, if it is only slow, until its reply comes."""
        if not slow:
            self._gone.add(name)
        self.members.lose(name, slow=slow)

    @property
    def ready(self) -> bool:
        """Whether a round can be opened: all parties have joined once, and a quorum is present."""
        return self.began and self.members.enough

    @property
    def due(self) -> list[str]:
        """Parties that have not yet replied to the open trip."""
        return [name for name in self.open_parties if name not in self.replies]

    @property
    def broken(self) -> bool:
        """Whether the open trip cannot be closed and should be repeated: a party was lost or is slow, or masks did not cancel."""
        return self.spoilt or any(name in self._gone or name in self.members.slow for name in self.due)

    # -- one trip: open, receive, close ------------------------------------------------------------------

    def open(self, among: Sequence[int] | None = None) -> dict[str, RoundStart]:
        """Open the next trip, or repeat the open one, and return the message for each party.

        Parties in the same situation get the same object. `among` sets the active parties instead of drawing them.
        """
        repeated = self.state is CoordinatorState.TRIP
        self._advance(CoordinatorAction.OPEN)
        self._number_trip(repeated)
        present = self.members.here
        self.drawn = self.draw_active(self.round, present) if among is None else list(among)
        evaluate = self.trip == 0 and self.replica.evaluates_in(self.round)
        self.open_parties = {}
        self.replies = {}
        self.spoilt = False
        self._gone = set()
        starts: dict[tuple[Any, ...], RoundStart] = {}
        for index in present:
            name = self.names[index]
            works = index in self.drawn
            if not works and not evaluate:
                continue
            situation = (
                self.parameters_round[name],
                self.sums_received[name].get(self.block.index),
                works,
                self.members.known_keys(name),
            )
            if situation not in starts:
                starts[situation] = self._start(name, works, evaluate=evaluate)
            self._new_mask_keys(name)  # counts them as sent, since the message may be another party's
            self.open_parties[name] = starts[situation]
        return self.open_parties

    def _number_trip(self, repeated: bool) -> None:
        """Count to the next attempt, trip or round."""
        if repeated:
            self.attempt += 1
            return
        self.attempt = 0
        if self.trip == 0:
            self.round += 1
            self.trip = self.config.exchange.refresh
        else:
            self.trip -= 1

    @property
    def active_count(self) -> int:
        """Number of parties that take part in a round when all are present."""
        return active_count(self.config, len(self.names))

    def draw_active(self, round: int, present: Sequence[int]) -> list[int]:
        """Draw A_t, the parties that take part in a round, from those present (Sec. 4.6)."""
        if self.active_count >= len(present):
            return list(present)
        rng = shared_generator(self.config.seed, SharedStream.ACTIVE_PARTIES, round)
        return sorted(rng.choice(present, self.active_count, replace=False).tolist())

    def _start(self, name: str, works: bool, *, evaluate: bool) -> RoundStart:
        """Return the message that opens the trip for a party; `works` says whether it is active."""
        backward = self.config.exchange.backward
        known = self.parameters_round[name]
        if backward:  # it reads the last update, even if the party's parameters already include it
            known = min(known, max(0, self.replica.round - 1))
        missed = self.log.since(known, self.replica.round, self.model.size)
        full_copy = missed is None
        updates = (self.log.last if backward else []) if missed is None else missed
        shared = self.neighbourhoods.get(self.block.index)
        if shared is not None and self.sums_received[name].get(self.block.index) == shared.trip:
            shared = None
        return RoundStart(
            round=self.round,
            trip=self.trip,
            attempt=self.attempt,
            active=self.drawn,
            train=works and self.trip == 0,
            exchange=works and exchanges_in_trip(self.config, self.round, self.trip),
            evaluate=evaluate,
            best_round=self.best.round,
            updates_from=updates[0].round if updates else known + 1,
            update_parties=[update.parties for update in updates],
            updates=np.concatenate([update.total for update in updates]) if updates else None,
            neighbourhood_parties=[] if shared is None else shared.parties,
            neighbourhood_trip=(0, 0) if shared is None else shared.trip,
            neighbourhoods=None if shared is None else shared.total,
            **(self.replica.arrays() if full_copy else {}),
            **self._new_mask_keys(name),
        )

    def receive(self, name: str, reply: RoundReply) -> bool:
        """Take a party's reply; return False if it is late and was ignored. Raise `ProtocolError` if it does not fit the trip."""
        COORDINATOR_STATES.after(self.state, RoundReply, name)
        late = (reply.round, -reply.trip, reply.attempt) < (self.round, -self.trip, self.attempt)
        if late and name in self.parameters_round:
            if self.members.bring_back(name):
                self.parameters_round[name] = min(reply.round, self.replica.round + 1) - 1
            return False
        start = self.open_parties.get(name)
        if start is None or name in self.replies:
            raise ProtocolError(f"{name}: no reply is due from this party")
        problem = reply_problem(reply, start, self.config, self.block, len(self.names), self.replica.digest)
        if problem is not None:
            raise ProtocolError(f"{name}: {problem}")
        self.parameters_round[name] = self.replica.round
        if start.neighbourhoods is not None:
            self.sums_received[name][self.block.index] = start.neighbourhood_trip
        self.replies[name] = reply
        self.members.bring_back(name)
        return True

    def close(self) -> ClosedRound:
        """Add up the replies, judge the validation and take the public step.

        Raise `SumError` if masked values do not add up to gradients; the trip can be opened again, with or without a suspect.
        """
        replies = [(i, self.replies[name]) for i, name in enumerate(self.names) if name in self.replies]
        gradients = [(i, reply.gradient) for i, reply in replies if reply.gradient is not None]
        summed = self._sum_gradients([values for _, values in gradients]) if gradients else None
        shared = [(i, reply.neighbourhoods) for i, reply in replies if reply.neighbourhoods is not None]
        if shared:
            total = sum_neighbourhoods([values for _, values in shared], self.config)
            senders = [i for i, _ in shared]
            trip = (self.round, self.trip)
            self.neighbourhoods[self.block.index] = NeighbourhoodSum(senders, trip, total)
        evaluated = any(start.evaluate for start in self.open_parties.values())
        self.open_parties = {}
        self._advance(CoordinatorAction.CLOSE)
        if self.trip > 0:
            return ClosedRound(self.round, None)
        error = None
        if evaluated:
            served = self.replica.served
            error = self.best.judge(self.round, self.replies, self.names, served, self.replica.digest())
        assert summed is not None, "some party trains in every round"
        self._step([i for i, _ in gradients], summed)
        return ClosedRound(self.round, error)

    def _sum_gradients(self, gradients: Sequence[NDArray[Any]]) -> NDArray[Any]:
        try:
            return sum_gradients(gradients, self.config, len(self.names))
        except SumError:
            self.spoilt = True
            raise

    def _step(self, parties: list[int], summed: NDArray[Any]) -> None:
        self.replica.apply(torch.from_numpy(summed).to(self.device), parties, self.round)
        self.log.add(Update(self.round, parties, summed))

    @property
    def block(self) -> UserBlock:
        """The block of users that the round is about."""
        return self.replica.blocks.in_round(self.round)

    @property
    def gradient_type(self) -> np.dtype[Any]:
        """Array type of a protected gradient on the wire."""
        return gradient_type(self.config, len(self.names))

    @property
    def neighbourhood_shape(self) -> tuple[int, int, int]:
        """Shape (K, q, C) of the round's neighbourhoods."""
        return neighbourhood_shape(self.config, self.block)

    @property
    def largest_array(self) -> int:
        """Bytes of the largest array that a reply may hold."""
        gradient = self.model.size * self.gradient_type.itemsize
        return largest_array(self.config, self.replica.blocks.all_users, gradient)

    # -- the end -----------------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Whether all rounds are over, or patience with the validation error is."""
        return self.trip == 0 and (self.round >= self.rounds or self.best.patience_is_over)

    def finish(self) -> Finish:
        """End the training and return the last message to every party."""
        self._advance(CoordinatorAction.FINISH)
        parameters = self.best.parameters.cpu().numpy()
        return Finish(round=self.round, best_round=self.best.round, parameters=parameters)

    # -- checkpoints -------------------------------------------------------------------------------------

    def checkpoint(self) -> CheckpointState:
        """Return everything that training changed, between two rounds."""
        arrays = {name: value for name, value in self.replica.arrays().items() if value is not None}
        state = CheckpointState(arrays)
        hellos = [self.members.hellos[name] for name in self.names]
        state.values = {
            "training": self.training,
            "round": self.round,
            "parameters_round": self.parameters_round,
            "sums_received": {name: list(trips.items()) for name, trips in self.sums_received.items()},
            "hellos": [hello.model_dump_json(exclude={"mask_key", "mask_signature"}) for hello in hellos],
            "neighbourhoods": [
                [block, known.parties, *known.trip] for block, known in self.neighbourhoods.items()
            ],
        }
        state.arrays |= {
            f"neighbourhoods.{block}": known.total for block, known in self.neighbourhoods.items()
        }
        self.best.put(state)
        self.log.put(state)
        return state

    def restore(self, state: CheckpointState) -> None:
        """Continue from a checkpoint; parties that have not joined yet join as if they came back."""
        values = state.values
        arrays = state.arrays
        if not self.began:
            self.members.hellos = {h.party: h for h in map(Hello.model_validate_json, values["hellos"])}
            self._start_training()
        self.training = values["training"]
        self.round = values["round"]
        self.replica.load(arrays["parameters"], arrays["accumulator"], arrays.get("average"), self.round)
        self.parameters_round = dict(values["parameters_round"])
        self.sums_received = {
            name: {block: (trip[0], trip[1]) for block, trip in trips}
            for name, trips in values["sums_received"].items()
        }
        self.best.restore(state, self.device)
        self.log.restore(state)
        for block, parties, round, trip in values["neighbourhoods"]:
            total = arrays[f"neighbourhoods.{block}"]
            self.neighbourhoods[block] = NeighbourhoodSum(parties, (round, trip), total)


def active_count(config: Config, parties: int) -> int:
    """Return how many of `parties` take part in a round (Sec. 4.6)."""
    return max(1, round_half_up(config.training.participation * parties))


def round_half_up(value: float) -> int:
    """Round to the nearest integer, halves upwards."""
    return math.floor(value + 0.5)
