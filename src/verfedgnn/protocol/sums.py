"""What travels up and how it adds up: the form of protected gradients and neighbourhoods, and the sum of gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verfedgnn.config import Config
from verfedgnn.errors import ProtocolError
from verfedgnn.gnn.model import Model
from verfedgnn.privacy.projection import projected_rows
from verfedgnn.protocol.codec import sum_bits, whole, wrapped


class SumError(ProtocolError):
    """Masked values that do not cancel; nobody can tell from them whose are wrong."""


def gradient_form(config: Config, model: Model, parties: int) -> tuple[int, type[np.generic]]:
    """Length and type of a protected gradient as it travels."""
    if config.gradients.mechanism == "skellam":
        return model.size, np.int32
    if config.masking:
        return model.size, whole(parties)
    if config.gradients.mechanism == "ternary":
        return model.size, np.int8
    return model.size, np.float32


def neighbourhood_shape(config: Config, model: Model) -> tuple[int, int, int]:
    """(K, q, C) of an exchanged neighbourhood."""
    exchange, users = config.exchange, model.users
    rows = projected_rows(users, exchange.ratio, exchange.block) if exchange.mode == "projected" else users
    return config.model.layers, rows, model.operator.columns


def summed(gradients: Sequence[NDArray[Any]], config: Config, model: Model, parties: int) -> NDArray[Any]:
    """The sum of protected gradients, in the order of the parties; of masked ones only this is ever known.

    `SumError` if masked ones add up to more than so many ternary values can.
    """
    size, _ = gradient_form(config, model, parties)
    if config.gradients.mechanism == "skellam":
        whole_sum = np.zeros(size, np.int32)
        for noised in gradients:
            whole_sum += noised  # modulo 2^32, as masks are
        return whole_sum
    if config.gradients.mechanism != "ternary":
        total = np.zeros(size, np.float32)
        for values in gradients:
            total += values
        return total
    signs = np.zeros(size, whole(parties))
    for values in gradients:
        signs += values
    if config.masking:
        signs = wrapped(signs, sum_bits(parties))
        if max(int(signs.max(initial=0)), -int(signs.min(initial=0))) > len(gradients):
            raise SumError("the masked values of this trip do not add up to gradients: a party sent something else")
    return signs
