"""What serving looks up: users and items by id, what a user has rated, items by column, the models' shelves."""

from __future__ import annotations

import json
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
from verfedgnn.serving import approximate_index as index
from verfedgnn.serving.approximate_index import IndexedShelf
from verfedgnn.serving.fold_in import Rated
from verfedgnn.serving.ranker import Rows, Shelf
from verfedgnn.serving.user_prior import PartyTastes, tastes

FEDERATED, ALONE = "federated", "alone"
KEPT = 200_000
"""Items whose description is kept as text; some 300 bytes each."""
MASKS = 256
"""Filters whose items are kept; a byte an item each."""


class Ids:
    """Ids by text: exact, and by how they start."""

    def __init__(self, ids: StrArray) -> None:
        self._order = np.argsort(ids, kind="stable")
        self._sorted = ids[self._order]

    def row(self, text: str) -> int | None:
        """The row of an id; None if there is none."""
        place = bisect_left(self._sorted, text)  # NumPy's own search would copy all ids where one is longer
        found = place < len(self._sorted) and str(self._sorted[place]) == text
        return int(self._order[place]) if found else None

    def starting_with(self, text: str, limit: int) -> list[int]:
        """Rows of the first ids that start so, the id itself first."""
        first = bisect_left(self._sorted, text)
        some = range(first, min(first + limit, len(self._sorted)))
        return [int(self._order[i]) for i in some if str(self._sorted[i]).startswith(text)]


class PartyShelf:
    """One party's data, ready to be asked."""

    def __init__(self, party: PartyData, part: NDArray[np.int8]) -> None:
        self.name, self.table, self.ids = party.name, party.ratings, Ids(party.ratings.item_ids)
        order = np.lexsort((party.ratings.item, party.ratings.user))
        self._ends = np.searchsorted(party.ratings.user[order], np.arange(party.ratings.n_users + 1))
        self._order, self._part = order, part
        self._mask = lru_cache(MASKS)(self._having)
        self.written = lru_cache(KEPT)(self._written)

    def ratings_of(self, user: int) -> Rows:
        """Rows of the table that are the user's."""
        rows: Rows = self._order[self._ends[user] : self._ends[user + 1]]
        return rows

    def rating(self, user: int, item: int) -> float | None:
        """What the user gave the item, where they did."""
        rows = self.ratings_of(user)
        found = rows[self.table.item[rows] == item]
        return float(self.table.rating[found[0]]) if len(found) else None

    def seen(self, user: int) -> Rows:
        """Items the user has rated."""
        return self.table.item[self.ratings_of(user)].astype(np.int64)

    def trained(self, user: int, *, ranks: bool) -> tuple[Rows, NDArray[np.float32]]:
        """Items and ratings of the user that the model was trained on."""
        rows = self.ratings_of(user)
        rows = rows[self._part[rows] == TRAIN]
        if ranks:
            rows = rows[self.table.rating[rows] >= upper_quarter(self.table.scale)]
        return self.table.item[rows].astype(np.int64), self.table.rating[rows]

    def mask(self, wanted: Mapping[str, str]) -> Tensor | None:
        """The items that have these values; None where nothing is asked."""
        whole: Tensor | None = None
        for name, value in wanted.items():
            there = self._mask(name, value)
            whole = there if whole is None else whole & there
        return whole

    def _having(self, name: str, value: str) -> Tensor:
        column = self.table.columns.get(name)
        if column is None or "\0" in value:  # NumPy takes no notice of NULs at the end
            return torch.zeros(self.table.n_items, dtype=torch.bool)
        return torch.from_numpy(column == value)

    def describe(self, item: int) -> dict[str, Any]:
        """An item for people and programs."""
        title = "" if self.table.titles is None else str(self.table.titles[item])
        columns = {name: str(values[item]) for name, values in self.table.columns.items()}
        return {
            "item": str(self.table.item_ids[item]),
            "title": title,
            "party": self.name,
            "columns": columns,
        }

    def _written(self, item: int) -> str:
        """`describe` as JSON without its last brace: a score follows."""
        return json.dumps(self.describe(item), separators=(",", ":"))[:-1]


class Catalogue:
    """A run, ready to be asked; with `party`, only that one's items; `approximate` indexes large catalogues."""

    def __init__(self, run: Run, name: str, party: str | None = None, *, approximate: bool = False) -> None:
        names = [p.name for p in run.parties]
        if party is not None and party not in names:
            raise RunError(f"there is no party '{party}' in this run; there are: {', '.join(names)}")
        chosen = [p for p in range(len(names)) if party in (None, names[p])]
        self.run, self.name, self.chosen, self.ranks = run, name, chosen, run.config.training.ranks
        self.parties = [PartyShelf(run.parties[p], run.parts[p]) for p in chosen]
        self.users = Ids(run.parties[0].ratings.user_ids)
        self.shelves = {FEDERATED: [self._shelf(run.models[p], approximate) for p in chosen]}
        if run.alone is not None:
            self.shelves[ALONE] = [self._shelf(run.alone[p], approximate) for p in chosen]

    def _shelf(self, model: PartyModel, approximate: bool) -> Shelf:
        kind = IndexedShelf if approximate and len(model.items) >= index.FROM else Shelf
        return kind(model, ranks=self.ranks)

    @property
    def columns(self) -> set[str]:
        """Names of item columns, of any party."""
        return {name for party in self.parties for name in party.table.columns}

    @cached_property
    def places(self) -> dict[str, list[PartyTastes]]:
        """Every model's common space: that of the federation over all parties served, those alone by themselves."""
        models = [self.run.models[p] for p in self.chosen]
        data = [(self.run.parties[p].ratings, self.run.parts[p]) for p in self.chosen]
        found = {FEDERATED: tastes(models, data)}
        if self.run.alone is not None:
            found[ALONE] = [
                tastes([self.run.alone[p]], [pair])[0] for p, pair in zip(self.chosen, data, strict=True)
            ]
        return found

    def trained(self, user: int, parties: list[int]) -> list[Rated]:
        """What the model was trained on of a user at these parties."""
        found = [(p, *self.parties[p].trained(user, ranks=self.ranks)) for p in parties]
        return [Rated(p, items, ratings) for p, items, ratings in found if len(items)]
