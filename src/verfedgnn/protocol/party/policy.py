"""What a party insists on towards a coordinator that others run, and its check of the coordinator's Welcome."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from verfedgnn.config import Config
from verfedgnn.core.errors import ProtocolError
from verfedgnn.gnn.model import Model
from verfedgnn.protocol.round.message_checks import check_full_copy
from verfedgnn.protocol.round.replica import rounds_per_epoch
from verfedgnn.protocol.wire.messages import Welcome, copied_state


class Vouching(Protocol):
    """Signatures that bind public keys to parties. Without them, a coordinator could hand out its own keys."""

    def sign(self, purpose: str, key: str) -> str:
        """Return this party's signature of its own key for one purpose."""

    def check(self, purpose: str, party: int, key: str, signature: str) -> None:
        """Raise `ProtocolError` unless `key` belongs to that party, for that purpose."""


@dataclass(frozen=True)
class Policy:
    """A party's conditions for taking part when others run the coordinator."""

    agreement: str | None = None
    """SHA-256 of the federation file."""
    alignment: str | None = None
    """Name of the user alignment that the rows follow."""
    vouching: Vouching | None = None
    """Signatures of mask keys; None on one machine."""
    smallest: int = 1
    """Fewest parties in a sum that this party adds to."""
    place: tuple[int, int] | None = None
    """The party's place in the roster, and the length of the roster; None if there is no roster."""
    most_rounds: int = 1 << 32
    """Number of rounds of a training, at most."""
    masks: bool = True
    """Whether to add masks if the configuration has them. On one machine they would hide nothing; messages only keep their form."""
    fresh_noise: bool = False
    """Whether noise also depends on the values it hides, so that a repeated round with other values has other noise."""

    @property
    def mask_purpose(self) -> str:
        """What signatures of mask keys are for. They name the alignment, so parties with other rows do not accept each other."""
        return name_mask_purpose(self.alignment)


def name_mask_purpose(alignment: str | None) -> str:
    """Return what the signature of a mask key is for, in a federation with that alignment."""
    return f"mask {alignment}"


LOCAL = Policy(masks=False)
"""The policy on one machine, where there is nobody to distrust."""


def check_welcome(
    message: Welcome,
    config: Config,
    model: Model,
    *,
    items: int,
    ratings: int,
    training: str | None,
    policy: Policy,
) -> None:
    """Raise `ProtocolError` unless a Welcome is from the federation that the party meant to join.

    `items` and `ratings` are the party's own; `training` names the training of its checkpoint, if it has one.
    """
    if message.config != config.digest():
        raise ProtocolError("the coordinator's configuration is not the one agreed on")
    counts = message.items
    if not message.index < len(counts) or counts[message.index] != items or min(counts) < 1:
        raise ProtocolError("the coordinator's item counts are not those of this federation")
    if policy.place is not None and (message.index, len(counts)) != policy.place:
        raise ProtocolError("the coordinator's roster is not the one agreed on")
    if message.ratings < ratings:
        raise ProtocolError("the coordinator counts fewer training ratings than this party has")
    rounds = config.training.epochs * rounds_per_epoch(config.training, message.ratings)
    if rounds > policy.most_rounds:
        raise ProtocolError(
            f"the coordinator counts {message.ratings:,} training ratings, which makes {rounds:,} rounds, and the agreement allows "
            f"{policy.most_rounds:,}: if all parties have so many ratings, raise max_rounds in federation.toml at all members"
        )
    if message.round or copied_state(message):
        check_full_copy(message, model)
    if training not in (None, message.training):
        raise ProtocolError("the coordinator runs another training than that of this party's checkpoint")
