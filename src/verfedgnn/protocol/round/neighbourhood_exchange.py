"""The exchange of neighbourhoods as a configuration asks for it: what is sent, and what a party remembers of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.config.sections import FRACTION_BITS
from verfedgnn.core.errors import ConfigError
from verfedgnn.core.vectors import clip_rows
from verfedgnn.privacy.projection import IdentityProjection, Projection
from verfedgnn.privacy.skellam_noise import draw_skellam
from verfedgnn.protocol.checkpoint_state import State, tensor
from verfedgnn.protocol.round.user_blocks import passes
from verfedgnn.protocol.wire.fixed_point import from_fixed, to_fixed, wrapped
from verfedgnn.protocol.wire.messages import RoundStart


def exchanging(config: Config, round: int, trip: int) -> bool:
    """Whether neighbourhoods are exchanged in a trip of a round."""
    return config.exchange.mode != "off" and (trip > 0 or passes(config, round) % config.exchange.every == 0)


def fewest(config: Config, parties: int) -> int:
    """How many of `parties` a sum of neighbourhoods must be over.

    Masked sums are exact: of two parties, the sum less one's own part is the other's matrix, and sums over changing sets can be
    solved for single parties. So they are over everybody, and at least three, unless `unprotected` names sums.
    """
    if config.exchange.mode == "masked":
        return 3 if "sums" in config.unprotected else max(3, parties)
    return 2 if config.exchange.mode == "noised" else 1


def make_projection(
    config: Config, users: int, device: torch.device | str
) -> Projection | IdentityProjection | None:
    """The exchange's projection, or the reason why it may not be used; None when nothing is exchanged."""
    exchange = config.exchange
    if exchange.mode == "off":
        return None
    if exchange.mode != "projected":
        return IdentityProjection(users)
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


def outgoing(
    x: Tensor, config: Config, *, parties: int, active: int, rng: Callable[[], np.random.Generator]
) -> NDArray[np.integer[Any]]:
    """A party's neighbourhoods (K, q, C) as they leave it, before masks: clipped and noised if so configured, in fixed point.

    The noise of all other active parties together has the configured standard deviation: a recipient can subtract its own.
    """
    exchange = config.exchange
    if exchange.mode != "noised":
        return to_fixed(x, parties, exchange.bits).cpu().numpy()
    values = to_fixed(clip_rows(x, exchange.row_clip), parties, exchange.bits).cpu().numpy()
    unit = 1 << FRACTION_BITS[exchange.bits]
    values += draw_skellam(values.shape, (exchange.noise * unit) ** 2 / max(1, active - 1), rng()).astype(
        values.dtype
    )
    return values


@dataclass(frozen=True)
class Sent:
    """Own neighbourhoods as they left, and the round and trip of that."""

    trip: tuple[int, int]
    values: NDArray[np.integer[Any]]

    def put(self, state: State, name: str) -> None:
        """Into a checkpoint."""
        state.values[name] = self.trip
        state.arrays[name] = self.values

    @classmethod
    def get(cls, state: State, name: str, device: torch.device) -> Sent | None:
        """What `put` put, if it did."""
        trip = state.values.get(name)
        return None if trip is None else cls((trip[0], trip[1]), state.arrays[name])


@dataclass(frozen=True)
class Received:
    """The last sum of neighbourhoods: a hash that all who were told have in common, and what of it is the others'."""

    digest: str
    others: Tensor | None
    """Estimated sum of the others' neighbourhoods (K, q, C); None if one's own part of the sum is forgotten."""

    @classmethod
    def read(
        cls,
        message: RoundStart,
        index: int,
        own: Sent | None,
        scale: float,
        config: Config,
        device: torch.device,
        last: Received | None,
    ) -> Received:
        """Take the sum out of a message that has one, without one's own part, times `scale`."""
        total, bits = message.neighbourhoods, config.exchange.bits
        assert total is not None
        told = hashlib.sha256(repr((message.neighbourhood_parties, message.neighbourhood_trip)).encode())
        if config.masking:  # masks of parties that were told different sums must not cancel
            told.update(np.ascontiguousarray(total).data)
        if last is not None and last.digest == told.hexdigest():
            return last
        if index in message.neighbourhood_parties:
            if own is None or own.trip != message.neighbourhood_trip:
                # Sent before this party lost its memory: what it knew before will do until the next sum.
                return cls(told.hexdigest(), None if last is None else last.others)
            total = wrapped(total - own.values, bits)  # modulo 2^bits, as masks and noise are
        return cls(told.hexdigest(), from_fixed(torch.from_numpy(total).to(device), bits).mul_(scale))

    def put(self, state: State, name: str) -> None:
        """Into a checkpoint."""
        state.values[name] = self.digest
        if self.others is not None:
            state.arrays[name] = self.others.cpu().numpy()

    @classmethod
    def get(cls, state: State, name: str, device: torch.device) -> Received | None:
        """What `put` put, if it did."""
        digest = state.values.get(name)
        others = state.arrays.get(name)
        return None if digest is None else cls(digest, None if others is None else tensor(others, device))
