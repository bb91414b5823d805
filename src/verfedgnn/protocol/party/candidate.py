"""A party that asks to join a training: it says hello, and a Welcome makes it a `Party`."""

from __future__ import annotations

import secrets
from functools import cached_property

import torch
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.core.errors import ProtocolError
from verfedgnn.core.pairs import PartyInput
from verfedgnn.privacy.projection import IdentityProjection, Projection, make_projection
from verfedgnn.protocol.party.party import Party
from verfedgnn.protocol.party.party_masks import ListCommitments, PartyMasks
from verfedgnn.protocol.party.party_progress import PartyProgress
from verfedgnn.protocol.party.party_setup import PartySetup
from verfedgnn.protocol.party.policy import LOCAL, Policy, check_welcome
from verfedgnn.protocol.party.release_ledger import ReleaseLedger
from verfedgnn.protocol.round.aggregation import FULL_COPY, largest_array, largest_from_coordinator
from verfedgnn.protocol.round.replica import Replica
from verfedgnn.protocol.wire.messages import Hello, Welcome, copied_state

_OTHER_COPY = "the public parameters received are not those that the coordinator announced"
_OTHER_DRAW = (
    "the coordinator does not begin with the public parameters that the agreed seed gives here; "
    "use the same version of verfedgnn everywhere"
)


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
        self.setup = PartySetup.of(data, config, secret, device, policy)
        self.progress = PartyProgress.initial(self.setup)
        self.start = start
        """Public parameters of the training that this one continues; None if it begins anew."""
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
        config = self.setup.config
        model = self.setup.model
        return largest_array(config, model, FULL_COPY * model.size)

    @property
    def largest_message(self) -> int:
        """Bytes of the largest message that the coordinator may send."""
        return largest_from_coordinator(self.setup.config, self.setup.model)

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
        setup = self.setup
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
        )

    def welcome(
        self,
        message: Welcome,
        replica: Replica | None = None,
        projection: Projection | IdentityProjection | None = None,
    ) -> Party:
        """Return the joined party.

        Without a `replica` or `projection` to share, the party makes its own; on one machine all parties share theirs.
        """
        setup = self.setup
        self._check(message)
        own = replica or self._make_replica(message)
        if self._masks is not None:
            self._masks.join(message.training, message.index, len(message.items))
        joined = self.party_class(
            setup,
            self.progress,
            index=message.index,
            replica=own,
            projection=projection or self.projection,
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
        setup = self.setup
        check_welcome(
            message,
            setup.config,
            setup.model,
            items=setup.announced_items,
            ratings=setup.announced_ratings,
            training=self.progress.training,
            policy=setup.policy,
        )

    @cached_property
    def projection(self) -> Projection | IdentityProjection | None:
        """Projection of the exchange for all users; None if the configuration exchanges nothing."""
        return make_projection(self.setup.config, self.setup.data.users, self.setup.device)

    def _make_replica(self, message: Welcome) -> Replica:
        """Return a replica with the public parameters of a Welcome, or as drawn from the agreed seed if it has none.

        Raise `ProtocolError` if they are not those that the coordinator announced.
        """
        replica = self._draw_replica(message)
        copy = copied_state(message)
        if copy:
            replica.load(copy, message.round)
        if replica.state_digest() != message.digest:
            raise ProtocolError(f"{self.name}: {_OTHER_COPY if copy else _OTHER_DRAW}")
        return replica

    def _draw_replica(self, message: Welcome) -> Replica:
        """Return the replica before the first round, drawn from the agreed seed."""
        setup = self.setup
        return Replica.initial(
            setup.config,
            setup.model,
            message.items,
            message.ratings,
            message.typical,
            setup.device,
            self.start,
        )

    def _new_masks(self) -> PartyMasks | None:
        """Return masks with a new key; None if the configuration has no masks."""
        setup = self.setup
        if not setup.config.masking:
            return None
        return PartyMasks(self.name, setup.config, setup.policy, self.commitments)
