"""From the words of a request to rows of a catalogue; what is not there is a `Problem` with its remedy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from verfedgnn.serving.catalogue import ALONE, Catalogue
from verfedgnn.serving.fold_in import Rated, fold_in
from verfedgnn.serving.http.http_problems import Problem
from verfedgnn.serving.http.schema import GivenRating
from verfedgnn.serving.ranker import Rows, Shelf, Wish


def user_row(catalogue: Catalogue, user: str) -> int:
    """A user who was in training."""
    row = catalogue.users.row(user)
    if row is None:
        raise Problem(
            404,
            "this user was not in training",
            "POST their ratings to /v1/recommendations to serve them as a newcomer",
        )
    return row


def party_rows(catalogue: Catalogue, party: str | None) -> list[int]:
    """One party by name, or all that are served."""
    names = [one.name for one in catalogue.parties]
    if party is not None and party not in names:
        raise Problem(404, "there is no such party here", f"use one of: {', '.join(names)}")
    return [p for p, name in enumerate(names) if party in (None, name)]


def item_row(catalogue: Catalogue, item: str, party: str | None) -> tuple[int, int]:
    """(party, item) of an id."""
    found = [
        (p, row)
        for p in party_rows(catalogue, party)
        if (row := catalogue.parties[p].ids.row(item)) is not None
    ]
    if not found:
        raise Problem(404, "there is no such item here", "give an item's id as in the data of this run")
    if len(found) > 1:
        names = ", ".join(catalogue.parties[p].name for p, _ in found)
        raise Problem(
            400, "several parties have an item of this id", f"say whose with party; one of: {names}"
        )
    return found[0]


def shelves(catalogue: Catalogue, model: str) -> Sequence[Shelf]:
    """The shelves of a model."""
    if model == ALONE and ALONE not in catalogue.shelves:
        remedy = "train with a gate (preset best, or --set gate=true), which also trains every party alone"
        raise Problem(404, "this run holds no models of the parties alone", remedy)
    return catalogue.shelves[model]


def where(catalogue: Catalogue, given: Mapping[str, str], known: Sequence[str]) -> dict[str, str]:
    """What remains of a query beside its known parameters: item columns and their values."""
    wanted = {name: value for name, value in given.items() if name not in known}
    for name in wanted:
        if name not in catalogue.columns:
            there = ", ".join(sorted(catalogue.columns)) or "none"
            names = f"parameters: {', '.join(known)}; " if known else ""
            raise Problem(400, "there is no such parameter or item column", f"{names}columns: {there}")
    return wanted


def of_user(
    catalogue: Catalogue, model: str, user: int, parties: Sequence[int], k: int, wanted: dict[str, str]
) -> list[tuple[Shelf, Wish]]:
    """The questions that make up a user's recommendations, one a party."""
    chosen = shelves(catalogue, model)
    questions = []
    for p in parties:
        party = catalogue.parties[p]
        questions.append((chosen[p], Wish(chosen[p].users[user], k, party.seen(user), party.mask(wanted))))
    return questions


def newcomer(catalogue: Catalogue, ratings: Sequence[GivenRating]) -> list[Rated]:
    """A newcomer's ratings by party, checked; of a ranking only the liked ones are used later."""
    pairs: dict[tuple[int, int], float] = {}
    for number, given in enumerate(ratings):
        try:
            p, row = item_row(catalogue, given.item, given.party)
        except Problem as problem:
            raise Problem(problem.status, f"ratings.{number}: {problem.cause}", problem.remedy) from None
        low, high = catalogue.parties[p].table.scale
        if not low <= given.rating <= high:
            raise Problem(
                400,
                f"ratings.{number}: the rating is outside the scale",
                f"give one from {low:g} to {high:g}",
            )
        pairs[p, row] = given.rating
    found = []
    for p in sorted({p for p, _ in pairs}):
        mine = [(row, rating) for (q, row), rating in pairs.items() if q == p]
        found.append(Rated(p, np.array([row for row, _ in mine]), np.array([r for _, r in mine], np.float32)))
    return found


def folded(catalogue: Catalogue, rated: Sequence[Rated]) -> list[Tensor]:
    """The newcomer's vector at each party."""
    places = catalogue.places["federated"]
    z = fold_in(places, rated, ranks=catalogue.ranks).z
    return [place.vector(z) for place in places]


def no_items() -> Rows:
    """Nothing to leave out."""
    return np.empty(0, np.int64)
