r"""The list of one user: what the models know about the user at each party, one merged list, and why each item is in it.

A model of lists gives shares of one party's catalogue, which are large where the catalogue is small. Items of several parties are
therefore ordered by

.. math:: P(p, v \mid u) = P(p \mid u) \, P(v \mid p, u), \qquad P(p \mid u) = \frac{n_{up} + a \pi_p}{\sum_q (n_{uq} + a \pi_q)}

with n_up the items that u likes at party p, pi_p the share of p in the likes of all users, and P(v | p, u) the softmax over the
items of p that u has not rated. Predicted ratings of parties are compared by their position in the party's scale.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from pydantic import ConfigDict
from torch import Tensor

from verfedgnn.serving.catalogue import Catalogue, DescribedItem, ServedModels
from verfedgnn.serving.fold_in import NO_RATINGS, FoldedUser, Rated, merge_ratings
from verfedgnn.serving.ranker import ItemRanker, RankedItems, RankingQuery, Rows, rank_together
from verfedgnn.serving.split_test import FEDERATED, ModelName

ScoredItem = tuple[int, int, float]
"""Party, row of the item, and unclipped score."""
Filters = Mapping[str, str]
NO_FILTERS: Filters = MappingProxyType({})
Kind = Literal["liked", "popular", "similar", "none"]
PRIOR_LIKES = 1.0
"""a: as many likes as all users' habit counts for."""
MOST_REASONS = 2
CLEAR_LIKE = 0.02
"""Smallest contribution of a liked item that a reason names, to the score of a model of lists."""
CLEAR_STARS = 0.05
"""Smallest contribution of a liked item that a reason names, in stars."""
_DESCRIBED = ConfigDict(use_attribute_docstrings=True)


@dataclass(frozen=True)
class Reason(DescribedItem):
    """An item that the user liked and that moved a recommendation up."""

    __pydantic_config__ = _DESCRIBED
    rating: float
    adds: float
    """Contribution of this rating to `taste` and `items`."""


@dataclass(frozen=True)
class Explanation:
    """The parts of a score: score = average + habit + taste + items + rest, before the softmax, or before a rating is clipped."""

    __pydantic_config__ = _DESCRIBED
    average: float
    """Score for the average user."""
    habit: float
    """Contribution of the user's own ratings to the average item, because some people rate everything higher."""
    taste: float
    """Contribution of the user's own ratings to this item beyond `habit`, through the user's vector."""
    items: float
    """Contribution of the user's items at the same party, through the weights between items (EASE)."""
    rest: float
    """Contribution of what the trained model knows beyond the user's own ratings; 0 for a newcomer."""
    average_rank: int
    """Rank of the item for the average user, among the items of the party that the user has not rated and that match the filters."""
    kind: Kind
    """Why the item is in the list: liked items moved it up (`because`); the average user would see it, too;
    other customers with a similar taste like it; or nothing of this."""
    because: list[Reason]
    """The liked items that contribute most, if the user's ratings moved the item up."""

    def in_words(self) -> str:
        """Say why the item is in the list; empty if there is no reason that people would follow."""
        names = list(dict.fromkeys(reason.title or reason.item for reason in self.because))[:MOST_REASONS]
        return {
            "liked": f"liked {' and '.join(names)}",
            "popular": "popular with many customers",
            "similar": "liked by customers with a similar taste",
            "none": "",
        }[self.kind]


@dataclass(frozen=True)
class RecommendedItem(DescribedItem):
    """A recommended item."""

    __pydantic_config__ = _DESCRIBED
    score: float
    """What orders the list; the predicted rating if the run has no lists. Compare it within one list only: it is not calibrated."""
    rating: float | None
    """Predicted rating, within the party's scale; null if the run predicts no ratings."""
    why: Explanation | None = None


@dataclass(frozen=True)
class SimilarItem(DescribedItem):
    """An item that is similar to another one."""

    similarity: float


@dataclass(frozen=True)
class UserAtParty:
    """One user as the models of one party see them: vectors in the model of lists and in that of ratings, items and likes."""

    vector: Tensor
    rating_vector: NDArray[np.float32]
    owned: Rows
    """Items that score others through the item weights."""
    rated: Rows
    likes: int


@dataclass(frozen=True)
class ServedUser:
    """A user of the run, a newcomer, or a user of the run who has rated more since."""

    row: int | None
    """Row of the user in the run; None for a newcomer."""
    newer: Rated = field(default_factory=dict)
    model: ModelName = FEDERATED
    """The model that orders the user's list."""
    bucket: ModelName | None = None
    """The bucket of the user, if a split test chose the model."""

    @property
    def trained(self) -> bool:
        """Whether the user has vectors from training that nothing moves."""
        return self.row is not None and not self.newer

    def find_ratings(self, catalogue: Catalogue, parties: Sequence[int], *, training: bool = False) -> Rated:
        """Return the user's ratings at these parties, newer ones included; with `training`, those that lists follow from."""
        known = {} if self.row is None else catalogue.find_ratings(self.row, parties, training=training)
        return merge_ratings(known, {p: given for p, given in self.newer.items() if p in parties})


class UserProfile:
    """A user as their model sees them at some parties: trained, folded in, or trained and moved by newer ratings."""

    def __init__(self, catalogue: Catalogue, user: ServedUser, parties: Sequence[int]) -> None:
        self.catalogue = catalogue
        self.user = user
        self.parties = parties
        self.lists, self.stars = catalogue.lists[user.model], catalogue.stars[user.model]
        vectors = self._place_user(self.lists)
        ratings = vectors if self.stars is self.lists else self._place_user(self.stars)
        self.at = {p: self._see_at(p, vectors[p], ratings[p]) for p in parties}

    def _see_at(self, p: int, vector: Tensor, rating_vector: Tensor) -> UserAtParty:
        owned = self.user.newer.get(p, NO_RATINGS).items
        if self.user.row is not None:
            owned = np.union1d(owned, self.lists.rankers[p].find_owned(self.user.row))
        items, ratings = self.user.find_ratings(self.catalogue, [p]).get(p, NO_RATINGS)
        likes = int((ratings >= self.catalogue.parties[p].liked_from).sum())
        return UserAtParty(vector, rating_vector.numpy(), owned, items, likes)

    def _place_user(self, served: ServedModels) -> dict[int, Tensor]:
        r"""Return the user's vector at each party. A newcomer is folded in.

        The trained vector of a user with newer ratings keeps what training learnt from others: it moves by as much as the
        folded-in position does, to :math:`x_u + L (z_\mathrm{new} - z_\mathrm{old})`.
        """
        row = self.user.row
        trained = {} if row is None else {p: served.models[p].users[row] for p in self.parties}
        if self.user.trained:
            return trained

        def fold(user: ServedUser) -> dict[int, FoldedUser]:
            rated = user.find_ratings(self.catalogue, range(len(self.catalogue.parties)), training=True)
            return served.fold_in(rated, self.parties)

        now, priors = fold(self.user), served.priors
        if row is None:
            return {p: priors[p].make_vector(folded.z) for p, folded in now.items()}
        before = fold(ServedUser(row))
        moved = {p: (priors[p].factor @ (now[p].z - before[p].z)).astype(np.float32) for p in self.parties}
        return {p: trained[p] + torch.from_numpy(move) for p, move in moved.items()}

    @property
    def own_models(self) -> list[str]:
        """Names of the parties whose federated lists follow for this user from their own models only."""
        run, chosen = self.catalogue.run, self.catalogue.chosen
        known = self.user.find_ratings(self.catalogue, self.parties, training=True)
        own = [p for p in self.parties if not run.mixes_federated(chosen[p], known=p in known)]
        return [run.parties[chosen[p]].name for p in own if self.user.model == FEDERATED]

    def make_queries(self, k: int, filters: Filters = NO_FILTERS) -> list[tuple[ItemRanker, RankingQuery]]:
        """Return the queries for the user's k best items, one per party."""
        queries = []
        for p, own in self.at.items():
            allowed = self.catalogue.parties[p].filter_items(filters)
            query = RankingQuery(own.vector, k, own.rated, allowed, own.owned)
            queries.append((self.lists.rankers[p], query))
        return queries

    def merge(self, ranked: Sequence[RankedItems], k: int) -> list[ScoredItem]:
        """Return the k best items of the rankings of the parties."""
        parties = [self.catalogue.parties[p] for p in self.parties]
        weights = [1.0] * len(parties)
        if self.catalogue.ranks and len(parties) > 1:
            likes = [own.likes for own in self.at.values()]
            weights = weigh_parties(likes, [party.likes for party in parties]).tolist()
        found = [
            (p, row, score * weight)
            for p, weight, items in zip(self.parties, weights, ranked, strict=True)
            for row, score in zip(items.rows, items.scores, strict=True)
        ]

        def place(item: ScoredItem) -> float:
            return item[2] if self.catalogue.ranks else self.catalogue.parties[item[0]].place(item[2])

        return sorted(found, key=place, reverse=True)[:k]

    def describe(
        self, best: Sequence[ScoredItem], why: Sequence[Explanation | None] = ()
    ) -> list[RecommendedItem]:
        """Describe recommended items with scores, predicted ratings and, if `why` has any, explanations."""
        found = []
        reasons = why or [None] * len(best)
        for (p, row, score), rating, reason in zip(best, self._predict_ratings(best), reasons, strict=True):
            item = self.catalogue.parties[p].describe(row)
            shown = score if self.catalogue.ranks or rating is None else rating
            found.append(RecommendedItem(**vars(item), score=shown, rating=rating, why=reason))
        return found

    def _predict_ratings(self, items: Sequence[ScoredItem]) -> list[float | None]:
        """Return the predicted rating of each item, within its party's scale; None if the run predicts no ratings."""
        if not self.catalogue.predicts:
            return [None] * len(items)
        parties, rows = (np.array([item[place] for item in items], np.int64) for place in (0, 1))
        predicted = np.array([score for _, _, score in items])
        for p in self.parties:
            here = parties == p
            if self.catalogue.ranks:  # else lists are ordered by the predicted rating itself
                vectors = self.stars.models[p].items.numpy()
                predicted[here] = vectors[rows[here]] @ self.at[p].rating_vector
            predicted[here] = predicted[here].clip(*self.catalogue.parties[p].table.scale)
        return list(predicted.tolist())

    def explain(
        self,
        best: Sequence[ScoredItem],
        visible: Sequence[int],
        max_reasons: int = MOST_REASONS,
        filters: Filters = NO_FILTERS,
    ) -> list[Explanation]:
        """Explain each item of a list by the user's ratings at the parties `visible`, with up to `max_reasons` liked items.

        A reason is given only where it moved the item: the user's ratings add to it, they place it above its rank for the
        average user, and each named item adds clearly. `average`, `habit` and `taste` come from folding in (`fold_in.py`).
        """
        catalogue = self.catalogue
        rated = self.user.find_ratings(catalogue, visible, training=True)
        priors, joint = self.lists.priors, self.user.model == FEDERATED
        folds = self.lists.fold_in(rated, {p for p, _, _ in best})
        usual = {p: self._score_for_average(p, filters) for p in folds}
        places = dict.fromkeys(folds, 0)
        explanations = []
        for (p, row, score), stars in zip(best, self._predict_ratings(best), strict=True):
            places[p] += 1
            typical = priors[p].typical
            direction = priors[p].project_items(np.array([row]))[0] - typical
            adds = {q: pull @ direction for q, pull in folds[p].pulls.items()}
            average = float(priors[p].level[row])
            habit = float(typical @ folds[p].z)
            taste = sum(float(part.sum()) for part in adds.values())
            items = 0.0
            weights = self.lists.rankers[p].item_weights
            if weights is not None:
                items = float(weights.split_score(row, self.at[p].owned).sum())
                if p in adds:
                    adds[p] = adds[p] + weights.split_score(row, rated[p].items)
            if catalogue.ranks:
                score = float(self.at[p].vector @ self.lists.models[p].items[row]) + items
            rest = score - average - habit - taste - items
            rank = 1 + int((usual[p] > average).sum())
            # someone without ratings here may be known elsewhere
            moved = rank > places[p] and (taste + items > 0 if adds else joint and rest > 0)
            because = self._name_reasons(adds, rated, max_reasons) if moved else []
            kind: Kind = "none"
            if because:
                kind = "liked"
            elif rank <= len(best):
                kind = "popular"
            elif moved and (stars is None or catalogue.parties[p].place(stars) >= 0.5):
                kind = "similar"
            explanations.append(Explanation(average, habit, taste, items, rest, rank, kind, because))
        return explanations

    def _score_for_average(self, party: int, filters: Filters) -> NDArray[np.float32]:
        """Return the average user's scores of the items that match `filters`, without those that this user has rated."""
        level = self.lists.priors[party].level
        allowed = self.catalogue.parties[party].filter_items(filters)
        kept = np.ones(len(level), bool) if allowed is None else allowed.numpy().copy()
        kept[self.at[party].rated] = False
        scores: NDArray[np.float32] = level[kept]
        return scores

    def _name_reasons(
        self, adds: Mapping[int, NDArray[np.float64]], rated: Rated, max_reasons: int
    ) -> list[Reason]:
        """Describe the liked items with the largest clear contributions. A rating below the upper quarter is no reason."""
        clear = CLEAR_LIKE if self.catalogue.ranks else CLEAR_STARS
        found = []
        for p, part in adds.items():
            party, given = self.catalogue.parties[p], rated[p]
            likes = np.flatnonzero((given.ratings >= party.liked_from) & (part >= clear))
            for i in likes[np.argsort(-part[likes], kind="stable")][:max_reasons]:
                item = party.describe(int(given.items[i]))
                found.append(Reason(**vars(item), rating=float(given.ratings[i]), adds=float(part[i])))
        return sorted(found, key=lambda reason: reason.adds, reverse=True)[:max_reasons]


def weigh_parties(likes: ArrayLike, totals: ArrayLike) -> NDArray[np.float64]:
    """Return P(p | u) (..., P) from a user's likes at each party (..., P) and all users' likes there (P,)."""
    everybody = np.asarray(totals, np.float64) + 1  # a party without likes is possible, too
    counts = np.asarray(likes, np.float64) + PRIOR_LIKES * everybody / everybody.sum()
    weights: NDArray[np.float64] = counts / counts.sum(-1, keepdims=True)
    return weights


def find_user(
    catalogue: Catalogue, user: str | None, newer: Rated | None = None, model: ModelName | None = None
) -> ServedUser:
    """Return the user with this id and newer ratings; without `model`, a split test chooses the one of the user's bucket."""
    bucket, row = None, None if user is None else catalogue.users.find(user)
    if user is not None and model is None and catalogue.split is not None:
        bucket = catalogue.split.bucket(user if row is None else str(catalogue.user_ids[row]))
    return ServedUser(row, newer or {}, model or bucket or FEDERATED, bucket)


def make_lists(profiles: Sequence[UserProfile], k: int) -> list[list[ScoredItem]]:
    """Return the k best items of each user, scored together."""
    queries = [query for profile in profiles for query in profile.make_queries(k)]
    ranked = iter(rank_together(queries))
    return [profile.merge([next(ranked) for _ in profile.parties], k) for profile in profiles]


def find_similar(
    catalogue: Catalogue, party: int, item: int, parties: Sequence[int], k: int, filters: Filters = NO_FILTERS
) -> list[SimilarItem]:
    """Return the k items most similar to `item`: users who like one also like the other.

    The similarity is the cosine of item directions, those of the model that orders lists. A party that mixes only popularity
    and item weights into its lists has none, so the directions of the predicted ratings are used instead.
    """
    priors = catalogue.lists[FEDERATED].priors
    if catalogue.predicts and not priors[party].items[item].any():
        priors = catalogue.stars[FEDERATED].priors
    direction = priors[party].items[item]
    found: list[ScoredItem] = []
    for p in parties:
        lengths = np.linalg.norm(priors[p].items, axis=1) * np.linalg.norm(direction)
        cosine = priors[p].items @ direction / np.maximum(lengths, 1e-12)
        if p == party:
            cosine[item] = -np.inf
        allowed = catalogue.parties[p].filter_items(filters)
        if allowed is not None:
            cosine[~allowed.numpy()] = -np.inf
        top = np.argpartition(-cosine, min(k, len(cosine)) - 1)[:k]
        found += [(p, int(row), float(cosine[row])) for row in top if np.isfinite(cosine[row])]
    best = sorted(found, key=lambda entry: entry[2], reverse=True)[:k]
    items = [(catalogue.parties[p].describe(row), value) for p, row, value in best]
    return [SimilarItem(**vars(item), similarity=value) for item, value in items]
