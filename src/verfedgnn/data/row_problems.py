"""Search for problems in all rows of a table of ratings at once."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from verfedgnn.core.option_names import option
from verfedgnn.data.ids import LONGEST_ID, NOTHING, as_text, check_characters, encode_unordered, trim
from verfedgnn.data.number_parsing import CORRECT, INFINITE, NO_RATING, Mask, find_infinite, parse_numbers
from verfedgnn.data.ratings import check_options, format_count
from verfedgnn.data.time_parsing import EARLIEST, latest_plausible_time, parse_times

SHOWN = 5
"""Number of places that are shown for each kind of problem."""
FEW = 5
"""Number of ratings below which little can be learnt about a user."""
SHOWN_OF = {
    "not-a-number": "rating",
    "infinite": "rating",
    "off-scale": "rating",
    "future": "time",
    "early": "time",
}
"""Column whose values are shown with a kind of problem. Ids are never shown."""


@dataclass(frozen=True)
class DataProblem:
    """One kind of problem and the rows that have it."""

    kind: str
    """Name of the problem for programs."""
    text: str
    """Description of the problem for people, with the number of rows."""
    remedy: str
    """What to do about the problem."""
    count: int
    """Number of rows."""
    places: tuple[int, ...] = ()
    """The first few rows, in order."""
    values: tuple[str, ...] = ()
    """Ratings or times in these rows; "" for values that must not be shown."""
    fatal: bool = False
    """Whether the problem makes the table unusable."""


@dataclass(frozen=True, eq=False)
class UsableRows:
    """Rows without a problem, with users and items as codes."""

    user: NDArray[np.int32]
    item: NDArray[np.int32]
    rating: NDArray[np.float64]
    time: NDArray[np.int64] | None


@dataclass(frozen=True, eq=False)
class TableScan:
    """Result of the search in a table. Places of problems are rows counted from 0."""

    problems: list[DataProblem]
    good: UsableRows
    row_of: NDArray[np.int64]
    """Row in the table of each usable row."""
    users: pa.Array
    """Distinct user ids of the usable rows."""
    items: pa.Array
    """Distinct item ids of the usable rows."""
    notes: tuple[str, ...]
    """Sentences about how the columns were read."""


def find_problems(
    table: pa.Table, *, scale: tuple[float, float] | None, duplicates: str, missing: str
) -> TableScan:
    """Find all problems that make rows unusable, and the rows without them."""
    check_options(duplicates, missing)
    problems: list[DataProblem] = []
    bad = np.zeros(table.num_rows, bool)

    def note(kind: str, what: str, remedy: str, mask: Mask, outcome: str = "") -> None:
        if mask.any():
            problems.append(_of_rows(kind, what, remedy, mask, outcome))
            bad[mask] = True

    with ThreadPoolExecutor(2) as both:
        (user, users), (item, items) = both.map(_ids, (table["user"], table["item"]), ("user", "item"))
    rating = parse_numbers(table["rating"], scale)
    # The appended entry is for nulls, whose code is -1.
    absent = {
        "user": np.append(_mask(pc.equal(users, "")), True)[user],
        "item": np.append(_mask(pc.equal(items, "")), True)[item],
        "rating": np.isnan(rating.values) & ~rating.unlike,
    }
    dropped = missing == "drop"
    for role, what in (("user", "have no user"), ("item", "have no item"), ("rating", NO_RATING)):
        note(
            f"no-{role}",
            what,
            f"fill it in, or leave them out with {option('missing', 'drop')}",
            absent[role],
            "left out" * dropped,
        )
    gone = bad.copy() if dropped else np.zeros(len(bad), bool)
    if gone.all():
        lack = (
            "no row has a user, an item and a rating" if len(gone) else "there are no ratings, only columns"
        )
        problems.append(DataProblem("empty", lack, "check how it was written", 1, fatal=True))
    for role, codes, ids in (("user", user, users), ("item", item, items)):
        overlong = np.append(_mask(pc.greater(pc.utf8_length(ids), LONGEST_ID)), False)
        what = f"have a {role} of more than {LONGEST_ID} characters"
        remedy = f"name another with {option('columns', {role: '...'})}"
        note(f"long-{role}", what, remedy, overlong[codes] & ~gone)
        called = (
            np.append(
                _mask(pc.is_in(ids, value_set=pa.array([*filter(None, NOTHING), "None"], ids.type))), False
            )[codes]
            & ~gone
        )
        if called.any():
            text = _sentence(
                int(called.sum()), f"have a {role} called NA, NULL or the like, which counts as an id"
            )
            remedy = f"leave the {role} empty where there is none, then {option('missing', 'drop')} leaves those rows out"
            problems.append(
                DataProblem(
                    f"named-nothing-{role}",
                    text,
                    remedy,
                    int(called.sum()),
                    tuple(np.flatnonzero(called)[:SHOWN]),
                )
            )
    hardly = rating.remedy == CORRECT and 2 * int(rating.unlike.sum()) > len(bad)
    remedy = (
        f"name the column of ratings with {option('columns', {'rating': '...'})}" if hardly else rating.remedy
    )
    note("not-a-number", "have a rating that is not a number", remedy, rating.unlike)
    note("infinite", INFINITE, CORRECT, find_infinite(rating.values) & ~gone)
    if scale is not None:
        outside = ~bad & ((rating.values < scale[0]) | (rating.values > scale[1]))
        what = f"have a rating outside the scale {scale[0]:g} to {scale[1]:g}"
        note("off-scale", what, f"correct them or give another {option('scale')}", outside)
    time, notes = parse_times(table["time"], but=[gone]) if "time" in table.column_names else (None, ())
    outcome = {"error": "", "mean": "the mean rating is taken"}.get(
        duplicates, f"the {duplicates} one is kept"
    )
    remedy = f"keep one with {option('duplicates', 'first')}, or use last or mean"
    note("repeated", "repeat a (user, item) pair", remedy, _repeated(user, item, len(items), ~bad), outcome)
    kept = np.flatnonzero(~bad)
    good = UsableRows(user[kept], item[kept], rating.values[kept], None if time is None else time[kept])
    return TableScan(
        problems, good, kept, _used(users, good.user), _used(items, good.item), (*rating.notes, *notes)
    )


def find_warnings(
    user: NDArray[Any],
    item: NDArray[Any],
    rating: NDArray[Any],
    time: NDArray[np.int64] | None,
    now: int | None = None,
    row_of: NDArray[np.int64] | None = None,
) -> list[DataProblem]:
    """Find problems of usable ratings that are likely to be mistakes or to reduce accuracy."""
    if not len(rating):
        return []
    found = []

    def warn(kind: str, mask: Mask, what: str, remedy: str) -> None:
        if mask.any():
            first = np.flatnonzero(mask)[:SHOWN]
            places = () if row_of is None else tuple(row_of[first].tolist())
            found.append(DataProblem(kind, _sentence(int(mask.sum()), what), remedy, int(mask.sum()), places))

    low = float(rating.min())
    high = float(rating.max())
    if low == high and len(rating) > 1:
        text = f"all ratings are {low:g}, so there is nothing to learn from them"
        found.append(
            DataProblem(
                "all-equal", text, f"if they are events, weigh them with {option('events')}", len(rating)
            )
        )
    elif low == 0 < high and float(rating[rating > 0].min()) >= 1:
        what = "have the rating 0, where the others begin at 1 or more"
        warn("zeros", rating == 0, what, "if 0 means 'not rated', remove them")
    if time is not None:
        warn(
            "future",
            time > latest_plausible_time(now),
            "have a time in the future",
            "check the unit and the zone of times",
        )
        warn(
            "early",
            time < EARLIEST,
            "have a time before 1990",
            "check that times are seconds or milliseconds since 1970",
        )
    counts = np.bincount(user)
    few = int(((counts > 0) & (counts < FEW)).sum())
    everybody = int((counts > 0).sum())
    if few:
        have = "has" if few == 1 else "have"
        text = f"{few:,} of {format_count(everybody, 'user')} ({100 * few / everybody:.0f} %) {have} fewer than {FEW} ratings"
        found.append(DataProblem("few-ratings", text, "little can be learnt about them alone", few))
    return found


def _of_rows(kind: str, what: str, remedy: str, mask: Mask, outcome: str = "") -> DataProblem:
    """Return a fatal problem or, if `outcome` says how such rows are handled, a warning."""
    count = int(mask.sum())
    places = tuple(np.flatnonzero(mask)[:SHOWN].tolist())
    text = _sentence(count, what)
    if outcome:
        return DataProblem(kind, f"{text}: {outcome}", "", count, places)
    return DataProblem(kind, text, remedy, count, places, fatal=True)


def _sentence(count: int, what: str) -> str:
    if count > 1:
        return f"{count:,} rows {what}"
    return "1 row " + what.replace("have", "has", 1).replace("repeat", "repeats", 1)


def _mask(array: Any) -> Mask:
    return np.asarray(array, bool)


def _ids(column: pa.ChunkedArray, what: str) -> tuple[NDArray[np.int32], pa.Array]:
    """Return codes and trimmed ids. Only the distinct ids are trimmed, not every row."""
    codes, ids = encode_unordered(as_text(column, what))
    check_characters(ids, what)
    plain = trim(ids)
    if plain.equals(ids):
        return codes, ids
    recoded, ids = encode_unordered(plain)
    return np.append(recoded, np.int32(-1))[codes], ids


def _used(ids: pa.Array, codes: NDArray[np.int32]) -> pa.Array:
    there = np.bincount(codes, minlength=len(ids)) > 0
    return ids if there.all() else ids.filter(pa.array(there))


def _repeated(user: NDArray[np.int32], item: NDArray[np.int32], items: int, valid: Mask) -> Mask:
    """Return a mask of the rows whose pair occurs in an earlier row."""
    key = user.astype(np.int64) * items + item
    key[~valid] = -1 - np.flatnonzero(~valid)
    in_order = np.sort(key)
    repeated = np.zeros(len(key), bool)
    if (in_order[1:] == in_order[:-1]).any():
        order = np.argsort(key, kind="stable")
        repeated[order[1:]] = in_order[1:] == in_order[:-1]
    return repeated
