"""The party's side of the protocol (Algorithm 1, client).

    Candidate.hello -> Welcome -> Party;  RoundStart -> Party.answer_round -> RoundReply;  Finish -> Party.finish

Ratings, degrees, item embeddings and noise never leave the party; docs/protocol.md lists the fields of its reply.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.core.errors import DivergedError, ProtocolError
from verfedgnn.core.key_stream import NoiseKey, derive_key
from verfedgnn.core.metrics import prediction_errors
from verfedgnn.core.pairs import Pairs, PartyInput
from verfedgnn.core.random_streams import NoiseStream, PartyStream, private_generator
from verfedgnn.privacy import masking, rating_dp
from verfedgnn.protocol import forward_backward as passes
from verfedgnn.protocol import messages as msg
from verfedgnn.protocol import replica as replicas
from verfedgnn.protocol.forward_backward import Batch, PassResult
from verfedgnn.protocol.masks import ListCommitments, NoMasks, PartyMasks, mask_context, sum_digest
from verfedgnn.protocol.messages import RoundReply, RoundStart, Welcome
from verfedgnn.protocol.party_state import LOCAL, PartyProgress, PartySetup, Policy
from verfedgnn.protocol.party_state import ReceivedNeighbourhoods as Received
from verfedgnn.protocol.party_state import SentNeighbourhoods as Sent
from verfedgnn.protocol.release_ledger import GRADIENT, NEIGHBOURHOODS, VALIDATION, NoLedger, ReleaseLedger
from verfedgnn.protocol.replica import (
    Replica,
    check_full_copy,
    check_public,
    parameters_digest,
    rounds_per_epoch,
)
from verfedgnn.protocol.solved_round import SolvedStep
from verfedgnn.protocol.states import PARTY_STATES, PartyState


@dataclass(frozen=True)
class FinishedTraining:
    """A party's result of a training, with the public parameters, flat, and the model (h_u, h_v, e_v^0) of the best validation."""

    reply: msg.Finished
    public: Tensor
    model: dict[str, Tensor]


class Party:
    """One organisation that has joined a training. `Candidate.welcome` creates it."""

    def __init__(self, candidate: Candidate, index: int, replica: Replica) -> None:
        self.setup = setup = candidate.setup
        self.name, self.config, self.data, self.model = candidate.name, setup.config, setup.data, setup.model
        self.progress, self.masks, self.ledger = candidate.progress, candidate.masks, candidate.ledger
        self.index = index
        """The party's place in the order that fixes every sum."""
        self.replica = replica
        self.exchange = replica.exchange
        self.graph = setup.make_graph(sum(replica.items))
        self._last = (0, 0)
        """The last attempt that was answered. None is answered twice, so no mask is used twice."""
        self._shuffled: tuple[int, Pairs] = (-1, setup.targets.train)
        """An epoch, and all ratings in that epoch's order."""

    def handle(self, message: msg.Message) -> msg.Message | None:
        """Answer one message of the coordinator; return None if it needs no answer."""
        match message:
            case RoundStart():
                return self.answer_round(message)
            case msg.Finish():
                return self.finish(message).reply
            case msg.ShareRequest() if self.config.masking:
                return self.masks.share(message)
            case msg.RoundShares() if self.config.masking:
                self.masks.take_shares(message)
                return None
            case msg.Survivors() if self.config.masking:
                return self.masks.unmask(message)
        raise PARTY_STATES.unexpected(PartyState.JOINED, type(message), self.name)

    # -- one round -------------------------------------------------------------------------------------------

    def answer_round(self, start: RoundStart) -> RoundReply:
        """Answer one round (Algorithm 1, client)."""
        trains = self.index in start.active
        self._admit(start, trains=trains)  # order, bounds, budget: refuses before anything changes
        self.replica.catch_up(start)  # 1. the public step of the last round
        self.progress.begin_round(start.round, start.best_round)
        if start.neighbourhoods is not None:  # and the others' neighbourhoods
            sent, last = self.progress.sent, self.progress.received
            self.progress.received = read_neighbourhoods(
                start, self.index, self.replica, sent=sent, last=last
            )
        home = self.compute(start, trains=trains)  # 2. at home: solved items, or a pass with its gradients
        values = {VALIDATION: self._validate(start, home)} if start.evaluate else {}
        if trains:
            values |= self.release(start, home)  # 3. the step at home, and what the others may see
        # In the ledger before it leaves; a repeated round gets what it got before.
        return self._reply(start, self.ledger.release(start.round, start.active, values))  # 4. masked

    def _admit(self, start: RoundStart, *, trains: bool) -> None:
        """Raise `ProtocolError` unless the round was agreed on, and is new."""
        if start.place <= self._last:
            raise ProtocolError(f"{self.name}: the coordinator starts round {start.round} a second time")
        self.replica.check_start(start, self.index, self.setup.policy.smallest)
        self.ledger.check_round(start.round)
        if trains:
            self.masks.check_start(start)
        self._last = start.place

    def compute(self, start: RoundStart, *, trains: bool) -> PassResult | SolvedStep:
        """Solve the items, or compute one pass of propagation, with gradients if the party `trains`."""
        public, private, targets = self.replica.parameters, self.progress.private, self.setup.solved_targets
        if self.replica.solved is not None:
            rng = private_generator(self.setup.secret, PartyStream.READ_RATINGS, start.round)
            drawn = torch.from_numpy(rng.random(len(targets), np.float32)).to(self.setup.device)
            step = self.replica.solved.solve(public, private.parameters, self.graph, targets, drawn)
            for name, values in step.private.items():  # also without training: the model that is validated
                private.parameters[name].copy_(values)
            return step
        result = self._propagate(public, self.batch(start.round) if trains else None)
        if not result.public_gradient.sum().isfinite():
            raise DivergedError(
                f"training diverged at '{self.name}' in round {start.round}; lower training.lr"
            )
        return result

    def _validate(self, start: RoundStart, home: PassResult | SolvedStep) -> NDArray[Any]:
        """Keep the evaluated model, and return its validation error and count, protected as configured."""
        setup, valid = self.setup, self.data.valid
        embeddings = self.progress.private.parameters["items"]
        model = setup.targets.serve(home.users, home.items, embeddings)
        self.progress.evaluated = (start.round, model)
        if not self.config.gradients.protects_ratings:
            return np.array(setup.targets.validate(model["users"], model["items"]))
        squared = prediction_errors(model["users"], model["items"], valid).square()
        key = noise_key(setup, NoiseStream.VALIDATION, start, [squared])
        return np.array(rating_dp.release_validation(squared, self.data.scale, self.config, key))

    def release(self, start: RoundStart, home: PassResult | SolvedStep) -> dict[str, NDArray[Any]]:
        """Step the private parameters, and return what leaves the party by kind, before masks."""
        if isinstance(home, SolvedStep):  # its items are in place
            assert self.replica.solved is not None
            key = noise_key(self.setup, NoiseStream.GRADIENT, start, [home.gradient])
            public, protection = self.replica.parameters, self.replica.protection
            return {GRADIENT: self.replica.solved.encode_release(public, home, protection, key)}
        values = {}
        if home.neighbourhoods is not None:
            bits = 8 * passes.neighbourhood_type(self.config).itemsize
            fixed = passes.to_fixed(home.neighbourhoods, len(self.replica.items), bits)
            values[NEIGHBOURHOODS] = fixed.cpu().numpy()
        private, gradients = self.progress.private, home.private_gradients
        if self.config.gradients.protects_ratings:
            key = noise_key(self.setup, NoiseStream.ITEM_ROWS, start, list(gradients.values()))
            gradients = rating_dp.add_item_noise(gradients, self.config, key)
        if not self.config.model.biases:  # with biases, the loss has it
            l2 = 2 * self.config.training.l2 / sum(self.replica.items)
            gradients = gradients | {"items": gradients["items"] + l2 * private.parameters["items"]}
        private.step(gradients, self.config)
        return values | {GRADIENT: self.protect_gradient(home.public_gradient, start)}

    def protect_gradient(self, gradient: Tensor, start: RoundStart) -> NDArray[Any]:
        """Return a public gradient as it leaves the party, before masks."""
        key = noise_key(self.setup, NoiseStream.GRADIENT, start, [gradient])
        return self.replica.protection.protect(gradient, key, sharing=len(start.active))

    def _reply(self, start: RoundStart, released: dict[str, NDArray[Any]]) -> RoundReply:
        """Mask the values of sums and return the reply."""
        context, progress = mask_context(start, self.replica, self.progress.received.digest), self.progress
        reply: dict[str, Any] = {"round": start.round, "attempt": start.attempt}
        if VALIDATION in released:
            error, count = released[VALIDATION].tolist()
            progress.announced = (start.round, self.replica.digest())
            reply |= {"error": error, "count": int(count), "digest": self.replica.digest()}
        if NEIGHBOURHOODS in released:
            progress.sent = Sent(start.round, released[NEIGHBOURHOODS])
            values, bits = released[NEIGHBOURHOODS], 8 * released[NEIGHBOURHOODS].itemsize
            reply[NEIGHBOURHOODS] = self.masks.hide(values, start, context, masking.NEIGHBOURHOOD, bits)
        if GRADIENT in released:
            values, bits = released[GRADIENT], self.replica.protection.bits
            reply[GRADIENT] = self.masks.hide(values, start, context, masking.GRADIENT, bits)
        return RoundReply(**reply)

    def batch(self, round: int) -> Batch:
        """Return the batch of a round: a slice of this epoch's shuffle of all ratings, or all of them."""
        pairs, count = self.setup.targets.train, self.replica.rounds_per_epoch
        if count == 1:
            return Batch(pairs, edges=self.config.model.form != "propagation")
        epoch, slot = divmod(round - 1, count)
        if self._shuffled[0] != epoch:
            rng = private_generator(self.setup.secret, PartyStream.SHUFFLE, epoch)
            self._shuffled = (
                epoch,
                pairs.take(torch.from_numpy(rng.permutation(len(pairs))).to(pairs.user.device)),
            )
        part = slice(slot * len(pairs) // count, (slot + 1) * len(pairs) // count)
        return Batch(self._shuffled[1].take(part), 1 / count)

    def _propagate(self, public: Tensor, batch: Batch | None = None) -> PassResult:
        """Compute one pass with public parameters and the party's own."""
        return passes.compute(
            self.model,
            self.graph,
            public,
            self.progress.private.parameters,
            self.config.training,
            exchange=self.exchange,
            others=self.progress.received.others,
            batch=batch,
        )

    def finish(self, message: msg.Finish) -> FinishedTraining:
        """Return the model of the best validation, which the party may have missed."""
        self.replica.keep_best(message.best_round)
        kept_round, public = self.replica.best
        if message.parameters is not None:
            check_public(message.parameters, self.model)
            public = replicas.to_tensor(message.parameters, self.setup.device)
        elif kept_round != message.best_round:
            raise ProtocolError(
                f"{self.name}: the coordinator finishes without the parameters of round {message.best_round}, "
                "which this party does not have; rejoin to get them"
            )
        if parameters_digest(public) != message.digest:
            problem = "the public parameters of the result are not those that the coordinator announced"
            raise ProtocolError(f"{self.name}: {problem}; rejoin to get them")
        progress = self.progress
        if progress.evaluated[0] == message.best_round:
            progress.best = progress.evaluated
        if progress.best[0] != message.best_round or not progress.best[1]:
            home: PassResult | SolvedStep
            items, targets = progress.private.parameters, self.setup.solved_targets
            if self.replica.solved is None:
                home = self._propagate(public)  # with the items of the last round
            else:
                home = self.replica.solved.solve(
                    public, items, self.graph, targets, torch.zeros_like(targets)
                )
            model = self.setup.targets.serve(home.users, home.items, items["items"])
            progress.best = (message.best_round, model)
        return FinishedTraining(msg.Finished(digest=message.digest), public, progress.best[1])


def read_neighbourhoods(
    message: RoundStart, index: int, replica: Replica, *, sent: Sent, last: Received
) -> Received:
    """Return the others' share of a sum of neighbourhoods, scaled to all other parties (Sec. 4.6).

    `sent` is what this party sent into the sum, `last` the sum it received before.
    """
    total, round = message.neighbourhoods, message.neighbourhood_round
    assert total is not None
    # Masks depend on this hash, so those of parties that received different sums do not cancel.
    digest = sum_digest(message.neighbourhood_parties, round, total if replica.config.masking else None)
    if last.digest == digest:
        return last
    if index in message.neighbourhood_parties:
        if sent.round != round:
            # The party lost what it sent into this sum. Its last estimate serves until the next sum.
            return replace(last, digest=digest, round=round)
        total = total - sent.values
    scale = replicas.participation_scale(replica.items, message.neighbourhood_parties, index)
    rest = torch.from_numpy(total).to(replica.parameters.device)
    return Received(digest, round, passes.from_fixed(rest).mul_(scale))


def noise_key(
    setup: PartySetup, stream: NoiseStream, message: RoundStart, values: Sequence[Tensor]
) -> NoiseKey:
    """Return the key of the noise on `values` in a round.

    Another attempt of the round has the same noise on the same values, so that it repeats the release. Other values have other noise.
    """
    digest = hashlib.sha256()
    if setup.policy.fresh_noise:
        for value in values:
            digest.update(value.cpu().numpy().tobytes())
    return NoiseKey(derive_key(setup.secret, int(stream), message.round, 0, digest.digest()))


class Candidate:
    """One organisation that is not joined yet, or joins again after a lost connection.

    `secret` seeds the party's noise, batches and initial items; no message carries it. `party` is the class to create on joining.
    `commitments` holds the survivor lists that the party committed to; by default they are kept in memory only. Progress is shared
    with the joined party, so a candidate that joins again continues where it was.
    """

    def __init__(
        self,
        data: PartyInput,
        config: Config,
        secret: bytes,
        device: torch.device | str = "cpu",
        policy: Policy = LOCAL,
        party: type[Party] = Party,
        ledger: ReleaseLedger | None = None,
        commitments: ListCommitments | None = None,
        start: Tensor | None = None,
    ) -> None:
        self.setup = PartySetup(data, config, secret, torch.device(device), policy)
        self.name = data.name
        self.progress = PartyProgress.initial(self.setup)
        self.start = start
        """Public parameters of the training that this one continues; None if it begins anew."""
        self.party_class = party
        self.ledger = ledger or NoLedger(config)
        self.commitments = commitments or ListCommitments()
        self.stay = ""
        """Random name of the Hello that waits for a Welcome; empty if none does."""
        self.masks: PartyMasks
        """The masks of this stay, with a key of its own."""
        model, copy = self.setup.model, replicas.FULL_COPY
        self.largest_array = replicas.largest_array(config, model, copy)
        """Bytes of the largest packed array that a RoundStart may hold; missed updates take at most a full copy."""
        self.largest_message = replicas.largest_message(config, model, 2 * copy)
        """Bytes of the largest message that the coordinator may send: a RoundStart with a full copy, missed updates and a sum."""

    def hello(self) -> msg.Hello:
        """Return the first message of a new stay, with a new mask key."""
        setup, entries = self.setup, self.ledger.entries
        round, digest = self.progress.verified
        masks = PartyMasks if setup.config.masking else NoMasks
        self.masks = masks(self.name, setup.config, setup.policy, self.commitments)
        self.stay = secrets.token_hex(8)
        return msg.Hello(
            party=self.name,
            users=setup.data.users,
            items=setup.announced_items,
            ratings=setup.announced_ratings,
            scale=setup.data.scale,
            config=setup.config.digest(),
            stay=self.stay,
            agreement=setup.policy.agreement,
            alignment=setup.policy.alignment,
            # A party that was killed before its first checkpoint knows its training from what it has released.
            training=self.progress.training or (entries[0].training if entries else None),
            round=round,
            digest=digest or None,
            released=self.ledger.last_released,
            lost=self.ledger.lost,
            mask_key=self.masks.key,
            mask_signature=self.masks.signature,
        )

    def welcome(self, message: Welcome, replica: Replica | None = None) -> Party:
        """Return the joined party. On one machine all parties share one `replica`; otherwise the party makes its own.

        Raise `ProtocolError` unless the Welcome answers the open Hello, and is from the federation that the party meant to join.
        """
        if not self.stay or message.stay != self.stay:
            raise ProtocolError(f"{self.name}: received a Welcome without an open Hello; say hello again")
        self.stay = ""
        setup, counts, most = self.setup, message.items, self.setup.policy.most_rounds
        if message.config != setup.config.digest():
            raise ProtocolError("the coordinator's configuration is not the one agreed on")
        if not message.index < len(counts) or counts[message.index] != setup.announced_items:
            raise ProtocolError("the coordinator's item counts are not those of this federation")
        if setup.policy.place not in (None, (message.index, len(counts))):
            raise ProtocolError("the coordinator's roster is not the one agreed on")
        if message.ratings < setup.announced_ratings:
            raise ProtocolError("the coordinator counts fewer training ratings than this party has")
        training = setup.config.training
        rounds = training.epochs * rounds_per_epoch(training, message.ratings)
        if rounds > most:
            raise ProtocolError(
                f"the coordinator counts {message.ratings:,} training ratings, which makes {rounds:,} rounds, and the agreement "
                f"allows {most:,}: if all parties have so many ratings, raise max_rounds in federation.toml at all members"
            )
        if message.round or msg.copied_state(message):
            check_full_copy(message, setup.model)
        if self.progress.training not in (None, message.training):
            raise ProtocolError("the coordinator runs another training than that of this party's checkpoint")
        self.masks.join(message.training, message.index, len(counts))
        joined = self.party_class(self, message.index, replica or self._make_replica(message))
        self.ledger.check_training(message.training, joined.replica.rounds)
        self.progress.training = message.training
        return joined

    def _make_replica(self, message: Welcome) -> Replica:
        """Return a replica with the public parameters of a Welcome, or as drawn from the agreed seed if it has none.

        Raise `ProtocolError` if they are not those that the coordinator announced.
        """
        setup, sizes = self.setup, (message.items, message.ratings, message.typical)
        replica = Replica(setup.config, setup.model, *sizes, setup.device, self.start)
        problem = (
            "the coordinator does not begin with the public parameters that the agreed seed gives here; use the same version of "
            "verfedgnn everywhere"
        )
        if copy := msg.copied_state(message):
            replica.load(copy, message.round)
            problem = "the public parameters received are not those that the coordinator announced"
        if replica.state_digest() != message.digest:
            raise ProtocolError(f"{self.name}: {problem}")
        return replica
