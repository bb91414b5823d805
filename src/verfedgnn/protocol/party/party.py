"""The party's side of the protocol (Algorithm 1, client): a message comes in, a message goes out.

    RoundStart -> begin -> compute -> end -> RoundReply

What a party knows that nobody else may know (ratings, degrees, item embeddings, noise) stays in this object; what leaves it
is the reply, and docs/protocol.md lists its fields.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.core.errors import DivergedError, ProtocolError
from verfedgnn.core.graph import Graph, build_graph, move_graph
from verfedgnn.core.metrics import squared_errors
from verfedgnn.core.pairs import PartyInput
from verfedgnn.core.rating_scale import typical_rating
from verfedgnn.gnn.model import Model, neighbour_from
from verfedgnn.privacy.gradient_protection import protect
from verfedgnn.privacy.masking import GRADIENT, NEIGHBOURHOOD
from verfedgnn.privacy.projection import IdentityProjection, Projection
from verfedgnn.privacy.rating_dp import add_item_noise, add_validation_noise, release_gradient
from verfedgnn.protocol.checkpoint_state import EvaluatedModel, State, tensor
from verfedgnn.protocol.party.batches import Batches
from verfedgnn.protocol.party.exchange_state import Before, Memory
from verfedgnn.protocol.party.party_masks import Masks
from verfedgnn.protocol.party.policy import LOCAL, Policy, check_start, check_welcome
from verfedgnn.protocol.party.private_parameters import Private
from verfedgnn.protocol.party.stacked_round import judge, replies
from verfedgnn.protocol.party.targets import Targets
from verfedgnn.protocol.round.aggregation import largest_array, neighbourhood_shape
from verfedgnn.protocol.round.backward_exchange import Released, others_gradient
from verfedgnn.protocol.round.forward_backward import Outcome, Work
from verfedgnn.protocol.round.loss import Batch
from verfedgnn.protocol.round.neighbourhood_exchange import Received, Sent, make_projection, outgoing
from verfedgnn.protocol.round.replica import FULL_COPY, Replica, parameters_digest, participation_scale
from verfedgnn.protocol.round.user_blocks import Part, Rotation, by_parts
from verfedgnn.protocol.round.user_subset import Scope
from verfedgnn.protocol.wire.fixed_point import residues, sum_bits, whole
from verfedgnn.protocol.wire.messages import Finish, Finished, Hello, Message, RoundReply, RoundStart, Welcome


class Party:
    """One organisation. `secret` seeds its noise, its batches and its initial items, and is nobody else's business."""

    def __init__(
        self,
        data: PartyInput,
        config: Config,
        secret: int,
        device: torch.device | str = "cpu",
        terms: Policy = LOCAL,
    ) -> None:
        self.data, self.config, self.secret, self.device = data, config, secret, torch.device(device)
        self.terms = terms
        self.model = Model(config.model, data.users)
        self.threshold = neighbour_from(config.model, data.scale)
        self.targets = Targets.of(data, config)
        start = self.model.initial_private(self._rng(0), data.items, typical_rating(data.scale))
        self.private = Private.initial(start, self.device, averaged=config.training.average > 0)
        self.memory = Memory()
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
        self.masks = Masks(data.name, terms) if config.masking else None
        self._last = (0, 0, 0)
        """Round, trip (negated) and attempt of the last trip; none is taken twice, so no mask is used twice."""
        self._before: list[Before] = []
        """Of the current round, a state for each trip so far."""
        self.batches = Batches(self.targets, config, data.users, data.items, self._rng)
        self._scopes: dict[tuple[int, bool], Scope] = {}
        self.replica: Replica
        self.projection: Projection | IdentityProjection | None
        self.graph: Graph | None = None

    def _rng(self, *purpose: int) -> np.random.Generator:
        return np.random.default_rng([self.secret, *purpose])

    @property
    def noised(self) -> bool:
        """Whether single ratings are protected by noise on everything."""
        return self.config.gradients.mechanism == "skellam"

    @property
    def announced_ratings(self) -> int:
        """The number of training ratings; nobody needs it where every round trains on all, so noise need not hide it."""
        return 0 if self.noised else len(self.data.train)

    def hello(self) -> Hello:
        """The first message of every stay, with a mask key of its own."""
        self.stay = secrets.token_hex(8)
        key, signature = (None, None) if self.masks is None else self.masks.new_key()
        return Hello(
            party=self.data.name,
            users=self.data.users,
            items=self.data.items,
            ratings=self.announced_ratings,
            scale=self.data.scale,
            config=self.config.fingerprint(),
            stay=self.stay,
            agreement=self.terms.agreement,
            alignment=self.terms.alignment,
            training=self.training,
            round=self.checked[0] if self.checked else 0,
            digest=self.checked[1] if self.checked else None,
            mask_key=key,
            mask_signature=signature,
        )

    def welcome(
        self,
        message: Welcome,
        replica: Replica | None = None,
        projection: Projection | IdentityProjection | None = None,
    ) -> None:
        """Take the coordinator's answer; on one machine, parties are handed one shared replica and projection."""
        if message.stay != self.stay or self._welcomed == self.stay:
            raise ProtocolError(f"{self.data.name}: a Welcome that answers no Hello, or one a second time")
        self._welcomed = self.stay
        own = (self.data.items, self.announced_ratings)
        check_welcome(message, self.config, self.model, *own, self.training, self.terms.place)
        self.index, self.training = message.index, message.training
        self.all_items, self._last = message.items, (0, 0, 0)
        self._meet(message)
        if replica is None:
            start, sums = torch.zeros((2, self.model.size), device=self.device)
            replica = Replica(
                self.config, self.model, message.items, message.ratings, start, sums, message.round
            )
            replica.load(message.parameters, message.accumulator, message.average, message.round)
            if replica.digest() != message.digest:
                raise ProtocolError(
                    f"{self.data.name}: the public parameters received are not those the coordinator announced"
                )
        self.replica = replica
        if self.graph is None:
            self.projection = projection or make_projection(self.config, self.data.users, self.device)
            self.graph = self._graph(sum(message.items) / self.data.items)

    def _meet(self, message: Welcome | RoundStart) -> None:
        if self.masks is not None:
            self.masks.meet(message, self.index, len(self.all_items))

    def _graph(self, ratio: float) -> Graph:
        train = self.data.train
        neighbour = (train.rating >= self.threshold).cpu().numpy()
        graph = build_graph(
            train.user.cpu().numpy()[neighbour],
            train.item.cpu().numpy()[neighbour],
            users=self.data.users,
            items=self.data.items,
            ratio=ratio,
        )
        return move_graph(graph, self.device)

    # -- the users of a round ------------------------------------------------------------------------------------------------

    @property
    def largest_array(self) -> int:
        """Bytes of the largest packed array that a RoundStart may hold: missed updates are sent up to the size of a full copy."""
        return largest_array(
            self.config, Rotation(self.config, self.model).everybody, FULL_COPY * self.model.size
        )

    def scope(self, part: Part, rated: bool) -> Scope:
        """What a computation for the users of a part needs, or for those of them who have training ratings here."""
        if (part.index, rated) not in self._scopes:
            assert self.graph is not None
            found = self.scope(part, False) if rated else Scope.of(part, self.graph, self.projection)
            self._scopes[part.index, rated] = (
                found.rated(self.data.train.user, self.config) if rated else found
            )
        return self._scopes[part.index, rated]

    def _others(self, part: Part | None) -> Tensor | None:
        """What is known of the others' neighbourhoods (K, q, C), of all users or of some."""
        parts = self.replica.rotation.parts
        if part is not None or len(parts) == 1:
            return self.memory.others(0 if part is None else part.index)
        known = [self.memory.others(p.index) for p in parts]
        if all(others is None for others in known):
            return None
        shapes = [neighbourhood_shape(self.config, p) for p in parts]
        return torch.cat(
            [
                torch.zeros(s, device=self.device) if o is None else o
                for o, s in zip(known, shapes, strict=True)
            ],
            1,
        )

    def handle(self, message: Message) -> RoundReply | Finished:
        """One message in, one out."""
        if isinstance(message, Finish):
            return self.finish(message)
        if not isinstance(message, RoundStart):
            raise ProtocolError(f"{self.data.name}: a {type(message).__name__} makes no sense here")
        (reply,) = replies([self], [message], self.scope)
        return reply

    def begin(self, message: RoundStart) -> Work:
        """Apply what changed and gather what the computation needs."""
        trip = (message.round, -message.trip, message.attempt)
        if trip <= self._last:
            raise ProtocolError(f"{self.data.name}: round {message.round} is started a second time")
        check_start(
            message, self.config, self.replica.rotation, len(self.all_items), self.index, self.terms.smallest
        )
        self._last = trip
        self._meet(message)
        self._keep(message.best_round)
        self._update(message)
        self._go_back_or_remember(message)
        pull = self._pull(message)
        self._receive(message)
        part = self.replica.rotation.of(message.round) if by_parts(self.config) else None
        return Work(
            private=self.private.of_users(None if part is None else part.users),
            others=self._others(part),
            batch=self.batch(message.round) if message.train else None,
            evaluate=message.evaluate and not self.private.averaged and part is None,
            exchange=message.exchange,
            pull=pull if message.train else None,
        )

    def judged(self) -> Work:
        """What a validation of the averaged parameters needs."""
        return Work(private=self.private.averages, others=self._others(None), evaluate=True)

    def _go_back_or_remember(self, message: RoundStart) -> None:
        """A trip begun anew starts from where its first attempt did."""
        self._before = [
            before for before in self._before if before.round == message.round and before.trip >= message.trip
        ]
        if self._before and self._before[-1].trip == message.trip:
            before = self._before[-1]
            self.private = before.private.clone()
            self.memory.sent, self.memory.released = dict(before.sent), dict(before.released)
        else:
            self._before.append(Before.of(message.round, message.trip, self.private, self.memory))

    def end(self, message: RoundStart, outcome: Outcome, judged: Outcome, scope: Scope) -> RoundReply:
        """Step the private parameters and say what may be said; `judged` is of the parameters that are validated.

        `outcome` is of the users of the `scope`.
        """
        reply: dict[str, Any] = {"round": message.round, "trip": message.trip, "attempt": message.attempt}
        if message.evaluate:
            model = self._served(judged)
            self.candidate = (message.round, model)
            if self.noised:
                squared = squared_errors(model["users"], model["items"], self.data.valid)
                error, count = add_validation_noise(
                    squared, self.data.scale, self.config, self._rng(8, message.round)
                )
            else:
                error, count = self.targets.judge(model["users"], model["items"])
            reply |= {"error": error, "count": count, "digest": self.replica.digest()}
            self._announced = (message.round, self.replica.digest())
        if outcome.neighbourhoods is not None:
            reply["neighbourhoods"] = self._outgoing(outcome.neighbourhoods, message)
        if outcome.public_gradient is not None and outcome.private_gradients is not None:
            if not outcome.finite:
                raise DivergedError(
                    f"training diverged at '{self.data.name}' in round {message.round}; lower training.lr"
                )
            part = self.replica.rotation.of(message.round)
            training = self.config.training
            gradients = self.private.all_users(scope.widen(outcome.private_gradients), part.users)
            if self.noised:
                gradients = add_item_noise(gradients, self.config, self._rng(7, message.round))
            items = (
                gradients["items"]
                + (2 * training.l2 / sum(self.all_items)) * self.private.parameters["items"]
            )
            self.private.step(gradients | {"items": items}, training, message.round, self.config.model.bound)
            reply["gradient"] = self.protected(outcome.public_gradient, message, scope)
        return RoundReply(**reply)

    def finish(self, message: Finish) -> Finished:
        """The end: keep the public parameters of the best validation, and the model that goes with them."""
        self._keep(message.best_round)
        if message.parameters.shape != (self.model.size,):
            raise ProtocolError(
                f"{self.data.name}: the public parameters received have another size than the model's"
            )
        self.public = tensor(message.parameters, self.device)
        if self.best is None or self.best[0] != message.best_round:
            self.best = (message.best_round, self._evaluated(self.public))
        return Finished(digest=parameters_digest(self.public))

    def _evaluated(self, public: Tensor) -> dict[str, Tensor]:
        """The model of `public` and the items as they are, for a party that was away when it was validated."""
        (outcome,) = judge([self], public, self.scope)
        return self._served(outcome)

    def _served(self, outcome: Outcome) -> dict[str, Tensor]:
        """An evaluated model as it predicts: in the party's own stars."""
        assert outcome.users is not None
        assert outcome.items is not None
        users, items = self.targets.served(outcome.users, outcome.items)
        return {"users": users, "items": items, "embeddings": self.private.averages["items"].clone()}

    @property
    def kept_model(self) -> dict[str, Tensor]:
        """The model of the best validation, once training is over."""
        assert self.best is not None, "the last round is always evaluated"
        return self.best[1]

    def models(self) -> State:
        """The models it evaluated and may have to keep: large, and new only after a validation."""
        state = State()
        state.put_model("candidate", self.candidate)
        state.put_model("best", self.best)
        return state

    def state(self) -> State:
        """Everything else private that training changed."""
        state = State()
        self.private.put(state, "private")
        state.values |= {
            "training": self.training,
            "checked": self.checked,
            "before": [[b.round, b.trip] for b in self._before],
        }
        for n, before in enumerate(self._before):
            before.put(state, f"before.{n}")
        self.memory.put(state)
        return state

    def restore(self, state: State, models: State) -> None:
        """Continue from a checkpoint."""
        values, parts = state.values, self.config.training.user_blocks
        self.private = self.private.get(state, "private")
        self.candidate, self.best = (
            models.get_model("candidate", self.device),
            models.get_model("best", self.device),
        )
        self.memory = Memory.get(state, parts, self.device)
        self.training = values["training"]
        self.checked = None if values["checked"] is None else (values["checked"][0], values["checked"][1])
        self._before = [
            Before.get(state, f"before.{n}", (round, trip), self.private, parts, self.device)
            for n, (round, trip) in enumerate(values["before"])
        ]

    def _keep(self, best_round: int) -> None:
        if self.candidate is not None and self.candidate[0] == best_round:
            self.best = self.candidate

    def batch(self, round: int) -> Batch:
        """The party's share of the round's batch."""
        return self.batches.of(round, self.replica)

    def _update(self, message: RoundStart) -> None:
        if self._announced is not None and self._announced[0] < message.round:
            self.checked = self._announced  # the coordinator compared it, or there would be no next round
        if message.parameters is not None and message.accumulator is not None:
            if self.replica.round < message.round - 1:
                self.replica.load(message.parameters, message.accumulator, message.average, message.round - 1)
        elif message.updates is not None:
            for number, parties, row in self._updates(message):
                if number <= self.replica.round:
                    continue
                if number != self.replica.round + 1:
                    break
                self.replica.apply(torch.from_numpy(row).to(self.device), parties, number)
        if self.replica.round != message.round - 1:
            raise ProtocolError(
                f"{self.data.name}: the coordinator starts round {message.round} but the public parameters here are of round "
                f"{self.replica.round}; rejoin to get a full copy"
            )

    def _updates(self, message: RoundStart) -> list[tuple[int, list[int], NDArray[Any]]]:
        """The updates of a message: round, whose gradients, and their sum."""
        if message.updates is None:
            return []
        rounds = range(message.updates_from, message.updates_from + len(message.update_parties))
        ends = np.cumsum([self.replica.rotation.of(number).model.size for number in rounds])[:-1]
        return list(zip(rounds, message.update_parties, np.split(message.updates, ends), strict=True))

    def _receive(self, message: RoundStart) -> None:
        """Take the others' part out of a sum of neighbourhoods, scaled by Sec. 4.6 to all others."""
        if message.neighbourhoods is None or self.projection is None:
            return
        part = self.replica.rotation.of(message.round)
        expected = neighbourhood_shape(self.config, part)
        if message.neighbourhoods.shape != expected or message.neighbourhoods.dtype.kind != "i":
            raise ProtocolError(
                f"{self.data.name}: neighbourhoods of shape {message.neighbourhoods.shape}, not {expected}"
            )
        scale = participation_scale(self.all_items, message.neighbourhood_parties, self.index)
        own, last = self.memory.sent.get(part.index), self.memory.received.get(part.index)
        self.memory.received[part.index] = Received.read(
            message, self.index, own, scale, self.config, self.device, last
        )

    def _outgoing(self, x: Tensor, message: RoundStart) -> NDArray[Any]:
        count = {"parties": len(self.all_items), "active": len(message.active)}
        values = outgoing(x, self.config, **count, rng=lambda: self._noise_source(5, message, x))
        self.memory.sent[self.replica.rotation.of(message.round).index] = Sent(
            (message.round, message.trip), values
        )
        if not self.config.masking:
            return values
        return residues(self._masked(values, message, NEIGHBOURHOOD), self.config.exchange.bits)

    def _pull(self, message: RoundStart) -> Tensor | None:
        """The gradient of the others' losses with respect to neighbourhoods, out of the last update of the same users."""
        if not self.config.exchange.backward or self.projection is None:
            return None
        rotation = self.replica.rotation
        newest = {
            rotation.of(number).index: (number, parties, row)
            for number, parties, row in self._updates(message)
        }
        for part, (number, parties, row) in newest.items():
            own, total = self.memory.released.get(part), torch.from_numpy(row).to(self.device)
            found = others_gradient(total, parties, self.index, own, self.replica, number)
            self.memory.pulls.pop(part, None)
            if found is not None:
                self.memory.pulls[part] = Released(number, found)
        pull = self.memory.pulls.get(rotation.of(message.round).index)
        return None if pull is None or pull.round != rotation.before(message.round) else pull.values

    def _noise_source(self, purpose: int, message: RoundStart, values: Tensor) -> np.random.Generator:
        about = [purpose, message.round]
        if (
            purpose != 2 or self.noised
        ):  # a repeated gradient repeats its release; another sum needs other noise
            about += [message.trip, *([message.attempt] if message.attempt else [])]
        if (
            self.terms.fresh_noise
        ):  # a round computed anew from other values must not repeat the noise of the first time
            about.append(int.from_bytes(hashlib.sha256(values.cpu().numpy().tobytes()).digest()[:8]))
        return self._rng(*about)

    def protected(self, gradient: Tensor, message: RoundStart, scope: Scope) -> NDArray[Any]:
        """A public gradient, of the users of the scope, as it leaves the party, of all users of the round."""
        rng = self._noise_source(2, message, gradient)
        if self.noised:
            count = {"parties": len(self.all_items), "active": len(message.active)}
            return residues(
                self._masked(release_gradient(gradient, self.config, rng=rng, **count), message, GRADIENT),
                32,
            )
        generator = torch.Generator(self.device)
        generator.manual_seed(int(rng.integers(2**63)))
        part = self.replica.rotation.of(message.round)
        own = protect(gradient, self.config.gradients, self.replica.rescale, scope.model.user_size, generator)
        released, size = scope.spread(own).cpu().numpy(), part.model.user_size
        if self.config.exchange.backward:
            self.memory.released[part.index] = Released(
                message.round, torch.from_numpy(released[:size]).to(self.device)
            )
        if self.config.masking:
            parties = len(self.all_items)
            return residues(
                self._masked(released.astype(whole(parties)), message, GRADIENT), sum_bits(parties)
            )
        return released

    def _masked(self, values: NDArray[Any], message: RoundStart, use: int) -> NDArray[Any]:
        return (
            values
            if self.masks is None
            else self.masks.on(values, message, use, lambda: self._context(message))
        )

    def _context(self, message: RoundStart) -> bytes:
        """Hash of what every active party has been told before this trip."""
        told = hashlib.sha256(
            repr((message.active, self.all_items, self.replica.ratings, self.replica.digest())).encode()
        )
        if self.config.exchange.backward and message.updates is not None:
            told.update(self._updates(message)[-1][2].tobytes())
        last = self.memory.received.get(self.replica.rotation.of(message.round).index)
        told.update(repr((message.train, message.exchange, "" if last is None else last.digest)).encode())
        return told.digest()
