"""Translation of request parameters into rows of a catalogue; unknown names raise `HttpProblem`.

`allowed` are the numbers of the parties that the request may see. Other parties do not exist for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from verfedgnn.serving.catalogue import ALONE, Catalogue
from verfedgnn.serving.fold_in import UserRatings, merge_ratings
from verfedgnn.serving.http.http_problems import HttpProblem
from verfedgnn.serving.http.schema import NewcomerRating
from verfedgnn.serving.user_profile import ServedUser


def find_user(catalogue: Catalogue, user: str, parties: Sequence[int]) -> ServedUser:
    """Return a user of the run, one whose ratings are newer than the run, or one of whom these parties have features."""
    row = catalogue.users.find(user)
    newer = catalogue.find_newer_ratings(user) if catalogue.newer else []
    features = catalogue.find_user_features(user, parties) if row is None else {}
    if row is None and not newer and not features:
        raise HttpProblem(
            404,
            "this user was not in training",
            "POST their ratings to /v1/recommendations to serve them as a newcomer",
        )
    return ServedUser(row, newer, features)


def find_user_with(
    catalogue: Catalogue, user: str | None, ratings: Sequence[UserRatings], parties: Sequence[int]
) -> ServedUser:
    """Return the user with this id and further ratings of theirs; a newcomer if the id is unknown or None."""
    if user is None:
        return ServedUser(None, ratings)
    newer = merge_ratings(catalogue.find_newer_ratings(user), ratings)
    row = catalogue.users.find(user)
    return ServedUser(row, newer, catalogue.find_user_features(user, parties) if row is None else {})


def find_user_ids(catalogue: Catalogue, starts: str, k: int, allowed: Sequence[int]) -> list[str]:
    """Return the first k ids that start with a text, of users whom the allowed parties know."""
    ids = catalogue.run.parties[0].ratings.user_ids
    found = {str(ids[row]) for row in catalogue.index_users(tuple(allowed)).find_prefix(starts, k)}
    for newer in catalogue.newer:
        if newer.party in allowed:
            found |= {str(newer.user_ids[row]) for row in newer.ids.find_prefix(starts, k)}
    return sorted(found)[:k]


def find_parties(catalogue: Catalogue, party: str | None, allowed: Sequence[int]) -> list[int]:
    """Return the number of the party with this name, or the numbers of all allowed parties."""
    if party is None:
        return list(allowed)
    found = [p for p in allowed if catalogue.parties[p].name == party]
    if not found:
        names = ", ".join(catalogue.parties[p].name for p in allowed)
        raise HttpProblem(404, "there is no such party here", f"use one of: {names}")
    return found


def find_item(catalogue: Catalogue, item: str, party: str | None, allowed: Sequence[int]) -> tuple[int, int]:
    """Return the party and the row of an item."""
    found = [
        (p, row)
        for p in find_parties(catalogue, party, allowed)
        if (row := catalogue.parties[p].ids.find(item)) is not None
    ]
    if not found:
        raise HttpProblem(404, "there is no such item here", "give the item's id as in the data of this run")
    if len(found) > 1:
        names = ", ".join(catalogue.parties[p].name for p, _ in found)
        raise HttpProblem(
            400, "several parties have an item with this id", f"add the parameter party, one of: {names}"
        )
    return found[0]


def check_model(catalogue: Catalogue, model: str) -> None:
    """Raise `HttpProblem` if the run lacks the models of the parties alone and `model` asks for them."""
    if model == ALONE and ALONE not in catalogue.rankers:
        remedy = "train with a gate (preset best, or --set gate=true), which also trains every party alone"
        raise HttpProblem(404, "this run has no models of the parties alone", remedy)


def read_filters(
    catalogue: Catalogue, given: Mapping[str, str], known: Sequence[str], allowed: Sequence[int]
) -> dict[str, str]:
    """Return the parameters that filter by item column: those not in `known`, checked against the columns."""
    filters = {name: value for name, value in given.items() if name not in known}
    existing = {name for p in allowed for name in catalogue.parties[p].table.columns}
    for name in filters:
        if name not in existing:
            columns = ", ".join(sorted(existing)) or "none"
            parameters = f"parameters: {', '.join(known)}; " if known else ""
            raise HttpProblem(
                400, "there is no such parameter or item column", f"{parameters}columns: {columns}"
            )
    return filters


def read_newcomer(
    catalogue: Catalogue, ratings: Sequence[NewcomerRating], allowed: Sequence[int]
) -> list[UserRatings]:
    """Return a newcomer's ratings by party, after checking items and scales."""
    pairs: dict[tuple[int, int], float] = {}
    for number, given in enumerate(ratings):
        try:
            p, row = find_item(catalogue, given.item, given.party, allowed)
        except HttpProblem as problem:
            raise HttpProblem(problem.status, f"ratings.{number}: {problem.cause}", problem.remedy) from None
        low, high = catalogue.parties[p].table.scale
        if not low <= given.rating <= high:
            raise HttpProblem(
                400,
                f"ratings.{number}: the rating is outside the scale",
                f"give a rating from {low:g} to {high:g}",
            )
        pairs[p, row] = given.rating
    found = []
    for p in sorted({p for p, _ in pairs}):
        items = np.array([row for q, row in pairs if q == p])
        values = np.array([rating for (q, _), rating in pairs.items() if q == p], np.float32)
        found.append(UserRatings(p, items, values))
    return found
