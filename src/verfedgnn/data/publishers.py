"""Readers of publishers' layouts: MovieLens in its three forms, and BookCrossing."""

import html
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from verfedgnn.core.errors import DataError
from verfedgnn.data.ids import CODED_TEXT, LONGEST_TITLE, TEXT, to_numpy
from verfedgnn.data.rating_checks import rate_rows
from verfedgnn.data.ratings import Ratings, format_count
from verfedgnn.data.table_sources import Rows, Table, normalise_name, open_table, read_rows, text_source
from verfedgnn.data.text_files import TextTable, open_stream, read_first_bytes, reading
from verfedgnn.data.value_parsing import parse_numbers

PAPER_SUBSET = (6000, 3000)
"""Number of users and items in the paper's dense subset of BookCrossing."""
_GENRES = (
    "unknown Action Adventure Animation Children's Comedy Crime Documentary Drama Fantasy Film-Noir Horror Musical Mystery "
    "Romance Sci-Fi Thriller War Western"
)


def read_movielens_100k(path: Path, items: Path | None, **options: Any) -> Ratings:
    """Read MovieLens-100K: u.data, tab separated without a header, and u.item for titles and genres."""
    text = TextTable(path, delimiter="\t", columns=("user", "item", "rating", "time"), quoted=False)
    ratings = _read_stars(text, "ml-100k", options)
    if items is None:
        return ratings
    genres = _GENRES.split()
    columns = ("item", "title", "released", "video", "link", *genres)
    about = TextTable(items, delimiter="|", columns=columns, quoted=False, encoding="latin-1")
    table = about.read(dict.fromkeys(["item", "title", *genres], TEXT))
    has = pc.make_struct(*(pc.equal(table[genre], "1") for genre in genres))
    genre = pc.case_when(has, *map(pa.scalar, genres))
    return _described(ratings, table["item"], table["title"], genre=genre)


def read_movielens_dat(path: Path, items: Path | None, **options: Any) -> Ratings:
    """Read MovieLens-1M or -10M: ratings.dat with '::' between fields, and movies.dat for titles and genres."""
    # The delimiter ':' splits '::' into two, so every other column is empty.
    columns = ("user", "a", "item", "b", "rating", "c", "time")
    text = TextTable(path, delimiter=":", columns=columns, quoted=False)
    ratings = _read_stars(text, "ml-1m", options)
    if items is None:
        return ratings
    with reading(items), open_stream(items) as stream:
        raw = stream.read()
    try:  # 10M is UTF-8, 1M latin-1.
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        text = raw.decode("latin-1")
    fields = [line.split("::") for line in text.splitlines() if line]
    if any(len(parts) != 3 for parts in fields):
        remedy = "download it again or move it away"
        raise DataError(f"{items} has lines that are not MovieID::Title::Genres; {remedy}")
    return _described_films(ratings, *(pa.array([parts[k] for parts in fields], TEXT) for k in range(3)))


def read_movielens_csv(path: Path, items: Path | None, **options: Any) -> Ratings:
    """Read MovieLens-20M and later, or an older edition as CSV: ratings.csv and movies.csv with headers."""
    ratings = _read_stars(open_table(path), "movielens", options)
    if items is None:
        return ratings
    roles = ("item", "title", "genres")
    films = read_rows(open_table(items, required=roles, keep=("genres",)))
    return _described_films(ratings, *(pc.cast(films[role], TEXT) for role in roles))


def _read_stars(table: Table | TextTable, name: str, options: dict[str, Any]) -> Ratings:
    """Read ratings from 1 to 5, or from 0.5 to 5 in editions with half stars; in a text without a header, times are numbers."""
    if isinstance(table, TextTable):
        roles = ("user", "item", "rating", "time")
        table = text_source(table, dict(zip(roles, roles, strict=True)), time=pa.int64())
    rows = read_rows(table)
    lowest = 0.5 if (parse_numbers(rows["rating"]).values % 1 > 0).any() else 1.0
    return rate_rows(rows, **{"scale": (lowest, 5.0), "name": name, "where": table.at, **options})


def _columns(table: pa.Table) -> Rows:
    return dict(zip(table.column_names, table.columns, strict=True))


def _described_films(ratings: Ratings, ids: Any, titles: Any, genres: Any) -> Ratings:
    """Return ratings with titles and the first genre of films, given by id."""
    first = pc.list_element(pc.split_pattern(genres, "|"), 0)
    genre = pc.if_else(pc.equal(first, "(no genres listed)"), "", first)
    return _described(ratings, ids, titles, genre=genre)


def _described(ratings: Ratings, ids: Any, titles: Any, **columns: Any) -> Ratings:
    """Return ratings with titles and further columns of items, given by item id."""
    positions = pc.index_in(pa.array(ratings.item_ids, TEXT), value_set=pc.cast(ids, TEXT))
    named, *others = (to_numpy(pc.take(v, positions), LONGEST_TITLE) for v in (titles, *columns.values()))
    return replace(ratings, titles=named, columns=dict(zip(columns, others, strict=True)))


def read_bookcrossing(path: Path, books: Path | None, **options: Any) -> Ratings:
    """Read the explicit ratings (1 to 10; 0 means "implicit") of the paper's dense subset: of the most active users and items.

    Ties are broken by the order of ids, and users left without a rating are dropped.
    """
    text = TextTable(path, delimiter=";", escape="\\", encoding="latin-1")
    # As they are written, since published counts tell ISBNs with blanks apart.
    table = text.read(dict.fromkeys(("User-ID", "ISBN", "Book-Rating"), CODED_TEXT))
    table = table.rename_columns(["user", "item", "rating"])
    rows = np.flatnonzero(parse_numbers(table["rating"]).values != 0)
    implicit = table.num_rows - len(rows)
    notes = (f"{format_count(implicit, 'implicit row')} (rating 0) left out",) if implicit else ()
    at = text_source(text, {}).at
    own = {"name": "book-crossing", "notes": notes, "where": lambda row: at(int(rows[row]))}
    every = rate_rows(_columns(table.take(pa.array(rows))), scale=(1, 10), **{**own, **options})
    most_users, most_items = PAPER_SUBSET
    kept = every.select_users(_most(every.user, every.n_users, most_users))
    kept = kept.select_items(_most(kept.item, kept.n_items, most_items))
    active = np.bincount(kept.user, minlength=kept.n_users) > 0
    ratings = kept.select_users(active).with_notes(
        f"kept the {most_users:,} users with the most ratings, then the {most_items:,} items with the most ratings by them:"
        f" {len(kept):,} of {len(every):,} ratings; dropped {format_count(int((~active).sum()), 'user')} left without a rating"
    )
    if books is None:
        return ratings
    # Common copies have a few broken lines, and titles are optional.
    about = replace(text, path=books).read({"ISBN": TEXT, "Book-Title": TEXT}, broken=[])
    wanted = about.filter(pc.is_in(about["ISBN"], value_set=pa.array(ratings.item_ids, TEXT)))
    titles = pa.array([html.unescape(title) for title in wanted["Book-Title"].to_pylist()], TEXT)
    return _described(ratings, wanted["ISBN"], titles)


def _most(codes: NDArray[np.int32], size: int, count: int) -> NDArray[np.int64]:
    """Return the `count` most frequent codes in ascending order. The stable sort breaks ties by the smaller id."""
    frequency = np.bincount(codes, minlength=size)
    return np.sort(np.argsort(-frequency, kind="stable")[:count])


# Main file, companion file with titles, reader. The first entry whose main file exists determines the layout.
_LAYOUTS = (
    ("u.data", "u.item", read_movielens_100k),
    ("ratings.dat", "movies.dat", read_movielens_dat),
    ("BX-Book-Ratings.csv", "BX-Books.csv", read_bookcrossing),
    ("ratings.csv", "movies.csv", read_movielens_csv),
)


def _is_plain(file: Path) -> bool:
    """Return whether a file with the name of a publisher's is another table."""
    if file.name.startswith("ratings.dat"):
        return b"::" not in read_first_bytes(file).split(b"\n", 1)[0]
    if file.name.startswith("ratings.csv"):
        return not {"userid", "movieid", "rating"} <= set(map(normalise_name, TextTable(file).header_names()))
    return False


def find_layout(path: Path) -> tuple[Path, Path | None, Any] | None:
    """Return main file, companion file or None, and reader, if a path is in a publisher's layout; otherwise None."""
    folder = path if path.is_dir() else path.parent
    for main, companion, read in _LAYOUTS:
        candidates = [folder / main, folder / f"{main}.gz"]
        files = [path] if path in candidates else [f for f in candidates if path.is_dir() and f.exists()]
        if files and not _is_plain(files[0]):
            beside = (folder / companion, folder / f"{companion}.gz")
            return files[0], next((file for file in beside if file.exists()), None), read
    return None
