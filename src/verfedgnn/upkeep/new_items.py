"""Items that come after a training: a vector from their first ratings, at the party, without the federation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from verfedgnn.core.errors import ConfigError, DataError, RunError
from verfedgnn.data.ids import find_positions
from verfedgnn.data.rating_reader import read_table
from verfedgnn.data.ratings import Ratings
from verfedgnn.data.table_sources import read_item_texts
from verfedgnn.data.value_parsing import latest_plausible_time
from verfedgnn.runs.added_items import (
    AddedItem,
    added_file,
    check_item,
    lock_added,
    read_added,
    rewrite_added,
)
from verfedgnn.runs.forget_record import ForgottenUsers, is_federated
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.runs.party_tables import safe_names
from verfedgnn.runs.run import Run
from verfedgnn.runs.run_folder import FORGOTTEN, LISTS
from verfedgnn.upkeep.item_prior import ItemPrior, fit_item_prior


@dataclass(frozen=True)
class AddedReport:
    """What was added."""

    items: list[AddedItem]
    """The items as they are stored now."""
    unknown_users: int
    """Number of given ratings that were left out, because their users were not in training."""


class NewItems:
    """One party's new items: it estimates their vectors and keeps them in the run folder."""

    def __init__(self, folder: Path, run: Run, party: str) -> None:
        """`run` is the run in `folder` as it was trained, without added items."""
        names = [each.name for each in run.parties]
        if party not in names:
            raise RunError(f"there is no party '{party}' in this run; use one of: {', '.join(names)}")
        self.party = party
        self._number = names.index(party)
        self._folder = folder
        self._federated = is_federated(folder)
        self._run = run
        file = safe_names(run.parties)[self._number]
        self._file = added_file(folder, file)

    @property
    def table(self) -> Ratings:
        """The party's ratings in training."""
        return self._run.parties[self._number].ratings

    @cached_property
    def priors(self) -> dict[str, ItemPrior]:
        """The prior of each model of the party, by its folder in the run folder."""
        part = self._run.parts[self._number]
        found = {}
        for name, (model, ranks) in self._models().items():
            found[name] = fit_item_prior(model, self.table, part, ranks=ranks)
        return found

    def _models(self) -> dict[str, tuple[PartyModel, bool]]:
        runs = {"model": self._run} | ({} if self._run.lists is None else {f"{LISTS}/model": self._run.lists})
        found = {}
        for name, run in runs.items():
            found[name] = (run.models[self._number], run.config.ranks)
            if run.alone is not None:
                found[f"{name}/alone"] = (run.alone[self._number], run.config.ranks)
        return found

    def add(self, items: Mapping[str, AddedItem]) -> AddedReport:
        """Add items, or add ratings to items that were added before, and store their new vectors.

        Ratings of users who were not in training are left out. Vectors of `items` are ignored.
        """
        self._check(items)
        with lock_added(self._folder):
            before = read_added(self._file)
            gone = ForgottenUsers.read(self._folder / FORGOTTEN)  # also since the run was loaded
            merged = [self._merge(item, before.get(name), gone) for name, item in items.items()]
            for item in merged:
                check_item(item)
            now = self._newest([*before.values(), *merged])
            stored = [self.with_vectors(item, now) for item in merged]
            rewrite_added(self._file, (before | {item.item: item for item in stored}).values())
        given = {(item.item, user) for item in items.values() for user in item.ratings}
        kept = {(item.item, user) for item in stored for user in item.ratings}
        return AddedReport(stored, len(given - kept))

    def estimate_all(self, items: Sequence[AddedItem]) -> list[AddedItem]:
        """Return items with the vectors that follow from their ratings."""
        now = self._newest(items)
        return [self.with_vectors(item, now) for item in items]

    def _merge(self, item: AddedItem, before: AddedItem | None, gone: ForgottenUsers) -> AddedItem:
        """Return an item with what was known of it before, and without ratings of unknown and forgotten users."""
        known = AddedItem(item.item) if before is None else before
        ids = np.array(list(item.ratings), dtype=np.str_)
        here = ids[
            (find_positions(ids, self.table.user_ids) >= 0)
            & (ids != "")
            & ~gone.find(ids, federated=self._federated)
        ]
        return AddedItem(
            item.item,
            item.title or known.title,
            {**known.columns, **item.columns},
            {**known.ratings, **{user: item.ratings[user] for user in here.tolist()}},
        )

    def _newest(self, items: Sequence[AddedItem]) -> int | None:
        """Return the newest time in the party's data, which counts as now; None if its ratings have no times."""
        if self.table.time is None or not len(self.table.time):
            return None
        given = [at for item in items for _, at in item.ratings.values() if at is not None]
        return max([int(self.table.time.max()), *given])

    def with_vectors(self, item: AddedItem, now: int | None) -> AddedItem:
        """Return an item with the vectors that follow from its ratings."""
        rows = find_positions(np.array(list(item.ratings), dtype=np.str_), self.table.user_ids)
        values = np.array([rating for rating, _ in item.ratings.values()], np.float32)
        exposure = self._exposure([at for _, at in item.ratings.values()], now)
        return replace(
            item,
            vectors={
                name: prior.estimate(rows, values, exposure=exposure).tolist()
                for name, prior in self.priors.items()
            },
        )

    def _exposure(self, times: Sequence[int | None], now: int | None) -> float | None:
        """Return the time since an item's first rating as a share of the training period; None if it is unknown."""
        known = [at for at in times if at is not None]
        if now is None or self.table.time is None or not times or len(known) < len(times):
            return None
        period = int(self.table.time.max() - self.table.time.min())
        return (now - min(known)) / period if period else None

    def _check(self, items: Mapping[str, AddedItem]) -> None:
        trained = find_positions(np.array(list(items), dtype=np.str_), self.table.item_ids) >= 0
        if trained.any():
            first = list(items)[int(trained.argmax())]
            raise DataError(
                f"item '{first}' was in training; leave it out: its new ratings take part in the next training"
            )
        low, high = self.table.scale
        latest = (
            latest_plausible_time()
        )  # the newest time counts as now, so one from the future would age all items
        for item in items.values():
            for rating, at in item.ratings.values():
                if not low <= rating <= high:
                    raise DataError(
                        f"item '{item.item}' has the rating {rating:g}, outside the scale {low:g} to {high:g}; correct it"
                    )
                if at is not None and not 0 <= at <= latest:
                    raise DataError(
                        f"item '{item.item}' has a rating at the time {at:.3g}; give seconds since 1970, up to now"
                    )


def add_items(
    run: str | Path,
    *,
    party: str | None = None,
    ratings: Any = None,
    items: str | Path | None = None,
    **options: Any,
) -> AddedReport:
    """Give new items a vector from their first ratings, so that they are recommended before the next training.

    It takes milliseconds an item and sends nothing to anybody. Call it again with further ratings of the same items. A server that
    serves the run notices the items within seconds.

    Args:
        run: The run folder.
        party: The party that offers the items; needed if the run has several.
        ratings: First ratings of the items: a file or a table, as for `read_ratings`.
        items: A file with a row per item: its id, title and further columns.
        **options: Options of `read_ratings` for the ratings.
    """
    if ratings is None and items is None:
        raise ConfigError("nothing to add; give ratings, items or both")
    loaded = Run.load(run, added=False)
    names = [each.name for each in loaded.parties]
    if party is None and len(names) > 1:
        raise ConfigError(f"the run has several parties; choose one with party=: {', '.join(names)}")
    table = None if ratings is None else read_table(ratings, **options)
    described = {} if items is None else read_item_texts(Path(items))
    return NewItems(Path(run), loaded, party or names[0]).add(make_items(table, described))


def make_items(ratings: Ratings | None, described: Mapping[str, Mapping[str, str]]) -> dict[str, AddedItem]:
    """Return the items of a table of ratings, of texts by item and column, or of both."""
    found = {}
    for name in dict.fromkeys([*([] if ratings is None else ratings.item_ids.tolist()), *described]):
        columns = ({} if ratings is None else _own_columns(ratings, name)) | dict(described.get(name, {}))
        title = columns.pop("title", "")
        given = {} if ratings is None else _own_ratings(ratings, name)
        found[name] = AddedItem(name, title, columns, given)
    return found


def _own_columns(ratings: Ratings, name: str) -> dict[str, str]:
    columns = dict(ratings.columns) | ({} if ratings.titles is None else {"title": ratings.titles})
    (places,) = np.nonzero(ratings.item_ids == name)
    return {column: str(values[place]) for column, values in columns.items() for place in places}


def _own_ratings(ratings: Ratings, name: str) -> dict[str, tuple[float, int | None]]:
    (rows,) = np.nonzero(ratings.item_ids[ratings.item] == name)
    users = ratings.user_ids[ratings.user[rows]].tolist()
    times = [None] * len(rows) if ratings.time is None else ratings.time[rows].tolist()
    return dict(zip(users, zip(ratings.rating[rows].tolist(), times, strict=True), strict=True))
