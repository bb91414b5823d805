"""Why items are recommended: the parts of a score, reasons in words, and similar items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verfedgnn.serving.catalogue import Catalogue
from verfedgnn.serving.fold_in import UserRatings, fold_in_at
from verfedgnn.serving.ranker import Rows
from verfedgnn.serving.split_test import FEDERATED, ModelName
from verfedgnn.serving.user_lists import ScoredItem, UserProfile

MOST_REASONS = 2
"""Liked items that a reason names."""
CLEAR_LIKE = 0.02
"""Smallest contribution of a liked item that a reason names, to the score of a model of lists."""
CLEAR_STARS = 0.05
"""Smallest contribution of a liked item that a reason names, in stars."""


def explain_recommendations(
    catalogue: Catalogue,
    model: ModelName,
    profile: UserProfile,
    rated: Sequence[UserRatings],
    best: Sequence[ScoredItem],
    max_reasons: int,
    filters: Mapping[str, str] = MappingProxyType({}),
) -> list[dict[str, Any]]:
    """Split each item's score into parts that add up: score = average + habit + taste + items + rest.

    - `average` is the score for the average user.
    - `habit` is what the user's own ratings add to the average item, because some people rate everything higher.
    - `taste` is what they add to this item beyond that, through the user's vector.
    - `items` is what the user's items at the same party add through the weights between items.
    - `rest` is what the trained model knows beyond the user's own ratings, such as the contribution of other parties. It is 0
      for a newcomer.

    `because` names the liked items that contribute most to `taste` and `items`. `average_rank` is the rank of the item for the
    average user, among the items that this user has not rated and that match `filters`. A recommendation far above that rank
    is personal. `moved` is how far the user's ratings move the item up: `taste` and `items`, or `rest` for a user without ratings
    here, who is known elsewhere. `average`, `habit` and `taste` come from folding in (`fold_in.py`). For a model of lists the parts split the
    score before the softmax.
    """
    priors = catalogue.priors[model]
    folds = fold_in_at(
        priors, rated, {p for p, _, _ in best}, ranks=catalogue.ranks, joint=model == FEDERATED
    )
    candidates = {p: _score_for_average(catalogue, model, p, profile[p].rated, filters) for p in folds}
    explanations = []
    for p, row, score in best:
        fold = folds[p]
        mine = rated if model == FEDERATED else [own for own in rated if own.party == p]
        typical = priors[p].typical
        adds = [part[0] for part in fold.split_score(priors[p].project_items(np.array([row])) - typical)]
        average = float(priors[p].level[row])
        habit = float(typical @ fold.z)
        taste = sum(float(part.sum()) for part in adds)
        ranker = catalogue.rankers[model][p]
        items = 0.0
        if ranker.item_weights is not None:
            items = float(ranker.item_weights.split_score(row, profile[p].owned).sum())
            adds = [
                part + ranker.item_weights.split_score(row, own.items) if own.party == p else part
                for part, own in zip(adds, mine, strict=True)
            ]
        if catalogue.ranks:
            score = float(profile[p].vector @ ranker.model.items[row]) + items
        rest = score - average - habit - taste - items
        explanations.append(
            {
                "average": average,
                "habit": habit,
                "taste": taste,
                "items": items,
                "rest": rest,
                "moved": taste + items if mine else rest,
                "average_rank": 1 + int((candidates[p] > average).sum()),
                "because": _name_reasons(catalogue, adds, mine, max_reasons),
            }
        )
    return explanations


def describe_reason(why: Mapping[str, Any], *, shown: int, ranks: bool, known: bool) -> str:
    """Say in words why an item is in a list of `shown` items, as the page does; `why` is its explanation.

    It names up to two liked items that add clearly to the score. An item that the user's ratings do not move up has no other reason
    than that many like it. Items that any new customer would see follow from the taste of nobody who is new.
    """
    personal = why["average_rank"] > shown
    if why["moved"] <= 0:
        return "popular with many customers"
    clear = [each for each in why["because"] if each["adds"] >= (CLEAR_LIKE if ranks else CLEAR_STARS)]
    names = list(dict.fromkeys(each["title"] or each["item"] for each in clear))[:MOST_REASONS]
    if names and (known or personal):
        return f"liked {' and '.join(names)}"
    return "liked by customers with a similar taste" if personal else "popular with many customers"


def _score_for_average(
    catalogue: Catalogue, model: ModelName, party: int, rated: Rows, filters: Mapping[str, str]
) -> NDArray[np.float32]:
    """Return the average user's scores of the items that match `filters`, without the items at `rated`."""
    level = catalogue.priors[model][party].level
    allowed = catalogue.parties[party].filter_items(filters)
    kept = np.ones(len(level), bool) if allowed is None else allowed.numpy().copy()
    kept[rated] = False
    scores: NDArray[np.float32] = level[kept]
    return scores


def _name_reasons(
    catalogue: Catalogue, adds: Sequence[NDArray[np.float64]], rated: Sequence[UserRatings], max_reasons: int
) -> list[dict[str, Any]]:
    """Describe the liked items with the largest positive contributions. A rating below the upper quarter is no reason."""
    largest = []
    for part, own in zip(adds, rated, strict=True):
        liked = np.flatnonzero(own.ratings >= catalogue.parties[own.party].liked_from)
        for i in liked[np.argsort(-part[liked])][:max_reasons]:
            largest.append((float(part[i]), own.party, int(own.items[i]), float(own.ratings[i])))
    top = sorted(largest, key=lambda entry: -entry[0])[:max_reasons]
    return [
        {**catalogue.parties[owner].describe(item), "rating": rating, "adds": value}
        for value, owner, item, rating in top
        if value > 0
    ]


def find_similar(
    catalogue: Catalogue,
    party: int,
    item: int,
    parties: Sequence[int],
    k: int,
    filters: Mapping[str, str] = MappingProxyType({}),
) -> list[dict[str, Any]]:
    """Return the k items most similar to `item`, by the cosine of item directions in taste space.

    The directions are those of the model that orders lists. A party that mixes only popularity and item weights into its lists
    has none, so the directions of the predicted ratings are used instead.
    """
    priors = catalogue.priors[FEDERATED]
    if catalogue.predicts and not priors[party].items[item].any():
        priors = catalogue.rating_priors[FEDERATED]
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
