"""The party's side of the protocol (Algorithm 1, client): a message comes in, a message goes out.

    RoundStart -> begin -> compute -> end -> RoundReply

What a party knows that nobody else may know (ratings, degrees, item embeddings, noise) stays in this object; what leaves it
is the reply, and docs/protocol.md lists its fields.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.errors import DivergedError, ProtocolError, RunError
from verfedgnn.gnn.model import Model, upper_quarter
from verfedgnn.graph import Graph, graph_to, party_graph
from verfedgnn.privacy.gradients import protect
from verfedgnn.privacy.masking import GRADIENT, NEIGHBOURHOOD, Masker
from verfedgnn.privacy.projection import Identity, Projection
from verfedgnn.protocol.codec import from_fixed, pack, to_fixed, unpack, whole
from verfedgnn.protocol.exchange import make_projection
from verfedgnn.protocol.messages import Finish, Finished, Hello, Message, RoundReply, RoundStart, Welcome
from verfedgnn.protocol.optimizer import step
from verfedgnn.protocol.replica import Replica, parameters_digest, participation_scale
from verfedgnn.protocol.state import EvaluatedModel, State, tensor
from verfedgnn.protocol.step import Outcome, Pairs, Work, compute
from verfedgnn.protocol.terms import LOCAL, Terms, check_start, check_welcome


@dataclass(frozen=True)
class PartyInput:
    """A party's own data: its name, sizes, rated pairs by part, and the scale of its ratings."""

    name: str
    users: int
    items: int
    scale: tuple[float, float]
    train: Pairs
    valid: Pairs


Own = tuple[tuple[int, int], NDArray[np.int32]]
"""Own neighbourhoods as last sent, and the round and trip of that."""


@dataclass(frozen=True)
class _Before:
    """The private state before a trip, to which a trip begun anew goes back."""

    round: int
    trip: int
    items: Tensor
    accumulator: Tensor
    own: Own | None


class Party:
    """One organisation. `secret` seeds its noise, its batches and its initial items, and is nobody else's business."""

    def __init__(
        self, data: PartyInput, config: Config, secret: int, device: torch.device | str = "cpu", terms: Terms = LOCAL
    ) -> None:
        self.data, self.config, self.secret, self.device = data, config, secret, torch.device(device)
        self.terms = terms
        self.model = Model(config.model, data.users)
        threshold = config.model.threshold
        self.threshold = upper_quarter(data.scale) if threshold is None else threshold
        self.items = self.model.initial_embeddings(self._rng(0), data.items).to(self.device)
        self.accumulator = torch.zeros_like(self.items)
        self.own: Own | None = None
        self.candidate: EvaluatedModel | None = None
        """The model as last evaluated, and its round: h_u, h_v, e_v^0."""
        self.best: EvaluatedModel | None = None
        """The same of the best evaluation."""
        self.public: Tensor | None = None
        """Public parameters of the kept model, once training is over."""
        self.stay = ""
        """Names the Hello whose Welcome is awaited, or was taken."""
        self._welcomed: str | None = None
        self.training: str | None = None
        """The training this party takes part in."""
        self.checked: tuple[int, str] | None = None
        """The last validation whose public parameters were found to be the coordinator's: round and hash."""
        self._announced: tuple[int, str] | None = None
        self.masker: Masker | None = None
        self._last = (0, 0, 0)
        """Round, trip (negated) and attempt of the last trip; none is taken twice, so no mask is used twice."""
        self._told: tuple[tuple[int, int, int], bytes] | None = None
        """Hash of what was told before the last trip."""
        self._before: list[_Before] = []
        """Of the current round, a state for each trip so far."""
        self._shuffled: tuple[int, Pairs] | None = None
        self.replica: Replica
        self.projection: Projection | Identity | None
        self.graph: Graph | None = None

    def _rng(self, *purpose: int) -> np.random.Generator:
        return np.random.default_rng([self.secret, *purpose])

    def hello(self) -> Hello:
        """The first message of every stay, with a mask key of its own."""
        terms, key, signature = self.terms, None, None
        self.stay = secrets.token_hex(8)
        if self.config.masking:
            self.masker = Masker()
            key = self.masker.public
            signature = None if terms.vouching is None else terms.vouching.sign("mask", key)
        return Hello(
            party=self.data.name,
            users=self.data.users,
            items=self.data.items,
            ratings=len(self.data.train),
            scale=self.data.scale,
            config=self.config.fingerprint(),
            stay=self.stay,
            agreement=terms.agreement,
            alignment=terms.alignment,
            training=self.training,
            round=self.checked[0] if self.checked else 0,
            digest=self.checked[1] if self.checked else None,
            mask_key=key,
            mask_signature=signature,
        )

    def welcome(self, message: Welcome, replica: Replica | None = None, projection: Projection | Identity | None = None) -> None:
        """Take the coordinator's answer; on one machine, parties are handed one shared replica and projection."""
        if message.stay != self.stay or self._welcomed == self.stay:
            raise ProtocolError(f"{self.data.name}: a Welcome that answers no Hello, or one a second time")
        self._welcomed = self.stay
        check_welcome(message, self.config, self.model, self.data.items, self.training, self.terms.place)
        self.index, self.rounds_per_epoch, self.training = message.index, message.rounds_per_epoch, message.training
        self.all_items, self._last = message.items, (0, 0, 0)
        self._meet(message)
        if replica is None:
            parameters = torch.from_numpy(message.parameters.copy()).to(self.device)
            accumulator = torch.from_numpy(message.accumulator.copy()).to(self.device)
            replica = Replica(self.config, self.model, message.items, parameters, accumulator, message.round)
            if replica.digest() != message.digest:
                raise ProtocolError(f"{self.data.name}: the public parameters received are not those the coordinator announced")
        self.replica = replica
        if self.graph is None:
            self.projection = projection or make_projection(self.config, self.data.users, self.device)
            self.graph = self._graph(sum(message.items) / self.data.items)

    def _meet(self, message: Welcome | RoundStart) -> None:
        """Take the others' mask keys, if there are new ones, once it is sure whose they are."""
        if self.masker is None or message.mask_keys is None:
            return
        keys, signatures = message.mask_keys, message.mask_signatures or []
        if len(keys) != len(self.all_items) or (signatures and len(signatures) != len(keys)):
            raise ProtocolError(f"{self.data.name}: {len(keys)} mask keys for {len(self.all_items)} parties")
        if self.terms.vouching is not None:
            for party, (key, signature) in enumerate(zip(keys, signatures, strict=True)):
                if key:
                    self.terms.vouching.check("mask", party, key, signature)
        self.masker.meet(self.index, keys)

    def _graph(self, ratio: float) -> Graph:
        train = self.data.train
        neighbour = (train.rating >= self.threshold).cpu().numpy()
        graph = party_graph(
            train.user.cpu().numpy()[neighbour],
            train.item.cpu().numpy()[neighbour],
            users=self.data.users,
            items=self.data.items,
            ratio=ratio,
        )
        return graph_to(graph, self.device)

    def handle(self, message: Message) -> RoundReply | Finished:
        """One message in, one out."""
        if isinstance(message, Finish):
            return self.finish(message)
        if not isinstance(message, RoundStart):
            raise ProtocolError(f"{self.data.name}: a {type(message).__name__} makes no sense here")
        work = self.begin(message)
        assert self.graph is not None
        (outcome,) = compute(self.model, self.graph, self.replica.parameters, self.projection, [work])
        return self.end(message, outcome)

    def begin(self, message: RoundStart) -> Work:
        """Apply what changed and gather what the computation needs."""
        trip = (message.round, -message.trip, message.attempt)
        if trip <= self._last:
            raise ProtocolError(f"{self.data.name}: round {message.round} is started a second time")
        check_start(message, self.config, self.model, len(self.all_items), self.index, self.terms.smallest)
        self._last = trip
        self._meet(message)
        self._keep(message.best_round)
        self._update(message)
        self._go_back_or_remember(message)
        return Work(
            items=self.items,
            others=self._others(message),
            batch=self.batch(message.round) if message.train else None,
            valid=self.data.valid if message.evaluate else None,
            exchange=message.exchange,
        )

    def _go_back_or_remember(self, message: RoundStart) -> None:
        """A trip begun anew starts from where its first attempt did."""
        self._before = [before for before in self._before if before.round == message.round and before.trip >= message.trip]
        if self._before and self._before[-1].trip == message.trip:
            before = self._before[-1]
            self.items, self.accumulator, self.own = before.items.clone(), before.accumulator.clone(), before.own
        else:
            before = _Before(message.round, message.trip, self.items.clone(), self.accumulator.clone(), self.own)
            self._before.append(before)

    def end(self, message: RoundStart, outcome: Outcome) -> RoundReply:
        """Step the private parameters and say what may be said."""
        reply: dict[str, Any] = {"round": message.round, "trip": message.trip, "attempt": message.attempt}
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
            self._announced = (message.round, self.replica.digest())
        if outcome.neighbourhoods is not None:
            own = to_fixed(outcome.neighbourhoods.cpu().numpy(), len(self.all_items))
            self.own = ((message.round, message.trip), own)
            reply["neighbourhoods"] = self._masked(own, message, NEIGHBOURHOOD)
        if outcome.public_gradient is not None and outcome.item_gradient is not None:
            if not math.isfinite(float(outcome.public_gradient.sum())):
                raise DivergedError(f"training diverged at '{self.data.name}' in round {message.round}; lower training.lr")
            gradient = outcome.item_gradient + (2 * self.config.training.l2 / sum(self.all_items)) * self.items
            step(self.items, self.accumulator, gradient, self.config.training)
            reply["gradient"] = self._protected(outcome.public_gradient, message)
        return RoundReply(**reply)

    def finish(self, message: Finish) -> Finished:
        """The end: keep the public parameters of the best validation, and the model that goes with them."""
        self._keep(message.best_round)
        if message.parameters.shape != (self.model.size,):
            raise ProtocolError(f"{self.data.name}: the public parameters received have another size than the model's")
        self.public = tensor(message.parameters, self.device)
        if self.best is None or self.best[0] != message.best_round:
            self.best = (message.best_round, self._evaluated(self.public))
        return Finished(digest=parameters_digest(self.public))

    def _evaluated(self, public: Tensor) -> dict[str, Tensor]:
        """The model of `public` and the items as they are, for a party that was away when it was validated."""
        work = Work(items=self.items, others=None, batch=None, valid=self.data.valid, exchange=False)
        assert self.graph is not None
        (outcome,) = compute(self.model, self.graph, public, self.projection, [work])
        assert outcome.users is not None
        assert outcome.items is not None
        return {"users": outcome.users, "items": outcome.items, "embeddings": self.items.clone()}

    def models(self) -> State:
        """The models it evaluated and may have to keep: large, and new only after a validation."""
        state = State()
        state.put_model("candidate", self.candidate)
        state.put_model("best", self.best)
        return state

    def state(self) -> State:
        """Everything else private that training changed."""
        state = State({"items": self.items.cpu().numpy(), "accumulator": self.accumulator.cpu().numpy()})
        state.values |= {"training": self.training, "checked": self.checked, "before": [[b.round, b.trip] for b in self._before]}
        _put_own(state, "own", self.own)
        for n, before in enumerate(self._before):
            state.arrays |= {f"before.{n}.items": before.items.cpu().numpy()}
            state.arrays |= {f"before.{n}.accumulator": before.accumulator.cpu().numpy()}
            _put_own(state, f"before.{n}.own", before.own)
        return state

    def restore(self, state: State, models: State) -> None:
        """Continue from a checkpoint."""
        arrays, values = state.arrays, state.values
        if arrays["items"].shape != self.items.shape:
            had, has = len(arrays["items"]), len(self.items)
            raise RunError(f"the checkpoint has {had:,} items, the ratings have {has:,}; give the same data")
        self.items, self.accumulator = tensor(arrays["items"], self.device), tensor(arrays["accumulator"], self.device)
        self.candidate, self.best = models.get_model("candidate", self.device), models.get_model("best", self.device)
        self.own = _get_own(state, "own")
        self.training = values["training"]
        self.checked = None if values["checked"] is None else (values["checked"][0], values["checked"][1])
        self._before = []
        for n, (round, trip) in enumerate(values["before"]):
            items, accumulator = (tensor(arrays[f"before.{n}.{name}"], self.device) for name in ("items", "accumulator"))
            self._before.append(_Before(round, trip, items, accumulator, _get_own(state, f"before.{n}.own")))

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
        if self._announced is not None and self._announced[0] < message.round:
            self.checked = self._announced  # the coordinator compared it, or there would be no next round
        if message.parameters is not None and message.accumulator is not None:
            if self.replica.round < message.round - 1:
                self.replica.load(message.parameters, message.accumulator, message.round - 1)
        elif message.updates is not None:
            size, count = self.model.size, len(self.all_items)
            ternary = self.config.gradients.mechanism == "ternary"
            for offset, (parties, row) in enumerate(zip(message.update_parties, message.updates, strict=True)):
                number = message.updates_from + offset
                if number <= self.replica.round:
                    continue
                if number != self.replica.round + 1:
                    break
                values = unpack(row, count, size) if ternary else row
                total = torch.from_numpy(np.ascontiguousarray(values)).to(self.device)
                self.replica.apply(total, parties, number)
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
            if self.own is None or self.own[0] != message.neighbourhood_trip:
                return None  # sent before this party lost its memory; the next sum will do
            total = total - self.own[1]
        scale = participation_scale(self.all_items, message.neighbourhood_parties, self.index)
        return torch.from_numpy(from_fixed(total)).to(self.device).mul_(scale)

    def _protected(self, gradient: Tensor, message: RoundStart) -> NDArray[Any]:
        generator = torch.Generator(self.device)
        purpose = [2, message.round]
        if self.terms.fresh_noise:  # a round computed anew from other values must not repeat the noise of the first time
            purpose.append(int.from_bytes(hashlib.sha256(gradient.cpu().numpy().tobytes()).digest()[:8]))
        generator.manual_seed(int(self._rng(*purpose).integers(2**63)))
        released = protect(gradient, self.config.gradients, self.model.user_size, generator).cpu().numpy()
        if self.masker is not None:
            return self._masked(released.astype(whole(len(self.all_items))), message, GRADIENT)
        return pack(released, 1) if self.config.gradients.mechanism == "ternary" else released

    def _masked(self, values: NDArray[Any], message: RoundStart, use: int) -> NDArray[Any]:
        if self.masker is None:
            return values
        about = {"round": message.round, "trip": message.trip, "attempt": message.attempt}
        if self._told is None or self._told[0] != self._last:
            self._told = (self._last, self._context(message))
        return self.masker.mask(values, message.active, use=use, context=self._told[1], **about)

    def _context(self, message: RoundStart) -> bytes:
        """Hash of what every active party has been told before this trip."""
        told = hashlib.sha256(repr((message.active, self.all_items, self.replica.digest())).encode())
        told.update(repr((message.train, message.exchange, message.neighbourhood_parties, message.neighbourhood_trip)).encode())
        if message.neighbourhoods is not None:
            told.update(message.neighbourhoods.tobytes())
        return told.digest()


def _put_own(state: State, name: str, own: Own | None) -> None:
    state.values[name] = None if own is None else own[0]
    if own is not None:
        state.arrays[name] = own[1]


def _get_own(state: State, name: str) -> Own | None:
    trip = state.values.get(name)
    return None if trip is None else ((trip[0], trip[1]), state.arrays[name])
