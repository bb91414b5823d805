"""The coordinator's side of the protocol (Algorithm 1, server): it holds public parameters and sums, and nothing else.

    open -> RoundStart to each party -> receive RoundReply -> close

It never sees ratings, degrees or item embeddings: no message carries them.
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
from verfedgnn.core.rating_scale import typical_rating
from verfedgnn.gnn.model import Model
from verfedgnn.protocol.checkpoint_state import State
from verfedgnn.protocol.coordinator.admission import misfit, refusal, too_few
from verfedgnn.protocol.coordinator.best_validation import Best
from verfedgnn.protocol.coordinator.membership import Membership
from verfedgnn.protocol.coordinator.update_log import Update, UpdateLog
from verfedgnn.protocol.round.aggregation import (
    SumError,
    gradient_type,
    largest_array,
    neighbourhood_shape,
    summed,
    summed_neighbourhoods,
)
from verfedgnn.protocol.round.neighbourhood_exchange import exchanging
from verfedgnn.protocol.round.replica import Replica
from verfedgnn.protocol.round.user_blocks import Part
from verfedgnn.protocol.wire.messages import Finish, Hello, RoundReply, RoundStart, Welcome


@dataclass(frozen=True)
class Closed:
    """What the coordinator learnt from a finished round."""

    round: int
    valid_error: float | None


@dataclass(frozen=True)
class _Sum:
    """Summed neighbourhoods: whose, of which round and trip."""

    parties: list[int]
    trip: tuple[int, int]
    total: NDArray[np.integer[Any]]


class Coordinator:
    """Runs the rounds. `names` are the parties in the order that fixes every sum.

    `quorum` is how many must be there for a round (all, unless said); `agreement` and `training` name the federation file and
    this training where there are several to be confused.
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
    ) -> None:
        self.config, self.names, self.device = config, list(names), torch.device(device)
        self.members = Membership(names, len(self.names) if quorum is None else quorum)
        self.agreement, self.training = agreement, training
        self.began = False
        """Whether all parties have joined once; the replica is there from then on."""
        self.round, self.trip, self.attempt = 0, 0, 0
        self.neighbourhoods: dict[int, _Sum] = {}
        """The last sum of each part of the users."""
        self.log = UpdateLog(config.training.user_blocks)
        self.seen: dict[str, int] = {}
        """Round of the public parameters each party has."""
        self.told: dict[str, dict[int, tuple[int, int]]] = {}
        """Round and trip of the summed neighbourhoods each party has, by part of the users."""
        self.best = Best(config.training)
        self.drawn: list[int] = []
        """A_t of the open trip."""
        self.open_parties: dict[str, RoundStart] = {}
        self.replies: dict[str, RoundReply] = {}
        self.spoilt = False
        """Whether the masked values of the open trip did not add up."""
        self._gone: set[str] = set()
        """Parties lost since the open trip began, also if they are back: they do not know of it."""

    # -- joining and leaving -------------------------------------------------------------------------------------------------

    def hello(self, message: Hello) -> None:
        """Check a party's first message against what is agreed, and remember it; `welcome` lets the party in."""
        if message.party not in self.names:
            raise ProtocolError("a party that is not among the expected ones says hello")
        reason = refusal(
            message, self.config, self.agreement, self.training, self.members.hellos, self.best.digests
        )
        if reason is not None:
            raise ProtocolError(f"{message.party}: {reason}")
        self.lost(message.party)
        self.members.join(message)
        if self.members.complete and not self.began:
            self._begin()

    def _begin(self) -> None:
        self.began = True
        hellos = [self.members.hellos[name] for name in self.names]
        self.items = [h.items for h in hellos]
        self.model = Model(self.config.model, hellos[0].users)
        problem = too_few(self.config, min(self.active_count, self.members.quorum), len(self.names))
        if problem is not None:
            raise ConfigError(problem)
        typical = sum(typical_rating(h.scale) for h in hellos) / len(hellos)
        self.ratings = sum(h.ratings for h in hellos)
        self.replica = Replica.initial(
            self.config, self.model, self.items, self.ratings, typical, self.device
        )
        self.best.parameters = self.replica.parameters.clone()
        self.rounds = self.replica.rounds
        self.evaluate_every = self.config.training.evaluate_every or self.replica.rounds_per_epoch

    def welcome(self, name: str) -> Welcome:
        """The answer to a Hello, once all have joined: a full copy of the public parameters."""
        self.seen[name], self.told[name] = self.replica.round, {}
        self.members.present.add(name)
        return Welcome(
            index=self.names.index(name),
            items=self.items,
            stay=self.members.hellos[name].stay,
            training=self.training,
            config=self.config.fingerprint(),
            ratings=self.ratings,
            round=self.replica.round,
            **self.replica.arrays(),
            digest=self.replica.digest(),
            **self._keys(name),
        )

    def _keys(self, name: str) -> dict[str, Any]:
        return self.members.news(name) if self.config.masking else {}

    def lost(self, name: str, *, slow: bool = False) -> None:
        """Go on without a party until it joins again, or, if it is merely slow, until its reply comes."""
        if not slow:
            self._gone.add(name)
        self.members.lose(name, slow=slow)

    @property
    def ready(self) -> bool:
        """Whether a round can be opened: all have joined once, and enough are there."""
        return self.began and self.members.enough

    @property
    def due(self) -> list[str]:
        """Who has not yet replied to the open trip."""
        return [name for name in self.open_parties if name not in self.replies]

    @property
    def broken(self) -> bool:
        """Whether the open trip waits for a party that was lost or is slow, so that it had better be begun anew."""
        return self.spoilt or any(name in self._gone or name in self.members.slow for name in self.due)

    # -- one round ---------------------------------------------------------------------------------------------------------

    def open(self, among: Sequence[int] | None = None) -> dict[str, RoundStart]:
        """Start the next trip, or the open one anew if it was not closed: what each party is to be told.

        Parties in the same situation get the same object. `among` gives the active parties where they are not to be drawn.
        """
        if self.open_parties:
            self.attempt += 1
        else:
            self.attempt = 0
            if self.trip == 0:
                self.round, self.trip = self.round + 1, self.config.exchange.refresh
            else:
                self.trip -= 1
        here = self.members.here
        self.drawn = self.active(self.round, here) if among is None else list(among)
        evaluate = self.trip == 0 and (self.round % self.evaluate_every == 0 or self.round == self.rounds)
        refresh = self.trip > 0
        starts: dict[tuple[Any, ...], RoundStart] = {}
        self.open_parties, self.replies, self._gone, self.spoilt = {}, {}, set(), False
        for index in here:
            name, works = self.names[index], index in self.drawn
            if not works and not evaluate:
                continue
            key = (self.seen[name], self.told[name].get(self.part.index), works, self.members.knowledge(name))
            if key not in starts:
                starts[key] = self._start(name, works, refresh=refresh, evaluate=evaluate)
            self._keys(name)  # it is told, by a message shared with others
            self.open_parties[name] = starts[key]
        return self.open_parties

    @property
    def active_count(self) -> int:
        """How many parties take part in a round when all are there."""
        return active_count(self.config, len(self.names))

    def active(self, round: int, here: Sequence[int]) -> list[int]:
        """A_t: the parties of `here` that take part in a round, drawn anew each time (Sec. 4.6)."""
        if self.active_count >= len(here):
            return list(here)
        rng = np.random.default_rng([self.config.seed, 2, round])
        return sorted(rng.choice(here, self.active_count, replace=False).tolist())

    def _start(self, name: str, works: bool, *, refresh: bool, evaluate: bool) -> RoundStart:
        # A backward exchange reads the last update, also where the parameters are of that round already.
        seen = (
            min(self.seen[name], max(0, self.replica.round - 1))
            if self.config.exchange.backward
            else self.seen[name]
        )
        missed = self.log.since(seen, self.replica.round, self.model.size)
        last = self.log.last if self.config.exchange.backward else []
        updates = last if missed is None else missed
        shared = self.neighbourhoods.get(self.part.index)
        if shared is not None and self.told[name].get(self.part.index) == shared.trip:
            shared = None
        return RoundStart(
            round=self.round,
            trip=self.trip,
            attempt=self.attempt,
            active=self.drawn,
            train=works and not refresh,
            exchange=works and exchanging(self.config, self.round, self.trip),
            evaluate=evaluate,
            best_round=self.best.round,
            updates_from=updates[0].round if updates else seen + 1,
            update_parties=[update.parties for update in updates],
            updates=np.concatenate([update.row for update in updates]) if updates else None,
            neighbourhood_parties=[] if shared is None else shared.parties,
            neighbourhood_trip=(0, 0) if shared is None else shared.trip,
            neighbourhoods=None if shared is None else shared.total,
            **(self.replica.arrays() if missed is None else {}),
            **self._keys(name),
        )

    def receive(self, name: str, reply: RoundReply) -> bool:
        """Take a party's reply; what does not fit the open trip is refused. False: it came too late and is left out."""
        if (reply.round, -reply.trip, reply.attempt) < (
            self.round,
            -self.trip,
            self.attempt,
        ) and name in self.seen:
            if self.members.back(name):
                self.seen[name] = min(reply.round, self.replica.round + 1) - 1
            return False
        start = self.open_parties.get(name)
        if start is None or name in self.replies:
            raise ProtocolError(f"{name}: no reply is due from this party")
        reason = misfit(reply, start, self.config, self.part, len(self.names), self.replica.digest)
        if reason is not None:
            raise ProtocolError(f"{name}: {reason}")
        self.seen[name] = self.replica.round
        if start.neighbourhoods is not None:
            self.told[name][self.part.index] = start.neighbourhood_trip
        self.replies[name] = reply
        self.members.back(name)
        return True

    @property
    def part(self) -> Part:
        """The users that the round is about."""
        return self.replica.rotation.of(self.round)

    @property
    def gradient_type(self) -> np.dtype[Any]:
        """The type of a protected gradient as it travels."""
        return gradient_type(self.config, len(self.names))

    @property
    def neighbourhood_shape(self) -> tuple[int, int, int]:
        """(K, q, C) of the round's neighbourhoods."""
        return neighbourhood_shape(self.config, self.part)

    @property
    def largest_array(self) -> int:
        """Bytes of the largest array that a reply may hold."""
        return largest_array(
            self.config, self.replica.rotation.everybody, self.model.size * self.gradient_type.itemsize
        )

    def close(self) -> Closed:
        """Add up, step the public parameters, judge the validation.

        `SumError` if masked values do not add up to gradients: the trip can be opened anew, with or without a suspect.
        """
        replies = [(i, self.replies[name]) for i, name in enumerate(self.names) if name in self.replies]
        gradients = [(i, reply.gradient) for i, reply in replies if reply.gradient is not None]
        summed = self._summed([values for _, values in gradients]) if gradients else None
        shared = [(i, reply.neighbourhoods) for i, reply in replies if reply.neighbourhoods is not None]
        if shared:
            total = summed_neighbourhoods([values for _, values in shared], self.config)
            self.neighbourhoods[self.part.index] = _Sum(
                [i for i, _ in shared], (self.round, self.trip), total
            )
        evaluated = any(start.evaluate for start in self.open_parties.values())
        self.open_parties = {}
        if self.trip > 0:
            return Closed(self.round, None)
        served, digest = self.replica.served, self.replica.digest
        error = self.best.judge(self.round, self.replies, self.names, served, digest()) if evaluated else None
        assert summed is not None, "somebody trains in every round"
        self._step([i for i, _ in gradients], summed)
        return Closed(self.round, error)

    @property
    def done(self) -> bool:
        """Whether all rounds are through, or patience is."""
        return self.trip == 0 and (self.round >= self.rounds or self.best.long_ago)

    def _step(self, parties: list[int], summed: NDArray[Any]) -> None:
        self.replica.apply(torch.from_numpy(summed).to(self.device), parties, self.round)
        self.log.add(Update(self.round, parties, summed))

    def _summed(self, gradients: Sequence[NDArray[Any]]) -> NDArray[Any]:
        try:
            return summed(gradients, self.config, len(self.names))
        except SumError:
            self.spoilt = True
            raise

    # -- checkpoints -------------------------------------------------------------------------------------------------------

    def state(self) -> State:
        """Everything that training changed, between two rounds."""
        state = State({name: value for name, value in self.replica.arrays().items() if value is not None})
        state.values = {
            "training": self.training,
            "round": self.round,
            "seen": self.seen,
            "told": {name: list(trips.items()) for name, trips in self.told.items()},
            "hellos": [
                self.members.hellos[name].model_dump_json(exclude={"mask_key", "mask_signature"})
                for name in self.names
            ],
            "neighbourhoods": [
                [part, known.parties, *known.trip] for part, known in self.neighbourhoods.items()
            ],
        }
        state.arrays |= {f"neighbourhoods.{part}": known.total for part, known in self.neighbourhoods.items()}
        self.best.put(state)
        self.log.put(state)
        return state

    def restore(self, state: State) -> None:
        """Continue from a checkpoint; parties that have not joined yet join as those who come back."""
        values = state.values
        if not self.began:
            self.members.hellos = {h.party: h for h in map(Hello.model_validate_json, values["hellos"])}
            self._begin()
        self.training, self.round = values["training"], values["round"]
        arrays = state.arrays
        self.replica.load(arrays["parameters"], arrays["accumulator"], arrays.get("average"), self.round)
        self.seen = dict(values["seen"])
        self.told = {
            name: {part: (trip[0], trip[1]) for part, trip in trips} for name, trips in values["told"].items()
        }
        self.best.restore(state, self.device)
        self.log.restore(state)
        for part, parties, round, trip in values["neighbourhoods"]:
            self.neighbourhoods[part] = _Sum(parties, (round, trip), state.arrays[f"neighbourhoods.{part}"])

    def finish(self) -> Finish:
        """The last message."""
        return Finish(
            round=self.round, best_round=self.best.round, parameters=self.best.parameters.cpu().numpy()
        )


def active_count(config: Config, parties: int) -> int:
    """How many of `parties` take part in a round (Sec. 4.6)."""
    return max(1, round_half_up(config.training.participation * parties))


def round_half_up(value: float) -> int:
    """The nearest integer, halves upwards."""
    return math.floor(value + 0.5)
