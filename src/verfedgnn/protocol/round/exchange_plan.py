"""The configured exchange of neighbourhoods: when it takes place, over how many parties, with which projection."""

from __future__ import annotations

import torch

from verfedgnn.config import Config
from verfedgnn.config.party_counts import fewest_parties_in_sum
from verfedgnn.core.errors import ConfigError
from verfedgnn.core.option_names import setting
from verfedgnn.privacy.masking import share_threshold
from verfedgnn.privacy.projection import IdentityProjection, Projection
from verfedgnn.protocol.round.user_blocks import completed_passes


def exchanges_in_trip(config: Config, round: int, trip: int) -> bool:
    """Return whether parties exchange neighbourhoods in a trip of a round."""
    if config.exchange.mode == "off":
        return False
    return trip > 0 or completed_passes(config, round) % config.exchange.every == 0


def exchange_cycle(config: Config) -> int:
    """Return the number of rounds after which the kinds of rounds repeat: `exchange.every` passes over all users."""
    every = 5 if config.exchange.mode == "off" else config.exchange.every  # without an exchange, a few alike
    return every * config.training.user_blocks


def fewest_survivors(config: Config, *, parties: int, active: int, smallest: int, exchange: bool) -> int:
    """Return how many of the `active` parties a masked sum must include after dropouts.

    At least the threshold of the shares, the agreed number (`smallest`), and what the exchange needs. Parties scale their noise to
    the number of active parties, so a sum of noised values includes all of them.
    """
    noised = config.gradients.mechanism == "skellam" or (exchange and config.exchange.mode == "noised")
    if noised:
        return active
    wanted = fewest_parties_in_sum(config, parties) if exchange else 1
    return max(share_threshold(active), smallest, wanted)


def following_trip(config: Config, round: int, trip: int) -> tuple[int, int]:
    """Return the round and trip after a trip that was not abandoned."""
    return (round, trip - 1) if trip else (round + 1, config.exchange.refresh)


def make_projection(
    config: Config, users: int, device: torch.device | str
) -> Projection | IdentityProjection | None:
    """Return the projection of the exchange, or None without an exchange; raise `ConfigError` if it would hide nothing."""
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
            f"use more users, or allow it with {setting('unprotected', 'projection')}"
        )
    return projection
