"""Sums of what the parties send: the array types, shapes and sizes that travel, and how they add up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.core.errors import DivergedError
from verfedgnn.gnn.model import Model
from verfedgnn.privacy.projection import make_exchange
from verfedgnn.protocol.messages import BESIDES_ARRAYS

FULL_COPY = 8
"""Bytes per parameter of a full copy: the parameter and its accumulator."""
FRACTION_BITS = {torch.int32: 20, torch.int64: 32}
"""Fractional bits of a fixed-point number, by its type. Sums may reach +-2048, or +-2 billion."""
ALIGNMENT_BYTES = 40
"""Bytes a user in messages of the alignment: a point of the curve and its seal, or a pseudonym and an earlier row."""


def neighbourhood_type(config: Config) -> np.dtype[Any]:
    """Return the array type of neighbourhoods on the wire: fixed point, as residues if masked."""
    wide = config.model.form == "propagation" and not config.model.estimators  # exact degrees are large
    return np.dtype(f"{'u' if config.masking else 'i'}{8 if wide else 4}")


def neighbourhood_shape(config: Config, model: Model) -> tuple[int, int, int]:
    """Return the shape (K, q, C) of exchanged neighbourhoods; it is empty without an exchange."""
    rows = make_exchange(config, model.users).rows
    if config.model.form != "propagation" or not rows:
        return 0, 0, 0
    return config.model.layers, rows, model.operator.columns


# -- sizes of messages -----------------------------------------------------------------------------------------


def largest_alignment(users: int) -> int:
    """Return the bytes of the largest message about the alignment of a party with that many users."""
    return BESIDES_ARRAYS + ALIGNMENT_BYTES * users


def largest_message(config: Config, model: Model, width: int) -> int:
    """Return the bytes of the largest message of a round, with `width` bytes for each public parameter and neighbourhoods."""
    return BESIDES_ARRAYS + width * model.size + _neighbourhood_bytes(config, model)


def largest_array(config: Config, model: Model, width: int) -> int:
    """Return the bytes of the largest packed array in such a message."""
    return max(width * model.size, _neighbourhood_bytes(config, model))


def _neighbourhood_bytes(config: Config, model: Model) -> int:
    return math.prod(neighbourhood_shape(config, model)) * neighbourhood_type(config).itemsize


# -- sums ------------------------------------------------------------------------------------------------------


def participation_scale(items: Sequence[int], active: Sequence[int], without: int | None = None) -> float:
    """Return sum of all M_i / sum of M_i over the active parties (Sec. 4.6), 0 if no party is left to scale.

    `without` leaves one party out of both sums.
    """
    whole = sum(m for p, m in enumerate(items) if p != without)
    part = sum(items[p] for p in active if p != without)
    return whole / part if part else 0.0


# Real numbers travel in fixed point. Sums of integers are exact in any order and can be masked, and a recipient subtracts its own
# share of a sum without rounding.


def to_fixed(values: Tensor, parties: int, bits: int = 32) -> Tensor:
    """Convert real numbers to multiples of 2^-20 (32 bits) or 2^-32 (64), with room for `parties` of them.

    A value out of range raises `DivergedError`.
    """
    kind = {32: torch.int32, 64: torch.int64}[bits]
    # A power of two times a float32 is exact, and so is rounding it.
    scaled = (values * float(1 << FRACTION_BITS[kind])).round_()
    limit = torch.iinfo(kind).max // max(1, parties)
    least, most = torch.stack(torch.aminmax(scaled)).tolist() if scaled.numel() else (0.0, 0.0)
    if not (least >= -limit and most <= limit):  # written so that NaN fails, too
        raise DivergedError(
            f"a neighbourhood holds a value beyond +-{limit / (1 << FRACTION_BITS[kind]):.0f}, the fixed-point range with "
            f"{parties} parties: training has diverged; lower training.lr"
        )
    return scaled.to(kind)


def from_fixed(values: Tensor) -> Tensor:
    """Convert the result of `to_fixed`, or sums and differences of such results, back to real numbers."""
    return values.to(torch.float32).mul_(1.0 / (1 << FRACTION_BITS[values.dtype]))
