"""What leaves a party: neighbourhoods, public gradients and validation errors, protected as configured and in the form of the wire."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.config.sections import FRACTION_BITS
from verfedgnn.core.key_stream import NoiseKey
from verfedgnn.core.metrics import mean_by_user
from verfedgnn.core.random_streams import NoiseStream
from verfedgnn.core.rating_means import USER_MEAN_COLUMNS
from verfedgnn.core.vectors import clip_rows
from verfedgnn.core.worker_group import WorkerGroup
from verfedgnn.privacy.gradient_protection import Rescale, protect
from verfedgnn.privacy.rating_dp import (
    add_validation_noise,
    protects_users,
    release_gradient,
    sensitivity,
    sum_validation,
)
from verfedgnn.privacy.skellam_noise import SkellamNoise, dropped_bits
from verfedgnn.protocol.party.party_setup import PartySetup
from verfedgnn.protocol.round.user_subset import UserSubset
from verfedgnn.protocol.wire.fixed_point import to_fixed
from verfedgnn.protocol.wire.messages import RoundStart


def noise_key(
    setup: PartySetup, stream: NoiseStream, message: RoundStart, values: Sequence[Tensor]
) -> NoiseKey:
    """Return the key of the noise on `values` in a trip.

    Another attempt of the trip has the same noise on the same values, so that it repeats the release. Other values have other noise.
    Each of several workers has its own noise, but on item rows, which are the same at all of them.
    """
    place = () if stream is NoiseStream.ITEM_ROWS else setup.noise_place
    found = hashlib.sha256()
    if setup.policy.fresh_noise:
        for value in values:
            found.update(value.cpu().numpy().tobytes())
    return setup.randomness.noise_key(stream, message.round, message.trip, *place, found.digest())


def encode_neighbourhoods(
    x: Tensor, message: RoundStart, setup: PartySetup, parties: int
) -> NDArray[np.integer[Any]]:
    """Return neighbourhoods (K, q, C) as they leave a party of `parties`, before masks.

    The last columns are users' means, if they are shared; only the columns before them are clipped.
    """
    return protect_neighbourhoods(
        x,
        setup.config,
        parties=parties,
        sharing=len(message.active),
        key=lambda: noise_key(setup, NoiseStream.NEIGHBOURHOODS, message, [x]),
    )


def protect_neighbourhoods(
    x: Tensor, config: Config, *, parties: int, sharing: int, key: Callable[[], NoiseKey]
) -> NDArray[np.integer[Any]]:
    """Clip and noise neighbourhoods if so configured, and convert them to fixed point.

    The noise of all others among `sharing` parties has the configured standard deviation, since a recipient can subtract its own.
    """
    exchange = config.exchange
    if exchange.mode != "noised":
        return to_fixed(x, parties, exchange.bits).cpu().numpy()
    means = USER_MEAN_COLUMNS if config.shares_user_means else 0
    columns = x.shape[-1] - means
    clipped = torch.cat([clip_rows(x[..., :columns], exchange.row_clip), x[..., columns:]], -1)
    values = to_fixed(clipped, parties, exchange.bits).cpu().numpy()
    unit = 1 << FRACTION_BITS[exchange.bits]
    dropped = dropped_bits(exchange.noise, unit)
    rounded = (values + (1 << dropped >> 1)) >> dropped
    variance = (exchange.noise * (unit >> dropped)) ** 2 / max(1, sharing - 1)
    noise = SkellamNoise(variance, key()).draw(values.shape).astype(values.dtype)
    released: NDArray[np.integer[Any]] = (rounded + noise) << dropped
    return released


def protect_validation(
    squared: Tensor, message: RoundStart, setup: PartySetup, workers: WorkerGroup | None
) -> tuple[float, int]:
    """Return the sum of squared errors and their number with noise. The first of several workers returns that of all."""
    if protects_users(setup.config):  # each user counts once
        squared = mean_by_user(squared, setup.data.valid)
    sums = sum_validation(squared, setup.data.scale, setup.config)
    values = squared
    if workers is not None:
        values = sums = workers.sum(sums)
        if not workers.is_first:
            return 0.0, 0
    key = noise_key(setup, NoiseStream.VALIDATION, message, [values])
    return add_validation_noise(sums, setup.data.scale, setup.config, key)


def clip_contributions(gradient: Tensor, setup: PartySetup) -> Tensor:
    """Shorten each user's row of a flat public gradient to the contribution that the guarantee for users allows."""
    views = setup.model.views(gradient)
    rows = torch.cat([views[name].reshape(setup.model.users, -1) for name in setup.model.per_user], 1)
    limit = sensitivity(setup.config)
    factor = limit / rows.norm(dim=1, keepdim=True).clamp(min=limit)
    return torch.cat([(views[name] * factor).flatten() for name in setup.model.per_user])


def encode_noised_gradient(
    gradient: Tensor, message: RoundStart, setup: PartySetup, parties: int
) -> NDArray[np.int32]:
    """Return a public gradient with this party's share of the noise that protects single ratings, before masks."""
    key = noise_key(setup, NoiseStream.GRADIENT, message, [gradient])
    return release_gradient(gradient, setup.config, parties=parties, sharing=len(message.active), key=key)


def encode_gradient(
    gradient: Tensor, message: RoundStart, setup: PartySetup, subset: UserSubset, rescale: Rescale
) -> NDArray[Any]:
    """Return a protected public gradient of a subset's users, expanded to all users of the round, before masks."""
    key = noise_key(setup, NoiseStream.GRADIENT, message, [gradient])
    own = protect(gradient, setup.config.gradients, rescale, subset.model.user_size, key)
    return subset.expand_public(own).cpu().numpy()
