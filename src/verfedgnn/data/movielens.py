"""Readers of MovieLens in its three layouts: 100K (u.data), 1M and 10M (ratings.dat), 20M and later
(ratings.csv).
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from verfedgnn.core.errors import DataError
from verfedgnn.data.ids import TEXT, StrArray, look_up
from verfedgnn.data.ratings import Ratings, make_ratings
from verfedgnn.data.table_sources import read_header, read_table
from verfedgnn.data.text_files import TextTable, open_stream, read_first_bytes, reading

# The content of u.genre, for copies that lack it.
_GENRES_100K = [
    *(
        "unknown",
        "Action",
        "Adventure",
        "Animation",
        "Children's",
        "Comedy",
        "Crime",
        "Documentary",
        "Drama",
        "Fantasy",
    ),
    *("Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western"),
]
_COLUMNS = ("user", "item", "rating", "time")


def read_100k(
    path: Path,
    items: Path | None = None,
    *,
    name: str = "ml-100k",
    duplicates: str = "error",
    missing: str = "error",
) -> Ratings:
    """Read MovieLens-100K: u.data, tab separated without a header, and u.item for titles and genres."""
    ratings = _read(
        TextTable(path, delimiter="\t", header=False, quoted=False), list(_COLUMNS), name, duplicates, missing
    )
    if items is None:
        return ratings
    genres = _genre_names(items.with_name("u.genre"))
    names = ["item", "title", "released", "video", "link", *(f"genre-{n}" for n in range(len(genres)))]
    table = TextTable(items, delimiter="|", header=False, quoted=False, encoding="latin-1").read(
        {"item": TEXT, "title": TEXT, **dict.fromkeys(names[5:], TEXT)}, names=names
    )
    first = pc.case_when(
        pc.make_struct(*(pc.equal(table[column], "1") for column in names[5:])), *map(pa.scalar, genres)
    )
    return _described(ratings, table["item"], table["title"], first)


def read_dat(
    path: Path,
    items: Path | None = None,
    *,
    name: str = "ml-1m",
    duplicates: str = "error",
    missing: str = "error",
) -> Ratings:
    """Read MovieLens-1M or -10M: ratings.dat with '::' between fields, and movies.dat for titles and genres."""
    # The delimiter ':' splits '::' into two, so every other column is empty.
    names = ["user", "a", "item", "b", "rating", "c", "time"]
    text = TextTable(path, delimiter=":", header=False, quoted=False)
    ratings = _read(text, names, name, duplicates, missing)
    if items is None:
        return ratings
    with reading(items), open_stream(items) as stream:
        # 10M is UTF-8, 1M latin-1.
        raw = stream.read()
    try:
        lines = raw.decode("utf-8").splitlines()
    except UnicodeDecodeError:
        lines = raw.decode("latin-1").splitlines()
    fields = [line.split("::") for line in lines if line]
    if any(len(parts) != 3 for parts in fields):
        raise DataError(
            f"{items} has lines that are not MovieID::Title::Genres; download it again or move it away"
        )
    ids, titles, genres = (pa.array([parts[k] for parts in fields], TEXT) for k in range(3))
    return _described(ratings, ids, titles, _first_genre(genres))


def read_csv(
    path: Path,
    items: Path | None = None,
    *,
    name: str = "movielens",
    duplicates: str = "error",
    missing: str = "error",
) -> Ratings:
    """Read MovieLens-20M and later, or an older edition as CSV: ratings.csv and movies.csv with headers."""
    ratings = read_table(path, duplicates=duplicates, missing=missing, name=name)
    ratings = replace(ratings, scale=_stars(ratings.rating), scale_declared=True)
    if items is None:
        return ratings
    found = read_header(TextTable(items), read_first_bytes(items))
    if len(found) < 3:
        raise DataError(
            f"{items} has columns {', '.join(found)} instead of movieId, title, genres; download it again"
        )
    movies = TextTable(items).read(dict.fromkeys(found[:3], TEXT))
    ids, titles, genres = (movies[column] for column in found[:3])
    return _described(ratings, ids, titles, _first_genre(genres))


def _stars(rating: NDArray[Any]) -> tuple[float, float]:
    """Return the scale: 1 to 5, or 0.5 to 5 in editions with half stars."""
    return (0.5 if (rating % 1 > 0).any() else 1.0), 5.0


def _read(text: TextTable, names: list[str], name: str, duplicates: str, missing: str) -> Ratings:
    types = {"user": TEXT, "item": TEXT, "rating": pa.float64(), "time": pa.int64()}
    table = text.read({column: types[column] for column in _COLUMNS}, names=names)
    return make_ratings(
        table["user"],
        table["item"],
        table["rating"],
        time=table["time"],
        scale=_stars(table["rating"].to_numpy()),
        name=name,
        duplicates=duplicates,
        missing=missing,
        where=text.at,
    )


def _genre_names(path: Path) -> list[str]:
    if not path.exists():
        return _GENRES_100K
    with reading(path):
        lines = path.read_text("latin-1").splitlines()
    return [line.split("|")[0] for line in lines if "|" in line]


def _first_genre(genres: pa.Array | pa.ChunkedArray) -> pa.Array:
    first = pc.list_element(pc.split_pattern(genres, "|"), 0)
    return pc.if_else(pc.equal(first, "(no genres listed)"), "", first)


def _described(ratings: Ratings, ids: pa.Array, titles: pa.Array, genres: pa.Array) -> Ratings:
    genre: StrArray = look_up(ratings.item_ids, ids, genres)
    return replace(ratings, titles=look_up(ratings.item_ids, ids, titles), columns={"genre": genre})
