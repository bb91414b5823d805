"""A party that takes part in a training (Algorithm 1, client).

    RoundStart -> begin -> compute (stacked_round) -> end -> RoundReply

`begin` takes in what comes back (`incoming`) and gathers the inputs of the computation. `end` steps the private parameters and
protects what leaves (`outgoing`). Ratings, degrees, item embeddings and noise never leave the party; docs/protocol.md lists the
fields of its reply.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.core.errors import DivergedError, ProtocolError
from verfedgnn.core.graph import Graph
from verfedgnn.core.metrics import squared_errors
from verfedgnn.core.pairs import PartyInput
from verfedgnn.core.random_streams import NoiseStream, PartyStream
from verfedgnn.gnn.model import Model
from verfedgnn.privacy import masking
from verfedgnn.privacy.projection import IdentityProjection, Projection
from verfedgnn.privacy.rating_dp import add_item_noise, protects_users
from verfedgnn.protocol.checkpoint_state import to_tensor
from verfedgnn.protocol.party.exchange_state import SentNeighbourhoods, UserGradient
from verfedgnn.protocol.party.incoming import (
    others_of_block,
    receive_neighbourhoods,
    receive_pull,
    split_updates,
    update_replica,
)
from verfedgnn.protocol.party.outgoing import (
    clip_contributions,
    encode_gradient,
    encode_neighbourhoods,
    encode_noised_gradient,
    noise_key,
    protect_validation,
)
from verfedgnn.protocol.party.party_masks import PartyMasks
from verfedgnn.protocol.party.party_progress import PartyProgress
from verfedgnn.protocol.party.party_setup import PartySetup
from verfedgnn.protocol.party.party_states import PARTY_STATES, PartyState
from verfedgnn.protocol.party.release_ledger import GRADIENT, NEIGHBOURHOODS, VALIDATION, ReleaseLedger
from verfedgnn.protocol.party.stacked_round import answer_trip, evaluate_all_users
from verfedgnn.protocol.party.training_ratings import TrainingRatings
from verfedgnn.protocol.round.aggregation import gradient_bits, update_type
from verfedgnn.protocol.round.forward_backward import PassInputs, PassResult
from verfedgnn.protocol.round.loss import Batch
from verfedgnn.protocol.round.mask_context import mask_context
from verfedgnn.protocol.round.message_checks import check_public, check_start
from verfedgnn.protocol.round.replica import Replica, parameters_digest
from verfedgnn.protocol.round.solved_round import encode_release, solve_at_home
from verfedgnn.protocol.round.user_blocks import UserBlock, computes_single_blocks
from verfedgnn.protocol.round.user_shards import UserShard
from verfedgnn.protocol.round.user_starts import mean_scale
from verfedgnn.protocol.round.user_subset import UserSubset
from verfedgnn.protocol.round.worker_orders import (
    Order,
    divide,
    receive_arrays,
    receive_message,
    share_streams,
)
from verfedgnn.protocol.wire.fixed_point import to_residues
from verfedgnn.protocol.wire.messages import (
    Finish,
    Finished,
    Message,
    RoundReply,
    RoundStart,
    ShareRequest,
    Survivors,
    TripShares,
)


@dataclass(frozen=True)
class FinishedTraining:
    """A party's result of a training."""

    reply: Finished
    public: Tensor
    """Public parameters of the best validation, flat."""
    accumulator: Tensor
    """The public optimiser's sums at the last validation, flat; a training that starts from this one continues them."""
    model: dict[str, Tensor]
    """The party's model of the best validation: h_u, h_v and e_v^0."""
    others_means: Tensor | None
    """The sum of the other parties' users' means (N, 2); None if they are not shared."""
    first_rounds: dict[str, Tensor] | None = None
    """The party's model at the end of the first rounds, without the ratings of withheld users; None if it withheld nothing."""

    @property
    def of_users(self) -> dict[str, Tensor]:
        """The arrays that have a row per user, by name."""
        found = {"users": self.model["users"]}
        if self.others_means is not None:
            found["others_means"] = self.others_means
        if self.first_rounds is not None:
            found["first_rounds"] = self.first_rounds["users"]
        return found

    @property
    def of_worker(self) -> dict[str, NDArray[Any]]:
        """What a worker sends to the first one: its users' rows, and its part of the flat arrays."""
        flat = {"public": self.public, "accumulator": self.accumulator}
        return {name: values.cpu().numpy() for name, values in (self.of_users | flat).items()}

    def join(self, others: Sequence[Mapping[str, NDArray[Any]]], shard: UserShard) -> FinishedTraining:
        """Return the result of the whole party from that of the first worker and the parts of all others."""
        device = self.public.device
        parts = [self.of_worker, *others]
        rows = {
            name: torch.from_numpy(shard.join_rows([part[name] for part in parts])).to(device)
            for name in self.of_users
        }
        public, accumulator = (
            torch.from_numpy(shard.join_flat([part[name] for part in parts])).to(device)
            for name in ("public", "accumulator")
        )
        first = self.first_rounds
        return replace(
            self,
            public=public,
            accumulator=accumulator,
            model=self.model | {"users": rows["users"]},
            others_means=rows.get("others_means"),
            first_rounds=None if first is None else first | {"users": rows["first_rounds"]},
        )


class Party:
    """One organisation that has joined a training. `Candidate.welcome` creates it."""

    def __init__(
        self,
        setup: PartySetup,
        progress: PartyProgress,
        *,
        index: int,
        replica: Replica,
        ratings: TrainingRatings,
        first_ratings: TrainingRatings | None,
        projection: Projection | IdentityProjection | None,
        masks: PartyMasks | None,
        ledger: ReleaseLedger | None = None,
    ) -> None:
        self.setup = setup
        self.progress = progress
        self.index = index
        """The party's place in the order that fixes every sum."""
        self.replica = replica
        self.ratings = ratings
        """All training ratings of the party, which every round after the first ones uses."""
        self.first_ratings = first_ratings
        """Training ratings of the first rounds, without withheld users; None if nothing is withheld."""
        self.present_ratings = ratings
        """Those of the two that the present round uses."""
        self.projection = projection
        """Projection of the exchange; None if the configuration exchanges nothing."""
        self.masks = masks
        """Masks of this stay; None if the configuration has no masks."""
        self.ledger = ledger
        """Account of what the party has released; None on one machine."""
        self._last_trip = (0, 0, 0)
        """Round, negated trip and attempt of the last trip. None is answered twice, so no mask is used twice."""

    @property
    def name(self) -> str:
        """Name of the party."""
        return self.setup.name

    @property
    def data(self) -> PartyInput:
        """The party's ratings."""
        return self.setup.data

    @property
    def graph(self) -> Graph:
        """Graph of all training ratings."""
        return self.ratings.graph

    @property
    def config(self) -> Config:
        """Configuration of the training."""
        return self.setup.config

    @property
    def model(self) -> Model:
        """Model of all users."""
        return self.setup.model

    @property
    def parties(self) -> int:
        """Number of parties in the federation."""
        return len(self.replica.items)

    def handle(self, message: Message) -> Message | None:
        """Answer one message of the coordinator; return None if it needs no answer."""
        if isinstance(message, RoundStart):
            return self.answer_round(message)
        if isinstance(message, Finish):
            return self.finish(message).reply
        if self.masks is not None and isinstance(message, ShareRequest | TripShares | Survivors):
            return self.masks.handle(message)
        raise PARTY_STATES.unexpected(PartyState.JOINED, type(message), self.name)

    def answer_round(self, message: RoundStart) -> RoundReply:
        """Answer a RoundStart. The first of several workers lets the others answer for their users, and joins the replies."""
        shard = self.replica.shard
        if shard is None or not shard.workers.is_first:
            (reply,) = answer_trip([self], [message], self.subset)
            return reply
        check_start(message, self.replica, self.index, self.setup.policy.smallest, shard.whole)
        (own,) = answer_trip([self], [divide(shard, Order.ROUND, message)], self.subset)
        others = [receive_message(shard.workers, rank) for rank in range(1, shard.workers.size)]
        return shard.join_replies([own, *(reply for reply in others if isinstance(reply, RoundReply))])

    # -- the users and ratings of a round ----------------------------------------------------------------

    def subset(self, block: UserBlock, rated_only: bool) -> UserSubset:
        """Return the users to compute for a block: all of them, or only those with training ratings here."""
        return self.present_ratings.subset(block, rated_only, self.projection)

    def batch(self, round: int) -> Batch:
        """Return the party's share of the round's batch."""
        return self.present_ratings.batches.in_round(round, self.replica)

    @property
    def withholds(self) -> bool:
        """Whether the present round leaves out the ratings of withheld users."""
        return self.present_ratings is self.first_ratings

    def _choose_ratings(self, round: int) -> None:
        """Choose the ratings that the party trains on in a round."""
        first = self.first_ratings
        withhold = first is not None and round <= self.config.training.withheld_rounds
        self.present_ratings = first if first is not None and withhold else self.ratings

    # -- one trip ----------------------------------------------------------------------------------------

    def begin(self, message: RoundStart) -> PassInputs:
        """Take in what the message brings, and return the inputs of the computation."""
        self._check(message)
        self._choose_ratings(message.round)
        progress = self.progress
        replica = self.replica
        replica.keep_best(message.best_round)
        update_replica(replica, message)  # refuses updates that do not fit, before anything is kept
        progress.keep_best(message.best_round)
        progress.confirm_announced(message.round)
        progress.start_trip(message.round, message.trip)
        pull = None
        if self.projection is not None:
            if self.config.exchange.backward:
                pull = receive_pull(message, progress.exchange, replica, self.index)
            receive_neighbourhoods(message, progress.exchange, replica, self.index)
        single = computes_single_blocks(self.config)
        block = replica.blocks.in_round(message.round) if single else replica.blocks.all_users
        private = progress.private
        return PassInputs(
            private=private.of_users(block.users) if single else private.parameters,
            others=self._others_neighbourhoods(block),
            batch=self.batch(message.round) if message.train else None,
            evaluate=message.evaluate and not private.averaged and not single,
            exchange=message.exchange,
            pull=pull if message.train else None,
        )

    def _check(self, message: RoundStart) -> None:
        trip = (message.round, -message.trip, message.attempt)
        if trip <= self._last_trip:
            raise ProtocolError(f"{self.name}: the coordinator starts round {message.round} a second time")
        check_start(message, self.replica, self.index, self.setup.policy.smallest)
        if self.ledger is not None:
            self.ledger.check_round(message.round)
        if self.masks is not None and (message.train or message.exchange):
            self.masks.check_start(message)
        self._last_trip = trip

    def validation_inputs(self) -> PassInputs:
        """Return the inputs to validate the averaged parameters for all users."""
        others = self._others_neighbourhoods(self.replica.blocks.all_users)
        return PassInputs(private=self.progress.private.averages, others=others, evaluate=True)

    def _others_neighbourhoods(self, block: UserBlock) -> Tensor | None:
        """Return the estimated sum of the others' neighbourhoods (K, q, C), without users' means; None if it is not known."""
        others = others_of_block(self.progress.exchange, self.replica, block)
        if others is None or not self.config.shares_user_means:
            return others
        return others[..., : self.model.operator.columns]

    @property
    def others_means(self) -> Tensor | None:
        """The sum of the other parties' users' means (N, 2); None if they are not shared or not known."""
        if not self.config.shares_user_means:
            return None
        others = others_of_block(self.progress.exchange, self.replica, self.replica.blocks.all_users)
        if others is None:
            return None
        return others[0, :, self.model.operator.columns :] * mean_scale(self.config, self.parties)

    def end(
        self, message: RoundStart, result: PassResult, validated: PassResult, subset: UserSubset
    ) -> RoundReply:
        """Step the private parameters and return the protected reply.

        `result` is about the users of `subset`; `validated` is of the parameters to validate, for all users.
        """
        made: dict[str, NDArray[Any]] = {}
        if message.evaluate:
            made[VALIDATION] = self._validate(message, validated)
        if result.neighbourhoods is not None:
            made[NEIGHBOURHOODS] = self._protect_neighbourhoods(result.neighbourhoods, message)
        if result.public_gradient is not None and result.private_gradients is not None:
            if not result.finite:
                raise DivergedError(
                    f"training diverged at '{self.name}' in round {message.round}; lower training.lr"
                )
            self._step_private(message, subset.expand_private(result.private_gradients))
            made[GRADIENT] = self.protect_gradient(result.public_gradient, message, subset)
        return self._reply(message, self._release(message, made))

    def _validate(self, message: RoundStart, validated: PassResult) -> NDArray[np.float64]:
        """Keep the evaluated model, and return its validation error and count, protected as configured."""
        model = self._served(validated)
        self.progress.evaluated = (message.round, model)
        if self.withholds:
            self.progress.first_rounds = self.progress.evaluated
        if self.setup.protects_ratings:
            squared = squared_errors(model["users"], model["items"], self.data.valid)
            error, count = protect_validation(squared, message, self.setup, self.replica.workers)
        else:
            error, count = self.setup.targets.validate(model["users"], model["items"])
        return np.array([error, count])

    def _step_private(self, message: RoundStart, gradients: dict[str, Tensor]) -> None:
        """Step the private parameters along their gradients and the regulariser of items (eq. 5)."""
        round = message.round
        private = self.progress.private
        gradients = private.expand_gradients(gradients, self.replica.blocks.in_round(round).users)
        if self.setup.protects_ratings:
            key = noise_key(self.setup, NoiseStream.ITEM_ROWS, message, list(gradients.values()))
            gradients = add_item_noise(gradients, self.config, key)
        training = self.config.training
        l2 = 2 * training.l2 / sum(self.replica.items)
        items = gradients["items"] + l2 * private.parameters["items"]
        private.step(gradients | {"items": items}, training, round, self.config.model.bound)

    # -- what leaves -------------------------------------------------------------------------------------

    def _protect_neighbourhoods(self, x: Tensor, message: RoundStart) -> NDArray[Any]:
        """Return neighbourhoods (K, q, C) as they leave the party, before masks."""
        block = self.replica.blocks.in_round(message.round)
        if self.config.shares_user_means:
            means = self.setup.user_means[block.users] / mean_scale(self.config, self.parties)
            x = torch.cat([x, means.unsqueeze(0)], -1)
        return encode_neighbourhoods(x, message, self.setup, self.parties)

    def protect_gradient(self, gradient: Tensor, message: RoundStart, subset: UserSubset) -> NDArray[Any]:
        """Return a public gradient of the subset's users as it leaves the party, for all users of the round, before masks."""
        if self.setup.protects_ratings:
            if protects_users(self.config):
                gradient = clip_contributions(gradient, self.setup)
            return encode_noised_gradient(gradient, message, self.setup, self.parties)
        return encode_gradient(gradient, message, self.setup, subset, self.replica.rescale)

    def solve(self, message: RoundStart) -> RoundReply:
        """Answer a round of a model whose items are solved at home."""
        self.begin(message)
        ratings = self.present_ratings
        setup = ratings.setup
        rng = setup.randomness.generator(PartyStream.READ_RATINGS, message.round)
        drawn = torch.from_numpy(rng.random(len(setup.solved_targets), np.float32)).to(setup.device)
        private = self.progress.private
        step = solve_at_home(
            self.model,
            self.replica.parameters,
            private.parameters,
            ratings.graph,
            setup.solved_targets,
            drawn,
            ratings=self.replica.ratings,
            items=sum(self.replica.items),
        )
        made: dict[str, NDArray[Any]] = {}
        for name, values in step.private.items():
            private.parameters[name].copy_(values)
        if message.evaluate:
            made[VALIDATION] = self._validate(
                message, PassResult(None, None, True, None, step.users, step.items)
            )
        if message.train:
            stream = None
            if self.config.gradients.mechanism == "rounded":
                stream = noise_key(setup, NoiseStream.GRADIENT, message, [step.gradient]).stream("rounded")
            made[GRADIENT] = encode_release(self.model, self.replica.parameters, step, stream)
        return self._reply(message, self._release(message, made))

    def _release(self, message: RoundStart, made: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return the values that leave the party, before masks, and remember what the exchange needs of them."""
        released = made
        if self.ledger is not None:
            released = self.ledger.release(message.round, message.trip, message.active, made)
        block = self.replica.blocks.in_round(message.round)
        exchange = self.progress.exchange
        if NEIGHBOURHOODS in released:
            trip = (message.round, message.trip)
            exchange.sent[block.index] = SentNeighbourhoods(trip, released[NEIGHBOURHOODS])
        if GRADIENT in released and self.config.exchange.backward:
            own = torch.from_numpy(released[GRADIENT][: block.model.user_size]).to(self.setup.device)
            exchange.released[block.index] = UserGradient(message.round, own)
        return released

    def _reply(self, message: RoundStart, released: dict[str, NDArray[Any]]) -> RoundReply:
        """Mask the values of sums and return the reply."""
        reply: dict[str, Any] = {"round": message.round, "trip": message.trip, "attempt": message.attempt}
        if VALIDATION in released:
            error, count = released[VALIDATION].tolist()
            digest = self.replica.digest()
            self.progress.announced = (message.round, digest)
            reply |= {"error": error, "count": int(count), "digest": digest}
        if NEIGHBOURHOODS in released:
            reply["neighbourhoods"] = self._mask_neighbourhoods(released[NEIGHBOURHOODS], message)
        if GRADIENT in released:
            reply["gradient"] = self._mask_gradient(released[GRADIENT], message)
        return RoundReply(**reply)

    def _mask_neighbourhoods(self, values: NDArray[Any], message: RoundStart) -> NDArray[Any]:
        if not self.config.masking:
            return values
        return to_residues(self._mask(values, message, masking.NEIGHBOURHOOD), self.config.exchange.bits)

    def _mask_gradient(self, values: NDArray[Any], message: RoundStart) -> NDArray[Any]:
        if not self.config.masking:
            return values
        bits = gradient_bits(self.config, self.parties)
        whole = values.astype(update_type(self.config, self.parties))
        return to_residues(self._mask(whole, message, masking.GRADIENT), bits)

    def _mask(self, values: NDArray[Any], message: RoundStart, use: int) -> NDArray[Any]:
        """Add this party's masks of a trip to `values`."""
        if not self.setup.policy.masks:
            return values
        shard = self.replica.shard
        places = None
        if shard is not None:
            places = shard.places(use, message.round, values.shape)
        return masking.add_masks(values, self._mask_streams(message), use, places)

    def _mask_streams(self, message: RoundStart) -> list[masking.MaskStream]:
        """Return the masks of a trip. Of several workers, the first one makes them for all."""
        streams = None
        shard = self.replica.shard
        context = (
            None if shard is None else self._mask_context(message)
        )  # all workers take part in the hashes
        if self.masks is not None:
            streams = self.masks.streams(message, lambda: context or self._mask_context(message))
        if shard is not None:
            return share_streams(shard.workers, streams)
        assert streams is not None, "a party with masks has drawn them"
        return streams

    def _mask_context(self, message: RoundStart) -> bytes:
        """Hash what the coordinator must have sent to all active parties alike."""
        updates = split_updates(message, self.replica.blocks)
        block = self.replica.blocks.in_round(message.round)
        last = self.progress.exchange.received.get(block.index)
        last_update = (updates[-1].round, updates[-1].total) if updates else None
        return mask_context(message, self.replica, last_update, "" if last is None else last.digest)

    # -- the end -----------------------------------------------------------------------------------------

    def finish(self, message: Finish) -> FinishedTraining:
        """Return the model of the best validation. The first of several workers collects the parts of the others."""
        shard = self.replica.shard
        if shard is None:
            finished = self.finish_users(message)
        else:
            if message.parameters is not None:
                check_public(message.parameters, shard.whole)
            own = self.finish_users(divide(shard, Order.FINISH, message))
            others = [receive_arrays(shard.workers, rank) for rank in range(1, shard.workers.size)]
            finished = own.join(others, shard)
        if parameters_digest(finished.public) != message.digest:
            raise ProtocolError(
                f"{self.name}: the public parameters of the result are not those that the coordinator announced; "
                "rejoin to get them"
            )
        return finished

    def finish_users(self, message: Finish) -> FinishedTraining:
        """Return the model of the best validation for the users of this process, who may have missed that validation."""
        public = self._best_parameters(message)
        self.present_ratings = self.ratings
        progress = self.progress
        progress.keep_best(message.best_round)
        if progress.best is None or progress.best[0] != message.best_round:
            (result,) = (
                [self._evaluate(public)]
                if self.model.solved
                else evaluate_all_users([self], public, self.subset)
            )
            progress.best = (message.best_round, self._served(result))
        reply = Finished(digest=message.digest)
        first = None if progress.first_rounds is None else progress.first_rounds[1]
        return FinishedTraining(
            reply, public, self.replica.accumulator, progress.best[1], self.others_means, first
        )

    def _evaluate(self, public: Tensor) -> PassResult:
        """Return the model of some public parameters, with items that are solved for them."""
        setup = self.setup
        step = solve_at_home(
            self.model,
            public,
            self.progress.private.parameters,
            self.graph,
            setup.solved_targets,
            torch.zeros_like(setup.solved_targets),
            ratings=self.replica.ratings,
            items=sum(self.replica.items),
        )
        return PassResult(None, None, True, None, step.users, step.items)

    def _best_parameters(self, message: Finish) -> Tensor:
        """Return the public parameters of the best validation: those of the message, or the copy that this party kept."""
        self.replica.keep_best(message.best_round)
        kept = self.replica.best
        if message.parameters is not None:
            check_public(message.parameters, self.model)
            public = to_tensor(message.parameters, self.setup.device)
        elif kept is not None and kept[0] == message.best_round:
            public = kept[1]
        else:
            raise ProtocolError(
                f"{self.name}: the coordinator finishes without the parameters of round {message.best_round}, "
                "which this party does not have; rejoin to get them"
            )
        return public

    def _served(self, result: PassResult) -> dict[str, Tensor]:
        """Return an evaluated model that predicts in the party's own rating scale."""
        assert result.users is not None
        assert result.items is not None
        users, items = self.setup.targets.to_rating_scale(result.users, result.items)
        embeddings = self.progress.private.averages["items"].clone()
        return {"users": users, "items": items, "embeddings": embeddings}
