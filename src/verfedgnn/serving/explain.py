"""Recommendations, their explanations and similar items, as plain dictionaries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from verfedgnn.core.rating_scale import upper_quarter
from verfedgnn.serving.catalogue import FEDERATED, Catalogue
from verfedgnn.serving.fold_in import FoldedUser, UserRatings, fold_in
from verfedgnn.serving.ranker import RankedItems

ScoredItem = tuple[int, int, float]
"""Party, row of the item, and unclipped score."""


def merge_rankings(parties: Sequence[int], ranked: Sequence[RankedItems], k: int) -> list[ScoredItem]:
    """Return the k best items of several parties' rankings."""
    pairs = [
        (p, row, score)
        for p, items in zip(parties, ranked, strict=True)
        for row, score in zip(items.rows, items.scores, strict=True)
    ]
    return sorted(pairs, key=lambda entry: -entry[2])[:k]


def clip_score(catalogue: Catalogue, party: int, score: float) -> float:
    """Clip a predicted rating to the party's scale; return the scores of a ranking model unchanged."""
    low, high = catalogue.parties[party].table.scale
    return score if catalogue.ranks else float(min(max(score, low), high))


def describe_recommendations(
    catalogue: Catalogue, best: Sequence[ScoredItem], why: Sequence[Mapping[str, Any]] = ()
) -> list[dict[str, Any]]:
    """Describe recommended items with their scores, and with their explanations if `why` has any."""
    items = [
        {**catalogue.parties[p].describe(row), "score": clip_score(catalogue, p, score)}
        for p, row, score in best
    ]
    if why:
        for item, explanation in zip(items, why, strict=True):
            item["why"] = explanation
    return items


def explain_recommendations(
    catalogue: Catalogue,
    model: str,
    rated: Sequence[UserRatings],
    best: Sequence[ScoredItem],
    max_reasons: int,
) -> list[dict[str, Any]]:
    """Split each item's score into parts that add up: score = average + habit + taste + rest.

    - `average` is the prediction for the average user.
    - `habit` is what the user's own ratings add to the average item, because some people rate everything higher.
    - `taste` is what they add to this item beyond that. `because` names the ratings with the largest contributions.
    - `rest` is what the trained model knows beyond the user's own ratings, such as the contribution of other parties. It is 0
      for a newcomer.

    All parts come from folding in (`fold_in.py`). For a ranking model they split the score before the softmax, and there is no
    `rest`.
    """
    priors = catalogue.priors[model]
    folds: dict[int, tuple[FoldedUser, Sequence[UserRatings]]]
    if model == FEDERATED:
        folded = fold_in(priors, rated, ranks=catalogue.ranks)
        folds = {p: (folded, rated) for p, _, _ in best}
    else:  # a party that trained alone knows only its own ratings
        folds = {}
        for p in {p for p, _, _ in best}:
            local = [UserRatings(0, own.items, own.ratings) for own in rated if own.party == p]
            folds[p] = (fold_in([priors[p]], local, ranks=catalogue.ranks), local)
    explanations = []
    for p, row, score in best:
        fold, mine = folds[p]
        owners = [own.party if model == FEDERATED else p for own in mine]
        typical = priors[p].typical
        parts = fold.split_score(priors[p].project_items(np.array([row])) - typical)
        average = float(priors[p].level[row])
        habit = float(typical @ fold.z)
        taste = sum(float(part.sum()) for part in parts)
        rest = {} if catalogue.ranks else {"rest": score - average - habit - taste}
        because = _name_reasons(catalogue, parts, mine, owners, max_reasons)
        explanations.append({"average": average, "habit": habit, "taste": taste, **rest, "because": because})
    return explanations


def _name_reasons(
    catalogue: Catalogue,
    parts: Sequence[Any],
    rated: Sequence[UserRatings],
    owners: Sequence[int],
    max_reasons: int,
) -> list[dict[str, Any]]:
    """Describe the user's ratings with the largest positive contributions."""
    largest = []
    for part, own, owner in zip(parts, rated, owners, strict=True):
        for i in np.argsort(-part[0])[:max_reasons]:
            largest.append((float(part[0, i]), owner, int(own.items[i]), float(own.ratings[i])))
    top = sorted(largest, key=lambda entry: -entry[0])[:max_reasons]
    return [
        {**catalogue.parties[owner].describe(item), "rating": rating, "adds": value}
        for value, owner, item, rating in top
        if value > 0
    ]


def select_informative(catalogue: Catalogue, rated: Sequence[UserRatings]) -> list[UserRatings]:
    """Return the ratings that folding in uses: all of them, or only liked items for a ranking model."""
    if not catalogue.ranks:
        return list(rated)
    kept = []
    for own in rated:
        high = own.ratings >= upper_quarter(catalogue.parties[own.party].table.scale)
        if high.any():
            kept.append(UserRatings(own.party, own.items[high], own.ratings[high]))
    return kept


def find_similar(
    catalogue: Catalogue,
    party: int,
    item: int,
    parties: Sequence[int],
    k: int,
    filters: Mapping[str, str] = MappingProxyType({}),
) -> list[dict[str, Any]]:
    """Return the k items most similar to `item`, by the cosine of item directions in taste space."""
    priors = catalogue.priors[FEDERATED]
    direction = priors[party].items[item]
    found: list[tuple[float, int, int]] = []
    for p in parties:
        lengths = np.linalg.norm(priors[p].items, axis=1) * np.linalg.norm(direction)
        cosine = priors[p].items @ direction / np.maximum(lengths, 1e-12)
        if p == party:
            cosine[item] = -np.inf
        allowed = catalogue.parties[p].filter_items(filters)
        if allowed is not None:
            cosine[~allowed.numpy()] = -np.inf
        top = np.argpartition(-cosine, min(k, len(cosine)) - 1)[:k]
        found += [(float(cosine[row]), p, int(row)) for row in top if np.isfinite(cosine[row])]
    best = sorted(found, key=lambda entry: -entry[0])[:k]
    return [{**catalogue.parties[p].describe(row), "similarity": value} for value, p, row in best]
