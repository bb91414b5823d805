"""Reading of ratings from a path or the name of a data set, in any supported layout."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from verfedgnn.core.errors import DataError
from verfedgnn.data import bookcrossing, movielens, yelp
from verfedgnn.data.column_names import normalise_name
from verfedgnn.data.event_ratings import EventWeights
from verfedgnn.data.pooling import pool_tables
from verfedgnn.data.prepared_folder import is_prepared, read_prepared
from verfedgnn.data.ratings import Ratings
from verfedgnn.data.source_address import is_address, redact
from verfedgnn.data.synthetic import synthetic_ratings
from verfedgnn.data.table_sources import TABLE_SUFFIXES, is_table, read_header, read_table
from verfedgnn.data.text_files import TextTable, missing_file, read_first_bytes, reading

DATA_FOLDER = "VERFEDGNN_DATA"

_GROUPLENS = "https://files.grouplens.org/datasets/movielens/{}.zip"
FETCH: dict[str, str] = {
    **{
        name: _GROUPLENS.format(name) for name in ("ml-100k", "ml-1m", "ml-10m", "ml-20m", "ml-25m", "ml-32m")
    },
    "book-crossing": "http://www2.informatik.uni-freiburg.de/~cziegler/BX/BX-CSV-Dump.zip",
    "yelp": "https://www.yelp.com/dataset",
    "amazon-books-movies-dense": "https://github.com/RaghavPu/wasserstein-cdr-embeddings (data/Amazon-Dense-Subset)",
}
"""Download pages of the data sets that are known by name."""

SYNTHETIC_OPTIONS = ("users", "items", "ratings", "dim", "noise", "categories")

# Main file, companion file with titles, reader. The first entry whose main file exists determines the layout.
_LAYOUTS = (
    ("u.data", "u.item", movielens.read_100k),
    ("ratings.dat", "movies.dat", movielens.read_dat),
    ("BX-Book-Ratings.csv", "BX-Books.csv", bookcrossing.read_bookcrossing),
    ("yelp_academic_dataset_review.json", "yelp_academic_dataset_business.json", yelp.read_yelp),
    ("ratings.csv", "movies.csv", movielens.read_csv),
)


def read_ratings(
    path: str | Path,
    *,
    columns: Mapping[str, str] | None = None,
    duplicates: str | None = None,
    missing: str | None = None,
    seed: int = 0,
    encoding: str | None = None,
    delimiter: str | None = None,
    scale: tuple[float, float] | None = None,
    keep: Sequence[str] = (),
    query: str | None = None,
    events: EventWeights | None = None,
    subset: tuple[int, int] | None = bookcrossing.PAPER_SUBSET,
    catalogue: int | None = None,
    **options: Any,
) -> Ratings:
    """Read ratings from a file, a folder in a publisher's layout, a database, or a data set by name.

    Args:
        path: A table (CSV, TSV, .inter, Parquet, with or without gzip), a DuckDB or SQLite file, a PostgreSQL server
            ("postgresql://..."), a prepared folder, a MovieLens, BookCrossing or Yelp folder or main file, a folder of tables (pooled, with the
            item column "file"), the name of a data set in the folder `VERFEDGNN_DATA`, or "synthetic".
        columns: Names of the columns for user, item, rating, time, title and further item columns of a plain table.
        duplicates: How to treat repeated (user, item) pairs: "error", "first", "last" or "mean".
        missing: How to treat rows without a user, an item or a rating: "error" or "drop".
        seed: Seed of synthetic data.
        encoding: Text encoding of a plain table.
        delimiter: Delimiter of a plain table.
        scale: Lowest and highest rating of a plain table or of synthetic data.
        keep: Further item columns to keep, if the table has them.
        query: Select statement that returns the ratings of a database.
        events: Weights of events ({"view": 1, "purchase": 5}, or one number), for tables of events instead of ratings.
        subset: Number of users and items of the BookCrossing subset; None for all.
        catalogue: Declared number of items, with or without ratings.
        **options: Further options of synthetic data (users, items, ratings, ...).
    """
    if str(path) == "synthetic" and not Path(path).exists():
        unknown = options.keys() - SYNTHETIC_OPTIONS
        if unknown:
            raise DataError(
                f"synthetic data has no option {min(unknown)}; use {', '.join(SYNTHETIC_OPTIONS)}"
            )
        made = synthetic_ratings(seed=seed, scale=scale or (1, 5), **options)
        return made if catalogue is None else made.with_catalogue(catalogue)
    if options:
        raise DataError(
            f"{', '.join(options)}: these options are for synthetic data; leave them out for {redact(path)}"
        )
    table = partial(
        read_table,
        columns=columns,
        duplicates=duplicates,
        missing=missing,
        encoding=encoding,
        delimiter=delimiter,
        scale=scale,
        keep=keep,
        query=query,
        events=events,
    )
    given = {"duplicates": duplicates, "missing": missing}
    if not is_address(path) and is_prepared(locate(path)):
        fixed = {"columns": columns, "events": events, "scale": scale, "query": query, **given}
        ready = read_prepared(locate(path), {**fixed, "encoding": encoding, "delimiter": delimiter})
        return ready if catalogue is None else ready.with_catalogue(catalogue)
    extra: dict[str, Any] = {option: value for option, value in given.items() if value is not None}
    plain = bool(columns) or events is not None
    ratings = table(path) if is_address(path) else _read_path(locate(path), table, extra, subset, plain=plain)
    return ratings if catalogue is None else ratings.with_catalogue(catalogue)


def _read_path(
    path: Path,
    read_plain: Callable[[Path], Ratings],
    extra: dict[str, Any],
    subset: tuple[int, int] | None,
    *,
    plain: bool,
) -> Ratings:
    """Read a table, a folder of tables or, unless `plain`, a file or folder in a publisher's layout.

    `extra` are the options of the layout's reader, and `subset` that of BookCrossing.
    """
    layout = None if plain else find_layout(path)
    if layout is not None:
        main, companion, read = layout
        if read is bookcrossing.read_bookcrossing:
            extra["subset"] = subset
        if path.is_dir():
            extra["name"] = path.resolve().name
        ratings: Ratings = read(main, companion, **extra)
        return ratings
    if path.is_dir():
        return pool_tables([read_plain(file) for file in list_tables(path)], "file", path.resolve().name)
    return read_plain(path)


def locate(path: str | Path) -> Path:
    """Return the file or folder of a path or of a data set's name."""
    given = Path(path).expanduser()
    with reading(given):
        if given.exists():
            return given
    name = redact(path)
    if re.match(r"\w+://", name):
        raise DataError(f"{name} is not a supported address; give a file or postgresql://...")
    if len(given.parts) != 1 or given.suffix:
        raise missing_file(name)
    fetch = f"fetch it from {FETCH[name]}" if name in FETCH else f"known names: synthetic, {', '.join(FETCH)}"
    folder = os.environ.get(DATA_FOLDER)
    if not folder:
        raise DataError(
            f"{name} is not a file or folder, and {DATA_FOLDER} is not set; set it to the folder with your data"
            f" sets, or give a path ({fetch})"
        )
    if not (Path(folder) / name).exists():
        raise DataError(
            f"{name} is not in {DATA_FOLDER} ({folder}); unpack it there, or give a path ({fetch})"
        )
    return Path(folder) / name


def list_tables(folder: Path) -> list[Path]:
    """Return the tables of a folder, sorted by name; raise `DataError` if there are none."""
    with reading(folder):
        names = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    files = [
        entry
        for entry in names
        if entry.is_file() and is_table(entry) and not entry.name.lower().startswith("readme")
    ]
    if not files:
        shown = ", ".join(entry.name for entry in names[:8]) or "nothing"
        raise DataError(
            f"{folder} has no known layout (MovieLens, BookCrossing, Yelp, or tables ending in"
            f" {', '.join(TABLE_SUFFIXES)}); it holds {shown}. Give the path of a file"
        )
    return files


def is_folder_of_tables(path: Path) -> bool:
    """Return whether a path is a folder of several tables without a publisher's layout, one organisation per
    table.
    """
    return (
        path.is_dir() and not is_prepared(path) and find_layout(path) is None and len(list_tables(path)) > 1
    )


def find_layout(path: Path) -> tuple[Path, Path | None, Any] | None:
    """Return main file, companion file or None, and reader, if a path is in a publisher's layout; otherwise
    None.
    """
    folder = path if path.is_dir() else path.parent
    for main, companion, read in _LAYOUTS:
        candidates = [folder / main, folder / f"{main}.gz"]
        files = [path] if path in candidates else [f for f in candidates if path.is_dir() and f.exists()]
        if files and not (main == "ratings.csv" and not _is_movielens(files[0])):
            beside = (folder / companion, folder / f"{companion}.gz")
            return files[0], next((file for file in beside if file.exists()), None), read
    return None


def _is_movielens(path: Path) -> bool:
    """Return whether a ratings.csv is that of MovieLens and not another table of that name."""
    names = {normalise_name(name) for name in read_header(TextTable(path), read_first_bytes(path))}
    return {"userid", "movieid", "rating"} <= names
