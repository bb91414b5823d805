"""The projection that a configuration asks for, or the reason why it may not be used."""

from __future__ import annotations

import torch

from verfedgnn.config import Config
from verfedgnn.errors import ConfigError
from verfedgnn.privacy.projection import Identity, Projection


def make_projection(config: Config, users: int, device: torch.device | str) -> Projection | Identity | None:
    """The exchange's projection; None when nothing is exchanged."""
    exchange = config.exchange
    if exchange.mode == "none":
        return None
    if exchange.mode == "exact":
        return Identity(users)
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
