"""What the served models know about one user at each party, whether trained or folded in, and the queries that follow from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.serving.catalogue import FEDERATED, Catalogue
from verfedgnn.serving.fold_in import UserRatings, fold_in
from verfedgnn.serving.item_weights import Rows
from verfedgnn.serving.ranker import NO_ITEMS, ItemRanker, RankingQuery

ScoredItem = tuple[int, int, float]
"""Party, row of the item, and unclipped score."""


@dataclass(frozen=True)
class UserAtParty:
    """One user as the models of one party see them."""

    vector: Tensor
    """Vector in the model that orders lists (C,)."""
    owned: Rows
    """Rows of the items that score others through the item weights."""
    rated: Rows
    """Rows of the rated items, which are not recommended."""
    rating_vector: NDArray[np.float32] | None
    """Vector in the model that predicts ratings, if that is another model."""


UserProfile = Mapping[int, UserAtParty]
"""A user by number of the party."""


def profile_user(catalogue: Catalogue, model: str, user: int, parties: Sequence[int]) -> UserProfile:
    """Return the profile of a user who was in training."""
    separate = catalogue.ranks and catalogue.predicts
    profile = {}
    for p in parties:
        ranker = catalogue.rankers[model][p]
        profile[p] = UserAtParty(
            ranker.model.users[user],
            ranker.find_owned(user),
            catalogue.parties[p].find_rated_items(user),
            catalogue.rating_models[model][p].users[user].numpy() if separate else None,
        )
    return profile


def profile_newcomer(
    catalogue: Catalogue, rated: Sequence[UserRatings], parties: Sequence[int]
) -> UserProfile:
    """Return the profile of a user who was not in training, folded in from their own ratings."""
    priors = catalogue.priors[FEDERATED]
    z = fold_in(priors, rated, ranks=catalogue.ranks).z
    separate = catalogue.ranks and catalogue.predicts
    taste = fold_in(catalogue.rating_priors, rated, ranks=False).z if separate else None
    items = {own.party: own.items for own in rated}
    profile = {}
    for p in parties:
        own = items.get(p, NO_ITEMS)
        vector = None if taste is None else catalogue.rating_priors[p].make_vector(taste).numpy()
        profile[p] = UserAtParty(priors[p].make_vector(z), own, own, vector)
    return profile


def make_queries(
    catalogue: Catalogue, model: str, profile: UserProfile, k: int, filters: Mapping[str, str]
) -> list[tuple[ItemRanker, RankingQuery]]:
    """Return the queries for a user's recommendations, one per party of the profile."""
    return [
        (
            catalogue.rankers[model][p],
            RankingQuery(own.vector, k, own.rated, catalogue.parties[p].filter_items(filters), own.owned),
        )
        for p, own in profile.items()
    ]


def predict_ratings(
    catalogue: Catalogue, model: str, profile: UserProfile, items: Sequence[ScoredItem]
) -> list[float | None]:
    """Return the predicted rating of each item, within its party's scale; None if the run predicts no ratings."""
    predicted: list[float | None] = [None] * len(items)
    if not catalogue.predicts:
        return predicted
    places: dict[int, list[int]] = {}
    for place, (p, _, _) in enumerate(items):
        places.setdefault(p, []).append(place)
    for p, here in places.items():
        vector = profile[p].rating_vector
        if vector is None:  # lists are ordered by the predicted rating itself
            values = np.array([items[place][2] for place in here])
        else:
            vectors = catalogue.rating_models[model][p].items.numpy()
            values = vectors[[items[place][1] for place in here]] @ vector
        low, high = catalogue.parties[p].table.scale
        for place, value in zip(here, values.clip(low, high).tolist(), strict=True):
            predicted[place] = value
    return predicted
