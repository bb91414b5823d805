"""What a run answers in Python with the help of rooms above it: newcomers, similar items, its report and its notebook cell."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from verfedgnn.core.errors import ConfigError, DataError, RunError
from verfedgnn.data.ids import id_text
from verfedgnn.data.item_table import ItemTable, as_item_table
from verfedgnn.reports.run_report import run_document
from verfedgnn.reports.run_summary import run_html
from verfedgnn.runs.recommendations import Recommendation, Recommendations
from verfedgnn.runs.run import Run
from verfedgnn.serving.catalogue import Catalogue
from verfedgnn.serving.explain import find_similar
from verfedgnn.serving.fold_in import UserRatings
from verfedgnn.serving.someone_new import explain_list, recommend_to
from verfedgnn.serving.user_profile import ServedUser

if TYPE_CHECKING:
    from verfedgnn.serving.http.background_server import BackgroundServer


class RunAnswers:
    """The answers of one run; its index is made once, when a question needs it."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.names = [party.name for party in run.parties]
        self.features: dict[str, ItemTable] = {}
        """Tables of customers, by party."""

    @cached_property
    def catalogue(self) -> Catalogue:
        """The run, indexed for lookups."""
        return Catalogue(self.run, "run", features=self.features)

    def set_features(self, tables: Mapping[str, Any]) -> None:
        """Use these tables of customers, by party, in place of earlier ones."""
        unknown = [name for name in tables if name not in self.names]
        if unknown:
            raise RunError(
                f"there is no party '{unknown[0]}' in this run; use one of: {self._list_parties()}"
            )
        self.features = {name: as_item_table(table, "user") for name, table in tables.items()}
        self.__dict__.pop("catalogue", None)

    def has_features_of(self, user: str) -> bool:
        """Return whether a party has features of a customer whom the run does not know."""
        if not self.features or self.catalogue.users.find(user) is not None:
            return False
        return bool(self.catalogue.find_user_features(user, range(len(self.names))))

    def html(self) -> str:
        """Return the run as HTML for a notebook."""
        return run_html(self.run)

    def report(self, path: Path) -> Path:
        """Write the report of the run: one page if `path` ends in .html, else a folder; return the page."""
        name = path.stem if path.suffix == ".html" else path.name
        document = run_document(self.run, name)
        return document.write_page(path) if path.suffix == ".html" else document.write(path, "report")[0]

    def recommend(
        self, user: str | None, ratings: Mapping[Any, Any], k: int, party: str | None
    ) -> Recommendations:
        """Return the k best items for a newcomer with these ratings, or for a user of the run who has rated more since."""
        parties = [p for p, name in enumerate(self.names) if party in (None, name)]
        row = None if user is None else self.catalogue.users.find(user)
        features = {}
        if row is None and user is not None:
            features = self.catalogue.find_user_features(user, parties)
        served = ServedUser(row, self._read_ratings(ratings), features)
        return recommend_to(self.catalogue, served, parties, k)

    def explain(self, row: int, items: Sequence[Recommendation]) -> list[str]:
        """Return why each of these recommended items is in the list of the user at `row`."""
        parties = sorted({self.names.index(item.party) for item in items})
        return explain_list(self.catalogue, ServedUser(row), parties, items)

    def serve(self, port: int, party: str | None) -> BackgroundServer:
        """Serve the run, or one party's items of it, in a thread of this process."""
        try:
            from verfedgnn.serving.http.background_server import BackgroundServer
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"serving needs {error.name}, which is not installed. Run: pip install 'verfedgnn[serve]'"
            ) from None
        return BackgroundServer(Catalogue(self.run, "run", party, features=self.features), port)

    def similar(self, item: Any, k: int, party: str | None) -> list[Recommendation]:
        """Return the k items of all parties that are most similar to `item`, which may be at several parties."""
        place = self._find_item(item, party, "name one with `party`")
        rows = find_similar(self.catalogue, *place, range(len(self.names)), k)
        return [Recommendation(row["item"], row["title"], row["party"], row["similarity"]) for row in rows]

    def _read_ratings(self, ratings: Mapping[Any, Any]) -> list[UserRatings]:
        """Return `{item: stars}` or `{party: {item: stars}}` by party, after checking items and scales."""
        if not isinstance(ratings, Mapping):
            raise DataError(
                f"ratings is a {type(ratings).__name__}; pass a mapping {{item: stars}}, or {{party: {{item: stars}}}}"
            )
        nested = {str(name): own for name, own in ratings.items() if isinstance(own, Mapping)}
        unknown = [name for name in nested if name not in self.names]
        if unknown:
            raise RunError(
                f"ratings: there is no party '{unknown[0]}' in this run; use one of: {self._list_parties()}"
            )
        given: list[tuple[str | None, Any, Any]] = [
            (name, item, stars) for name, own in nested.items() for item, stars in own.items()
        ]
        given += [(None, item, stars) for item, stars in ratings.items() if not isinstance(stars, Mapping)]
        found: dict[int, dict[int, float]] = {}
        remedy = f"name its party: ratings={{{self.names[0]!r}: {{item: stars}}}}"
        for name, item, stars in given:
            p, row = self._find_item(item, name, remedy)
            found.setdefault(p, {})[row] = self._check_stars(p, item, stars)
        return [
            UserRatings(p, np.array(list(own)), np.array(list(own.values()), np.float32))
            for p, own in sorted(found.items())
        ]

    def _check_stars(self, party: int, item: Any, stars: Any) -> float:
        low, high = self.catalogue.parties[party].table.scale
        try:
            value = float(stars)
        except (TypeError, ValueError):
            value = math.nan
        if not low <= value <= high:
            raise DataError(
                f"the rating of item '{item}' is {stars!r}; {self.names[party]} rates from {low:g} to {high:g}"
            )
        return value

    def _find_item(self, item: Any, party: str | None, remedy: str) -> tuple[int, int]:
        """Return the party and the row of an item; `remedy` says how to choose among several parties."""
        wanted = id_text(item, "item") or ""
        places = [
            (p, row)
            for p, each in enumerate(self.catalogue.parties)
            if party in (None, each.name) and (row := each.ids.find(wanted)) is not None
        ]
        if len(places) > 1:
            raise RunError(f"item '{wanted}' is an id of several parties ({self._list_parties()}); {remedy}")
        if not places:
            where = "in no catalogue" if party is None else f"not in the catalogue of '{party}'"
            looks = self.catalogue.parties[0 if party is None else self.names.index(party)].table.item_ids[0]
            raise RunError(f"item '{wanted}' is {where}; known items look like '{looks}'")
        return places[0]

    def _list_parties(self) -> str:
        return ", ".join(self.names)
