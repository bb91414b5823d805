"""The data and models of a served run, indexed for lookups by user, by item and by item column."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.core.errors import DataError, RunError
from verfedgnn.core.rating_scale import upper_quarter
from verfedgnn.data import TRAIN, PartyData, Ratings
from verfedgnn.data.ids import StrArray, spell
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.runs.run import Run
from verfedgnn.serving.fold_in import FoldedUser, PartyPrior, Rated, UserRatings, fit_user_prior, fold_in
from verfedgnn.serving.ranker import ItemRanker
from verfedgnn.serving.split_test import ALONE, FEDERATED, ModelName, SplitTest

Parts = NDArray[np.int8]
WITHOUT_ALONE = "train with a gate (preset best, or --set gate=true), which also trains every party alone"
CACHED_FILTERS = 256
"""Item filters kept in memory per party, at one byte per item each."""


class IdIndex:
    """An index of ids that finds rows by prefix and by id, also by one that is spelled so only in one of the `ways`."""

    def __init__(self, ids: StrArray, ways: Sequence[str] = ()) -> None:
        self._ways = ways
        order = np.argsort(ids, kind="stable")
        self._order = order[ids[order] != ""]  # users of other parties have no id here
        self._sorted = ids[self._order]

    def find(self, text: str) -> int | None:
        """Return the row of an id, or None if the id is unknown."""
        for each in (text, *(str(spell(np.array([text]), way)[0]) for way in self._ways)):
            # np.searchsorted would copy all ids if `each` is longer than they are
            place = bisect_left(self._sorted, each)
            if place < len(self._sorted) and str(self._sorted[place]) == each:
                return int(self._order[place])
        return None

    def find_prefix(self, prefix: str, limit: int) -> list[int]:
        """Return the rows of the first `limit` ids that start with `prefix`, in alphabetical order."""
        first = bisect_left(self._sorted, prefix)
        candidates = range(first, min(first + limit, len(self._sorted)))
        return [int(self._order[i]) for i in candidates if str(self._sorted[i]).startswith(prefix)]


@dataclass(frozen=True)
class DescribedItem:
    """An item of a party's catalogue, as answers show it."""

    item: str
    title: str
    party: str
    columns: dict[str, str]


class PartyCatalogue:
    """One party's ratings and items, indexed for lookups."""

    def __init__(self, party: PartyData, part: Parts) -> None:
        self.name = party.name
        self.table = party.ratings
        self.ids = IdIndex(party.ratings.item_ids)
        self.liked_from = upper_quarter(party.ratings.scale)
        self.likes = int((self.table.rating >= self.liked_from).sum())
        self._part = part
        self._order = np.lexsort((self.table.item, self.table.user))
        self._ends = np.searchsorted(self.table.user[self._order], np.arange(self.table.n_users + 1))
        self._cached_filter = lru_cache(CACHED_FILTERS)(self._filter_column)

    def find_ratings(self, user: int, *, training: bool = False) -> UserRatings:
        """Return the items and ratings of `user`; with `training`, only those of the training part."""
        rows = self._order[self._ends[user] : self._ends[user + 1]]
        if training:
            rows = rows[self._part[rows] == TRAIN]
        return UserRatings(self.table.item[rows].astype(np.int64), self.table.rating[rows])

    def place(self, rating: float) -> float:
        """Return the position of a rating in the party's scale, from 0 to 1 for ratings within it."""
        low, high = self.table.scale
        return (rating - low) / ((high - low) or 1.0)

    @cached_property
    def names(self) -> list[str]:
        """Title and id of each item, as they are searched."""
        titles = self.table.item_ids if self.table.titles is None else self.table.titles
        return [f"{name}\n{item}".casefold() for name, item in zip(titles, self.table.item_ids, strict=True)]

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Number of ratings of each item."""
        return np.bincount(self.table.item, minlength=self.table.n_items)

    def filter_items(self, filters: Mapping[str, str]) -> Tensor | None:
        """Return a mask of the items that have these column values, or None without filters."""
        masks = [self._cached_filter(column, value) for column, value in filters.items()]
        return torch.stack(masks).all(0) if masks else None

    def _filter_column(self, name: str, value: str) -> Tensor:
        column = self.table.columns.get(name)
        if column is None or "\0" in value:  # NumPy ignores trailing NULs when it compares strings
            return torch.zeros(self.table.n_items, dtype=torch.bool)
        return torch.from_numpy(column == value)

    def describe(self, item: int) -> DescribedItem:
        """Return an item, by its row, as answers show it."""
        title = "" if self.table.titles is None else str(self.table.titles[item])
        columns = {name: str(values[item]) for name, values in self.table.columns.items()}
        return DescribedItem(str(self.table.item_ids[item]), title, self.name, columns)


@dataclass(frozen=True)
class ServedModels:
    """Models of one kind, one a served party: they order lists, or they predict ratings."""

    models: Sequence[PartyModel]
    data: Sequence[tuple[Ratings, Parts]]
    """Ratings of each party, and their parts."""
    ranks: bool
    joint: bool
    """Whether the models were trained together."""

    @cached_property
    def rankers(self) -> list[ItemRanker]:
        """The models, laid out for many users at once."""
        return [ItemRanker(model, ranks=self.ranks) for model in self.models]

    @cached_property
    def priors(self) -> dict[int, PartyPrior]:
        """User priors by party: a joint one, or a separate one of each party alone."""
        pairs = list(zip(self.models, self.data, strict=True))
        groups = [pairs] if self.joint else [[pair] for pair in pairs]
        fitted = (fit_user_prior(*zip(*group, strict=True), ranks=self.ranks) for group in groups)
        return dict(enumerate(chain.from_iterable(fitted)))

    def fold_in(self, rated: Rated, parties: Iterable[int]) -> dict[int, FoldedUser]:
        """Return a user's position at each of `parties`; a model trained alone knows only the ratings at its party."""
        if self.joint:
            return dict.fromkeys(parties, fold_in(self.priors, rated))
        return {p: fold_in({p: self.priors[p]}, {p: rated[p]} if p in rated else {}) for p in parties}


class Catalogue:
    """A run indexed for serving: one model orders lists, and another one may predict the ratings beside them.

    With `party`, only that party's items are served; with `split`, its buckets say who gets which lists.
    """

    def __init__(self, run: Run, name: str, party: str | None = None, split: SplitTest | None = None) -> None:
        if split is not None and run.ranker.alone is None:
            raise RunError(f"a split test needs the lists of the parties alone; {WITHOUT_ALONE}")
        self.run = run
        self.name = name
        self.split = split
        self.chosen = run.find_parties(party)
        self.parties = [PartyCatalogue(run.parties[p], run.parts[p]) for p in self.chosen]
        self.user_ids = run.parties[0].ratings.user_ids
        self.users = IdIndex(self.user_ids, run.spellings)
        self.index_users = lru_cache(CACHED_FILTERS)(self._index_users)
        data = [(run.parties[p].ratings, run.parts[p]) for p in self.chosen]
        self.lists = self._serve(run.ranker, data)
        """The models that order lists: federated and, if the run has them, alone."""
        self.stars = self.lists if run.ranker is run else self._serve(run, data)
        """The models that predict ratings; the same if lists are ordered by these, or if the run predicts none."""
        self.ranks = run.ranker.config.ranks
        self.predicts = not run.config.ranks

    def _serve(self, run: Run, data: Sequence[tuple[Ratings, Parts]]) -> dict[ModelName, ServedModels]:
        def served(models: Sequence[PartyModel], *, joint: bool) -> ServedModels:
            chosen = [models[p].cpu() for p in self.chosen]
            return ServedModels(chosen, data, run.config.ranks, joint)

        alone = {} if run.alone is None else {ALONE: served(run.alone, joint=False)}
        return {FEDERATED: served(run.models, joint=True), **alone}

    def _index_users(self, parties: tuple[int, ...], everybody: bool = False) -> IdIndex:
        """Return an index of the users that these parties know, or of all users of the run."""
        if everybody or len(parties) == len(self.run.parties):
            return self.users
        tables = [self.parties[p].table for p in parties]
        known = np.bincount(np.concatenate([t.user for t in tables]), minlength=tables[0].n_users) > 0
        return IdIndex(np.where(known, tables[0].user_ids, ""))

    def find_ratings(self, user: int, parties: Sequence[int], *, training: bool = False) -> Rated:
        """Return the ratings of `user` at these parties; with `training`, only those of the training part."""
        found = {p: self.parties[p].find_ratings(user, training=training) for p in parties}
        return {p: own for p, own in found.items() if len(own.items)}

    def search_items(self, text: str, parties: Sequence[int], k: int) -> list[tuple[int, int]]:
        """Return the party and row of up to k items whose title or id contains `text`: first those that start with it, then by ratings."""
        wanted = text.casefold()
        found = []
        for p in parties:
            party = self.parties[p]
            rows = [row for row, name in enumerate(party.names) if wanted in name]
            found += [(party.names[row].startswith(wanted), int(party.counts[row]), p, row) for row in rows]
        return [(p, row) for *_, p, row in heapq.nlargest(k, found, key=lambda entry: entry[:2])]


class Unanswerable(RunError):
    """A question about a party or an item that cannot be answered; `status` says so over HTTP."""

    def __init__(self, message: str, status: int = 404) -> None:
        super().__init__(message)
        self.status = status


class View:
    """What one request may see of a catalogue: the parties `allowed`. Other parties do not exist for it.

    `remedy` says how to choose among several parties.
    """

    def __init__(self, catalogue: Catalogue, allowed: Sequence[int], remedy: str) -> None:
        self.catalogue = catalogue
        self.allowed = allowed
        self.remedy = remedy

    def name_parties(self, parties: Iterable[int]) -> str:
        """Return the names of parties, given their numbers."""
        return ", ".join(self.catalogue.parties[p].name for p in parties)

    def find_parties(self, party: str | None) -> list[int]:
        """Return the number of the party with this name, or the numbers of all allowed parties."""
        found = [p for p in self.allowed if party in (None, self.catalogue.parties[p].name)]
        if not found:
            names = self.name_parties(self.allowed)
            raise Unanswerable(f"there is no such party here; use one of: {names}")
        return found

    def find_item(self, item: str, party: str | None) -> tuple[int, int]:
        """Return the party and the row of an item."""
        parties = self.find_parties(party)
        rows = [(p, self.catalogue.parties[p].ids.find(item)) for p in parties]
        found = [(p, row) for p, row in rows if row is not None]
        if len(found) > 1:
            names = self.name_parties(p for p, _ in found)
            raise Unanswerable(f"item '{item}' is an id of several parties ({names}); {self.remedy}", 400)
        if not found:
            where = "in no catalogue" if party is None else f"not in the catalogue of '{party}'"
            looks = self.catalogue.parties[parties[0]].table.item_ids[0]
            raise Unanswerable(f"item '{item}' is {where}; known items look like '{looks}'")
        return found[0]

    def read_ratings(self, given: Iterable[tuple[str, str | None, Any]]) -> Rated:
        """Return ratings, given by item and party, by party, after checking items and scales."""
        found: dict[int, dict[int, float]] = defaultdict(dict)
        for item, party, rating in given:
            p, row = self.find_item(item, party)
            low, high = self.catalogue.parties[p].table.scale
            try:
                found[p][row] = float(rating)
            except (TypeError, ValueError):
                found[p][row] = math.nan
            if not low <= found[p][row] <= high:
                scale = f"{self.catalogue.parties[p].name} rates from {low:g} to {high:g}"
                raise DataError(f"the rating of item '{item}' is {rating}; {scale}")
        return {
            p: UserRatings(np.array([*own]), np.array([*own.values()], np.float32))
            for p, own in sorted(found.items())
        }
