"""Reader of BookCrossing: BX-Book-Ratings.csv and BX-Books.csv, with semicolons, quotes, backslashes and
latin-1.
"""

import html
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from verfedgnn.data.ids import TEXT, look_up
from verfedgnn.data.ratings import Ratings, format_count, make_ratings
from verfedgnn.data.text_files import TextTable

PAPER_SUBSET = (6000, 3000)
"""Number of users and items in the paper's dense subset."""


def read_bookcrossing(
    path: Path,
    books: Path | None = None,
    *,
    subset: tuple[int, int] | None = PAPER_SUBSET,
    name: str = "book-crossing",
    duplicates: str = "error",
    missing: str = "error",
) -> Ratings:
    """Read the explicit ratings (1 to 10; 0 means "implicit"), by default those of the most active users and
    items.

    `subset` = (users, items) keeps the users with the most explicit ratings, then the items with the most
    ratings by those users. Ties are broken by the order of ids, and users left without a rating are dropped.
    None keeps all explicit ratings.
    """
    text = _text(path)
    table = text.read({"User-ID": TEXT, "ISBN": TEXT, "Book-Rating": pa.float64()})
    values = table["Book-Rating"].to_numpy()
    rows = np.flatnonzero(~(values == 0))
    table = table.take(pa.array(rows))
    implicit = len(values) - len(rows)
    ratings = make_ratings(
        table["User-ID"],
        table["ISBN"],
        table["Book-Rating"],
        scale=(1, 10),
        name=name,
        duplicates=duplicates,
        missing=missing,
        notes=(f"{format_count(implicit, 'implicit row')} (rating 0) left out",) if implicit else (),
        where=lambda row: text.at(int(rows[row])),
    )
    if subset is not None:
        ratings = select_densest(ratings, *subset)
    return ratings if books is None else _titled(ratings, books)


def select_densest(ratings: Ratings, users: int, items: int) -> Ratings:
    """Keep the `users` users with the most ratings, then the `items` items with the most ratings by those
    users.
    """
    kept = ratings.select_users(_most(ratings.user, ratings.n_users, users))
    kept = kept.select_items(_most(kept.item, kept.n_items, items))
    active = np.bincount(kept.user, minlength=kept.n_users) > 0
    left = int((~active).sum())
    kept = kept.select_users(active)
    return kept.with_notes(
        f"kept the {users:,} users with the most ratings, then the {items:,} items with the most ratings by them:"
        f" {len(kept):,} of {len(ratings):,} ratings; dropped {format_count(left, 'user')} left without a rating"
    )


def _most(codes: NDArray[np.int32], size: int, count: int) -> NDArray[np.int64]:
    """Return the `count` most frequent codes in ascending order.

    The stable sort breaks ties by the smaller id.
    """
    frequency = np.bincount(codes, minlength=size)
    return np.sort(np.argsort(-frequency, kind="stable")[:count])


def _text(path: Path) -> TextTable:
    return TextTable(path, delimiter=";", escape="\\", encoding="latin-1")


def _titled(ratings: Ratings, books: Path) -> Ratings:
    # Common copies have a few broken lines, and titles are optional.
    table = _text(books).read({"ISBN": TEXT, "Book-Title": TEXT}, skip_broken=True)
    wanted = table.filter(pc.is_in(table["ISBN"], value_set=pa.array(ratings.item_ids, TEXT)))
    titles = [html.unescape(title) for title in wanted["Book-Title"].to_pylist()]
    found = look_up(ratings.item_ids, wanted["ISBN"], pa.array(titles, TEXT))
    return replace(ratings, titles=found)
