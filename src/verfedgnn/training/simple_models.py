"""Models that a party can fit on its own data without training a GNN: means for ratings, popularity and EASE for lists."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.core.item_item import fit_item_scores
from verfedgnn.core.list_metrics import rank_each
from verfedgnn.core.pairs import Pairs, PartyInput
from verfedgnn.core.rating_means import Means, fit_means
from verfedgnn.core.rating_scale import upper_quarter
from verfedgnn.runs.party_model import PartyModel

EASE_DAMPINGS = (10.0, 50.0, 200.0, 1000.0)
"""Values of EASE's lambda that are tried on the validation part."""


def fit_party_means(data: PartyInput) -> Means:
    """Fit a party's own user and item means."""
    return fit_means(data.train, data.valid, data.users, data.items, data.scale)


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


def ease_model(data: PartyInput) -> PartyModel:
    """Fit EASE on the party's own training ratings; choose lambda by NDCG@20 on the validation part."""
    wanted = liked(data.valid, data.scale)
    nothing = torch.zeros((data.users, 0), device=data.train.user.device)
    best: tuple[float, PartyModel] | None = None
    for damping in EASE_DAMPINGS:
        scores = fit_item_scores(data.train, data.users, data.items, damping)
        model = PartyModel(
            nothing, nothing.new_zeros((data.items, 0)), nothing.new_zeros((data.items, 0)), scores
        )
        found = rank_each(model.score, data.users, data.items, [data.train], wanted)
        quality = float(found.ndcg.mean()) if len(found.ndcg) else 0.0
        if best is None or quality > best[0]:
            best = (quality, model)
    assert best is not None
    return best[1]


def liked(pairs: Pairs, scale: tuple[float, float]) -> Pairs:
    """Return the pairs whose rating is in the upper quarter of the scale."""
    return pairs.take(pairs.rating >= upper_quarter(scale))


def training_counts(data: PartyInput) -> Tensor:
    """Return the number of training ratings of each user at the party (N,)."""
    return torch.bincount(data.train.user.long(), minlength=data.users)
