"""The list of one user: what the models know about the user at each party, the queries that follow from it, and one merged list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.runs.merged_order import place_in_scale, weigh_parties
from verfedgnn.serving.catalogue import Catalogue
from verfedgnn.serving.fold_in import UserRatings, fold_in_at, merge_ratings
from verfedgnn.serving.ranker import NO_ITEMS, ItemRanker, RankedItems, RankingQuery, Rows
from verfedgnn.serving.split_test import FEDERATED, ModelName

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
    likes: int
    """Number of items at the party that the user likes."""
    rating_vector: NDArray[np.float32] | None
    """Vector in the model that predicts ratings, if that is another model."""


UserProfile = Mapping[int, UserAtParty]
"""A user by number of the party."""


@dataclass(frozen=True)
class ServedUser:
    """A user of the run, a newcomer, or a user of the run who has rated more since."""

    row: int | None
    """Row of the user in the run; None for a newcomer."""
    newer: Sequence[UserRatings] = ()
    """Ratings that training did not use."""


def all_ratings(
    catalogue: Catalogue, user: ServedUser, parties: Sequence[int], *, training: bool = False
) -> list[UserRatings]:
    """Return the ratings of a user at these parties, newer ones included; with `training`, those that lists follow from."""
    known = [] if user.row is None else catalogue.find_ratings(user.row, parties, training=training)
    return merge_ratings(known, [own for own in user.newer if own.party in parties])


def profile_user(
    catalogue: Catalogue, model: ModelName, user: ServedUser, parties: Sequence[int]
) -> UserProfile:
    """Return the profile of a user: trained, folded in, or trained and moved by newer ratings."""
    vectors = _place_user(catalogue, model, user, parties)
    ratings: Mapping[int, Tensor | None] = dict.fromkeys(parties)
    if catalogue.ranks and catalogue.predicts:
        ratings = _place_user(catalogue, model, user, parties, predicts=True)
    newer = {own.party: own.items for own in user.newer}
    profile = {}
    for p in parties:
        served = catalogue.parties[p]
        owned = rated = newer.get(p, NO_ITEMS)
        if user.row is not None:
            owned = catalogue.rankers[model][p].find_owned(user.row)
            rated = served.find_ratings(user.row)[0]
            if p in newer:
                owned, rated = np.union1d(owned, newer[p]), np.union1d(rated, newer[p])
        if user.row is not None and not user.newer:
            likes = int(served.likes[user.row])
        else:
            found = all_ratings(catalogue, user, [p])
            likes = sum(int((own.ratings >= served.liked_from).sum()) for own in found)
        vector = ratings[p]
        profile[p] = UserAtParty(vectors[p], owned, rated, likes, None if vector is None else vector.numpy())
    return profile


def _place_user(
    catalogue: Catalogue,
    model: ModelName,
    user: ServedUser,
    parties: Sequence[int],
    *,
    predicts: bool = False,
) -> dict[int, Tensor]:
    r"""Return the user's vector at each party, in the models that order lists or that predict ratings.

    A newcomer is folded in. The trained vector of a user with newer ratings moves by as much as the folded-in position does:
    :math:`x_u + L (z_\mathrm{new} - z_\mathrm{old})`. So it keeps what training learnt from others.
    """
    models = (catalogue.rating_models if predicts else catalogue.list_models)[model]
    if user.row is not None and not user.newer:
        return {p: models[p].users[user.row] for p in parties}
    priors = (catalogue.rating_priors if predicts else catalogue.priors)[model]
    everywhere = range(len(catalogue.parties))
    how = {"ranks": catalogue.ranks and not predicts, "joint": model == FEDERATED}
    now = fold_in_at(priors, all_ratings(catalogue, user, everywhere, training=True), parties, **how)
    if user.row is None:
        return {p: priors[p].make_vector(now[p].z) for p in parties}
    trained = catalogue.find_ratings(user.row, everywhere, training=True)
    before = fold_in_at(priors, trained, parties, **how)
    moved = {p: priors[p].factor @ (now[p].z - before[p].z) for p in parties}
    return {p: models[p].users[user.row] + torch.from_numpy(moved[p].astype(np.float32)) for p in parties}


def make_queries(
    catalogue: Catalogue, model: ModelName, profile: UserProfile, k: int, filters: Mapping[str, str]
) -> list[tuple[ItemRanker, RankingQuery]]:
    """Return the queries for a user's recommendations, one per party of the profile."""
    queries = []
    for p, own in profile.items():
        allowed = catalogue.parties[p].filter_items(filters)
        query = RankingQuery(own.vector, k, own.rated, allowed, own.owned)
        queries.append((catalogue.rankers[model][p], query))
    return queries


def merge_rankings(
    catalogue: Catalogue, profile: UserProfile, ranked: Sequence[RankedItems], k: int
) -> list[ScoredItem]:
    """Return the k best items of the rankings of several parties, those of the profile (`runs/merged_order.py`)."""
    parties = [catalogue.parties[p] for p in profile]
    weights = [1.0] * len(parties)
    if catalogue.ranks and len(parties) > 1:
        likes = [own.likes for own in profile.values()]
        weights = weigh_parties(likes, [party.total_likes for party in parties]).tolist()
    found = [
        (p, row, score * weight)
        for p, weight, items in zip(profile, weights, ranked, strict=True)
        for row, score in zip(items.rows, items.scores, strict=True)
    ]

    def order(entry: ScoredItem) -> float:
        p, _, score = entry
        return -score if catalogue.ranks else -place_in_scale(score, catalogue.parties[p].table.scale)

    return sorted(found, key=order)[:k]


def describe_recommendations(
    catalogue: Catalogue,
    model: ModelName,
    profile: UserProfile,
    best: Sequence[ScoredItem],
    why: Sequence[Mapping[str, Any]] = (),
) -> list[dict[str, Any]]:
    """Describe recommended items with scores and predicted ratings, and with their explanations if `why` has any.

    The score is what orders the list. In a run without lists it is the predicted rating.
    """
    ratings = _predict_ratings(catalogue, model, profile, best)
    items = [
        {
            **catalogue.parties[p].describe(row),
            "score": score if catalogue.ranks else rating,
            "rating": rating,
        }
        for (p, row, score), rating in zip(best, ratings, strict=True)
    ]
    if why:
        for item, explanation in zip(items, why, strict=True):
            item["why"] = explanation
    return items


def _predict_ratings(
    catalogue: Catalogue, model: ModelName, profile: UserProfile, items: Sequence[ScoredItem]
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
