r"""Re-estimate a party's items at home, around the users of a model that was trained with noise.

Under preset private, the public users x_u carry noise, and few rounds leave the items behind them. A party fits its items to its
own training ratings by ridge regression around their trained values:

.. math::
    w_v = \arg\min_w \sum_{u \in N(v)} (r_{uv} - x_u \cdot w)^2 + \sum_c \lambda_c (w_c - w^0_{vc})^2

:math:`\lambda_c` is :math:`\lambda` times the variance of column c of x over the ratings, and :math:`\kappa` for a constant column
(the item's bias). The party chooses :math:`\lambda` and :math:`\kappa` on its own validation part. Nothing of this leaves the
party, so it costs no privacy budget.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import torch
from torch import Tensor

from verfedgnn.core.metrics import measure_errors
from verfedgnn.core.pairs import Choices, PartyInput
from verfedgnn.runs.party_model import PartyModel

STRENGTHS = (10.0, 30.0, 100.0, 300.0, 1000.0)
"""Values of lambda that are tried on the validation part."""
BIAS_DAMPINGS = (1.0, 4.0, 16.0)
"""Values of kappa that are tried on the validation part."""

_CHUNK = 1 << 18
"""Ratings whose products of columns are held in memory at a time."""


def refit_items(model: PartyModel, data: PartyInput, choices: Choices) -> PartyModel:
    """Return `model` with the items that predict the party's validation part best, re-estimated or as trained."""
    varies = model.items.var(0, unbiased=False) > 0  # the columns that differ between items
    if not len(data.train) or not varies.any() or not (choices.repeats or len(data.valid)):
        return model
    users = model.users.double()
    trained = model.items.double()
    squares, moments = _sums(users, trained, data)
    squares = squares[:, varies][:, :, varies]
    spread = users[data.train.user.long()][:, varies].var(0, unbiased=False)

    def refit(option: tuple[float, float] | None) -> PartyModel:
        if option is None:
            return model
        strength, damping = option
        penalty = torch.where(spread > 0, strength * spread, damping)
        items = trained.clone()
        items[:, varies] += torch.linalg.solve(squares + torch.diag(penalty), moments[:, varies])
        return replace(model, items=items.to(model.items))

    options = [None, *product(STRENGTHS, BIAS_DAMPINGS)]
    return refit(choices.choose("items", options, lambda option: _validation_error(refit(option), data)))


def _sums(users: Tensor, items: Tensor, data: PartyInput) -> tuple[Tensor, Tensor]:
    """Return, for each item, the sums of x_u x_u^T (M, C, C) and of x_u times the error of the trained items (M, C)."""
    columns = users.shape[1]
    squares = users.new_zeros((data.items, columns * columns))
    moments = users.new_zeros((data.items, columns))
    for start in range(0, len(data.train), _CHUNK):
        rows = torch.arange(start, min(start + _CHUNK, len(data.train)), device=users.device)
        pairs = data.train.take(rows)
        item = pairs.item.long()
        x = users[pairs.user.long()]
        error = pairs.rating.double() - (x * items[item]).sum(1)
        squares.index_add_(0, item, (x.unsqueeze(2) * x.unsqueeze(1)).flatten(1))
        moments.index_add_(0, item, x * error.unsqueeze(1))
    return squares.view(-1, columns, columns), moments


def _validation_error(model: PartyModel, data: PartyInput) -> float:
    found = measure_errors(model.users, model.items, data.valid, data.scale)
    assert found.rmse is not None, "there are validation ratings"
    return found.rmse
