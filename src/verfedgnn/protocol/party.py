"""The party's side of the protocol (Algorithm 1, client): a message comes in, a message goes out.

    RoundStart -> begin -> compute -> end -> RoundReply

What a party knows that nobody else may know (ratings, degrees, item embeddings, noise) stays in this object; what leaves it
is the reply, and docs/protocol.md lists its fields.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.errors import ConfigError, DivergedError, ProtocolError
from verfedgnn.gnn.model import Model, upper_quarter
from verfedgnn.graph import Graph, graph_to, party_graph
from verfedgnn.privacy.gradients import protect
from verfedgnn.privacy.masking import GRADIENT, NEIGHBOURHOOD, Masker
from verfedgnn.privacy.projection import Identity, Projection
from verfedgnn.protocol.codec import from_fixed, pack, to_fixed, unpack, whole
from verfedgnn.protocol.messages import Finish, Hello, Message, RoundReply, RoundStart, Welcome
from verfedgnn.protocol.optimizer import step
from verfedgnn.protocol.replica import Replica, participation_scale
from verfedgnn.protocol.state import EvaluatedModel, State, tensor
from verfedgnn.protocol.step import Outcome, Pairs, Work, compute


@dataclass(frozen=True)
class PartyInput:
    """A party's own data: its name, sizes, rated pairs by part, and the scale of its ratings."""

    name: str
    users: int
    items: int
    scale: tuple[float, float]
    train: Pairs
    valid: Pairs


class Party:
    """One organisation. `secret` seeds its noise, its batches and its initial items, and is nobody else's business."""

    def __init__(self, data: PartyInput, config: Config, secret: int, device: torch.device | str = "cpu") -> None:
        self.data, self.config, self.secret, self.device = data, config, secret, torch.device(device)
        self.model = Model(config.model, data.users)
        threshold = config.model.threshold
        self.threshold = upper_quarter(data.scale) if threshold is None else threshold
        self.items = self.model.initial_embeddings(self._rng(0), data.items).to(self.device)
        self.accumulator = torch.zeros_like(self.items)
        self.own: NDArray[np.int32] | None = None
        """Own neighbourhoods as last sent."""
        self.candidate: EvaluatedModel | None = None
        """The model as last evaluated, and its round: h_u, h_v, e_v^0."""
        self.best: EvaluatedModel | None = None
        """The same of the best evaluation."""
        self.masker = Masker() if config.masking else None
        self._shuffled: tuple[int, Pairs] | None = None
        self.replica: Replica
        self.projection: Projection | Identity | None
        self.graph: Graph

    def _rng(self, *purpose: int) -> np.random.Generator:
        return np.random.default_rng([self.secret, *purpose])

    def hello(self) -> Hello:
        """The first message of a party."""
        return Hello(
            party=self.data.name,
            users=self.data.users,
            items=self.data.items,
            ratings=len(self.data.train),
            scale=self.data.scale,
            config=self.config.fingerprint(),
            mask_key=None if self.masker is None else self.masker.public,
        )

    def welcome(self, message: Welcome, replica: Replica | None = None, projection: Projection | Identity | None = None) -> None:
        """Take the coordinator's answer; on one machine, parties are handed one shared replica and projection."""
        self.index, self.rounds_per_epoch = message.index, message.rounds_per_epoch
        self.all_items = message.items
        if self.masker is not None:
            self.masker.meet(message.index, message.mask_keys or [])
        if replica is None:
            parameters = torch.from_numpy(message.parameters.copy()).to(self.device)
            accumulator = torch.from_numpy(message.accumulator.copy()).to(self.device)
            replica = Replica(self.config, self.model, message.items, parameters, accumulator, message.round)
        self.replica = replica
        self.projection = projection or make_projection(self.config, self.data.users, self.device)
        train = self.data.train
        neighbour = (train.rating >= self.threshold).cpu().numpy()
        self.graph = graph_to(
            party_graph(
                train.user.cpu().numpy()[neighbour],
                train.item.cpu().numpy()[neighbour],
                users=self.data.users,
                items=self.data.items,
                ratio=sum(message.items) / self.data.items,
            ),
            self.device,
        )

    def handle(self, message: Message) -> RoundReply | None:
        """One message in, one out (none after Finish)."""
        if isinstance(message, Finish):
            self.finish(message)
            return None
        if not isinstance(message, RoundStart):
            raise ProtocolError(f"{self.data.name}: a {type(message).__name__} makes no sense here")
        work = self.begin(message)
        (outcome,) = compute(self.model, self.graph, self.replica.parameters, self.projection, [work])
        return self.end(message, outcome)

    def begin(self, message: RoundStart) -> Work:
        """Apply what changed and gather what the computation needs."""
        self._keep(message.best_round)
        self._update(message)
        return Work(
            items=self.items,
            others=self._others(message),
            batch=self.batch(message.round) if message.train else None,
            valid=self.data.valid if message.evaluate else None,
            exchange=message.exchange,
        )

    def end(self, message: RoundStart, outcome: Outcome) -> RoundReply:
        """Step the private parameters and say what may be said."""
        reply: dict[str, Any] = {"round": message.round, "trip": message.trip}
        if message.evaluate:
            assert outcome.users is not None
            assert outcome.items is not None
            evaluated = {"users": outcome.users, "items": outcome.items, "embeddings": self.items.clone()}
            self.candidate = (message.round, evaluated)
            reply |= {
                "squared_error": outcome.squared_error,
                "count": len(self.data.valid),
                "digest": self.replica.digest(),
            }
        if outcome.neighbourhoods is not None:
            self.own = to_fixed(outcome.neighbourhoods.cpu().numpy(), len(self.all_items))
            reply["neighbourhoods"] = self._masked(self.own, message, NEIGHBOURHOOD)
        if outcome.public_gradient is not None and outcome.item_gradient is not None:
            if not math.isfinite(float(outcome.public_gradient.sum())):
                raise DivergedError(f"training diverged at '{self.data.name}' in round {message.round}; lower training.lr")
            gradient = outcome.item_gradient + (2 * self.config.training.l2 / sum(self.all_items)) * self.items
            step(self.items, self.accumulator, gradient, self.config.training)
            reply["gradient"] = self._protected(outcome.public_gradient, message)
        return RoundReply(**reply)

    def finish(self, message: Finish) -> None:
        """The end: keep the last evaluation if it was the best."""
        self._keep(message.best_round)

    def state(self) -> State:
        """Everything private that training changed."""
        state = State({"items": self.items.cpu().numpy(), "accumulator": self.accumulator.cpu().numpy()})
        state.put_model("candidate", self.candidate)
        state.put_model("best", self.best)
        if self.own is not None:
            state.arrays["own"] = self.own
        return state

    def restore(self, state: State) -> None:
        """Continue from a checkpoint."""
        self.items = tensor(state.arrays["items"], self.device)
        self.accumulator = tensor(state.arrays["accumulator"], self.device)
        self.candidate = state.get_model("candidate", self.device)
        self.best = state.get_model("best", self.device)
        self.own = state.arrays.get("own")

    def _keep(self, best_round: int) -> None:
        if self.candidate is not None and self.candidate[0] == best_round:
            self.best = self.candidate

    def batch(self, round: int) -> Pairs:
        """The party's share of the round's batch: a slice of this epoch's own shuffle."""
        epoch, slot = divmod(round - 1, self.rounds_per_epoch)
        train, per_epoch = self.data.train, self.rounds_per_epoch
        if per_epoch == 1:
            return train
        if self._shuffled is None or self._shuffled[0] != epoch:
            order = torch.from_numpy(self._rng(1, epoch).permutation(len(train))).to(self.device)
            self._shuffled = (epoch, train.take(order))
        start, stop = slot * len(train) // per_epoch, (slot + 1) * len(train) // per_epoch
        return self._shuffled[1].take(slice(start, stop))

    def _update(self, message: RoundStart) -> None:
        if message.parameters is not None and message.accumulator is not None:
            if self.replica.round < message.round - 1:
                self.replica.load(message.parameters, message.accumulator, message.round - 1)
        elif message.updates is not None:
            size = self.model.size
            ternary = self.config.gradients.mechanism == "ternary"
            for offset, (parties, row) in enumerate(zip(message.update_parties, message.updates, strict=True)):
                if message.updates_from + offset <= self.replica.round:
                    continue
                values = unpack(row, len(self.all_items), size) if ternary else row
                total = torch.from_numpy(np.ascontiguousarray(values)).to(self.device)
                self.replica.apply(total, parties, message.updates_from + offset)
        if self.replica.round != message.round - 1:
            raise ProtocolError(
                f"{self.data.name}: the coordinator starts round {message.round} but the public parameters here are of round "
                f"{self.replica.round}; rejoin to get a full copy"
            )

    def _others(self, message: RoundStart) -> Tensor | None:
        """Estimated sum of the others' projected neighbourhoods: (sum - own), scaled by Sec. 4.6 to all others."""
        if message.neighbourhoods is None or self.projection is None:
            return None
        expected = (self.model.config.layers, self.projection.rows, self.model.operator.columns)
        if message.neighbourhoods.shape != expected:
            raise ProtocolError(f"{self.data.name}: neighbourhoods of shape {message.neighbourhoods.shape}, not {expected}")
        total = message.neighbourhoods
        if self.index in message.neighbourhood_parties:
            if self.own is None:
                raise ProtocolError(f"{self.data.name}: the sum holds neighbourhoods that were never sent from here")
            total = total - self.own
        scale = participation_scale(self.all_items, message.neighbourhood_parties, self.index)
        return torch.from_numpy(from_fixed(total)).to(self.device).mul_(scale)

    def _protected(self, gradient: Tensor, message: RoundStart) -> NDArray[Any]:
        generator = torch.Generator(self.device)
        generator.manual_seed(int(self._rng(2, message.round).integers(2**63)))
        released = protect(gradient, self.config.gradients, self.model.user_size, generator).cpu().numpy()
        if self.masker is not None:
            return self._masked(released.astype(whole(len(self.all_items))), message, GRADIENT)
        return pack(released, 1) if self.config.gradients.mechanism == "ternary" else released

    def _masked(self, values: NDArray[Any], message: RoundStart, use: int) -> NDArray[Any]:
        if self.masker is None:
            return values
        return self.masker.mask(values, message.active, round=message.round, trip=message.trip, use=use)


def make_projection(config: Config, users: int, device: torch.device | str) -> Projection | Identity | None:
    """The exchange's projection; None when nothing is exchanged."""
    exchange = config.exchange
    if exchange.mode == "none":
        return None
    if exchange.mode == "exact":
        return Identity(users)
    projection = Projection(
        users,
        ratio=exchange.ratio,
        block=exchange.block,
        seed=config.seed,
        reconstruction=exchange.reconstruction,
        device=device,
    )
    if not projection.protected and "projection" not in config.unprotected:
        raise ConfigError(
            f"a projection of {users:,} common user(s) with exchange.ratio = {exchange.ratio:g} hides nothing; "
            "use more users, or ask for it with --set unprotected=projection"
        )
    return projection
