r"""The loss that a party minimises: the error of its batch (eq. 5) or a ranking loss, plus regularisers.

.. math::
    L_p = \sum_{(u, v)} (h_u \cdot h_v - r_{uv})^2
        + \lambda (|e_u|^2 + |e_v|^2) + \lambda_y |y_v|^2 + \ldots

A regulariser "per rating" weighs a parameter by the number of the party's training ratings that use it. Only the party knows that
number, so the term is part of the protected gradient, not of the public step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from verfedgnn.config.sections import TrainingConfig
from verfedgnn.core.graph import Graph, pad_items
from verfedgnn.core.pairs import Pairs
from verfedgnn.gnn.model import Propagation


@dataclass(frozen=True)
class Batch:
    """Training pairs of one party in one round."""

    pairs: Pairs
    users: int
    items: int
    share: float = 1.0
    """Share of the party's training pairs that the batch holds."""
    candidates: Tensor | None = None
    """Rows of the items that a ranking loss compares with; None for all items."""
    edges: bool = False
    """Whether the pairs are exactly the edges of the party's graph, ordered by user and then item."""
    read: Tensor | None = None
    """For each read (rows), 1 for each pair that the second model reads, 0 for each that it predicts; None without a second model."""

    @cached_property
    def counts(self) -> tuple[Tensor, Tensor]:
        """Number of pairs of each user (N, 1) and of each item (M_p, 1)."""
        rows = ((self.pairs.user, self.users), (self.pairs.item, self.items))
        user, item = (
            torch.bincount(row, minlength=size).to(torch.float32).unsqueeze(1) for row, size in rows
        )
        return user, item


def data_loss(
    out: Propagation, batches: Sequence[Batch | None], graph: Graph, training: TrainingConfig
) -> Tensor:
    """Return the summed error of a stack's batches; a batch is None for a party that does not train."""
    if training.ranks:
        return _ranking_loss(out, batches)
    if all(batch is not None and batch.edges for batch in batches):
        rating = torch.cat([batch.pairs.rating for batch in batches if batch is not None])
        loss = _squared(graph.products(out.users, out.items) - rating, training.error_clip)
        return loss + _rater_loss(out.raters, batches, graph, rating, training) if out.raters else loss
    user, item, rating = _flatten(batches, graph)
    return _squared(out.predict(user, item) - rating, training.error_clip)


def _rater_loss(
    raters: Sequence[tuple[Tensor, Tensor]],
    batches: Sequence[Batch | None],
    graph: Graph,
    rating: Tensor,
    training: TrainingConfig,
) -> Tensor:
    """Return the error of the second model on the pairs that it has not read, scaled to all pairs; the average over its reads."""
    reads = torch.cat([batch.read for batch in batches if batch is not None and batch.read is not None], 1)
    losses = [
        _squared((graph.products(*vectors) - rating) * (1 - read), training.error_clip)
        for vectors, read in zip(raters, reads, strict=True)
    ]
    return torch.stack(losses).mean() / (1 - training.read)


def _squared(error: Tensor, clip: float | None) -> Tensor:
    """Return the sum of squared errors; beyond a clip c, 2 c |e| - c^2, whose slope is that of the clipped error."""
    if clip is None:
        return error.square().sum()
    return 2 * torch.nn.functional.huber_loss(error, torch.zeros_like(error), reduction="sum", delta=clip)


def _ranking_loss(out: Propagation, batches: Sequence[Batch | None]) -> Tensor:
    """Return the softmax loss over a party's catalogue, - sum log ( exp s_uv / sum_v' exp s_uv' ) over liked pairs.

    With a sample C of the M_p items, (M_p / |C|) times the sum over C, plus the liked item, estimates the inner sum.
    """
    losses = []
    for p, batch in enumerate(batches):
        if batch is None:
            continue
        pairs, candidates = batch.pairs, batch.candidates
        users, items = out.users[p], out.items[p, : batch.items]
        liked = (users.index_select(0, pairs.user) * items.index_select(0, pairs.item)).sum(-1)
        compared = items if candidates is None else items.index_select(0, candidates)
        everything = torch.logsumexp(users @ compared.T, 1).index_select(0, pairs.user)
        if candidates is not None:
            everything = torch.logaddexp(everything + math.log(batch.items / len(candidates)), liked)
        losses.append((everything - liked).sum())
    return torch.stack(losses).sum()


def penalty(
    leaves: Mapping[str, Tensor], batches: Sequence[Batch | None], graph: Graph, training: TrainingConfig
) -> Tensor:
    """Return the regularisers per rating, and per row of private parameters.

    Regularisers per row of public parameters are part of the public step. Workers that share the users have the same items; only
    the first worker counts rows of items.
    """
    total = leaves["users"].new_zeros(())
    per_rating = {
        "users": training.l2_rating,
        "items": training.l2_rating,
        "messages": training.l2_messages,
        "rater_users": training.l2_rating,
        "own_users": training.l2_residual,
        "own_user_bias": training.l2_residual,
    }
    if any(weight and name in leaves for name, weight in per_rating.items()):
        none = leaves["users"].new_zeros((0, 1))
        by_user = pad_items([none if batch is None else batch.counts[0] for batch in batches], graph.users)
        by_item = pad_items([none if batch is None else batch.counts[1] for batch in batches], graph.items)
        counts = {"items": by_item, "messages": by_item}
        for name, weight in per_rating.items():
            if weight and name in leaves:
                total = total + weight * (counts.get(name, by_user) * leaves[name].square()).sum()
    shares = [0.0 if batch is None else batch.share for batch in batches]
    share = leaves["users"].new_tensor(shares).view(-1, 1, 1)
    per_row = {
        "items": training.l2_row,
        "messages": training.l2_row,
        "own_users": training.l2_row,
        "item_bias": training.l2_item_bias,
        "rater_item_bias": training.l2_item_bias,
        "own_user_bias": training.l2_user_bias,
    }
    own = (
        ()
        if graph.workers is None or graph.workers.is_first
        else ("items", "messages", "item_bias", "rater_item_bias")
    )
    for name, weight in per_row.items():
        if weight and name in leaves and name not in own:
            total = total + weight * (share * leaves[name].square()).sum()
    return total


def _flatten(batches: Sequence[Batch | None], graph: Graph) -> tuple[Tensor, Tensor, Tensor]:
    """Concatenate all batches, as rows of the stacked users and items."""
    present = [(p, batch.pairs) for p, batch in enumerate(batches) if batch is not None]
    return (
        torch.cat([pairs.user + p * graph.users for p, pairs in present]),
        torch.cat([pairs.item + p * graph.items for p, pairs in present]),
        torch.cat([pairs.rating for _, pairs in present]),
    )
