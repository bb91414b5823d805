r"""What comes back to a party with a RoundStart: updates of the public parameters, sums of neighbourhoods, the others' gradients.

The backward exchange reads the others' gradients out of the updates, so that an item also learns from the other parties' losses and
nothing more is sent:

.. math::
    \frac{\partial L}{\partial y_v} = \sum_{u \in N_p(v)} \frac{\partial n_u}{\partial y_v} G_u, \qquad
    G_u = \sum_{i \neq p} \frac{\partial L_i}{\partial n_u}
        = \sum_{i \neq p} \frac{\partial L_i}{\partial e_u} \quad \text{where } h_u = e_u + n_u

With messages, h_u is e_u plus the neighbourhood. So the gradient with respect to the neighbourhood equals that of the user embedding,
and every party receives its protected sum as the update of the round. It is one round old. For GGNN, which has a gate in between, it
is an approximation; it also contains the regulariser of e_u.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.core.errors import ProtocolError
from verfedgnn.privacy.gradient_protection import invert_rescale
from verfedgnn.protocol.party.exchange_state import (
    ExchangeState,
    ReceivedNeighbourhoods,
    SentNeighbourhoods,
    UserGradient,
)
from verfedgnn.protocol.round.aggregation import neighbourhood_shape
from verfedgnn.protocol.round.mask_context import sum_digest
from verfedgnn.protocol.round.replica import Replica, participation_scale
from verfedgnn.protocol.round.user_blocks import UserBlock, UserBlocks
from verfedgnn.protocol.wire.fixed_point import from_fixed, wrap_signed
from verfedgnn.protocol.wire.messages import RoundStart, copied_state


@dataclass(frozen=True)
class ReceivedUpdate:
    """A round's sum of protected gradients, as a party receives it."""

    round: int
    parties: list[int]
    """Indices of the parties whose gradients the sum includes; empty if the round was abandoned."""
    total: NDArray[Any]
    start: NDArray[Any] | None = None
    """Biases that the users of the round start with, in fixed point; None if the round is not their first."""


def split_updates(message: RoundStart, blocks: UserBlocks) -> list[ReceivedUpdate]:
    """Split the updates of a message by round."""
    groups = message.update_parties
    rounds = range(message.updates_from, message.updates_from + len(groups))
    sizes = [blocks.in_round(n).model.size if group else 0 for n, group in zip(rounds, groups, strict=True)]
    updates = np.zeros(0, np.int8) if message.updates is None else message.updates
    totals = np.split(updates, np.cumsum(sizes)[:-1])
    starts = split_starts(message, blocks)
    return [
        ReceivedUpdate(n, group, total, starts.get(n))
        for n, group, total in zip(
            rounds, groups, totals, strict=False
        )  # without updates, there is one empty total
    ]


def split_starts(message: RoundStart, blocks: UserBlocks) -> dict[int, NDArray[Any]]:
    """Split the users' first biases of a message by round."""
    if message.starts is None:
        return {}
    sizes = [blocks.in_round(n).model.users for n in message.start_rounds]
    return dict(zip(message.start_rounds, np.split(message.starts, np.cumsum(sizes)[:-1]), strict=True))


def update_replica(replica: Replica, message: RoundStart) -> None:
    """Bring the public parameters to the start of the message's round; raise `ProtocolError` if that is not possible."""
    if message.parameters is not None and message.accumulator is not None:
        if replica.round < message.round - 1:
            replica.load(copied_state(message), message.round - 1)
    else:
        for update in split_updates(message, replica.blocks):
            if update.round > replica.round + 1:
                break
            if not update.parties:
                replica.skip(update.round)
                continue
            total = torch.from_numpy(update.total).to(replica.parameters.device)
            replica.apply(total, update.parties, update.round, update.start)
    if replica.round != message.round - 1:
        raise ProtocolError(
            f"the coordinator starts round {message.round}, but the public parameters here are of round "
            f"{replica.round}; rejoin to get a full copy"
        )


# -- neighbourhoods ------------------------------------------------------------------------------------------


def receive_neighbourhoods(
    message: RoundStart, exchange: ExchangeState, replica: Replica, index: int
) -> None:
    """Take the sum of neighbourhoods out of a message that has one; `index` is this party's place."""
    block = replica.blocks.in_round(message.round)
    exchange.forget_sum(block.index, message.round, message.trip)
    if message.neighbourhoods is None:
        return
    exchange.received[block.index] = read_neighbourhoods(
        message,
        index,
        replica,
        own=exchange.sent.get(block.index),
        last=exchange.received.get(block.index),
    )


def read_neighbourhoods(
    message: RoundStart,
    index: int,
    replica: Replica,
    *,
    own: SentNeighbourhoods | None,
    last: ReceivedNeighbourhoods | None,
) -> ReceivedNeighbourhoods:
    """Return the others' share of a sum of neighbourhoods, scaled to all other parties (Sec. 4.6).

    `own` is what this party sent into the sum, `last` the sum it received before.
    """
    config = replica.config
    total = message.neighbourhoods
    assert total is not None
    # Masks depend on this hash, so those of parties that received different sums do not cancel.
    values = total if config.masking else None
    trip = message.neighbourhood_trip
    digest = sum_digest(message.neighbourhood_parties, trip, values, replica.workers)
    if last is not None and last.digest == digest:
        return last
    if index in message.neighbourhood_parties:
        if own is None or own.trip != message.neighbourhood_trip:
            # The party lost what it sent into this sum. Its last estimate serves until the next sum.
            return ReceivedNeighbourhoods(digest, trip, None if last is None else last.others)
        total = wrap_signed(total - own.values, config.exchange.bits)
    scale = participation_scale(replica.items, message.neighbourhood_parties, index)
    rest = torch.from_numpy(total).to(replica.parameters.device)
    return ReceivedNeighbourhoods(digest, trip, from_fixed(rest, config.exchange.bits).mul_(scale))


def others_of_block(exchange: ExchangeState, replica: Replica, block: UserBlock) -> Tensor | None:
    """Return the estimated sum of the others' neighbourhoods (K, q, C) of a block, or of all users; None if nothing is known."""
    blocks = replica.blocks.blocks
    if len(blocks) == 1 or not block.covers_all:
        return exchange.others(block.index)
    known = [exchange.others(each.index) for each in blocks]
    if all(others is None for others in known):
        return None
    device = replica.parameters.device
    shapes = [neighbourhood_shape(replica.config, each) for each in blocks]
    return torch.cat(
        [
            torch.zeros(shape, device=device) if others is None else others
            for others, shape in zip(known, shapes, strict=True)
        ],
        1,
    )


# -- the backward exchange -----------------------------------------------------------------------------------


def receive_pull(message: RoundStart, exchange: ExchangeState, replica: Replica, index: int) -> Tensor | None:
    """Return G (N, D) for the message's users, out of the last update of the same users; None if it is not known."""
    blocks = replica.blocks
    updates = [update for update in split_updates(message, blocks) if update.parties]
    newest = {blocks.in_round(update.round).index: update for update in updates}
    for block, update in newest.items():
        total = torch.from_numpy(update.total).to(replica.parameters.device)
        own = exchange.released.get(block)
        found = others_gradient(total, update.parties, index, own, replica, update.round)
        exchange.pulls.pop(block, None)
        if found is not None:
            exchange.pulls[block] = UserGradient(update.round, found)
    pull = exchange.pulls.get(blocks.in_round(message.round).index)
    return None if pull is None or pull.round != blocks.previous_turn(message.round) else pull.values


def others_gradient(
    total: Tensor,
    parties: Sequence[int],
    index: int,
    own: UserGradient | None,
    replica: Replica,
    round: int,
) -> Tensor | None:
    """Return G (N, D) from the summed protected gradients of `parties` in `round`, scaled to all other parties.

    None if the sum includes this party's own share and that share is no longer known.
    """
    model = replica.blocks.in_round(round).model
    values = total[: model.user_size]
    if index in parties:
        if own is None or own.round != round:
            return None
        values = values - own.values
    scale = participation_scale(replica.items, parties, index)
    rows = values[: model.users * model.config.dim].view(model.users, model.config.dim)
    return rows.to(torch.float32) * invert_rescale(replica.config.gradients, replica.rescale, scale).users
