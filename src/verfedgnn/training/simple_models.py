"""Models that a party can fit on its own data without training a GNN: means for ratings, popularity for lists, and EASE for both."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.core.item_item import ItemScores, fit_item_scores, fit_residuals
from verfedgnn.core.metrics import rank_each
from verfedgnn.core.pairs import Choices, Pairs, PartyInput, scale_unit, upper_quarter
from verfedgnn.core.rating_means import Means, fit_means
from verfedgnn.runs.party_model import PartyModel

EASE_DAMPINGS = (10.0, 50.0, 200.0, 1000.0)
"""Values of EASE's lambda that are tried for lists."""
RESIDUAL_DAMPINGS = (10.0, 30.0, 100.0, 300.0)
"""Values of EASE's lambda that are tried for ratings, in units of the squared scale."""


def fit_party_means(data: PartyInput, choices: Choices | None = None) -> Means:
    """Fit a party's own user and item means."""
    return fit_means(data.train, data.valid, data.users, data.items, data.scale, choices)


def means_model(means: Means, user_offset: NDArray[np.float64], device: torch.device) -> PartyModel:
    """Return mu + b_v + b_u as a model: the vectors (b_u, 1) and (1, mu + b_v)."""
    user = torch.from_numpy(user_offset.astype(np.float32)).to(device)
    item = torch.from_numpy((means.mean + means.item_offset).astype(np.float32)).to(device)
    users = torch.stack([user, torch.ones_like(user)], 1)
    items = torch.stack([torch.ones_like(item), item], 1)
    return PartyModel(users, items, items[:, :0])


def popularity_model(data: PartyInput) -> PartyModel:
    """Return a model that scores each item by the logarithm of its number of training ratings, the same for all users."""
    count = torch.bincount(data.train.item.long(), minlength=data.items).float()
    items = torch.log1p(count).unsqueeze(1)
    return PartyModel(torch.ones((data.users, 1), device=items.device), items, items[:, :0])


def ease_model(data: PartyInput, choices: Choices) -> PartyModel:
    """Fit EASE on the party's own training ratings; choose lambda by NDCG@20 on the validation part."""
    wanted = liked(data.valid, data.scale)
    without = model_without_items(data)

    def error(scores: ItemScores) -> float:
        model = replace(without, item_scores=scores)
        found = rank_each(model.score, data.users, data.items, [data.train], wanted, sample=True)
        return -float(found.ndcg.mean()) if len(found.ndcg) else 0.0

    scores = fit_item_scores(data.train, data.users, data.items, EASE_DAMPINGS, error, choices)
    return replace(without, item_scores=scores)


def residual_model(data: PartyInput, means: PartyModel, choices: Choices) -> PartyModel:
    """Return `means` with EASE on what they leave of the training ratings; choose lambda by RMSE on the validation part."""
    left = replace(data.train, rating=(data.train.rating - means.predict(data.train)).float())

    def add(vectors: tuple[Tensor, Tensor]) -> PartyModel:
        users, items = (
            torch.cat(parts, 1) for parts in zip((means.users, means.items), vectors, strict=True)
        )
        return replace(means, users=users, items=items)

    def error(vectors: tuple[Tensor, Tensor]) -> float:
        predicted = add(vectors).predict(data.valid).clamp(*data.scale)
        return float((predicted - data.valid.rating).square().sum())

    dampings = [damping * scale_unit(data.scale) ** 2 for damping in RESIDUAL_DAMPINGS]
    return add(fit_residuals(left, data.users, data.items, dampings, error, choices))


def model_without_items(data: PartyInput) -> PartyModel:
    """Return a model that knows nothing: vectors without numbers."""
    nothing = torch.zeros((data.users, 0), device=data.train.user.device)
    return PartyModel(nothing, nothing.new_zeros((data.items, 0)), nothing.new_zeros((data.items, 0)))


def liked(pairs: Pairs, scale: tuple[float, float]) -> Pairs:
    """Return the pairs whose rating is in the upper quarter of the scale."""
    return pairs.take(pairs.rating >= upper_quarter(scale))


def training_counts(data: PartyInput) -> Tensor:
    """Return the number of training ratings of each user at the party (N,)."""
    return torch.bincount(data.train.user.long(), minlength=data.users)
