"""What a run answers in Python, on the command line and on the page: lists, similar items, tables, overview."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from verfedgnn.core.errors import DataError, RunError
from verfedgnn.core.files import replacing
from verfedgnn.core.option_names import worded
from verfedgnn.data.ids import id_text
from verfedgnn.evaluation.verdict import headline, list_points, narrow_lift, shared_word
from verfedgnn.reports.lift_report import TONES
from verfedgnn.reports.phrases import describe_about, warn_of_lists
from verfedgnn.reports.run_report import run_document, run_html
from verfedgnn.runs.run import Recommendation, Recommendations, Run
from verfedgnn.runs.run_folder import check_outside
from verfedgnn.serving.catalogue import Catalogue, View
from verfedgnn.serving.fold_in import Rated
from verfedgnn.serving.split_test import ALONE
from verfedgnn.serving.user_lists import UserProfile, find_similar, find_user, make_lists

MOST_VALUES = 60
"""Maximum number of values of an item column that the page offers as a filter."""
GROUP_USERS = 1024
"""Users whose lists are computed together and become a row group of a table."""
_TEXT, _NUMBER = pa.string(), pa.float32()
SCHEMA = pa.schema({"user": _TEXT, "place": pa.int32(), "item": _TEXT, "title": _TEXT, "party": _TEXT})
SCHEMA = SCHEMA.append(pa.field("score", _NUMBER)).append(pa.field("rating", _NUMBER))


class RunAnswers:
    """The answers of one run; its index is made once, when a question needs it."""

    def __init__(self, run: Run) -> None:
        self.run = run

    @cached_property
    def view(self) -> View:
        """All of the run, indexed for lookups."""
        first = self.run.parties[0].name
        remedy = f"name one with `party`, or with its ratings: ratings={{{first!r}: {{item: stars}}}}"
        everywhere = range(len(self.run.parties))
        return View(
            Catalogue(self.run, "run"),
            everywhere,
            worded(f"name its party: --rated {first}:ITEM=RATING", remedy),
        )

    def html(self) -> str:
        """Return the run as HTML for a notebook."""
        return run_html(self.run)

    def report(self, path: Path) -> Path:
        """Write the report of the run to a file that ends in .html, or else to report.html in a folder; return the page."""
        document = run_document(self.run, path.stem if path.suffix == ".html" else path.name)
        return document.write(path if path.suffix == ".html" else path / "report.html")

    def recommend(
        self, user: str | None, ratings: Mapping[Any, Any], parties: Sequence[int], k: int
    ) -> Recommendations:
        """Return the k best items for a user of the run, who may have rated more since, or for a newcomer with these ratings."""
        catalogue = self.view.catalogue
        profile = UserProfile(catalogue, find_user(catalogue, user, self._read_ratings(ratings)), parties)
        (best,) = make_lists([profile], k)
        found = profile.describe(best)
        items = [Recommendation(each.item, each.title, each.party, each.score, each.rating) for each in found]
        return Recommendations(
            items, lambda: [why.in_words() for why in profile.explain(best, self.view.allowed)]
        )

    def similar(self, item: Any, k: int, party: str | None) -> list[Recommendation]:
        """Return the k items of all parties that are most similar to `item`, which may be at several parties."""
        place = self.view.find_item(id_text(item, "item") or "", party)
        found = find_similar(self.view.catalogue, *place, self.view.allowed, k)
        return [Recommendation(other.item, other.title, other.party, other.similarity) for other in found]

    def _read_ratings(self, ratings: Mapping[Any, Any]) -> Rated:
        """Return `{item: stars}` or `{party: {item: stars}}` by party, after checking items and scales."""
        if not isinstance(ratings, Mapping):
            kinds = "pass a mapping {item: stars}, or {party: {item: stars}}"
            raise DataError(f"ratings is a {type(ratings).__name__}; {kinds}")
        given = []
        for key, value in ratings.items():
            party, items = (str(key), value) if isinstance(value, Mapping) else (None, {key: value})
            given += [(id_text(item, "item") or "", party, stars) for item, stars in items.items()]
        return self.view.read_ratings(given)


def write_table(catalogue: Catalogue, path: Path, k: int) -> int:
    """Write the k best items of every user to `path` as Parquet, in row groups, and return the number of rows.

    The items are those of `Run.recommend`; in a split test, the lists follow each user's bucket, which has a
    column. The file appears only when it is complete.
    """
    check_outside(path)
    table = catalogue.run.parties[0].ratings
    known = [str(user) for user in table.user_ids[table.known_users]]
    parties = range(len(catalogue.parties))
    rows = 0
    schema = SCHEMA if catalogue.split is None else SCHEMA.append(pa.field("bucket", pa.string()))
    try:
        with replacing(path) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
            for start in range(0, len(known), GROUP_USERS):
                users = known[start : start + GROUP_USERS]
                profiles = [UserProfile(catalogue, find_user(catalogue, user), parties) for user in users]
                listed = [
                    vars(item) | {"user": user, "bucket": profile.user.bucket, "place": place}
                    for user, profile, best in zip(users, profiles, make_lists(profiles, k), strict=True)
                    for place, item in enumerate(profile.describe(best), 1)
                ]
                rows += len(listed)
                writer.write_table(pa.Table.from_pylist(listed, schema), row_group_size=max(1, len(listed)))
    except OSError as error:
        remedy = "choose another --out or free some disk space"
        raise RunError(f"cannot write {path}: {error.strerror or error}; {remedy}") from None
    return rows


def describe_run(catalogue: Catalogue, allowed: Sequence[int], whole: bool = True) -> dict[str, Any]:
    """Return everything the page shows about the run itself; with `whole`, also a user whom only parties know that are not served.

    What is about all parties is left out unless all are allowed, but for the cost of each and what others learn.
    """
    run = catalogue.run
    metrics = run.metrics
    lift = metrics.get("lift")
    figures = {party["name"]: party for party in metrics["parties"]}
    whole_run = len(allowed) == len(catalogue.parties) == len(metrics["parties"])
    parties = []
    for number in allowed:
        party = catalogue.parties[number]
        row = figures.get(party.name, {})
        columns = {name: np.unique(own[own != ""]).tolist() for name, own in party.table.columns.items()}
        parties.append(
            {
                "name": party.name,
                "items": party.table.n_items,
                "ratings": len(party.table),
                "scale": party.table.scale,
                "liked_from": party.liked_from,
                "titles": party.table.titles is not None,
                "test": row.get("test"),
                "popularity": row.get("popularity"),
                "examples": _choose_examples(catalogue, [number], allowed, whole),
                "columns": {
                    name: values for name, values in columns.items() if 1 < len(values) <= MOST_VALUES
                },
                "verdict": None if lift is None else _describe_verdict(narrow_lift(lift, party.name)),
            }
        )
    served = [figures[party["name"]] for party in parties if party["name"] in figures]
    about = [f"{what}: {text}".replace("`", "") for what, text in describe_about(metrics, run.config).items()]
    return {
        "name": catalogue.name,
        "users": len(run.parties[0].ratings.known_users),
        "rounds": metrics["rounds"],
        "ranks": catalogue.ranks,
        "predicts": catalogue.predicts,
        "alone": ALONE in catalogue.lists,
        "examples": _choose_examples(catalogue, allowed, allowed, whole),
        "warning": warn_of_lists(metrics | {"parties": served}),
        "judged_by_lift": lift is not None,
        "verdict": None if lift is None or not whole_run else _describe_verdict(lift),
        "about": about if whole_run else about[:2],
        "parties": parties,
    }


def _describe_verdict(lift: Mapping[str, Any]) -> dict[str, Any]:
    """Return the verdict and what follows it, in the words of terminal and reports."""
    # the page would show marks of code as they are
    points = [point.replace("`", "") for point in list_points(lift)]
    return {"tone": TONES[shared_word(lift)], "headline": headline(lift), "points": points}


def _choose_examples(
    catalogue: Catalogue, here: Sequence[int], allowed: Sequence[int], whole: bool
) -> list[dict[str, Any]]:
    """Choose users with few, a typical number of, and many ratings at these parties, and the one with most ratings only elsewhere."""
    tables = [party.ratings for party in catalogue.run.parties]
    rated = np.stack([np.bincount(table.user, minlength=table.n_users) for table in tables])
    shown, known = ([catalogue.chosen[p] for p in parties] for parties in (here, allowed))
    if whole:
        # the page names all users of the run, also those of parties it does not serve
        known = list(range(len(rated)))
    counts, elsewhere = (rated[chosen].sum(0) for chosen in (shown, sorted(set(known) - set(shown))))
    order = np.argsort(counts, kind="stable")
    order = order[counts[order] >= min(5, counts.max())]
    places = {"few ratings": 0.1, "a typical user": 0.5, "many ratings": 0.95}
    chosen = {name: int(order[int(place * (len(order) - 1))]) for name, place in places.items()}
    only_elsewhere = np.where(counts == 0, elsewhere, 0)
    if only_elsewhere.any():
        chosen["new here, known elsewhere"] = int(only_elsewhere.argmax())
    users = catalogue.user_ids
    return [
        {"label": name, "user": str(users[row]), "ratings": int(counts[row])} for name, row in chosen.items()
    ]
