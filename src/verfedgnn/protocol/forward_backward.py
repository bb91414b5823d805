r"""The forward and backward pass of one round: reconstruct, propagate, loss, gradients, project (Algorithm 1, client side).

.. math::
    L_p = \sum_{(u, v)} (h_u \cdot h_v - r_{uv})^2 + \lambda |e_v|^2 + \lambda_b b_v^2

The regularisers of public parameters are part of the public step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.config.sections import TrainingConfig
from verfedgnn.core.errors import DivergedError
from verfedgnn.core.graph import Graph
from verfedgnn.core.pairs import Pairs
from verfedgnn.gnn.model import Model
from verfedgnn.privacy.projection import NO_EXCHANGE, Exchange, make_exchange


@dataclass(frozen=True)
class Batch:
    """Training pairs of one party in one round."""

    pairs: Pairs
    share: float = 1.0
    """Share of the party's training pairs that the batch holds."""
    edges: bool = False
    """Whether the pairs are exactly the edges of the party's graph, ordered by user and then item."""


@dataclass(frozen=True)
class PassResult:
    """The results of a forward and backward pass."""

    users: Tensor
    """h_u (N, D); with biases (N, D + 2)."""
    items: Tensor
    """h_v (M_p, D); with biases (M_p, D + 2)."""
    neighbourhoods: Tensor | None
    """Projected neighbourhoods of the party's own items (K, q, C); None without an exchange."""
    public_gradient: Tensor
    """Flat gradient of the party's loss with respect to all public parameters; empty without a batch."""
    private_gradients: dict[str, Tensor]
    """Gradients of the party's loss with respect to its private parameters; empty without a batch."""


def compute(
    model: Model,
    graph: Graph,
    public: Tensor,
    private: Mapping[str, Tensor],
    training: TrainingConfig,
    *,
    exchange: Exchange = NO_EXCHANGE,
    others: Tensor | None = None,
    batch: Batch | None = None,
) -> PassResult:
    """Run one forward and, with a `batch`, backward pass.

    `public` are all public parameters, flat, and `private` the party's own by name. `others` is the estimated sum of the other
    parties' projected neighbourhoods (K, q, C); None if none is known.
    """
    train = batch is not None
    given = model.views(public) | dict(private)
    leaves = {name: value.detach().requires_grad_(train) for name, value in given.items()}
    received = exchange.receive(others)
    with torch.set_grad_enabled(train):
        out = model.propagate(leaves, leaves, graph, received)
    gradients: dict[str, Tensor] = {}
    if batch is not None:
        pairs = batch.pairs
        product = graph.products(out.users, out.items) if batch.edges else out.predict(pairs.user, pairs.item)
        loss = squared_error(product - pairs.rating, training.error_clip) + penalty(leaves, batch, training)
        slopes = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
        gradients = dict(zip(leaves, slopes, strict=True))
    return PassResult(
        users=out.users.detach(),
        items=out.items.detach(),
        neighbourhoods=exchange.send(out.neighbourhoods),
        public_gradient=model.flat(gradients) if train else torch.zeros(0),
        private_gradients={name: gradients[name] for name in private} if train else {},
    )


def squared_error(error: Tensor, clip: float | None) -> Tensor:
    """Return squared errors, summed; beyond a clip c, 2 c |e| - c^2, whose slope is that of the clipped error."""
    if clip is None:
        return error.square().sum()
    return 2 * torch.nn.functional.huber_loss(error, torch.zeros_like(error), reduction="sum", delta=clip)


def penalty(leaves: Mapping[str, Tensor], batch: Batch, training: TrainingConfig) -> Tensor:
    """Return the regulariser of private parameters per row, which a model with biases has."""
    total = leaves["users"].new_zeros(())
    if "item_bias" in leaves:
        for name, weight in {"items": training.l2, "item_bias": training.l2_bias}.items():
            total = total + weight * (batch.share * leaves[name].square()).sum()
    return total


# -- neighbourhoods on the wire --------------------------------------------------------------------------------


FRACTION_BITS = {torch.int32: 20, torch.int64: 32}
"""Fractional bits of a fixed-point number, by its type. Sums may reach +-2048, or +-2 billion."""


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


def to_fixed(values: Tensor, parties: int, bits: int = 32) -> Tensor:
    """Convert real numbers to multiples of 2^-20 (32 bits) or 2^-32 (64), with room for `parties` of them.

    Sums of integers are exact in any order and can be masked, and a recipient subtracts its own share of a sum without rounding. A
    value out of range raises `DivergedError`.
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
