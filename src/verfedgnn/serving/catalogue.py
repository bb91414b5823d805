"""The data and models of a served run, indexed for lookups by user, by item and by item column."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.core.errors import RunError
from verfedgnn.core.rating_scale import upper_quarter
from verfedgnn.data import TRAIN, PartyData, Ratings
from verfedgnn.data.item_table import ItemTable
from verfedgnn.runs.merged_order import is_liked
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.runs.run import Run
from verfedgnn.serving.approximate_index import MIN_ITEMS, ApproximateRanker
from verfedgnn.serving.fold_in import UserRatings
from verfedgnn.serving.id_index import IdIndex
from verfedgnn.serving.item_weights import Rows
from verfedgnn.serving.newer_ratings import NewerRatings
from verfedgnn.serving.ranker import ItemRanker
from verfedgnn.serving.user_features import FeaturedPrior, Floats, UserTable, fit_featured_prior
from verfedgnn.serving.user_prior import PartyPrior, fit_user_prior

FEDERATED, ALONE = "federated", "alone"
IMAGE = "image"
"""Item column with pictures: paths below the folder of `serve --images`, or https addresses."""
CACHED_ITEMS = 100_000
"""Item descriptions kept in memory per party, at about 600 bytes each."""
CACHED_FILTERS = 256
"""Item filters kept in memory per party, at one byte per item each."""


class PartyCatalogue:
    """One party's ratings and items, indexed for lookups."""

    def __init__(self, party: PartyData, part: NDArray[np.int8]) -> None:
        self.name = party.name
        self.table = party.ratings
        self.ids = IdIndex(party.ratings.item_ids)
        self.liked_from = upper_quarter(party.ratings.scale)
        """Lowest rating that counts as liked."""
        liked = is_liked(self.table)
        self.likes = np.bincount(self.table.user[liked], minlength=self.table.n_users)
        """Number of liked items of each user (N,)."""
        self.total_likes = int(self.likes.sum())
        self._part = part
        self._order = np.lexsort((self.table.item, self.table.user))
        self._ends = np.searchsorted(self.table.user[self._order], np.arange(self.table.n_users + 1))
        self._cached_filter = lru_cache(CACHED_FILTERS)(self._filter_column)
        self.describe = lru_cache(CACHED_ITEMS)(self._describe)

    def find_ratings(self, user: int) -> Rows:
        """Return the rows of the ratings table that belong to `user`."""
        rows: Rows = self._order[self._ends[user] : self._ends[user + 1]]
        return rows

    def find_rated_items(self, user: int) -> Rows:
        """Return the rows of the items that `user` has rated."""
        return self.table.item[self.find_ratings(user)].astype(np.int64)

    def find_training_ratings(self, user: int) -> tuple[Rows, NDArray[np.float32]]:
        """Return the items and ratings of `user` in the training part."""
        rows = self.find_ratings(user)
        rows = rows[self._part[rows] == TRAIN]
        return self.table.item[rows].astype(np.int64), self.table.rating[rows]

    @cached_property
    def _names(self) -> list[str]:
        """Title and id of each item, as they are searched."""
        titles = self.table.item_ids if self.table.titles is None else self.table.titles
        return [
            f"{title}\n{item}".casefold() for title, item in zip(titles, self.table.item_ids, strict=True)
        ]

    def search(self, text: str, k: int) -> list[tuple[bool, int, int]]:
        """Return up to k items whose title or id contains `text`, as (starts with it, number of ratings, row), best first."""
        wanted = text.casefold()
        found = [row for row, name in enumerate(self._names) if wanted in name]
        ranked = [(self._names[row].startswith(wanted), int(self._counts[row]), row) for row in found]
        return heapq.nlargest(k, ranked, key=lambda entry: entry[:2])

    @cached_property
    def _counts(self) -> NDArray[np.int64]:
        counts: NDArray[np.int64] = np.bincount(self.table.item, minlength=self.table.n_items)
        return counts

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
    """A run indexed for serving: one model orders lists, and another one may predict the ratings beside them.

    With `party`, only that party's items are served. With `approximate`, large catalogues that are ordered by predicted ratings
    get an approximate index. `newer` holds ratings that are newer than the run, and `features` tables of customers, by party.
    """

    def __init__(
        self,
        run: Run,
        name: str,
        party: str | None = None,
        *,
        approximate: bool = False,
        newer: Mapping[str, Ratings] = MappingProxyType({}),
        features: Mapping[str, ItemTable] = MappingProxyType({}),
    ) -> None:
        names = [p.name for p in run.parties]
        if party is not None and party not in names:
            raise RunError(f"this run has no party '{party}'; choose one of: {', '.join(names)}")
        self.run = run
        self.name = name
        self.chosen = [p for p in range(len(names)) if party in (None, names[p])]
        self.ranks = run.ranker.config.training.ranks
        """Whether a model of lists orders them, not predicted ratings."""
        self.predicts = not run.config.training.ranks
        """Whether the run predicts ratings."""
        self.parties = [PartyCatalogue(run.parties[p], run.parts[p]) for p in self.chosen]
        self.newer = [
            NewerRatings(p, served.table, newer[served.name])
            for p, served in enumerate(self.parties)
            if served.name in newer
        ]
        self.user_tables = {
            p: UserTable(served.name, features[served.name], served.table)
            for p, served in enumerate(self.parties)
            if served.name in features
        }
        self.users = IdIndex(run.parties[0].ratings.user_ids)
        self.index_users = lru_cache(CACHED_FILTERS)(self._index_users)
        self.rankers = {
            name: [self._make_ranker(model, approximate) for model in models]
            for name, models in self._choose_models(run.ranker).items()
        }
        self.rating_models = self._choose_models(run) if self.predicts else {}

    def _choose_models(self, run: Run) -> dict[str, list[PartyModel]]:
        """Return the models of the served parties, federated and, if the run has them, alone."""
        found = {FEDERATED: run.models} | ({} if run.alone is None else {ALONE: run.alone})
        return {name: [models[p] for p in self.chosen] for name, models in found.items()}

    def _make_ranker(self, model: PartyModel, approximate: bool) -> ItemRanker:
        if approximate and not self.ranks and len(model.items) >= MIN_ITEMS:
            return ApproximateRanker(model)
        return ItemRanker(model, ranks=self.ranks)

    def _index_users(self, parties: tuple[int, ...]) -> IdIndex:
        """Return an index of the users that these parties know; all users of the run for all parties."""
        if len(parties) == len(self.parties):
            return self.users
        tables = [self.parties[p].table for p in parties]
        known = np.bincount(np.concatenate([t.user for t in tables]), minlength=tables[0].n_users) > 0
        return IdIndex(np.where(known, tables[0].user_ids, ""))

    @cached_property
    def priors(self) -> dict[str, list[PartyPrior]]:
        """User priors of the models that order lists: a joint one if federated, a separate one for each party alone."""
        models = {name: [ranker.model for ranker in rankers] for name, rankers in self.rankers.items()}
        return self._fit_priors(models, ranks=self.ranks)

    @cached_property
    def rating_priors(self) -> dict[str, list[PartyPrior]]:
        """User priors of the models that predict ratings; empty if the run predicts none."""
        if self.predicts and not self.ranks:
            return self.priors
        return self._fit_priors(self.rating_models, ranks=False)

    def _fit_priors(
        self, models: Mapping[str, list[PartyModel]], *, ranks: bool
    ) -> dict[str, list[PartyPrior]]:
        data = [(self.run.parties[p].ratings, self.run.parts[p]) for p in self.chosen]
        priors = {}
        for name, found in models.items():
            if name == FEDERATED:
                priors[name] = fit_user_prior(found, data, ranks=ranks)
            else:
                priors[name] = [
                    fit_user_prior([model], [own], ranks=ranks)[0]
                    for model, own in zip(found, data, strict=True)
                ]
        return priors

    @cached_property
    def featured(self) -> dict[str, dict[int, FeaturedPrior]]:
        """What customers' features say in the models that order lists, by the number of the party that has them."""
        models = {name: [ranker.model for ranker in rankers] for name, rankers in self.rankers.items()}
        return self._fit_featured(models, self.priors, ranks=self.ranks)

    @cached_property
    def featured_ratings(self) -> dict[str, dict[int, FeaturedPrior]]:
        """What customers' features say in the models that predict ratings."""
        if self.predicts and not self.ranks:
            return self.featured
        return self._fit_featured(self.rating_models, self.rating_priors, ranks=False)

    def _fit_featured(
        self,
        models: Mapping[str, list[PartyModel]],
        priors: Mapping[str, list[PartyPrior]],
        *,
        ranks: bool,
    ) -> dict[str, dict[int, FeaturedPrior]]:
        """Return the priors of customers whose features help, by model and party."""
        found: dict[str, dict[int, FeaturedPrior]] = {}
        for name in models:
            found[name] = {}
            for p, table in self.user_tables.items():
                joint = name == FEDERATED
                fitted = fit_featured_prior(
                    priors[name] if joint else [priors[name][p]],
                    models[name] if joint else [models[name][p]],
                    p if joint else 0,
                    self.parties[p].table,
                    self.run.parts[self.chosen[p]],
                    table,
                    ranks=ranks,
                )
                if fitted is not None:
                    found[name][p] = fitted
        return found

    def find_user_features(self, user: str, parties: Sequence[int]) -> dict[int, Floats]:
        """Return the features that these parties have of a customer, by party."""
        tables = {p: self.user_tables[p] for p in parties if p in self.user_tables}
        return {p: found for p, table in tables.items() if (found := table.find(user)) is not None}

    def find_training_ratings(self, user: int, parties: Sequence[int]) -> list[UserRatings]:
        """Return the training ratings of `user` at these parties."""
        found = [(p, *self.parties[p].find_training_ratings(user)) for p in parties]
        return [UserRatings(p, items, ratings) for p, items, ratings in found if len(items)]

    def find_newer_ratings(self, user: str) -> list[UserRatings]:
        """Return the ratings of a user, by id, that are newer than the run."""
        return [found for newer in self.newer if (found := newer.find(user)) is not None]

    def search_items(self, text: str, parties: Sequence[int], k: int) -> list[tuple[int, int]]:
        """Return the party and row of up to k items whose title or id contains `text`, best first."""
        found = [
            (starts, count, p, row) for p in parties for starts, count, row in self.parties[p].search(text, k)
        ]
        return [(p, row) for *_, p, row in heapq.nlargest(k, found, key=lambda entry: entry[:2])]
