"""The coordinator's side of the protocol (Algorithm 1, server): it holds public parameters and sums, and nothing else.

    open -> RoundStart to each party -> receive RoundReply -> close

It never sees ratings, degrees or item embeddings: no message carries them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from verfedgnn.config import Config
from verfedgnn.errors import ConfigError, ProtocolError
from verfedgnn.gnn.model import Model, typical_rating
from verfedgnn.privacy.projection import projected_rows
from verfedgnn.protocol.codec import pack, packed_size, unpack, whole
from verfedgnn.protocol.messages import Finish, Hello, RoundReply, RoundStart, Welcome
from verfedgnn.protocol.replica import Replica
from verfedgnn.protocol.state import State, tensor

UPDATE_LOG = 8
"""Rounds whose updates are kept for parties that sat them out; with packed integers, more would outweigh a full copy."""


@dataclass(frozen=True)
class Closed:
    """What the coordinator learnt from a finished round."""

    round: int
    valid_rmse: float | None


@dataclass(frozen=True)
class _Update:
    round: int
    parties: list[int]
    row: NDArray[Any]


class Coordinator:
    """Runs the rounds. `names` are the parties in the order that fixes every sum."""

    def __init__(self, config: Config, names: Sequence[str], device: torch.device | str = "cpu") -> None:
        self.config, self.names, self.device = config, list(names), torch.device(device)
        self.joined: dict[str, Hello] = {}
        self.began = False
        """Whether all parties have joined once; the replica is there from then on."""
        self.round, self.trip = 0, 0
        self.neighbourhoods: tuple[list[int], NDArray[np.int32]] | None = None
        self.log: deque[_Update] = deque(maxlen=UPDATE_LOG)
        self.seen: dict[str, int] = {}
        """Round of the public parameters each party has."""
        self.best_rmse, self.best_round, self.since_best = math.inf, 0, 0
        self.open_parties: dict[str, RoundStart] = {}
        self.replies: dict[str, RoundReply] = {}

    # -- joining ---------------------------------------------------------------------------------------------------------

    def hello(self, message: Hello) -> None:
        """Check a party's first message against what is agreed."""
        if message.party not in self.names:
            raise ProtocolError("a party that is not among the expected ones says hello")
        if message.config != self.config.fingerprint():
            raise ProtocolError(f"{message.party}: its configuration differs from the shared one; take that one over")
        for name, other in self.joined.items():
            if other.users != message.users:
                raise ProtocolError(
                    f"{message.party} has {message.users} common users, {name} has {other.users}: align the users again"
                )
        if (message.mask_key is None) == self.config.masking:
            raise ProtocolError(f"{message.party}: its key for masks is missing or not asked for")
        self.joined[message.party] = message
        if len(self.joined) == len(self.names) and not self.began:
            self._begin()

    def _begin(self) -> None:
        self.began = True
        hellos = [self.joined[name] for name in self.names]
        self.items = [h.items for h in hellos]
        self.model = Model(self.config.model, hellos[0].users)
        if self.config.masking and len(self.active(1)) < 2:
            raise ConfigError("masking hides nothing with a single active party; use more parties or masking=false")
        typical = sum(typical_rating(h.scale) for h in hellos) / len(hellos)
        self.replica = Replica.initial(self.config, self.model, self.items, typical, self.device)
        self.best_parameters = self.replica.parameters.clone()
        training, ratings = self.config.training, sum(h.ratings for h in hellos)
        self.rounds_per_epoch = max(1, math.ceil(ratings / training.batch)) if training.batch else 1
        self.rounds = training.epochs * self.rounds_per_epoch
        self.evaluate_every = training.evaluate_every or self.rounds_per_epoch

    def welcome(self, name: str) -> Welcome:
        """The answer to a Hello, once all have joined: a full copy of the public parameters."""
        self.seen[name] = self.replica.round
        return Welcome(
            index=self.names.index(name),
            items=self.items,
            rounds_per_epoch=self.rounds_per_epoch,
            mask_keys=[self.joined[name].mask_key or "" for name in self.names] if self.config.masking else None,
            round=self.replica.round,
            parameters=self.replica.parameters.cpu().numpy(),
            accumulator=self.replica.accumulator.cpu().numpy(),
        )

    # -- one round ---------------------------------------------------------------------------------------------------------

    def open(self) -> dict[str, RoundStart]:
        """Start the next trip: what each party is to be told. Parties in the same situation get the same object."""
        if self.trip == 0:
            self.round, self.trip = self.round + 1, self.config.exchange.refresh
        else:
            self.trip -= 1
        active = set(self.active(self.round))
        evaluate = self.trip == 0 and (self.round % self.evaluate_every == 0 or self.round == self.rounds)
        refresh = self.trip > 0
        starts: dict[tuple[int, bool], RoundStart] = {}
        self.open_parties, self.replies = {}, {}
        for index, name in enumerate(self.names):
            works = index in active
            if not works and not evaluate:
                continue
            key = (self.seen[name], works)
            if key not in starts:
                starts[key] = self._start(*key, refresh=refresh, evaluate=evaluate)
            self.open_parties[name] = starts[key]
        return self.open_parties

    def active(self, round: int) -> list[int]:
        """A_t: the parties that take part in a round, drawn anew each time (Sec. 4.6)."""
        count = max(1, round_half_up(self.config.training.participation * len(self.names)))
        if count >= len(self.names):
            return list(range(len(self.names)))
        rng = np.random.default_rng([self.config.seed, 2, round])
        return sorted(rng.choice(len(self.names), count, replace=False).tolist())

    def _start(self, seen: int, works: bool, *, refresh: bool, evaluate: bool) -> RoundStart:
        missed = [update for update in self.log if update.round > seen]
        # A full copy where the log does not reach back, or is larger: parameters and accumulator are 8 bytes a value.
        full = self.replica.round - seen > len(missed) or sum(update.row.nbytes for update in missed) > 8 * self.model.size
        contributors, total = self.neighbourhoods or ([], None)
        return RoundStart(
            round=self.round,
            trip=self.trip,
            active=self.active(self.round),
            train=works and not refresh,
            exchange=works and self.config.exchange.mode != "none",
            evaluate=evaluate,
            best_round=self.best_round,
            updates_from=seen + 1,
            update_parties=[] if full else [update.parties for update in missed],
            updates=None if full or not missed else np.stack([update.row for update in missed]),
            neighbourhood_parties=contributors,
            neighbourhoods=total,
            parameters=self.replica.parameters.cpu().numpy() if full else None,
            accumulator=self.replica.accumulator.cpu().numpy() if full else None,
        )

    def receive(self, name: str, reply: RoundReply) -> None:
        """Take a party's reply; what does not fit the open round is refused."""
        start = self.open_parties.get(name)
        if start is None or name in self.replies:
            raise ProtocolError(f"{name}: no reply is due from this party")
        if (reply.round, reply.trip) != (start.round, start.trip):
            raise ProtocolError(f"{name}: a reply to round {reply.round}, but round {start.round} is open")
        if (reply.gradient is None) == start.train or (reply.neighbourhoods is None) == start.exchange:
            raise ProtocolError(f"{name}: the reply does not hold what was asked for")
        if reply.gradient is not None:
            size, kind = self.gradient_form
            if reply.gradient.shape != (size,) or reply.gradient.dtype != kind:
                raise ProtocolError(f"{name}: a gradient of shape {reply.gradient.shape} and type {reply.gradient.dtype}")
        if reply.neighbourhoods is not None and reply.neighbourhoods.shape != self.neighbourhood_shape:
            raise ProtocolError(f"{name}: neighbourhoods of shape {reply.neighbourhoods.shape}")
        if start.evaluate:
            if reply.squared_error is None or reply.count is None:
                raise ProtocolError(f"{name}: the reply holds no validation error")
            if reply.digest != self.replica.digest():
                raise ProtocolError(f"{name}: its public parameters differ from the coordinator's; it must rejoin")
        self.seen[name] = self.replica.round
        self.replies[name] = reply

    @property
    def gradient_form(self) -> tuple[int, type[np.generic]]:
        """Length and type of a protected gradient as it travels."""
        if self.config.masking:
            return self.model.size, whole(len(self.names))
        if self.config.gradients.mechanism == "ternary":
            return packed_size(self.model.size, 1), np.uint8
        return self.model.size, np.float32

    @property
    def neighbourhood_shape(self) -> tuple[int, int, int]:
        """(K, q, C) of an exchanged neighbourhood."""
        exchange, users = self.config.exchange, self.model.users
        rows = users if exchange.mode == "exact" else projected_rows(users, exchange.ratio, exchange.block)
        return self.config.model.layers, rows, self.model.operator.columns

    def close(self) -> Closed:
        """Add up, step the public parameters, judge the validation."""
        replies = [(i, self.replies[name]) for i, name in enumerate(self.names) if name in self.replies]
        shared = [(i, reply.neighbourhoods) for i, reply in replies if reply.neighbourhoods is not None]
        if shared:
            total = np.zeros(self.neighbourhood_shape, np.int32)
            for _, values in shared:
                total += values
            self.neighbourhoods = ([i for i, _ in shared], total)
        if self.trip > 0:
            return Closed(self.round, None)
        rmse = self._judge([reply for _, reply in replies]) if any(s.evaluate for s in self.open_parties.values()) else None
        self._step([(i, reply.gradient) for i, reply in replies if reply.gradient is not None])
        self.open_parties = {}
        return Closed(self.round, rmse)

    @property
    def done(self) -> bool:
        """Whether all rounds are through, or patience is."""
        patience = self.config.training.patience
        return self.round >= self.rounds or (patience > 0 and self.since_best >= patience)

    def _judge(self, replies: Sequence[RoundReply]) -> float:
        squared = sum(reply.squared_error or 0.0 for reply in replies)
        rmse = math.sqrt(squared / max(1, sum(reply.count or 0 for reply in replies)))
        self.since_best += 1
        if rmse < self.best_rmse:
            self.best_rmse, self.best_round, self.since_best = rmse, self.round, 0
            self.best_parameters.copy_(self.replica.parameters)
        return rmse

    def _step(self, gradients: Sequence[tuple[int, NDArray[Any]]]) -> None:
        parties, size = [i for i, _ in gradients], self.model.size
        if self.config.gradients.mechanism == "ternary":
            summed = self._summed([values for _, values in gradients])
            row: NDArray[Any] = pack(summed, len(self.names))
            total = torch.from_numpy(summed)
        else:
            row = np.zeros(size, np.float32)
            for _, values in gradients:
                row += values
            total = torch.from_numpy(row)
        self.replica.apply(total.to(self.device), parties, self.round)
        self.log.append(_Update(self.round, parties, row))

    def _summed(self, gradients: Sequence[NDArray[Any]]) -> NDArray[np.int32]:
        """The sum of ternary gradients; of masked ones only this is ever known."""
        size, kind = self.gradient_form
        if not self.config.masking:
            signs = np.zeros(self.model.size, np.int32)
            for packed in gradients:
                signs += unpack(packed, 1, self.model.size)
            return signs
        total = np.zeros(size, kind)
        for masked in gradients:
            total += masked
        if np.abs(total.astype(np.int32)).max(initial=0) > len(gradients):
            raise ProtocolError("the masked sum is out of range: a party left the trip, or sent something else than a gradient")
        return total.astype(np.int32)

    # -- checkpoints -------------------------------------------------------------------------------------------------------

    def state(self) -> State:
        """Everything that training changed, between two rounds."""
        state = State({"parameters": self.replica.parameters.cpu().numpy()})
        state.arrays["accumulator"] = self.replica.accumulator.cpu().numpy()
        state.arrays["best"] = self.best_parameters.cpu().numpy()
        state.arrays |= {f"update.{i}": update.row for i, update in enumerate(self.log)}
        state.values = {
            "round": self.round,
            "seen": self.seen,
            "best": [self.best_rmse if self.best_round else None, self.best_round, self.since_best],
            "updates": [[update.round, update.parties] for update in self.log],
            "neighbourhood_parties": None,
        }
        if self.neighbourhoods is not None:
            state.values["neighbourhood_parties"], state.arrays["neighbourhoods"] = self.neighbourhoods
        return state

    def restore(self, state: State) -> None:
        """Continue from a checkpoint; all parties must have said hello."""
        values = state.values
        self.round = values["round"]
        self.replica.load(state.arrays["parameters"], state.arrays["accumulator"], self.round)
        self.best_parameters = tensor(state.arrays["best"], self.device)
        self.seen = dict(values["seen"])
        rmse, self.best_round, self.since_best = values["best"]
        self.best_rmse = math.inf if rmse is None else rmse
        self.log.extend(_Update(r, p, state.arrays[f"update.{i}"]) for i, (r, p) in enumerate(values["updates"]))
        parties = values["neighbourhood_parties"]
        self.neighbourhoods = None if parties is None else (parties, state.arrays["neighbourhoods"])

    def finish(self) -> Finish:
        """The last message."""
        return Finish(round=self.round, best_round=self.best_round)


def round_half_up(value: float) -> int:
    """The nearest integer, halves upwards."""
    return math.floor(value + 0.5)
