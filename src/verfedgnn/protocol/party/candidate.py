"""A party that asks to join a training: it says hello, and a Welcome makes it a `Party`."""

from __future__ import annotations

import secrets
from functools import cached_property

import torch

from verfedgnn.config import Config
from verfedgnn.core.errors import ProtocolError
from verfedgnn.core.pairs import PartyInput
from verfedgnn.core.worker_group import WorkerGroup
from verfedgnn.privacy.projection import IdentityProjection, Projection
from verfedgnn.protocol.party.list_commitments import ListCommitments
from verfedgnn.protocol.party.party import Party
from verfedgnn.protocol.party.party_masks import PartyMasks
from verfedgnn.protocol.party.party_progress import PartyProgress
from verfedgnn.protocol.party.party_setup import PartySetup
from verfedgnn.protocol.party.policy import LOCAL, Policy, check_welcome
from verfedgnn.protocol.party.private_start import PrivateStart
from verfedgnn.protocol.party.release_ledger import ReleaseLedger
from verfedgnn.protocol.party.shard_setup import ShardSetup
from verfedgnn.protocol.party.training_ratings import TrainingRatings
from verfedgnn.protocol.round.aggregation import largest_array
from verfedgnn.protocol.round.exchange_plan import make_projection
from verfedgnn.protocol.round.message_sizes import largest_from_coordinator
from verfedgnn.protocol.round.replica import FULL_COPY, Replica
from verfedgnn.protocol.round.user_blocks import UserBlocks
from verfedgnn.protocol.round.user_shards import UserShard, check_party, check_users
from verfedgnn.protocol.round.worker_orders import Order, divide
from verfedgnn.protocol.wire.messages import Hello, Welcome, copied_state

_OTHER_COPY = "the public parameters received are not those that the coordinator announced"
_OTHER_DRAW = (
    "the coordinator does not begin with the public parameters that the agreed seed gives here; "
    "use the same version of verfedgnn everywhere"
)
_OTHER_START = (
    "the coordinator does not start from the run that this party starts from; "
    "give both --from with runs of the same training"
)


class Candidate:
    """One organisation that is not joined yet, or joins again after a lost connection.

    `secret` seeds the party's noise, batches and initial items; no message carries it. `party` is the class to create on joining.
    With a `start`, its private parameters continue from an earlier training. `commitments` holds the survivor lists that the party
    committed to; by default they are kept in memory only. With `workers`, this process is one of the party's workers and trains on
    the ratings of its own users; the first worker speaks for the party. Progress is shared with the joined party, so a candidate that joins again
    continues where it was.
    """

    def __init__(
        self,
        data: PartyInput,
        config: Config,
        secret: bytes,
        device: torch.device | str = "cpu",
        policy: Policy = LOCAL,
        party: type[Party] = Party,
        start: PrivateStart | None = None,
        ledger: ReleaseLedger | None = None,
        commitments: ListCommitments | None = None,
        workers: WorkerGroup | None = None,
    ) -> None:
        self.whole = PartySetup.of(data, config, secret, device, policy)
        """The facts about the whole party."""
        self.shard: UserShard | None = None
        """The users of this worker; None if the party is one process."""
        self.setup = self.whole
        """The facts about the users of this process."""
        if workers is not None:
            check_party(config)
            self.shard = UserShard(UserBlocks(config, self.whole.model), workers, workers.rank)
            check_users(self.shard.all_blocks, workers.size)
            self.setup = ShardSetup.divide(self.whole, self.shard)
        self.progress = PartyProgress.initial(self.setup)
        self.start = start
        if start is not None:
            start.load_into(self.progress.private)
        self.party_class = party
        self.ledger = ledger
        """Account of what the party releases; None on one machine."""
        self.commitments = commitments or ListCommitments()
        self.stay = ""
        """Random name of the Hello that waits for a Welcome; empty if none does."""
        self._masks = self._new_masks()

    @property
    def name(self) -> str:
        """Name of the party."""
        return self.setup.name

    @property
    def largest_array(self) -> int:
        """Bytes of the largest packed array that a RoundStart may hold; missed updates take at most a full copy."""
        config = self.whole.config
        model = self.whole.model
        return largest_array(config, UserBlocks(config, model).all_users, FULL_COPY * model.size)

    @property
    def largest_message(self) -> int:
        """Bytes of the largest message that the coordinator may send."""
        return largest_from_coordinator(self.whole.config, self.whole.model)

    @property
    def _known_training(self) -> str | None:
        """Name of the training that this party has taken part in, also if it was killed before its first checkpoint."""
        released = [] if self.ledger is None else self.ledger.entries
        return self.progress.training or (released[0].training if released else None)

    @property
    def _last_released(self) -> int | None:
        if self.ledger is None:
            return None
        return self.ledger.entries[-1].round if self.ledger.entries else 0

    def hello(self) -> Hello:
        """Return the first message of a new stay, with a new mask key."""
        setup = self.whole
        verified = self.progress.verified
        masks = self._masks = self._new_masks()
        self.stay = secrets.token_hex(8)
        return Hello(
            party=self.name,
            users=setup.data.users,
            items=setup.announced_items,
            ratings=setup.announced_ratings,
            scale=setup.data.scale,
            config=setup.config.digest(),
            stay=self.stay,
            agreement=setup.policy.agreement,
            alignment=setup.policy.alignment,
            training=self._known_training,
            round=verified[0] if verified else 0,
            digest=verified[1] if verified else None,
            released=self._last_released,
            lost=0 if self.ledger is None else self.ledger.lost,
            mask_key=None if masks is None else masks.key,
            mask_signature=None if masks is None else masks.signature,
            forgotten=[] if self.start is None else list(self.start.forgotten),
            start=None if self.start is None else self.start.public.digest,
        )

    def welcome(
        self,
        message: Welcome,
        replica: Replica | None = None,
        projection: Projection | IdentityProjection | None = None,
    ) -> Party:
        """Return the joined party.

        Without a `replica` or `projection` to share, the party makes its own; on one machine all parties share theirs. The first
        of several workers gives the others their parts of the message; these call this method with their parts.
        """
        setup = self.setup
        if self._speaks:
            self._check(message)
        if self.shard is not None:
            own = self._divide_replica(message, self.shard)
        else:
            own = replica or self._make_replica(message)
        if self._masks is not None:
            self._masks.join(message.training, message.index, len(message.items))
        joined = self.party_class(
            setup,
            self.progress,
            index=message.index,
            replica=own,
            ratings=TrainingRatings.of(setup, sum(message.items)),
            first_ratings=TrainingRatings.of_first_rounds(setup, sum(message.items)),
            projection=projection or self._own_projection,
            masks=self._masks,
            ledger=self.ledger,
        )
        if self.ledger is not None:
            self.ledger.check_training(message.training, joined.replica.rounds)
        self.progress.training = message.training
        return joined

    def _check(self, message: Welcome) -> None:
        """Raise `ProtocolError` unless a Welcome answers the open Hello, and is from the federation that the party meant to join."""
        if not self.stay or message.stay != self.stay:
            raise ProtocolError(f"{self.name}: received a Welcome without an open Hello; say hello again")
        self.stay = ""
        setup = self.whole
        check_welcome(
            message,
            setup.config,
            setup.model,
            items=setup.announced_items,
            ratings=setup.announced_ratings,
            training=self.progress.training,
            policy=setup.policy,
        )
        if self.start is not None and not set(self.start.forgotten) <= set(message.forgotten):
            raise ProtocolError(
                f"{self.name}: the coordinator does not reset the users whom this party has forgotten"
            )

    @cached_property
    def projection(self) -> Projection | IdentityProjection | None:
        """Projection of the exchange for all users; None if the configuration exchanges nothing."""
        return make_projection(self.whole.config, self.whole.data.users, self.whole.device)

    @property
    def _own_projection(self) -> Projection | IdentityProjection | None:
        if self.shard is None or self.projection is None:
            return self.projection
        everybody = slice(0, self.shard.model.users)
        return self.projection.part(everybody, everybody)

    @property
    def _speaks(self) -> bool:
        """Whether this process talks to the coordinator."""
        return self.shard is None or self.shard.workers.is_first

    def _make_replica(self, message: Welcome) -> Replica:
        """Return a replica with the public parameters of a Welcome, or with the party's own copy of them if it has none.

        Raise `ProtocolError` if they are not those that the coordinator announced, or not those that the party starts from.
        """
        start = None if self.start is None or message.round else self.start.public
        replica = self._draw_replica(message)
        copy = copied_state(message)
        if copy:
            replica.load(copy, message.round)
        elif start is not None:
            start.load_into(replica, message.forgotten)
        if replica.state_digest() != message.digest:
            drawn = _OTHER_DRAW if start is None else _OTHER_START
            raise ProtocolError(f"{self.name}: {_OTHER_COPY if copy else drawn}")
        if copy and start is not None and not start.matches(replica, message.forgotten):
            raise ProtocolError(f"{self.name}: {_OTHER_START}")
        return replica

    def _draw_replica(self, message: Welcome) -> Replica:
        """Return the replica before the first round, drawn from the agreed seed."""
        setup = self.whole
        return Replica.initial(
            setup.config, setup.model, message.items, message.ratings, message.typical, setup.device
        )

    def _divide_replica(self, message: Welcome, shard: UserShard) -> Replica:
        """Return the replica of this worker's users. The first worker makes that of all users and divides it."""
        if shard.workers.is_first:
            whole = self._make_replica(message).arrays()  # not a copy of them, since they are many
            message = divide(shard, Order.WELCOME, message.model_copy(update=whole), in_turn=True)
            del whole
        parameters, accumulator = torch.zeros((2, shard.model.size), device=self.setup.device)
        config = self.setup.config
        own = Replica(
            config, shard.model, message.items, message.ratings, parameters, accumulator, message.round, shard
        )
        own.load(copied_state(message), message.round)
        return own

    def _new_masks(self) -> PartyMasks | None:
        """Return masks with a new key; None if the configuration has no masks, or another worker keeps them."""
        setup = self.setup
        if not setup.config.masking or not self._speaks:
            return None
        return PartyMasks(self.name, setup.config, setup.policy, self.commitments)
