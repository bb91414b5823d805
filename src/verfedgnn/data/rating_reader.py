"""Reading of ratings from any source: a file, a folder, a table in memory, or a data set by name.

All plain sources take one path: `open_table`, `read_rows`, then `rate_rows`, which checks the rows. Events become
ratings on the way, by a rule that uses only the events of a pair. With n_k events of kind k and weight w_k, a user's interest in
an item is s = sum_k w_k n_k, and its rating is

    r = low + (high - low) (1 - 4^(-s / 5)),    on the scale 1 to 5:  r = 5 - 4^(1 - s / 5).

No event gives 1. A total weight of 5 (one purchase at 5, five views at 1) gives 4, from which items count as liked
(`model.threshold`); each further 5 covers three quarters of the distance to 5. The rating grows with every event and every
weight, and saturates. It depends neither on the order of rows nor on other users, so each organisation can apply the rule alone.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from verfedgnn.core.errors import DataError, MissingColumns
from verfedgnn.core.option_names import option
from verfedgnn.data.column_names import RATING_ROLES
from verfedgnn.data.ids import number_ids
from verfedgnn.data.publishers import PAPER_SUBSET, find_layout, read_bookcrossing
from verfedgnn.data.rating_checks import check_options, fill_in, find_absent, note_left_out, rate_rows
from verfedgnn.data.ratings import Mask, Ratings, format_count, pool_tables
from verfedgnn.data.read_options import EventWeights, check_events
from verfedgnn.data.synthetic import synthetic_ratings
from verfedgnn.data.table_sources import (
    TABLE_SUFFIXES,
    is_inter,
    open_table,
    plain_name,
    read_rows,
    table_stem,
)
from verfedgnn.data.text_files import missing_file, reading
from verfedgnn.data.value_parsing import NO_TIME, note_missing_times, parse_times

DATA_FOLDER = "VERFEDGNN_DATA"
FULL = 5.0
"""Total weight of events from which an item counts as liked, at three quarters of the scale."""

FETCH = {
    f"ml-{size}": f"https://files.grouplens.org/datasets/movielens/ml-{size}.zip"
    for size in ("100k", "1m", "10m", "20m", "25m", "32m")
} | {
    "book-crossing": "http://www2.informatik.uni-freiburg.de/~cziegler/BX/BX-CSV-Dump.zip",
    "yelp": "https://www.yelp.com/dataset",
    "amazon-books-movies-dense": "https://github.com/RaghavPu/wasserstein-cdr-embeddings (data/Amazon-Dense-Subset)",
}
"""Download pages of the data sets that are known by name."""

SYNTHETIC_OPTIONS = ("users", "items", "ratings", "categories")


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
    events: EventWeights | None = None,
    subset: tuple[int, int] | None = PAPER_SUBSET,
    catalogue: int | None = None,
    **options: Any,
) -> Ratings:
    """Read ratings from a file, a folder in a publisher's layout, or a data set by name.

    Args:
        path: A table (CSV, TSV, .inter, Parquet, with or without gzip), a MovieLens, BookCrossing or Yelp folder or main file, a folder of tables (pooled, with the
            item column "file"), the name of a data set in the folder `VERFEDGNN_DATA`, or "synthetic".
        columns: Names of the columns for user, item, rating, time, title and further item columns of a plain table.
        duplicates: How to treat repeated (user, item) pairs: "error", "first", "last" or "mean".
        missing: How to treat rows without a user, an item or a rating: "error" or "drop".
        seed: Seed of synthetic data.
        encoding: Text encoding of a plain table.
        delimiter: Delimiter of a plain table.
        scale: Lowest and highest rating of a plain table or of synthetic data.
        keep: Further item columns to keep, if the table has them.
        events: Weights of events ({"view": 1, "purchase": 5}, or one number), for tables of events instead of ratings.
        subset: Number of users and items of the BookCrossing subset; None for all.
        catalogue: Declared number of items, with or without ratings.
        **options: Further options of synthetic data (users, items, ratings, ...).
    """
    if is_synthetic(path):
        unknown = options.keys() - SYNTHETIC_OPTIONS
        if unknown:
            raise DataError(
                f"synthetic data has no option {min(unknown)}; use {', '.join(SYNTHETIC_OPTIONS)}"
            )
        ratings = synthetic_ratings(seed=seed, scale=scale or (1, 5), **options)
        return ratings.with_catalogue(catalogue)
    if options:
        raise DataError(
            f"{', '.join(options)}: these options are for synthetic data; leave them out for {path}"
        )
    rows: dict[str, Any] = {"duplicates": duplicates, "missing": missing}
    opening: dict[str, Any] = {"columns": columns, "encoding": encoding, "delimiter": delimiter, "keep": keep}
    read: Callable[[Path], Ratings] = partial(read_table, **rows, **opening, scale=scale, events=events)
    where = locate(path)
    layout = None if columns or events is not None else find_layout(where)
    if layout is not None:
        extra: dict[str, Any] = {name: value for name, value in rows.items() if value is not None}
        main, companion, read_layout = layout
        if read_layout is read_bookcrossing:
            extra["subset"] = subset
        if where.is_dir():
            extra["name"] = where.resolve().name
        ratings = read_layout(main, companion, **extra)
    elif where.is_dir():
        ratings = pool_tables([read(file) for file in list_tables(where)], "file", where.resolve().name)
    else:
        ratings = read(where)
    return ratings.with_catalogue(catalogue)


def is_synthetic(source: str | Path) -> bool:
    """Return whether a source is generated."""
    return str(source) == "synthetic" and not Path(source).exists()


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
    return read_table(source, name, keep=keep, **given).with_catalogue(catalogue)


def read_table(
    source: Any,
    name: str = "ratings",
    *,
    events: EventWeights | None = None,
    duplicates: str | None = None,
    missing: str | None = None,
    scale: tuple[float, float] | None = None,
    **opening: Any,
) -> Ratings:
    """Read ratings from one file, or from a table in memory called `name`; `opening` holds the options of `open_table`.

    With `events`, each row is an event; in a table with nothing like a rating, each row is a like. By default a repeated
    (user, item) pair is an error, except in .inter files, where the first row is kept. Rows without a user, an item or a rating
    are an error unless `missing` is "drop".
    """
    duplicates, missing = duplicates or default_duplicates(source), missing or "error"
    check_options(duplicates, missing)
    about = "" if events is None else option("events", events)
    try:
        table = open_table(source, name, **opening, required=required_columns(events))
    except MissingColumns as error:
        if events is not None or not error.only_ratings:
            raise
        events, about = FULL, "no column of ratings, so every row is a like"
        table = open_table(source, name, **opening, required=required_columns(events))
    rows = read_rows(table)
    name = table_stem(source) if isinstance(source, str | Path) else name
    options: dict[str, Any] = {"name": name, "missing": missing, "where": table.at}
    if events is not None:
        return rate_events(rows, events, scale=scale or (1, 5), about=about, **options)
    if not rows.num_rows and table.text is not None:
        raise DataError(f"{table.text.path} has a header but no ratings; give a table with at least one row")
    return rate_rows(rows, scale=scale, duplicates=duplicates, notes=table.notes, **options)


def default_duplicates(source: Any) -> str:
    """Return how repeated pairs of a source are treated if nothing is said: RecBole's tables keep the first."""
    return "first" if isinstance(source, str | Path) and is_inter(source) else "error"


def locate(path: str | Path) -> Path:
    """Return the file or folder of a path or of a data set's name."""
    given = Path(path).expanduser()
    with reading(given):
        if given.exists():
            return given
    name = str(path)
    refuse_address(name)
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


def refuse_address(source: str) -> None:
    """Raise `DataError` for the address of a database, without what may be its password."""
    address = re.match(r"\w{2,}:/", source)
    if address:
        raise DataError(
            f"{address[0]}... is an address, and ratings are read from files; export the table to CSV or Parquet"
        )


def list_tables(folder: Path) -> list[Path]:
    """Return the tables of a folder, sorted by name; raise `DataError` if there are none."""
    with reading(folder):
        names = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    tables = [entry for entry in names if plain_name(entry).endswith(TABLE_SUFFIXES)]
    files = [entry for entry in tables if entry.is_file() and not entry.name.lower().startswith("readme")]
    if not files:
        shown = ", ".join(entry.name for entry in names[:8]) or "nothing"
        raise DataError(
            f"{folder} has no known layout (MovieLens, BookCrossing, Yelp, or tables ending in"
            f" {', '.join(TABLE_SUFFIXES)}); it holds {shown}. Give the path of a file"
        )
    return files


def required_columns(events: EventWeights | None) -> tuple[str, ...]:
    """Return the columns that a table of ratings or of events must have."""
    if events is None:
        return RATING_ROLES
    return ("user", "item", "event") if isinstance(events, Mapping) else ("user", "item")


def rate_strength(strength: NDArray[np.float64], scale: tuple[float, float] = (1, 5)) -> NDArray[np.float64]:
    """Return the rating for the total weight of a pair's events."""
    low, high = scale
    return low + (high - low) * (1 - 4.0 ** (-strength / FULL))


def rate_events(
    rows: pa.Table,
    events: EventWeights,
    *,
    scale: tuple[float, float],
    name: str,
    missing: str,
    where: Callable[[int], str],
    about: str,
) -> Ratings:
    """Return one rating for each pair of a user and an item with events, in the order of ids. `about` says how, in a note.

    Its time is that of the newest event. Rows without a user, an item or a kind of event are an error, or left out if `missing` is
    "drop". Each event gets the rating of its pair, and `rate_rows` keeps the first of each pair.
    """
    check_events(events)
    coded = {role: number_ids(rows[role], role) for role in required_columns(events)}
    kept = np.ones(rows.num_rows, bool)
    for role, (codes, ids) in coded.items():
        absent = find_absent(codes, ids)
        if missing != "drop" and absent.any():
            raise DataError(f"an event has no {role} in {where(int(absent.argmax()))}: {fill_in()}")
        kept &= ~absent
    dropped = int((~kept).sum())
    if not kept.any():
        raise DataError(f"{name} has no events; give a table with at least one row")
    kinds, words = coded.get("event", (np.zeros(rows.num_rows, np.int32), pa.array([""])))
    weights = _find_weights(np.bincount(kinds[kept], minlength=len(words)), words.to_pylist(), events)
    # The appended entry is for rows without a kind.
    used = np.append([weight > 0 for _, weight in weights], False)[kinds] & kept
    ignored = int(kept.sum() - used.sum())
    if not used.any():
        raise DataError(
            f"{name} has only events with weight 0; give one of their kinds a weight above 0 with {option('events')}"
        )
    user, item = (coded[role][0][used].astype(np.int64) for role in ("user", "item"))
    _, first, pair = np.unique(user * len(coded["item"][1]) + item, return_index=True, return_inverse=True)
    strength = np.zeros(len(first))
    # Kinds are added by name, so that the order of rows changes no bit.
    for code in sorted(range(len(weights)), key=weights.__getitem__):
        strength += weights[code][1] * np.bincount(pair[kinds[used] == code], minlength=len(first))
    newest, notes = _find_newest(rows, used, pair, len(first))
    rated = rows.filter(pa.array(used)).select([role for role in rows.column_names if role not in _GIVEN])
    rating = pa.array(rate_strength(strength, scale)[pair])
    table = rate_rows(rated.append_column("rating", rating), scale=scale, name=name, duplicates="first")
    order = np.lexsort((table.item, table.user))
    left = f", {format_count(ignored, 'event')} left out" if ignored else ""
    became = f"{format_count(len(pair), 'event')} became {format_count(len(first), 'rating')} ({about}){left}"
    lack = [note_left_out(dropped, "no user, item or event")] if dropped else []
    time = None if newest is None else newest[pair[np.sort(first)]][order]
    return replace(table.take(order), time=time, notes=(became, *lack, *notes))


_GIVEN = ("event", "rating", "time")
"""Columns of events that no longer hold for the ratings."""


def _find_weights(
    counts: NDArray[np.int64], words: list[str], events: EventWeights
) -> list[tuple[str, float]]:
    """Return each kind with its weight; raise `DataError` if one that occurs has none."""
    if not isinstance(events, Mapping):
        return [("", float(events))]
    unknown = {word: int(n) for word, n in zip(words, counts, strict=True) if n and word not in events}
    if unknown:
        kinds = sorted(unknown, key=lambda kind: (-unknown[kind], kind))
        shown = [f"{kind[:30]} ({unknown[kind]:,})" for kind in kinds[:8]] + ["..."] * (len(kinds) > 8)
        raise DataError(
            f"{option('events')} has no weight for these kinds: {', '.join(shown)}; add them, with 0 to leave them out, for"
            f" example {option('events', {**events, kinds[0][:30]: 0})}"
        )
    return [(word, float(events.get(word, 0))) for word in words]


def _find_newest(
    rows: pa.Table, kept: Mask, pair: NDArray[np.int64], pairs: int
) -> tuple[NDArray[np.int64] | None, tuple[str, ...]]:
    """Return the newest time of each pair's events; None if times cannot be read or a pair has none."""
    if "time" not in rows.column_names:
        return None, ()
    time, notes = parse_times(rows["time"], ~kept, gaps=True)
    if time is None:
        return None, notes
    newest = np.full(pairs, NO_TIME)
    np.maximum.at(newest, pair, time[kept])
    without = int((newest == NO_TIME).sum())
    return (None, (note_missing_times(without),)) if without else (newest, notes)
