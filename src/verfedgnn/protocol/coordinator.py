"""The coordinator's side of the protocol (Algorithm 1, server). It holds public parameters and sums, and nothing else.

    open -> RoundStart to each party -> receive each RoundReply -> close: add up, take the public step

With masks, `masks.py` adds steps to a round: shares before the RoundStart, and shares that unmask the sum after the replies.
`proceed` goes from one step to the next. A round that loses a party is opened again, as another attempt.

It never sees ratings, degrees or item embeddings: no message carries them. `states.py` lists what may follow what.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.config.rules import active_count, too_few
from verfedgnn.core.errors import ConfigError, ProtocolError
from verfedgnn.core.random_streams import SharedStream, shared_generator
from verfedgnn.core.rating_scale import typical_rating
from verfedgnn.gnn.factor_model import ROUNDS_BEFORE_PRIOR
from verfedgnn.gnn.model import Model
from verfedgnn.privacy.masking import NEIGHBOURHOOD, remove_masks, share_threshold
from verfedgnn.protocol import messages as msg
from verfedgnn.protocol import replica as replicas
from verfedgnn.protocol.masks import MaskedRound, mask_context, sum_digest
from verfedgnn.protocol.messages import Finish, Hello, Message, RoundReply, RoundStart, Welcome
from verfedgnn.protocol.replica import (
    FULL_COPY,
    CheckpointState,
    Replica,
    RoundSum,
    parameters_digest,
    to_tensor,
)
from verfedgnn.protocol.states import COORDINATOR_STATES, CoordinatorAction, CoordinatorState

KEPT_UPDATES = 8
"""Updates that are kept for parties that missed them; more would be larger than a full copy."""
_KEPT = ("training", "round", "replied", "parameters_round", "sums_received")
"""Attributes that a checkpoint holds as they are."""


@dataclass(frozen=True)
class ClosedRound:
    """What the coordinator learnt from a finished round."""

    round: int
    valid_error: float | None
    """Validation error of all parties; None without a validation."""
    abandoned: bool = False
    """Whether the round has no update, because its sum could not be completed."""


NO_SUM = RoundSum(0, [], np.zeros(0, np.int32))


@dataclass
class Membership:
    """The parties of a training, in the order that fixes every sum. A round needs `quorum` of them."""

    names: list[str]
    quorum: int
    hellos: dict[str, Hello] = field(default_factory=dict)
    """The last Hello of every party that ever joined."""
    present: set[str] = field(default_factory=set)
    """Parties that were welcomed and not lost since."""
    slow: set[str] = field(default_factory=set)
    """Connected parties that missed a round; their late reply brings them back."""

    @property
    def complete(self) -> bool:
        """Whether every party has joined at least once."""
        return len(self.hellos) == len(self.names)

    def has(self, parties: Iterable[int]) -> bool:
        """Return whether these parties are present."""
        return all(self.names[index] in self.present for index in parties)

    def bring_back(self, name: str) -> bool:
        """Mark a slow party as present; return whether it was slow."""
        if name not in self.slow:
            return False
        self.slow.discard(name)
        self.present.add(name)
        return True


@dataclass
class BestValidation:
    """The best validation so far, and the last result of every party."""

    ranks: bool
    """Whether the model orders lists."""
    errors: dict[str, tuple[float, int]] = field(default_factory=dict)
    """Squared error and count of each party's last validation."""
    digests: dict[int, str] = field(default_factory=dict)
    """Hash of the public parameters at each validation, by round."""
    error: float = math.inf
    round: int = 0
    since: int = 0
    """Number of validations since the best one."""
    holders: set[str] = field(default_factory=set)
    """Parties that took part in it and have not rejoined since, so they have its parameters."""

    def judge(
        self, round: int, replies: Mapping[str, RoundReply], names: Sequence[str], digest: str
    ) -> float:
        """Return the error over all parties, and note it if it is the best; an absent party counts with its last validation."""
        self.errors |= {name: (reply.error or 0.0, reply.count or 0) for name, reply in replies.items()}
        known = [self.errors[name] for name in names if name in self.errors]
        error = mean_error(
            sum(error for error, _ in known), sum(count for _, count in known), ranks=self.ranks
        )
        self.digests[round] = digest
        self.since += 1
        if error < self.error:
            self.error, self.round, self.since, self.holders = error, round, 0, set(replies)
        return error


def mean_error(error: float, count: int, *, ranks: bool) -> float:
    """Return the RMSE from summed squared errors; for lists, the mean of 1 - NDCG@20 over users."""
    mean = error / max(1, count)
    return mean if ranks else math.sqrt(mean)


class Coordinator:
    """Runs the rounds of one training.

    `names` are the parties, in the order that fixes every sum. `quorum` parties must be present for a round; by default all. The
    names `agreement` (of the federation file) and `training` guard against mixing up federations. `masked` says whether the parties
    draw masks; on one machine they do not.
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
        masked: bool = False,
        start: Tensor | None = None,
    ) -> None:
        self.config, self.names, self.device = config, list(names), torch.device(device)
        self.agreement, self.training, self.masked = agreement, training, masked and config.masking
        self.start = start
        """Public parameters of the training that this one continues; None if it begins anew."""
        self.state = CoordinatorState.GATHERING
        self.active_count = active_count(config, len(self.names))
        """Number of parties that take part in a round when all are present."""
        self.members = Membership(self.names, len(self.names) if quorum is None else quorum)
        self.replica: Replica
        """The public parameters and their optimiser's state, once all parties have joined."""
        self.updates: deque[RoundSum] = deque(maxlen=KEPT_UPDATES)
        self.neighbourhood_sum = NO_SUM
        """The sum of neighbourhoods that the coordinator hands out."""
        self.parameters_round: dict[str, int] = {}
        """Round of the public parameters that each party has."""
        self.sums_received: dict[str, int] = {}
        """Round of the summed neighbourhoods that each party has."""
        self.best = BestValidation(config.ranks)
        self.shares_means = config.means_only
        """Whether the only round shares all there is: means of users."""
        self.round = 0
        self.attempt = 0
        """How often the open round was repeated."""
        self.replied: dict[str, int] = {}
        """Last round that each party has replied to."""
        self.drawn: list[int] = []
        """A_t, the active parties of the open round."""
        self.open_parties: dict[str, RoundStart] = {}
        """What each party of the open round was asked."""
        self.replies: dict[str, RoundReply] = {}
        """Replies to the open round, or to the last one."""
        self.masks: MaskedRound | None = None
        self.commitment: list[int] | None = None
        """The survivor list that parties committed to in the open round; no other sum can be completed."""
        self._gone: set[str] = set()
        """Parties lost since the open round began. They do not know of it, even if they came back."""

    # -- joining and leaving -----------------------------------------------------------------------------

    def hello(self, message: Hello) -> None:
        """Check a party's first message against what is agreed on, and remember it; `welcome` lets the party in."""
        if message.party not in self.names:
            raise ProtocolError("a party that is not among the expected ones said hello")
        reason = self._refusal(message)
        if reason is not None:
            raise ProtocolError(f"{message.party}: {reason}")
        self.lose(message.party)
        self.best.holders.discard(message.party)
        self.members.hellos[message.party] = message
        if self.members.complete and self.state is CoordinatorState.GATHERING:
            self._start_training()

    def _refusal(self, hello: Hello) -> str | None:
        """Return why a Hello is refused, with the remedy; None if it is accepted."""
        replied = self.replied.get(hello.party, 0)
        if hello.config != self.config.digest():
            return "its configuration differs from the shared one; run `verfedgnn federation accept`"
        if hello.agreement != self.agreement:
            return "its federation file (roster, certificates or rules) is not the coordinator's; run `verfedgnn federation accept`"
        if hello.training not in (None, self.training):
            return f"its checkpoint belongs to training {hello.training}, this one is {self.training}; start it with another --out"
        if hello.training is None and replied:
            return "it has taken part in this training, and its run folder does not know that; use its previous --out"
        if hello.released is not None and hello.released < replied:
            return (
                f"it has sent round {replied}, and its run folder ends with round {hello.released}: the folder is a copy or "
                "an old backup, and the party went on elsewhere; use the newest one"
            )
        known = self.best.digests.get(hello.round)
        if hello.digest is not None and known is not None and hello.digest != known:
            return f"its public parameters of round {hello.round} are not this training's; start it with another --out"
        if (hello.mask_key is None) == self.config.masking:
            return "its key for masks is missing, or the configuration has no masks; use the coordinator's configuration"
        if not hello.scale[0] <= hello.scale[1]:
            return "its rating scale is upside down: the lowest rating exceeds the highest; check its ratings"
        before = self.members.hellos.get(hello.party, hello)
        sizes = [(h.users, h.items, h.ratings) for h in (before, hello)]
        if (sizes[0], tuple(before.scale)) != (sizes[1], tuple(hello.scale)):
            then, now = ("{:,} users, {:,} items and {:,} training ratings".format(*size) for size in sizes)
            return f"it first joined with {then}, and now has {now}; go back to that data or begin a new training"
        for name, other in self.members.hellos.items():
            if other.users != hello.users:
                return (
                    f"it has {hello.users:,} common users, {name} has {other.users:,}; align the users again"
                )
            if other.alignment != hello.alignment:
                return f"its users are aligned differently from those of {name}; align the users again"
        return None

    @property
    def began(self) -> bool:
        """Whether all parties have joined once, so that the replica exists."""
        return self.state not in (CoordinatorState.GATHERING, CoordinatorState.CANCELLED)

    def _start_training(self) -> None:
        self.state = COORDINATOR_STATES.after(self.state, CoordinatorAction.START_TRAINING)
        hellos = [self.members.hellos[name] for name in self.names]
        problem = too_few(self.config, min(self.active_count, self.members.quorum), len(self.names))
        if problem is not None:
            raise ConfigError(problem)
        self.model = model = Model(self.config.model, hellos[0].users)
        ratings = sum(hello.ratings for hello in hellos)
        self.typical = sum(typical_rating(hello.scale) for hello in hellos) / len(hellos)
        sizes = [hello.items for hello in hellos], ratings, self.typical
        self.replica = replica = Replica(self.config, model, *sizes, self.device, self.start)
        self.rounds = replica.rounds
        width = replica.protection.sent_type.itemsize
        self.largest_array = replicas.largest_array(self.config, model, width)
        """Bytes of the largest array that a reply may hold."""
        self.largest_message = replicas.largest_message(self.config, model, width)
        """Bytes of the largest message that a party may send: a RoundReply."""

    @property
    def public(self) -> Tensor:
        """The public parameters of the best validation, flat; a single 0 if the training was cancelled."""
        return self.replica.best[1] if self.began else torch.zeros(1)

    @property
    def public_digest(self) -> str:
        """The hash of these parameters."""
        return parameters_digest(self.public)

    def welcome(self, name: str) -> Welcome:
        """Let a party in, and return the answer to its Hello, with a full copy of the public parameters if the party needs one."""
        self.members.present.add(name)
        self.parameters_round[name] = self.replica.round
        self.sums_received.pop(name, None)
        return Welcome(
            index=self.names.index(name),
            items=self.replica.items,
            stay=self.members.hellos[name].stay,
            training=self.training,
            config=self.config.digest(),
            ratings=self.replica.ratings,
            typical=self.typical,
            round=self.replica.round,
            **(self.replica.full_copy() if self.replica.round else {}),
            digest=self.replica.state_digest(),
        )

    def lose(self, name: str, *, slow: bool = False) -> None:
        """Continue without a party until it joins again or, if it is only slow, until its reply comes."""
        self.members.present.discard(name)
        self.members.slow.discard(name)
        (self.members.slow if slow else self._gone).add(name)

    # -- one round: open, receive, close -----------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether a round can be opened: all parties have joined once, and a quorum is present."""
        members = self.members
        return self.began and members.complete and len(members.present) >= members.quorum

    def open(self, among: Sequence[int] | None = None) -> dict[str, Any]:
        """Open the next round, or repeat the open one, and return the first message to each party.

        It is the RoundStart, the same object for parties in the same situation. With masks it is a ShareRequest, and `proceed` returns
        the RoundStart once the shares of all active parties are here. `among` sets the active parties instead of drawing them.
        """
        repeated = self.state is not CoordinatorState.IDLE
        self.state = COORDINATOR_STATES.after(
            self.state, CoordinatorAction.ASK_FOR_SHARES if self.masked else CoordinatorAction.OPEN
        )
        if repeated:
            self.attempt += 1
        else:
            self.round, self.attempt, self.commitment = self.round + 1, 0, None
        present = [i for i, name in enumerate(self.names) if name in self.members.present]
        self.drawn = self.draw_active(self.round, present) if among is None else list(among)
        self.open_parties, self.replies, self._gone = {}, {}, set()
        evaluate = self.replica.evaluates_in(self.round)
        facts: dict[str, Any] = {"round": self.round, "attempt": self.attempt, "active": self.drawn}
        starts: dict[tuple[int, int], RoundStart] = {}
        for index in present:
            name = self.names[index]
            situation = self.parameters_round[name], self.sums_received.get(name, 0)
            if index in self.drawn or evaluate:
                if situation not in starts:
                    starts[situation] = RoundStart(**facts, evaluate=evaluate, **self._changes_for(name))
                self.open_parties[name] = starts[situation]
        if not self.masked:
            return dict(self.open_parties)
        self.masks = MaskedRound((self.round, self.attempt), self.drawn)
        drawn = [self.names[index] for index in self.drawn]
        hellos = [self.members.hellos[name] for name in drawn]
        request = msg.ShareRequest(
            **facts,
            request=self.masks.request,
            mask_keys=[hello.mask_key or "" for hello in hellos],
            mask_signatures=[hello.mask_signature or "" for hello in hellos],
        )
        return dict.fromkeys(drawn, request)

    def draw_active(self, round: int, present: Sequence[int]) -> list[int]:
        """Draw A_t, the parties that take part in a round, from those present (Sec. 4.6)."""
        if self.active_count >= len(present):
            return list(present)
        rng = shared_generator(self.config.seed, SharedStream.ACTIVE_PARTIES, round)
        return sorted(rng.choice(present, self.active_count, replace=False).tolist())

    def take(self, name: str, message: Message) -> None:
        """Take a party's message about the open round. Raise `ProtocolError` if it does not fit."""
        if isinstance(message, RoundReply):
            self.receive(name, message)
            return
        COORDINATOR_STATES.after(self.state, type(message), name)
        assert isinstance(message, msg.MaskShares | msg.ListSignature | msg.Unmask)
        self.members.bring_back(name)
        masks = self.masks
        if masks is None or masks.place != message.place:
            return
        asked = self.state is CoordinatorState.SHARING and masks.request
        if isinstance(message, msg.MaskShares) and message.request != asked:
            return
        problem = masks.take(self.names.index(name), message)
        if problem is not None:
            raise ProtocolError(f"{name}: {problem}")

    def receive(self, name: str, reply: RoundReply) -> bool:
        """Take a party's reply; return False if it is late and was ignored. Raise `ProtocolError` if it does not fit the round."""
        COORDINATOR_STATES.after(self.state, RoundReply, name)
        known, start = self.parameters_round, self.open_parties.get(name)
        late = reply.place < (self.round, self.attempt) or self.state in (
            CoordinatorState.AGREEING,
            CoordinatorState.UNMASKING,
        )
        if late and name in known:
            if self.members.bring_back(name):
                known[name] = min(reply.round, self.replica.round + 1) - 1
            return False
        if start is None or name in self.replies or self.state is CoordinatorState.SHARING:
            raise ProtocolError(f"{name}: no reply is due from this party")
        problem = self.replica.find_problem(reply, start, active=self.names.index(name) in self.drawn)
        if problem is not None:
            raise ProtocolError(f"{name}: {problem}")
        known[name] = self.replica.round
        if start.neighbourhoods is not None:
            self.sums_received[name] = start.neighbourhood_round
        self.replies[name] = reply
        self.replied[name] = reply.round
        self.members.bring_back(name)
        return True

    def close(self) -> ClosedRound:
        """Add up the replies, judge the validation and take the public step.

        Raise `SumError` if masked values do not add up to gradients; the round can then only be abandoned.
        """
        replica = self.replica
        parties = [index for index in self.drawn if self.names[index] in self.replies]
        replies = [self.replies[self.names[index]] for index in parties]
        streams = []
        if self.masks is not None:
            start, last = self.open_parties[self.names[self.masks.survivors[0]]], self.neighbourhood_sum
            digest = "" if last is NO_SUM else sum_digest(last.parties, last.round, last.total)
            streams = self.masks.streams(mask_context(start, replica, digest))
        gradients = [reply.gradient for reply in replies if reply.gradient is not None]
        total = replica.protection.add_up(gradients, streams)
        shared = [reply.neighbourhoods for reply in replies if reply.neighbourhoods is not None]
        if shared:
            summed = np.asarray(np.sum(shared, 0, dtype=shared[0].dtype))  # modulo its bits
            summed = remove_masks(summed, streams, NEIGHBOURHOOD, 8 * summed.itemsize)
            self.neighbourhood_sum = RoundSum(self.round, parties, summed)
        closed = self._end_round(CoordinatorAction.CLOSE)
        # Nobody would use the step of the last round, and all members end in the same state without it.
        if self.shares_means or not self.done:
            if replica.solved is not None:
                released = torch.from_numpy(total).to(self.device)
                update = replica.solved.compute_update(replica.parameters, replica.accumulator, released)
                total = update.astype(replica.protection.sum_type)
            self.updates.append(RoundSum(self.round, parties, total))
            replica.apply(self.updates[-1])
        if self.shares_means:
            replica.best = (self.round, replica.parameters.clone())
            self.best.holders = set()
        return closed

    def abandon(self) -> ClosedRound:
        """Give the open round up: it has no update. Late replies to it reveal nothing, since their masks are never removed."""
        closed = self._end_round(CoordinatorAction.ABANDON)
        self.updates.append(RoundSum(self.round, [], np.zeros(0, self.replica.protection.sum_type)))
        self.replica.apply(self.updates[-1])
        return closed

    def _end_round(self, action: CoordinatorAction) -> ClosedRound:
        """End the open round, and judge its validation."""
        error = None
        if self.replies and any(start.evaluate for start in self.open_parties.values()):
            error = self.best.judge(self.round, self.replies, self.names, self.replica.digest())
            if self.best.round == self.round:
                self.replica.keep_best(self.round)
        self.state = COORDINATOR_STATES.after(self.state, action)
        self.open_parties, self.masks = {}, None
        return ClosedRound(self.round, error, action is CoordinatorAction.ABANDON)

    def _changes_for(self, name: str) -> dict[str, Any]:
        """Return the fields of a RoundStart with updates and sums that a party lacks, or with a full copy instead of updates."""
        known, replica = self.parameters_round[name], self.replica
        updates = [update for update in self.updates if update.round > known]
        size = sum(update.total.nbytes for update in updates)
        complete = len(updates) >= replica.round - known and size <= FULL_COPY * replica.model.size
        updates = updates if complete else []
        shared, totals = self.neighbourhood_sum, [update.total for update in updates if update.parties]
        if self.sums_received.get(name) == shared.round:
            shared = NO_SUM
        return {
            "best_round": self.best.round,
            "updates_from": known + 1,
            "update_parties": [update.parties for update in updates],
            "updates": np.concatenate(totals) if totals else None,
            "neighbourhood_parties": shared.parties,
            "neighbourhood_round": shared.round,
            "neighbourhoods": shared.total if shared.parties else None,
            **({} if complete else replica.full_copy()),
        }

    # -- the masks of a round, and who is due ------------------------------------------------------------

    def proceed(self) -> list[tuple[str, Message]] | None:
        """Go on to the next step of the round when nobody is due, and return its messages; None if the round can be closed.

        There are no messages if all their recipients were lost meanwhile.
        """
        masks = self.masks
        if masks is None or self.state is CoordinatorState.UNMASKING:
            return None
        place = {"round": self.round, "attempt": self.attempt}
        messages: list[tuple[str, Message]] = []
        if self.state is CoordinatorState.SHARING:
            self.state = COORDINATOR_STATES.after(self.state, CoordinatorAction.OPEN)
            shares = [masks.shares[sender] for sender in masks.active]
            keys = [share.key for share in shares]
            for column, index in enumerate(masks.active):
                sealed = np.stack([share.sealed[column] for share in shares])
                messages.append((self.names[index], msg.RoundShares(**place, round_keys=keys, sealed=sealed)))
            return [*messages, *self.open_parties.items()]
        action = CoordinatorAction.UNMASK
        if self.state is CoordinatorState.ROUND:
            self.commitment = masks.survivors = [i for i in masks.active if self.names[i] in self.replies]
            if masks.survivors != masks.active:
                action = CoordinatorAction.AGREE
        self.state = COORDINATOR_STATES.after(self.state, action)
        signed = {index: message.signature for index, message in masks.signatures.items()}
        signatures = [signed.get(index, "") for index in masks.survivors] if signed else None
        survivors = msg.Survivors(**place, survivors=masks.survivors, signatures=signatures)
        names = [self.names[index] for index in masks.survivors]
        return [(name, survivors) for name in names if name not in self._gone]

    @property
    def due(self) -> list[str]:
        """Parties whose answer the present step of the open round needs."""
        masks = self.masks
        if self.state is CoordinatorState.ROUND or masks is None:
            return [name for name in self.open_parties if name not in self.replies]
        if self.state is CoordinatorState.SHARING:
            # A party that was lost since has forgotten its seeds.
            drawn = [(index, self.names[index]) for index in self.drawn]
            return [name for index, name in drawn if index not in masks.shares or name in self._gone]
        answered = masks.signatures if self.state is CoordinatorState.AGREEING else masks.reveals
        return [self.names[index] for index in masks.survivors if index not in answered]

    @property
    def absent(self) -> list[str]:
        """Due parties that were lost or are slow."""
        return [name for name in self.due if name in self._gone or name in self.members.slow]

    @property
    def spares_absent(self) -> bool:
        """Whether the open round can be completed without the absent parties."""
        masks = self.masks
        if masks is None or self.state is CoordinatorState.SHARING:
            return False
        absent = {self.names.index(name) for name in self.absent}
        if self.state is not CoordinatorState.ROUND:
            return len(set(masks.survivors) - absent) >= share_threshold(len(masks.active))
        survivors = [index for index in masks.active if index not in absent]
        smallest = min(self.members.quorum, self.active_count)
        fewest = self.replica.protection.fewest_survivors(len(self.drawn), smallest)
        return self.commitment in (None, survivors) and len(survivors) >= fewest

    # -- the end, and checkpoints ------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Whether all rounds are over, or `patience` validations have passed without a better one since a solved model has settled.

        Until its items have a prior of their own, curves rest for some rounds and fall again.
        """
        best, patience = self.best, self.config.training.patience
        settled = ROUNDS_BEFORE_PRIOR if self.config.model.solved and not best.ranks else 0
        since = min(best.since, max(best.digests, default=0) - settled)
        return self.round >= self.rounds or 0 < patience <= since

    def finish(self) -> dict[str, Finish]:
        """End the training and return the last message to each party; those that have the parameters get none."""
        self.state = COORDINATOR_STATES.after(self.state, CoordinatorAction.FINISH)
        best = self.best
        short = Finish(round=self.round, best_round=best.round, digest=self.public_digest)
        full = short.model_copy(update={"parameters": self.public.cpu().numpy()})
        return {name: short if name in best.holders else full for name in self.names}

    def cancel(self) -> dict[str, Finish]:
        """Cancel the training before it starts, and return the last message to each party."""
        self.state = COORDINATOR_STATES.after(self.state, CoordinatorAction.CANCEL)
        return dict.fromkeys(self.names, Finish(round=0, best_round=0, digest=self.public_digest))

    def checkpoint(self) -> CheckpointState:
        """Return everything that training changed, between two rounds."""
        best, shared = self.best, self.neighbourhood_sum
        hellos = [self.members.hellos[name] for name in self.names]
        values = {name: getattr(self, name) for name in _KEPT} | {
            "hellos": [hello.model_dump_json(exclude={"mask_key", "mask_signature"}) for hello in hellos],
            "errors": best.errors,
            "digests": list(best.digests.items()),
            "best": [best.error if best.round else None, best.round, best.since],
            "holders": sorted(best.holders),
            "updates": [[update.round, update.parties] for update in self.updates],
            "neighbourhoods": [shared.parties, shared.round],
        }
        arrays = {**self.replica.arrays(), "best": self.replica.best[1].cpu().numpy()}
        arrays |= {f"update.{i}": update.total for i, update in enumerate(self.updates)}
        if shared.parties:
            arrays["neighbourhoods"] = shared.total
        return CheckpointState(arrays, values)

    def restore(self, state: CheckpointState) -> None:
        """Continue from a checkpoint; parties that have not joined yet join as if they came back."""
        values, arrays, best = state.values, state.arrays, self.best
        if not self.began:
            self.members.hellos = {h.party: h for h in map(Hello.model_validate_json, values["hellos"])}
            self._start_training()
        for name in _KEPT:
            setattr(self, name, copy(values[name]))
        best.errors = {name: (squared, count) for name, (squared, count) in values["errors"].items()}
        best.digests = dict(values["digests"])
        best.holders = set(values["holders"])
        error, best.round, best.since = values["best"]
        best.error = math.inf if error is None else error
        self.replica.load(arrays, self.round)
        self.replica.best = (best.round, to_tensor(arrays["best"], self.device))
        for i, (round, parties) in enumerate(values["updates"]):
            self.updates.append(RoundSum(round, parties, arrays[f"update.{i}"]))
        if "neighbourhoods" in arrays:
            parties, round = values["neighbourhoods"]
            self.neighbourhood_sum = RoundSum(round, parties, arrays["neighbourhoods"])
