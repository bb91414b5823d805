"""What the served models know about one user at each party, whether trained or folded in, and the queries that follow from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.serving.catalogue import FEDERATED, Catalogue
from verfedgnn.serving.fold_in import UserRatings, fold_in, fold_in_at, merge_ratings
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
    features: Mapping[int, NDArray[np.float64]] = field(default_factory=dict)
    """Features that parties have of a newcomer, by the number of the party."""


def rated_by(catalogue: Catalogue, user: ServedUser, parties: Sequence[int]) -> list[UserRatings]:
    """Return the ratings at these parties from which a user is served: those of the training part, and newer ones."""
    trained = [] if user.row is None else catalogue.find_training_ratings(user.row, parties)
    return merge_ratings(trained, [own for own in user.newer if own.party in parties])


def all_ratings(catalogue: Catalogue, user: ServedUser, parties: Sequence[int]) -> list[UserRatings]:
    """Return all ratings of a user at these parties, in whichever part they were."""
    known = []
    if user.row is not None:
        for p in parties:
            table = catalogue.parties[p].table
            rows = catalogue.parties[p].find_ratings(user.row)
            known.append(UserRatings(p, table.item[rows].astype(np.int64), table.rating[rows]))
    return merge_ratings(known, [own for own in user.newer if own.party in parties])


def profile_user(catalogue: Catalogue, model: str, user: ServedUser, parties: Sequence[int]) -> UserProfile:
    """Return the profile of a user: trained, folded in, or trained and moved by newer ratings."""
    vectors = _place_user(catalogue, model, user, parties)
    ratings: Mapping[int, Tensor | None] = dict.fromkeys(parties)
    if catalogue.ranks and catalogue.predicts:
        ratings = _place_user(catalogue, model, user, parties, predicts=True)
    newer = {own.party: own.items for own in user.newer}
    profile = {}
    for p in parties:
        owned = rated = newer.get(p, NO_ITEMS)
        if user.row is not None:
            owned = catalogue.rankers[model][p].find_owned(user.row)
            rated = catalogue.parties[p].find_rated_items(user.row)
            if p in newer:
                owned = np.union1d(owned, newer[p])
                rated = np.union1d(rated, newer[p])
        vector = ratings[p]
        profile[p] = UserAtParty(
            vectors[p],
            owned,
            rated,
            _count_likes(catalogue, user, p),
            None if vector is None else vector.numpy(),
        )
    return profile


def _count_likes(catalogue: Catalogue, user: ServedUser, party: int) -> int:
    """Return how many items of a party a user likes."""
    served = catalogue.parties[party]
    if user.row is not None and not user.newer:
        return int(served.likes[user.row])
    return sum(int((own.ratings >= served.liked_from).sum()) for own in all_ratings(catalogue, user, [party]))


def _place_user(
    catalogue: Catalogue, model: str, user: ServedUser, parties: Sequence[int], *, predicts: bool = False
) -> dict[int, Tensor]:
    r"""Return the user's vector at each party, in the models that order lists or that predict ratings.

    A newcomer is folded in. The trained vector of a user with newer ratings moves by as much as the folded-in position does:
    :math:`x_u + L (z_\mathrm{new} - z_\mathrm{old})`. So it keeps what training learnt from others.
    """
    if predicts:
        models = catalogue.rating_models[model]
    else:
        models = [ranker.model for ranker in catalogue.rankers[model]]
    if user.row is not None and not user.newer:
        return {p: models[p].users[user.row] for p in parties}
    priors = (catalogue.rating_priors if predicts else catalogue.priors)[model]
    everywhere = range(len(catalogue.parties))
    ranks = catalogue.ranks and not predicts
    joint = model == FEDERATED
    now = fold_in_at(priors, rated_by(catalogue, user, everywhere), parties, ranks=ranks, joint=joint)
    if user.row is None:
        vectors = {p: priors[p].make_vector(now[p].z) for p in parties}
        return vectors | _place_by_features(catalogue, model, user, parties, predicts=predicts)
    trained = catalogue.find_training_ratings(user.row, everywhere)
    before = fold_in_at(priors, trained, parties, ranks=ranks, joint=joint)
    moved = {p: priors[p].factor @ (now[p].z - before[p].z) for p in parties}
    return {p: models[p].users[user.row] + torch.from_numpy(moved[p].astype(np.float32)) for p in parties}


def _place_by_features(
    catalogue: Catalogue, model: str, user: ServedUser, parties: Sequence[int], *, predicts: bool
) -> dict[int, Tensor]:
    """Return a newcomer's vector at each party whose features of them help; their ratings, if any, refine it."""
    known = {p: user.features[p] for p in parties if p in user.features}
    if not known:
        return {}
    featured = (catalogue.featured_ratings if predicts else catalogue.featured)[model]
    ranks = catalogue.ranks and not predicts
    joint = model == FEDERATED
    vectors = {}
    for p in known.keys() & featured.keys():
        priors = featured[p].describe(known[p])
        if joint:
            z = fold_in(priors, user.newer, ranks=ranks).z
            vectors[p] = priors[p].make_vector(z)
        else:
            own = [UserRatings(0, each.items, each.ratings) for each in user.newer if each.party == p]
            vectors[p] = priors[0].make_vector(fold_in(priors, own, ranks=ranks).z)
    return vectors


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
