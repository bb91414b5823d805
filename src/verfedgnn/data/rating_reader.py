"""Reading of ratings from a path or the name of a data set, in any supported layout."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from verfedgnn.core.errors import DataError
from verfedgnn.data.event_ratings import required_columns
from verfedgnn.data.publishers import PAPER_SUBSET, find_layout, read_bookcrossing
from verfedgnn.data.ratings import Ratings, pool_tables
from verfedgnn.data.read_options import EventWeights, is_address, redact
from verfedgnn.data.synthetic import synthetic_ratings
from verfedgnn.data.table_sources import TABLE_SUFFIXES, is_table, open_memory, rate_table, read_table
from verfedgnn.data.text_files import missing_file, reading

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
    subset: tuple[int, int] | None = PAPER_SUBSET,
    catalogue: int | None = None,
    **options: Any,
) -> Ratings:
    """Read ratings from a file, a folder in a publisher's layout, a database, or a data set by name.

    Args:
        path: A table (CSV, TSV, .inter, Parquet, with or without gzip), a DuckDB or SQLite file, a PostgreSQL server
            ("postgresql://..."), a MovieLens, BookCrossing or Yelp folder or main file, a folder of tables (pooled, with the
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
    given: dict[str, Any] = {"duplicates": duplicates, "missing": missing}
    table: Callable[[str | Path], Ratings] = partial(
        read_table,
        **given,
        columns=columns,
        encoding=encoding,
        delimiter=delimiter,
        scale=scale,
        keep=keep,
        query=query,
        events=events,
    )
    where = path if is_address(path) else locate(path)
    layout = None if columns or events is not None or isinstance(where, str) else find_layout(where)
    if layout is not None and isinstance(where, Path):
        extra = {option: value for option, value in given.items() if value is not None}
        main, companion, read = layout
        if read is read_bookcrossing:
            extra["subset"] = subset
        if where.is_dir():
            extra["name"] = where.resolve().name
        ratings: Ratings = read(main, companion, **extra)
    elif isinstance(where, Path) and where.is_dir():
        ratings = pool_tables([table(file) for file in list_tables(where)], "file", where.resolve().name)
    else:
        ratings = table(where)
    return ratings if catalogue is None else ratings.with_catalogue(catalogue)


def as_ratings(source: Any, *, name: str = "ratings", keep: Sequence[str] = (), **options: Any) -> Ratings:
    """Convert a path or data set name, an Arrow table, a data frame, or a tuple (users, items, ratings) to `Ratings`.

    A data frame is any object that exports Arrow (`__arrow_c_stream__` or `__arrow_c_array__`), for example of pandas, polars or
    DuckDB; a lazy frame of polars is collected, and a frame of Spark converted. Its columns are matched by the same names as those
    of files (user, item, rating; userId, movieId, stars; ...). `keep` names further item columns. `options` are those of
    `read_ratings`; a table in memory takes columns, missing, duplicates, events, scale and catalogue.
    """
    given = {option: value for option, value in options.items() if value is not None}
    if isinstance(source, str | Path):
        return read_ratings(source, keep=keep, **given)
    if isinstance(source, Ratings):
        if given:
            raise DataError(f"{', '.join(given)}: Ratings are read already; pass the option to read_ratings")
        return source
    catalogue = given.pop("catalogue", None)
    unknown = given.keys() - {"columns", "missing", "duplicates", "events", "scale"}
    if unknown:
        raise DataError(
            f"{', '.join(sorted(unknown))}: an option for files; leave it out for the table {name}"
        )
    required = required_columns(given.get("events"))
    found = rate_table(open_memory(source, name, given.pop("columns", {}), required, keep), name, **given)
    return found if catalogue is None else found.with_catalogue(catalogue)


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
    return path.is_dir() and find_layout(path) is None and len(list_tables(path)) > 1
