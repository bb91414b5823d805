"""Reading of ratings from any source: a file, a folder, a table in memory, or a data set by name.

All plain sources take one path: `open_table`, `read_rows`, then `accept_rows`, which checks the rows. Events become
ratings on the way. With n_k events of kind k and weight w_k, a user's interest in an item is s = sum_k w_k n_k, and its rating is

    r = low + (high - low) (1 - 4^(-s / 5)),    on the scale 1 to 5:  r = 5 - 4^(1 - s / 5).

No event gives 1. A total weight of 5 gives 4, from which items count as liked; each further 5 covers three
quarters of the distance to 5. The rule uses only the events of a pair, so each organisation can apply it alone.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from verfedgnn.core.errors import DataError, MissingColumns
from verfedgnn.core.option_names import option
from verfedgnn.core.rating_scale import upper_quarter
from verfedgnn.data.ids import SPELLINGS, find_positions, number_ids, sort_ids, spell
from verfedgnn.data.publishers import find_layout
from verfedgnn.data.rating_checks import RowReport, accept_rows, rate_rows
from verfedgnn.data.ratings import Ratings, format_count
from verfedgnn.data.read_options import EventWeights, check_events
from verfedgnn.data.synthetic import synthetic_ratings
from verfedgnn.data.table_sources import TABLE_SUFFIXES, Rows, open_table, read_rows, table_stem
from verfedgnn.data.text_files import missing_file, reading
from verfedgnn.data.value_parsing import NO_TIME, note_missing_times

DATA_FOLDER = "VERFEDGNN_DATA"
FULL = 5.0
"""Total weight of events from which an item counts as liked, at three quarters of the scale."""

FETCH = {
    f"ml-{size}": f"https://files.grouplens.org/datasets/movielens/ml-{size}.zip"
    for size in ("100k", "1m", "10m", "20m", "25m", "32m")
} | {
    "book-crossing": "http://www2.informatik.uni-freiburg.de/~cziegler/BX/BX-CSV-Dump.zip",
    "amazon-books-movies-dense": "https://github.com/RaghavPu/wasserstein-cdr-embeddings (data/Amazon-Dense-Subset)",
}

SYNTHETIC_OPTIONS = ("users", "items", "ratings", "categories")


def read_ratings(
    source: Any,
    *,
    name: str = "ratings",
    columns: Mapping[str, str] | None = None,
    duplicates: str | None = None,
    missing: str | None = None,
    seed: int = 0,
    encoding: str | None = None,
    delimiter: str | None = None,
    scale: tuple[float, float] | None = None,
    keep: Sequence[str] = (),
    events: EventWeights | None = None,
    catalogue: int | None = None,
    ids: str | None = None,
    report: RowReport | None = None,
    **options: Any,
) -> Ratings:
    """Read ratings from a file, a folder in a publisher's layout, a data set by name, or a table in memory.

    Args:
        source: A table (CSV, TSV, .inter, Parquet, with or without gzip), a MovieLens or BookCrossing folder or main file, a
            folder with one table, a data set in the folder `VERFEDGNN_DATA`, or "synthetic". In
            memory: an object that exports Arrow (pandas, polars, DuckDB), a frame of Spark, or a tuple (users, items, ratings).
        name: Name of a table in memory, for messages.
        columns: Names of the columns for user, item, rating, time, title and further item columns of a plain table.
        duplicates: How to treat repeated (user, item) pairs: "error", "first", "last" or "mean".
        missing: How to treat rows without a user, an item or a rating: "error" or "drop".
        seed: Seed of synthetic data.
        encoding: Text encoding of a plain file.
        delimiter: Delimiter of a plain file.
        scale: Lowest and highest rating of a plain table or of synthetic data.
        keep: Further item columns to keep, if the table has them.
        events: Weights of events ({"view": 1, "purchase": 5}, or one number), for tables of events instead of ratings.
        catalogue: Declared number of items, with or without ratings.
        ids: How user ids are spelled: "number", "lower" or "mail" (`SPELLINGS`); by default as they are written.
        report: Takes the problems of a single plain table instead of an error.
        **options: Further options of synthetic data (users, items, ratings, ...).
    """
    rows = _given(duplicates=duplicates, missing=missing)
    plain = rows | _given(columns=columns, scale=scale, events=events)
    texts = _given(encoding=encoding, delimiter=delimiter)
    opening: dict[str, Any] = {"keep": keep, "report": report, **plain, **texts}
    if isinstance(source, Ratings):
        if given := plain | texts | _given(catalogue=catalogue, ids=ids):
            raise DataError(f"{', '.join(given)}: Ratings are read already; pass the option to read_ratings")
        return source
    if isinstance(source, str | Path) and str(source) == "synthetic" and not Path(source).exists():
        if unknown := options.keys() - SYNTHETIC_OPTIONS:
            known = ", ".join(SYNTHETIC_OPTIONS)
            raise DataError(f"synthetic data has no option {min(unknown)}; use {known}")
        table = synthetic_ratings(seed=seed, scale=scale or (1, 5), **options)
    elif options:
        remedy = f"leave them out for {name}"
        raise DataError(f"{', '.join(options)}: these options are for synthetic data; {remedy}")
    elif isinstance(source, str | Path):
        where = locate(source)
        folder: dict[str, Any] = {"name": where.resolve().name} if where.is_dir() else {}
        layout = None if columns or events is not None else find_layout(where)
        if layout is not None:
            main, companion, read_layout = layout
            table = read_layout(main, companion, **rows, **folder)
        elif folder:
            file, *others = list_tables(where)
            if others:
                raise DataError(
                    f"{where} has several tables; give the path of one: {file.name}, {others[0].name}"
                )
            table = replace(read_table(file, **opening), **folder)
        else:
            table = read_table(where, **opening)
    elif texts:
        raise DataError(f"{', '.join(texts)}: an option for files; leave it out for the table {name}")
    else:
        table = read_table(source, name, **opening)
    return spell_users(table, ids).with_catalogue(catalogue)


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def spell_users(table: Ratings, way: str | None) -> Ratings:
    """Return a table with its user ids in one of the `SPELLINGS`, if one is named; raise `DataError` if two become one."""
    if not way:
        return table
    ids, written = spell(table.user_ids, way), table.user_ids if table.written is None else table.written
    if lost := len(ids) - len(np.unique(ids)):
        raise DataError(
            f"{table.name}: with {option('ids', way)}, {format_count(lost, 'user')} would have the id of another; correct the ids "
            "in the table, or leave the option out"
        )
    ways = "+".join(name for name in SPELLINGS if name in f"{table.ids}+{way}".split("+"))
    spelled = replace(table, user_ids=ids, ids=ways, written=written)
    return spelled.select_users(find_positions(sort_ids(ids), ids))


def read_table(
    source: Any,
    name: str = "ratings",
    *,
    events: EventWeights | None = None,
    duplicates: str | None = None,
    missing: str | None = None,
    scale: tuple[float, float] | None = None,
    report: RowReport | None = None,
    **opening: Any,
) -> Ratings:
    """Read ratings from one file, or from a table in memory called `name`; `opening` holds the options of `open_table`.

    With `events`, each row is an event; in a table without ratings, each row is a like. By default, a repeated
    (user, item) pair (except in .inter files) and a row without a user, an item or a rating are errors.
    """
    about = "" if events is None else option("events", events)
    kind = ("event",) if isinstance(events, Mapping) else () if events is not None else ("rating",)
    try:
        table = open_table(source, name, **opening, required=("user", "item", *kind))
    except MissingColumns as error:
        if events is not None or error.likes is None:
            raise
        events, about = FULL, error.likes
        table = open_table(source, name, **opening, required=("user", "item"))
    rows = read_rows(table, None if report is None else report.broken)
    if report is not None:
        report.table = table
    usual = "error"
    if isinstance(source, str | Path):
        name = table_stem(source)
        usual = "first" if ".inter" in Path(source).suffixes else "error"
    accept: dict[str, Any] = {"name": name, "where": table.at, "report": report, **_given(missing=missing)}
    if events is not None:
        return rate_events(rows, events, scale=scale or (1, 5), about=about, **accept)
    return rate_rows(rows, scale=scale, duplicates=duplicates or usual, notes=table.notes, **accept)


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
        remedy = f"set it to the folder with your data sets, or give a path ({fetch})"
        raise DataError(f"{name} is not a file or folder, and {DATA_FOLDER} is not set; {remedy}")
    found = Path(folder) / name
    if not found.exists():
        there = f"is not in {DATA_FOLDER} ({folder})"
        raise DataError(f"{name} {there}; unpack it there, or give a path ({fetch})")
    return found


def refuse_address(source: str) -> None:
    """Raise `DataError` for the address of a database, without what may be its password."""
    if address := re.match(r"\w{2,}:/", source):
        remedy = "export the table to CSV or Parquet"
        raise DataError(f"{address[0]}... is an address, and ratings are read from files; {remedy}")


def list_tables(folder: Path) -> list[Path]:
    """Return the tables of a folder, sorted by name, or its only file; raise `DataError` if there are none."""
    with reading(folder):
        names = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    entries = [entry for entry in names if entry.is_file() and not entry.name.lower().startswith("readme")]
    tables = [entry for entry in entries if entry.name.lower().removesuffix(".gz").endswith(TABLE_SUFFIXES)]
    files = tables or (entries if len(entries) == 1 else [])
    if not files:
        shown = ", ".join(entry.name for entry in names[:8]) or "nothing"
        raise DataError(
            f"{folder} has no known layout (MovieLens, BookCrossing, or tables ending in"
            f" {', '.join(TABLE_SUFFIXES)}); it holds {shown}. Give the path of a file"
        )
    return files


def rate_strength(strength: NDArray[Any], scale: tuple[float, float] = (1, 5)) -> NDArray[np.float64]:
    """Return the rating for the total weight of a pair's events."""
    low, high = scale
    return np.asarray(low + (high - low) * (1 - 4.0 ** (-strength / FULL)))


def rate_events(
    rows: Rows,
    events: EventWeights,
    *,
    scale: tuple[float, float],
    about: str,
    where: Callable[[int], str],
    report: RowReport | None = None,
    **options: Any,
) -> Ratings:
    """Return one rating for each pair of a user and an item with events, in the order of ids. `about` says how, in a note.

    Its time is that of the newest event; without one for each pair, all times are left out. `options` are the name of the table,
    and how rows without a user, an item or a kind are treated (`missing`).
    """
    weights = _weigh(rows, check_events(events))
    used = np.flatnonzero(weights != 0)
    if len(weights) and not len(used):
        remedy = f"give one of their kinds a weight above 0 with {option('events')}"
        raise DataError(f"{options['name']} has only events with weight 0; {remedy}")
    kept = {role: column.take(pa.array(used)) for role, column in rows.items() if role != "event"}
    kept["rating"] = pa.array(weights[used])
    accept = {"where": lambda row: where(int(used[row])), "what": "event", "duplicates": "first", **options}
    table, _ = accept_rows(kept, report=report, **accept)
    key = table.user.astype(np.int64) * table.n_items + table.item
    _, first, pair = np.unique(key, return_index=True, return_inverse=True)
    if report is not None:
        report.rows, report.accepted = used[report.rows[first]], None
        report.problems = [replace(p, places=tuple(used[[*p.places]].tolist())) for p in report.problems]
    # Weights are added from the smallest on, so that the order of rows changes no bit.
    order = np.lexsort((table.rating, pair))
    strength = np.bincount(pair[order], weights=table.rating[order])
    time, notes = table.time, table.notes
    if time is not None:
        newest = np.full(len(first), NO_TIME)
        np.maximum.at(newest, pair, time)
        without = int((newest == NO_TIME).sum())
        time, notes = (None, (*notes, note_missing_times(without))) if without else (newest, notes)
    rating = rate_strength(strength, scale).astype(np.float32)
    likes = rating >= upper_quarter(scale)
    if not isinstance(events, Mapping) and len(rating) and not likes.any():
        raise DataError(
            f"{options['name']}: with {about} no item reaches a like, which takes a weight of {FULL:g}, and lists need likes; "
            f"give {FULL:g}, or leave {option('events')} out: then every row is a like"
        )
    kind = "like" if likes.all() else "rating"
    became = f"{format_count(len(table), 'event')} became {format_count(len(first), kind)} ({about})"
    if ignored := len(weights) - len(used):
        became += f", {format_count(ignored, 'event')} left out"
    table = replace(table.take(first), rating=rating, time=time, scale=scale, scale_declared=True)
    return replace(table, notes=(became, *notes))


def _weigh(rows: Rows, events: EventWeights) -> NDArray[np.float64]:
    """Return the weight of each row, NaN for one without a kind; raise `DataError` if a kind has no weight."""
    if not isinstance(events, Mapping):
        return np.full(len(rows["user"]), float(events))
    codes, words = number_ids(rows["event"], "event")
    kinds = words.to_pylist()
    counts = np.bincount(codes[codes >= 0], minlength=len(kinds)).tolist()
    unknown = {kind: n for kind, n in zip(kinds, counts, strict=True) if kind and kind not in events}
    if unknown:
        names = sorted(unknown, key=lambda kind: (-unknown[kind], kind))
        shown = [f"{kind[:30]} ({unknown[kind]:,})" for kind in names[:8]] + ["..."] * (len(names) > 8)
        raise DataError(
            f"{option('events')} has no weight for these kinds: {', '.join(shown)}; add them, with 0 to leave them out, for"
            f" example {option('events', {**events, names[0][:30]: 0})}"
        )
    # The appended entry is for rows without a kind, whose code is -1.
    return np.array([*(float(events.get(kind, np.nan)) for kind in kinds), np.nan])[codes]
