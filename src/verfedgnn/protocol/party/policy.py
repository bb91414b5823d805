"""What a party insists on towards a coordinator it does not run, and the checks of what that coordinator sends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from verfedgnn.config import Config
from verfedgnn.core.errors import ProtocolError
from verfedgnn.gnn.model import Model
from verfedgnn.protocol.round.aggregation import update_type
from verfedgnn.protocol.round.neighbourhood_exchange import exchanging, fewest
from verfedgnn.protocol.round.user_blocks import Rotation
from verfedgnn.protocol.wire.messages import RoundStart, Welcome


class Vouching(Protocol):
    """What binds public keys to parties; where nobody vouches, a coordinator could hand out keys of its own."""

    def sign(self, purpose: str, key: str) -> str:
        """This party's signature under its own key for one purpose."""

    def check(self, purpose: str, party: int, key: str, signature: str) -> None:
        """Raise `ProtocolError` unless `key` is that party's, for that purpose."""


@dataclass(frozen=True)
class Policy:
    """What a party insists on when others run the coordinator; the defaults are those of one machine."""

    agreement: str | None = None
    """Fingerprint of the federation file."""
    alignment: str | None = None
    """Which alignment the rows follow."""
    vouching: Vouching | None = None
    smallest: int = 1
    """The fewest parties a sum must be taken over before this party adds to it."""
    place: tuple[int, int] | None = None
    """Its place in the roster, and how many there are."""
    masks: bool = True
    """Whether masks are added, where the configuration has them; on one machine they would hide nothing from anybody, so only the
    form of masked messages is kept."""
    fresh_noise: bool = False
    """Whether noise depends on the values it hides, too: a round repeated from other values then has other noise."""


LOCAL = Policy(masks=False)
"""On one machine there is nobody to distrust."""


def check_welcome(
    message: Welcome,
    config: Config,
    model: Model,
    items: int,
    ratings: int,
    training: str | None,
    place: tuple[int, int] | None,
) -> None:
    """Raise `ProtocolError` unless this is the federation the party meant to join; `items` and `ratings` are its own."""
    size = (model.size,)
    if message.config != config.fingerprint():
        raise ProtocolError("the coordinator's configuration is not the one agreed on")
    if (
        not message.index < len(message.items)
        or message.items[message.index] != items
        or min(message.items) < 1
    ):
        raise ProtocolError("the coordinator's item counts are not those of this federation")
    if place is not None and (message.index, len(message.items)) != place:
        raise ProtocolError("the coordinator's roster is not the one agreed on")
    if message.ratings < ratings:
        raise ProtocolError("the coordinator counts fewer training ratings than this party has")
    _check_copy(message, config, size)
    if training not in (None, message.training):
        raise ProtocolError("the coordinator runs another training than the one of this party's checkpoint")


def check_start(
    message: RoundStart, config: Config, rotation: Rotation, parties: int, index: int, smallest: int
) -> None:
    """Raise `ProtocolError` unless a round can be worked on as asked; `index` is this party's place among `parties`."""
    active, size, number = message.active, (rotation.model.size,), message.round
    if active != sorted(set(active)) or not active or not 0 <= active[0] <= active[-1] < parties:
        raise ProtocolError(f"round {number} names parties that do not exist")
    if message.train or message.exchange:
        if index not in active:
            raise ProtocolError(f"asked to work in round {number} without being active in it")
        if len(active) < smallest:
            raise ProtocolError(
                f"round {number} asks for a sum over {len(active)} parties, fewer than the agreed {smallest}"
            )
    if message.trip > config.exchange.refresh or (message.train and message.trip):
        raise ProtocolError(f"round {number} has a trip that was not agreed on")
    if message.exchange:
        if not exchanging(config, number, message.trip):
            raise ProtocolError(f"round {number} asks for neighbourhoods out of turn")
        if len(active) < fewest(config, parties):
            raise ProtocolError(
                f"round {number} asks for a {config.exchange.mode} sum over only {len(active)} parties"
            )
    if message.parameters is not None:
        _check_copy(message, config, size)
    everybody = set(range(parties))
    if any(
        not group or not set(group) <= everybody
        for group in (*message.update_parties, message.neighbourhood_parties or [0])
    ):
        raise ProtocolError(f"round {number} brings sums over parties that do not exist")
    if message.updates is not None:
        if not len(message.update_parties) or message.updates_from < 1:
            raise ProtocolError(f"round {number} brings updates of nobody")
        first = message.updates_from
        length = sum(rotation.of(r).model.size for r in range(first, first + len(message.update_parties)))
        if message.updates.shape != (length,) or message.updates.dtype != update_type(config, parties):
            raise ProtocolError(
                f"round {number} brings updates of shape {message.updates.shape} and type {message.updates.dtype}"
            )


def _check_copy(message: Welcome | RoundStart, config: Config, size: tuple[int]) -> None:
    """Raise `ProtocolError` unless a full copy of the public parameters is all there."""
    expected = [
        message.parameters,
        message.accumulator,
        *([message.average] if config.training.average else []),
    ]
    if any(values is None or values.shape != size for values in expected):
        raise ProtocolError("the public parameters received have another size than the model's")
