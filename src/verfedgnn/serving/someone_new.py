"""Recommendations for someone whom the run does not know, from ratings given as text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from verfedgnn.core.errors import DataError
from verfedgnn.data import Ratings
from verfedgnn.runs.recommendations import Recommendation, Recommendations
from verfedgnn.serving.catalogue import FEDERATED, Catalogue
from verfedgnn.serving.explain import (
    MOST_REASONS,
    describe_reason,
    describe_recommendations,
    explain_recommendations,
    merge_rankings,
)
from verfedgnn.serving.fold_in import UserRatings
from verfedgnn.serving.user_profile import ServedUser, make_queries, profile_user, rated_by


def find_popular_item(table: Ratings) -> str:
    """Return the id of the item with the most ratings."""
    return str(table.item_ids[np.bincount(table.item, minlength=table.n_items).argmax()])


def read_rated_items(catalogue: Catalogue, texts: Sequence[str]) -> list[UserRatings]:
    """Return the ratings in texts such as `ITEM=5`, or `PARTY:ITEM=5` where several parties have the item, by party."""
    found: dict[tuple[int, int], float] = {}
    for text in texts:
        item, _, value = text.rpartition("=")
        try:
            rating = float(value)
        except ValueError:
            rating = np.nan
        if not item or np.isnan(rating):
            raise DataError(f"--rated {text} is not ITEM=RATING; write for example --rated {item or text}=5")
        place = _find_item(catalogue, item)
        low, high = catalogue.parties[place[0]].table.scale
        if not low <= rating <= high:
            raise DataError(f"--rated {text} is outside the scale; give a rating from {low:g} to {high:g}")
        found[place] = rating
    return [
        UserRatings(
            p,
            np.array([row for q, row in found if q == p]),
            np.array([rating for (q, _), rating in found.items() if q == p], np.float32),
        )
        for p in sorted({p for p, _ in found})
    ]


def _find_item(catalogue: Catalogue, text: str) -> tuple[int, int]:
    """Return the party and row of an item, given as `ITEM` or `PARTY:ITEM`."""
    names = [party.name for party in catalogue.parties]
    found = [
        (p, row) for p, party in enumerate(catalogue.parties) if (row := party.ids.find(text)) is not None
    ]
    if not found:
        head, _, item = text.partition(":")
        row = catalogue.parties[names.index(head)].ids.find(item) if head in names else None
        if row is not None:
            return names.index(head), row
        raise DataError(f"no party has an item '{text}'; write its id as in the data")
    if len(found) > 1:
        choices = ", ".join(f"{names[p]}:{text}" for p, _ in found)
        raise DataError(f"several parties have an item '{text}'; write one of: {choices}")
    return found[0]


def recommend_to(catalogue: Catalogue, user: ServedUser, parties: Sequence[int], k: int) -> Recommendations:
    """Return the k best items of these parties for a newcomer, or for a user of the run with newer ratings."""
    profile = profile_user(catalogue, FEDERATED, user, parties)
    queries = make_queries(catalogue, FEDERATED, profile, k, {})
    best = merge_rankings(catalogue, profile, [ranker.rank([query])[0] for ranker, query in queries], k)
    found = [
        Recommendation(item["item"], item["title"], item["party"], item["score"], item["rating"])
        for item in describe_recommendations(catalogue, FEDERATED, profile, best)
    ]
    return Recommendations(found, partial(explain_list, catalogue, user, parties, found))


def explain_list(
    catalogue: Catalogue, user: ServedUser, parties: Sequence[int], items: Sequence[Recommendation]
) -> list[str]:
    """Return a reason for each recommended item, in words."""
    numbers = {party.name: p for p, party in enumerate(catalogue.parties)}
    best = []
    for item in items:
        p = numbers[item.party]
        row = catalogue.parties[p].ids.find(item.item)
        assert row is not None
        best.append((p, row, item.score))
    profile = profile_user(catalogue, FEDERATED, user, parties)
    rated = rated_by(catalogue, user, range(len(catalogue.parties)))
    found = explain_recommendations(catalogue, FEDERATED, profile, rated, best, MOST_REASONS)
    return [
        describe_reason(why, shown=len(items), ranks=catalogue.ranks, known=user.row is not None)
        for why in found
    ]
