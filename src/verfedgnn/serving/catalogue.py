"""The data and models of a served run, indexed for lookups by user, by item and by item column."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.core.errors import RunError
from verfedgnn.core.rating_scale import upper_quarter
from verfedgnn.data import TRAIN, PartyData
from verfedgnn.data.ids import StrArray
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.runs.run import Run
from verfedgnn.serving.approximate_index import MIN_ITEMS, ApproximateRanker
from verfedgnn.serving.fold_in import UserRatings
from verfedgnn.serving.ranker import ItemRanker, Rows
from verfedgnn.serving.user_prior import PartyPrior, fit_user_prior

FEDERATED, ALONE = "federated", "alone"
CACHED_ITEMS = 100_000
"""Item descriptions kept in memory per party, at about 600 bytes each."""
CACHED_FILTERS = 256
"""Item filters kept in memory per party, at one byte per item each."""


class IdIndex:
    """An index of ids that finds rows by exact id and by prefix."""

    def __init__(self, ids: StrArray) -> None:
        order = np.argsort(ids, kind="stable")
        self._order = order[ids[order] != ""]  # users of other parties have no id here
        self._sorted = ids[self._order]

    def find(self, text: str) -> int | None:
        """Return the row of an id, or None if the id is unknown."""
        place = bisect_left(
            self._sorted, text
        )  # np.searchsorted would copy all ids if `text` is longer than they are
        found = place < len(self._sorted) and str(self._sorted[place]) == text
        return int(self._order[place]) if found else None

    def find_prefix(self, prefix: str, limit: int) -> list[int]:
        """Return the rows of the first `limit` ids that start with `prefix`, in alphabetical order."""
        first = bisect_left(self._sorted, prefix)
        candidates = range(first, min(first + limit, len(self._sorted)))
        return [int(self._order[i]) for i in candidates if str(self._sorted[i]).startswith(prefix)]


class PartyCatalogue:
    """One party's ratings and items, indexed for lookups."""

    def __init__(self, party: PartyData, part: NDArray[np.int8]) -> None:
        self.name = party.name
        self.table = party.ratings
        self.ids = IdIndex(party.ratings.item_ids)
        self._part = part
        self._order = np.lexsort((self.table.item, self.table.user))
        self._ends = np.searchsorted(self.table.user[self._order], np.arange(self.table.n_users + 1))
        self._cached_filter = lru_cache(CACHED_FILTERS)(self._filter_column)
        self.describe = lru_cache(CACHED_ITEMS)(self._describe)

    def find_ratings(self, user: int) -> Rows:
        """Return the rows of the ratings table that belong to `user`."""
        rows: Rows = self._order[self._ends[user] : self._ends[user + 1]]
        return rows

    def find_rating(self, user: int, item: int) -> float | None:
        """Return the rating that `user` gave `item`, or None."""
        rows = self.find_ratings(user)
        found = rows[self.table.item[rows] == item]
        return float(self.table.rating[found[0]]) if len(found) else None

    def find_rated_items(self, user: int) -> Rows:
        """Return the rows of the items that `user` has rated."""
        return self.table.item[self.find_ratings(user)].astype(np.int64)

    def find_training_ratings(self, user: int, *, ranks: bool) -> tuple[Rows, NDArray[np.float32]]:
        """Return the items and ratings of `user` in the training part; for a ranking model, only liked items."""
        rows = self.find_ratings(user)
        rows = rows[self._part[rows] == TRAIN]
        if ranks:
            rows = rows[self.table.rating[rows] >= upper_quarter(self.table.scale)]
        return self.table.item[rows].astype(np.int64), self.table.rating[rows]

    def filter_items(self, filters: Mapping[str, str]) -> Tensor | None:
        """Return a mask of the items that have these column values, or None without filters."""
        mask: Tensor | None = None
        for column, value in filters.items():
            matches = self._cached_filter(column, value)
            mask = matches if mask is None else mask & matches
        return mask

    def _filter_column(self, name: str, value: str) -> Tensor:
        column = self.table.columns.get(name)
        if column is None or "\0" in value:  # NumPy ignores trailing NULs when it compares strings
            return torch.zeros(self.table.n_items, dtype=torch.bool)
        return torch.from_numpy(column == value)

    def _describe(self, item: int) -> Mapping[str, Any]:
        """Return the id, title, party and columns of an item, as in the responses of the API."""
        return {
            "item": str(self.table.item_ids[item]),
            "title": "" if self.table.titles is None else str(self.table.titles[item]),
            "party": self.name,
            "columns": {name: str(values[item]) for name, values in self.table.columns.items()},
        }


class Catalogue:
    """A run indexed for serving.

    With `party`, only that party's items are served. With `approximate`, large catalogues get an approximate index.
    """

    def __init__(self, run: Run, name: str, party: str | None = None, *, approximate: bool = False) -> None:
        names = [p.name for p in run.parties]
        if party is not None and party not in names:
            raise RunError(f"this run has no party '{party}'; choose one of: {', '.join(names)}")
        self.run = run
        self.name = name
        self.chosen = [p for p in range(len(names)) if party in (None, names[p])]
        self.ranks = run.config.training.ranks
        self.parties = [PartyCatalogue(run.parties[p], run.parts[p]) for p in self.chosen]
        self.users = IdIndex(run.parties[0].ratings.user_ids)
        self.rankers = {FEDERATED: [self._make_ranker(run.models[p], approximate) for p in self.chosen]}
        if run.alone is not None:
            self.rankers[ALONE] = [self._make_ranker(run.alone[p], approximate) for p in self.chosen]

    def _make_ranker(self, model: PartyModel, approximate: bool) -> ItemRanker:
        kind = ApproximateRanker if approximate and len(model.items) >= MIN_ITEMS else ItemRanker
        return kind(model, ranks=self.ranks)

    @property
    def columns(self) -> set[str]:
        """Names of the item columns of all parties."""
        return {name for party in self.parties for name in party.table.columns}

    @cached_property
    def priors(self) -> dict[str, list[PartyPrior]]:
        """User priors by model: one joint prior for the federated models, a separate one for each party alone."""
        models = [self.run.models[p] for p in self.chosen]
        data = [(self.run.parties[p].ratings, self.run.parts[p]) for p in self.chosen]
        priors = {FEDERATED: fit_user_prior(models, data)}
        if self.run.alone is not None:
            priors[ALONE] = [
                fit_user_prior([self.run.alone[p]], [pair])[0]
                for p, pair in zip(self.chosen, data, strict=True)
            ]
        return priors

    def find_training_ratings(self, user: int, parties: list[int]) -> list[UserRatings]:
        """Return the training ratings of `user` at these parties."""
        found = [(p, *self.parties[p].find_training_ratings(user, ranks=self.ranks)) for p in parties]
        return [UserRatings(p, items, ratings) for p, items, ratings in found if len(items)]
