"""Checks of all rows of a table at once, and `rate_rows`, which refuses a table with a fatal problem.

`data check` lists every problem that `rate_rows` would refuse, so a table is usable exactly when it can be read.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from verfedgnn.core.errors import DataError
from verfedgnn.core.option_names import option
from verfedgnn.data.ids import LONGEST_ID, NOTHING, Column, first_per_item, number_ids, sort_numbered
from verfedgnn.data.ratings import Mask, Ratings, count_rows
from verfedgnn.data.table_sources import RATING_ROLES, Table
from verfedgnn.data.value_parsing import CORRECT, parse_numbers, parse_times, quote_value

SHOWN = 5


@dataclass(frozen=True)
class DataProblem:
    """One kind of problem and the rows that have it."""

    kind: str
    text: str
    """Description of the problem for people, with the number of rows."""
    remedy: str
    count: int
    places: tuple[int, ...] = ()
    fatal: bool = False


class CheckedRows(NamedTuple):
    """The rows of a table with users and items as codes of distinct ids in no particular order, and their problems."""

    user: NDArray[np.int32]
    users: pa.Array
    item: NDArray[np.int32]
    items: pa.Array
    rating: NDArray[np.float64]
    time: NDArray[np.int64] | None
    gone: Mask
    usable: Mask
    repeated: Mask
    """Rows that repeat an earlier pair."""
    problems: list[DataProblem]
    notes: tuple[str, ...]


@dataclass
class RowReport:
    """Collects the problems of a table's rows, of which otherwise the first is an error; only rows without a problem are read."""

    problems: list[DataProblem] = field(default_factory=list)
    """Problems with their rows, counted from 0."""
    accepted: Ratings | None = None
    """Ratings of all usable rows, before the first, the last or the mean of repeated pairs is chosen."""
    rows: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """The row in which each of them stands."""
    table: Table | None = None
    broken: list[int] = field(default_factory=list)
    """Records of a text file that are no rows."""


CHECK = "; check "
"""Before the place of a row, in notes that are warnings."""
_DOUBTS = ("time", "lone")
_LACKS = {"rating": "have a rating that is missing or NaN", "event": "have no kind of event"}


def check_rows(
    rows: Mapping[str, Column],
    *,
    name: str = "the table",
    scale: tuple[float, float] | None = None,
    duplicates: str = "error",
    missing: str = "error",
    what: str = "rating",
) -> CheckedRows:
    """Find all problems of the rows, given by role as columns of one length.

    `what` is "event" if rows are events with weights instead of ratings; some of them may lack a time.
    """
    if len(set(map(len, rows.values()))) > 1:
        entries = ", ".join(f"{len(column):,} of {role}" for role, column in rows.items())
        raise DataError(f"{name} has columns of different lengths: {entries}; give one of each per row")
    for name, given, known in (
        ("duplicates", duplicates, ("error", "first", "last", "mean")),
        ("missing", missing, ("error", "drop")),
    ):
        if given not in known:
            raise DataError(f"{name}={given!r} is unknown; use one of {', '.join(known)}")
    with ThreadPoolExecutor(2) as both:
        users, items = both.map(number_ids, (rows["user"], rows["item"]), ("user", "item"))
    parsed = parse_numbers(rows["rating"], scale)
    problems: list[DataProblem] = []
    bad = np.zeros(len(parsed.values), bool)

    def note(kind: str, mask: Mask, said: str, remedy: str, outcome: str = "", warning: bool = False) -> None:
        """Add a fatal problem, or a warning; `outcome` says how such rows are handled."""
        count = int(mask.sum())
        if count:
            text = count_rows(count, said) + (f": {outcome}" if outcome else "")
            places = tuple(np.flatnonzero(mask)[:SHOWN].tolist())
            fatal = not outcome and not warning
            problems.append(DataProblem(kind, text, "" if outcome else remedy, count, places, fatal=fatal))
            if not warning:
                bad[mask] = True

    dropped = "left out" if missing == "drop" else ""
    fill_in = f"fill it in, or leave them out with {option('missing', 'drop')}"
    for role, (codes, ids) in (("user", users), ("item", items)):
        absent = _of_rows(pc.equal(ids, ""), codes, missing=True)
        note(f"no-{role}", absent, f"have no {role}", fill_in, dropped)
    lacking = np.isnan(parsed.values) & ~parsed.unlike
    note("no-rating", lacking, _LACKS[what], fill_in, dropped)
    gone = bad & bool(dropped)
    if gone.all():
        only = "there are only columns, no ratings"
        lack = "no row has a user, an item and a rating" if len(gone) else only
        problems.append(DataProblem("empty", lack, "check how it was written", 1, fatal=True))
    for role, (codes, ids) in (("user", users), ("item", items)):
        lengths = pc.utf8_length(ids)
        said = f"have a {role} of up to {pc.max(lengths)} characters, more than {LONGEST_ID}"
        remedy = f"name another column with {option('columns', {role: '...'})}"
        note(f"long-{role}", _of_rows(pc.greater(lengths, LONGEST_ID), codes) & ~gone, said, remedy)
        nothing = pc.is_in(ids, value_set=pa.array([*filter(None, NOTHING), "None"], ids.type))
        said = f"have a {role} called NA, NULL or the like, which counts as an id"
        remedy = f"leave the {role} empty where there is none, then {option('missing', 'drop')} leaves those rows out"
        note(f"named-nothing-{role}", _of_rows(nothing, codes) & ~gone, said, remedy, warning=True)
    hardly = parsed.remedy == CORRECT and 2 * int(parsed.unlike.sum()) > len(bad)
    other = f"name the column of ratings with {option('columns', {'rating': '...'})}"
    remedy = other if hardly else parsed.remedy
    note("not-a-number", parsed.unlike, "have a rating that is not a number", remedy)
    with np.errstate(over="ignore"):  # ratings are stored in single precision
        infinite = np.isinf(parsed.values.astype(np.float32)) & ~gone
    note("infinite", infinite, "have a rating that is infinite (more than 3.4e38)", CORRECT)
    if scale is not None:
        outside = ~bad & ((parsed.values < scale[0]) | (parsed.values > scale[1]))
        said = f"have a rating outside the scale {scale[0]:g} to {scale[1]:g}"
        note("off-scale", outside, said, f"correct them or give another {option('scale')}")
    seconds, notes, wrong = (
        parse_times(rows["time"], gone, gaps=what == "event") if "time" in rows else (None, (), np.zeros(0))
    )
    if len(wrong):
        problems.append(DataProblem("time", notes[0], "", len(wrong), tuple(wrong[:SHOWN].tolist())))
        notes = ()
    usual = parsed.values[~bad]
    for lone in (usual.min(), usual.max()) if len(usual) > 2 * SHOWN and what == "rating" else ():
        rest = usual[usual != lone]
        if len(rest) == len(usual) - 1 and max(lone - rest.max(), rest.min() - lone) > np.ptp(rest) > 0:
            said = f"have the rating {lone:g}, where the others lie from {rest.min():g} to {rest.max():g}"
            note("lone", ~bad & (parsed.values == lone), said, CORRECT, warning=True)
    outcomes = {"error": "", "mean": "the mean rating is taken"}
    remedy = f"keep one with {option('duplicates', 'first')}, or use last or mean"
    pair = users[0].astype(np.int64) * len(items[1]) + items[0]
    pair[bad] = -1 - np.flatnonzero(bad)
    repeated = np.full(len(pair), what == "rating")  # events of a pair are added up
    repeated[np.unique(pair, return_index=True)[1]] = False
    outcome = outcomes.get(duplicates, f"the {duplicates} one is kept")
    usable = ~bad
    note("repeated", repeated, "repeat a (user, item) pair", remedy, outcome)
    notes = (*parsed.notes, *notes)
    return CheckedRows(*users, *items, parsed.values, seconds, gone, usable, repeated, problems, notes)


def _of_rows(ids: Any, codes: NDArray[np.int32], missing: bool = False) -> Mask:
    """Return a mask of the rows, given a mask of the ids; `missing` is the value of rows without an id, whose code is -1."""
    return np.append(np.asarray(ids, bool), missing)[codes]


def rate_rows(rows: Mapping[str, Column], *, duplicates: str = "error", **options: Any) -> Ratings:
    """Return rows as `Ratings`, as `accept_rows` does, with one row for each pair: the "first", the "mean", or the "last" by time.

    Times are numbers (seconds or milliseconds since 1970), dates or text.
    """
    table, repeated = accept_rows(rows, duplicates=duplicates, **options)
    if not repeated.any():
        return table
    kept = np.flatnonzero(~repeated)
    key = table.user.astype(np.int64) * table.n_items + table.item
    if duplicates == "last":
        order = np.lexsort((key,) if table.time is None else (table.time, key))
        kept = np.sort(order[np.append(np.diff(key[order]) > 0, True)])
    elif duplicates == "mean":
        _, pair = np.unique(key, return_inverse=True)
        means = np.bincount(pair, weights=table.rating) / np.bincount(pair)
        table = replace(table, rating=means[pair].astype(np.float32))
    said = count_rows(int(repeated.sum()), "repeat a (user, item) pair")
    outcome = "took the mean rating" if duplicates == "mean" else f"kept the {duplicates}"
    return table.take(kept).with_notes(*[f"{said}: {outcome}"] * (duplicates != "error"))


def accept_rows(
    rows: Mapping[str, Column],
    *,
    scale: tuple[float, float] | None = None,
    name: str = "ratings",
    duplicates: str = "error",
    missing: str = "error",
    notes: tuple[str, ...] = (),
    where: Callable[[int], str] | None = None,
    what: str = "rating",
    report: RowReport | None = None,
) -> tuple[Ratings, Mask]:
    """Return rows as `Ratings`, and a mask of those that repeat an earlier pair; raise `DataError` for a fatal problem.

    Columns that are not of ratings belong to items. `notes` say how columns were read, `where` describes the place of a row in
    errors, and a `report` takes the problems instead. The other options are those of `check_rows`.
    """
    checked = check_rows(rows, name=name, scale=scale, duplicates=duplicates, missing=missing, what=what)
    kept: Any = slice(None)
    notes = (*notes, *checked.notes)
    if report is not None:
        report.problems += checked.problems
        kept = report.rows = np.flatnonzero(checked.usable)
    else:
        at = where or (lambda row: f"row {row} of {name} (counted from 0)")
        _refuse(checked, rows["rating"], name, at)
        notes += tuple(f"{p.text}{CHECK}{at(p.places[0])}" for p in checked.problems if p.kind in _DOUBTS)
        if left_out := int(checked.gone.sum()):
            kept = np.flatnonzero(~checked.gone)
            notes += (f"{count_rows(left_out, f'have no user, item or {what}')}: left out",)
    values = checked.rating[kept]
    low, high = scale or ((float(values.min()), float(values.max())) if len(values) else (0.0, 0.0))
    user_code, user_ids = sort_numbered(checked.user[kept], checked.users)
    item_code, item_ids = sort_numbered(checked.item[kept], checked.items)
    about = {
        role: first_per_item(column, item_code, len(item_ids), kept)
        for role, column in rows.items()
        if role not in (*RATING_ROLES, "time")
    }
    table = Ratings(
        user=user_code,
        item=item_code,
        rating=values.astype(np.float32),
        user_ids=user_ids,
        item_ids=item_ids,
        time=None if checked.time is None else checked.time[kept],
        titles=about.pop("title", None),
        columns=about,
        scale=(float(low), float(high)),
        scale_declared=scale is not None,
        name=name,
        notes=notes,
    )
    if report is not None:
        report.accepted = table
    return table, checked.repeated[kept]


def _refuse(rows: CheckedRows, rating: Any, name: str, at: Callable[[int], str]) -> None:
    """Raise `DataError` for the first fatal problem; one error names every kind of missing value."""
    fatal = {problem.kind: problem for problem in rows.problems if problem.fatal}
    if "not-a-number" in fatal:
        row = fatal["not-a-number"].places[0]
        value = quote_value(str(rating[row].as_py()).strip())
        raise DataError(f"the rating {value} in {at(row)} is not a number: {fatal['not-a-number'].remedy}")
    if not len(rating) or "empty" in fatal:
        raise DataError(f"{name} has no ratings; give a table with at least one row")
    repeated = fatal.pop("repeated", None)
    lacking = [problem for problem in fatal.values() if problem.kind.startswith("no-")]
    if fatal:
        shown = lacking or [next(iter(fatal.values()))]
        texts = [f"{problem.text}, the first in {at(problem.places[0])}" for problem in shown]
        raise DataError(f"{'; '.join(texts)}: {shown[0].remedy}")
    if repeated is not None:
        second = repeated.places[0]
        same = (rows.user == rows.user[second]) & (rows.item == rows.item[second]) & ~rows.gone
        # Without the ids: errors are kept in logs and in the history of nights.
        places = f"the first in {at(int(same.argmax()))} and {at(second)}"
        remedy = f"keep one with {option('duplicates', 'first')} (or last, mean) or remove them"
        raise DataError(f"{repeated.text}, {places}: {remedy}")
