"""Checks of the messages of a round: a party checks every RoundStart, the coordinator checks every RoundReply."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from verfedgnn.config.rules import fewest_parties_in_sum
from verfedgnn.core.errors import ProtocolError
from verfedgnn.gnn.model import Model
from verfedgnn.protocol.aggregation import (
    neighbourhood_shape,
    neighbourhood_type,
)
from verfedgnn.protocol.messages import RoundReply, RoundStart, Welcome
from verfedgnn.protocol.replica import Replica, split_updates

LARGEST_PARAMETER = 1e6
"""Largest absolute value of a public parameter, the only limit where the model has no bound."""
ROUNDING = 1e-5
"""Relative excess over the model's bound that rounding may cause."""

_ROWS = 1 << 16
"""Number of user embeddings whose norms are computed at a time."""


def check_start(message: RoundStart, replica: Replica, index: int, fewest: int) -> None:
    """Raise `ProtocolError` unless a RoundStart asks for what was agreed on.

    `index` is the place of the receiving party; it adds to no sum over fewer than `fewest` parties.
    """
    number = message.round
    active = message.active
    config = replica.config
    parties = len(replica.items)
    if number > replica.rounds:
        raise ProtocolError(
            f"the coordinator starts round {number}, but {replica.rounds} rounds were agreed on; start a new training"
        )
    if message.evaluate and not replica.evaluates_in(number):
        raise ProtocolError(
            f"round {number} asks for a validation that was not agreed on; see training.evaluate_every"
        )
    if active != sorted(set(active)) or not active or not 0 <= active[0] <= active[-1] < parties:
        raise ProtocolError(f"round {number} names parties that do not exist")
    needed = max(fewest, fewest_parties_in_sum(config, parties))
    if index in active and len(active) < needed:
        raise ProtocolError(
            f"round {number} asks for a sum over {len(active)} parties, fewer than the agreed {needed}"
        )
    if message.parameters is not None:
        check_full_copy(message, replica.model)
    _check_sums(message, replica)


def _check_sums(message: RoundStart, replica: Replica) -> None:
    """Raise `ProtocolError` unless the sums in a RoundStart are over known parties and have the right form."""
    number, size = message.round, replica.model.size
    everybody = set(range(len(replica.items)))
    groups = message.update_parties
    if any(not set(group) <= everybody for group in (*groups, message.neighbourhood_parties)):
        raise ProtocolError(f"round {number} brings sums over parties that do not exist")
    shared = message.neighbourhoods
    if shared is not None:
        expected = neighbourhood_shape(replica.config, replica.model)
        if shared.shape != expected or shared.dtype.kind != "i":
            raise ProtocolError(f"received neighbourhoods of shape {shared.shape} instead of {expected}")
    updates = message.updates
    if updates is None and not any(groups):
        return
    if updates is None or not any(groups) or message.updates_from < 1:
        raise ProtocolError(f"round {number} brings updates of nobody")
    expected_size = size * sum(map(bool, groups))
    if updates.shape != (expected_size,) or updates.dtype != replica.protection.sum_type:
        raise ProtocolError(
            f"round {number} brings updates of shape {updates.shape} and type {updates.dtype}"
        )
    for update in split_updates(message, size):
        if not replica.protection.fits(update.total, len(update.parties)):
            raise ProtocolError(
                f"round {number} brings a sum of signs with values of more than its {len(update.parties)} parties"
            )


def check_full_copy(message: Welcome | RoundStart, model: Model) -> None:
    """Raise `ProtocolError` unless a message holds a full copy of a model's public parameters, within their bounds."""
    accumulator = message.accumulator
    check_public(message.parameters, model)
    if accumulator is None or accumulator.shape != (model.size,):
        raise ProtocolError("the public parameters received do not have the size of this model's")
    signed = model.solved is not None  # its last step, instead of sums of squares
    if not ((signed or accumulator.min() >= 0) and np.isfinite(accumulator).all()):
        raise _refused("the optimiser's sums of squares are negative or not finite")


def check_public(parameters: NDArray[Any] | None, model: Model) -> None:
    """Raise `ProtocolError` unless flat public parameters have the model's size and keep its bound.

    The sensitivity of preset private assumes user embeddings within `model.bound`. Without a bound there is no such promise, and
    `LARGEST_PARAMETER` only keeps the arithmetic finite.
    """
    if parameters is None or parameters.shape != (model.size,):
        raise ProtocolError("the public parameters received do not have the size of this model's")
    if not (parameters.max() <= LARGEST_PARAMETER and parameters.min() >= -LARGEST_PARAMETER):
        raise _refused(f"public parameters are not finite or beyond {LARGEST_PARAMETER:,.0f}")
    bound = model.config.bound
    if bound is not None:
        rows = parameters[: model.users * model.config.dim].reshape(model.users, model.config.dim)
        parts = (rows[at : at + _ROWS].astype(np.float64) for at in range(0, model.users, _ROWS))
        longest = max(float(np.linalg.norm(part, axis=1).max()) for part in parts)
        if longest > bound * (1 + ROUNDING):
            raise _refused(f"user embeddings have a norm of {longest:.3g}, beyond the agreed bound {bound:g}")


def _refused(problem: str) -> ProtocolError:
    return ProtocolError(
        f"the coordinator's parameters are refused: {problem}; rejoin once the coordinator sends those of the training"
    )


def reply_problem(reply: RoundReply, start: RoundStart, replica: Replica, *, active: bool) -> str | None:
    """Return why a reply of a party, which is `active` or not, does not fit its RoundStart; None if it does."""
    if reply.place != start.place:
        return f"it replies to round {reply.round}, but round {start.round} is open"
    config, protection = replica.config, replica.protection
    gradient, shared = reply.gradient, reply.neighbourhoods
    if (gradient is not None) != active or (shared is not None) != (active and config.exchange.sends):
        return "its reply does not hold what was asked for"
    if gradient is not None:
        if gradient.shape != (replica.model.size,) or gradient.dtype != protection.sent_type:
            return f"it sent a gradient of shape {gradient.shape} and type {gradient.dtype}"
        # Checked here, where it is known whose gradient it is; a sum would not tell.
        if not config.masking and not protection.fits(gradient, 1):
            return "it sent a gradient with values that are not ternary"
    if shared is not None:
        shape, kind = shared.shape, shared.dtype
        if shape != neighbourhood_shape(config, replica.model) or kind != neighbourhood_type(config):
            return f"it sent neighbourhoods of shape {shape} and type {kind}"
    if start.evaluate:
        if reply.error is None or reply.count is None:
            return "its reply holds no validation error"
        if reply.digest != replica.digest():
            return "its public parameters differ from the coordinator's; it must rejoin"
    return None
