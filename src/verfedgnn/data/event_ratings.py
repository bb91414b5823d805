"""Conversion of implicit events (views, purchases, plays) to ratings, by a rule that uses only the events of
a pair.

With n_k events of kind k and weight w_k, a user's interest in an item is s = sum_k w_k n_k, and its rating is

    r = low + (high - low) (1 - 4^(-s / 5)),    on the scale 1 to 5:  r = 5 - 4^(1 - s / 5).

No event gives 1. A total weight of 5 (one purchase at 5, five views at 1) gives 4, from which items count as
liked (`model.threshold`); each further 5 covers three quarters of the distance to 5. The rating grows with
every event and every weight, and saturates. It depends neither on the order of rows nor on other users, so
each organisation can apply the rule alone.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from verfedgnn.core.errors import DataError
from verfedgnn.core.option_names import option
from verfedgnn.data.ids import TEXT, as_item_text, as_text, encode, is_text, look_up, trim
from verfedgnn.data.ratings import Ratings, fill_in, format_count, note_left_out
from verfedgnn.data.time_parsing import detect_day_first, parse_time_text, parse_times

EventWeights = Mapping[str, float] | float
"""Weight of an event, by its kind, or one weight for all kinds."""
Batches = Callable[[], Iterable[pa.RecordBatch]]
"""A function that iterates over the rows of a table in batches, from the start on each call."""

FULL = 5.0
"""Total weight of events from which an item counts as liked, at three quarters of the scale."""
_PENDING = 1 << 21


def required_columns(events: EventWeights | None) -> tuple[str, ...]:
    """Return the columns that a table of ratings or of events must have."""
    if events is None:
        return ("user", "item", "rating")
    return ("user", "item", "event") if isinstance(events, Mapping) else ("user", "item")


def parse_events(text: str) -> EventWeights:
    """Parse `view=1,purchase=5`, or one number for all rows."""
    try:
        pairs = [part.rpartition("=") for part in text.split(",")]
        one = len(pairs) == 1 and not pairs[0][1]
        found = float(text) if one else {kind.strip(): float(weight) for kind, _, weight in pairs}
    except ValueError:
        raise DataError(
            f"--events takes weights such as view=1,purchase=5, or one number, not '{text}'"
        ) from None
    return check_events(found)


def check_events(events: EventWeights) -> EventWeights:
    """Return the weights if they are valid, else raise `DataError`."""
    weights = list(events.values()) if isinstance(events, Mapping) else [events]
    if (
        not weights
        or not all(np.isfinite(w) and w >= 0 for w in weights)
        or not any(weights)
        or "" in _kinds(events)
    ):
        raise DataError(
            f"{option('events')} needs a weight above 0 for at least one kind of event (with 5, one event is a like); "
            "use 0 for kinds to leave out"
        )
    return events


def rate_strength(strength: NDArray[np.float64], scale: tuple[float, float] = (1, 5)) -> NDArray[np.float64]:
    """Return the rating for the total weight of a pair's events."""
    low, high = scale
    return low + (high - low) * (1 - 4.0 ** (-strength / FULL))


def rate_events(
    batches: Batches,
    events: EventWeights,
    *,
    scale: tuple[float, float] = (1, 5),
    name: str,
    missing: str = "error",
    where: Callable[[int], str],
) -> Ratings:
    """Return one rating for each pair of a user and an item with events, in the order of ids.

    Its time is that of the newest event. `batches` have the columns user and item, event if weights depend on
    the kind, and optionally time and item columns. Rows without one of the first three are an error, or left
    out if `missing` is "drop".
    """
    check_events(events)
    table, dropped = _counted(
        batches, by_kind=isinstance(events, Mapping), where=None if missing == "drop" else where
    )
    rows = int(pc.sum(table["count"]).as_py()) if table.num_rows else 0
    used = table
    if rows and isinstance(events, Mapping):
        _refuse_unknown(table, events)
        ignored = pa.array([kind for kind, weight in events.items() if not weight], TEXT)
        used = table.filter(pc.invert(pc.is_in(table["event"], value_set=ignored)))
    refuse_none(name, rows, used.num_rows)
    user, user_ids = encode(as_text(used["user"], "user"), "user")
    item, item_ids = encode(as_text(used["item"], "item"), "item")
    pair, group = np.unique(user.astype(np.int64) * len(item_ids) + item, return_inverse=True)
    time, notes = _newest(used, group, len(pair))
    if dropped:
        notes = (note_left_out(dropped, "no user, item or event"), *notes)
    kind = None if not isinstance(events, Mapping) else used["event"]
    strength = total_weight(
        used["count"].to_numpy(),
        events,
        group,
        len(pair),
        of_kind=lambda each: pc.equal(kind, each).to_numpy(),
    )
    about = [n for n in used.column_names if n not in ("user", "item", "event", "time", "count")]
    items = used.group_by("item").aggregate([(column, "max") for column in about])
    per_item = {column: look_up(item_ids, items["item"], items[f"{column}_max"]) for column in about}
    summed = int(pc.sum(used["count"]).as_py())
    return Ratings(
        user=(pair // len(item_ids)).astype(np.int32),
        item=(pair % len(item_ids)).astype(np.int32),
        rating=rate_strength(strength, scale).astype(np.float32),
        user_ids=user_ids,
        item_ids=item_ids,
        time=time,
        titles=per_item.pop("title", None),
        columns=per_item,
        scale=(float(scale[0]), float(scale[1])),
        scale_declared=True,
        name=name,
        notes=(
            note_counts(summed, len(pair), rows - summed, events),
            *notes,
        ),
    )


def note_counts(summed: int, ratings: int, left_out: int, events: EventWeights) -> str:
    """Return the note about how many events became how many ratings."""
    left = f", {format_count(left_out, 'event')} left out" if left_out else ""
    return f"{format_count(summed, 'event')} became {format_count(ratings, 'rating')} ({option('events', events)}){left}"


def _counted(batches: Batches, *, by_kind: bool, where: Callable[[int], str] | None) -> tuple[pa.Table, int]:
    """Return the count, newest time and item columns of each (user, item, kind), and the number of rows left
    out.

    Rows are aggregated a few million at a time, so memory grows with the number of different keys.
    """
    keys = ["user", "item", "event"] if by_kind else ["user", "item"]
    pending: list[pa.Table] = []
    rows = dropped = waiting = 0
    room = _PENDING
    # Deciding what 3/4/2025 means may take a second pass over all rows, so it is done only when such a date occurs.
    order = cache(lambda: detect_day_first(batch.column("time") for batch in batches()))
    for batch in batches():
        table = _prepared(batch, keys, rows, where, order)
        rows += batch.num_rows
        dropped += batch.num_rows - table.num_rows
        waiting += table.num_rows
        pending.append(table)
        if waiting >= room:
            pending = [_added(pending, keys)]
            waiting = pending[0].num_rows
            room = max(_PENDING, 2 * waiting)
    return (_added(pending, keys) if rows > dropped else pa.table({})), dropped


def _prepared(
    batch: pa.RecordBatch,
    keys: Sequence[str],
    before: int,
    where: Callable[[int], str] | None,
    order: Callable[[], bool | None],
) -> pa.Table:
    """Return a batch with ids as text, parsed times and a count.

    Rows that lack a key are an error at the place that `where` names; without `where` they are left out.
    """
    columns = {name: trim(as_text(batch.column(name), name)) for name in keys}
    kept = find_complete(columns, before, where)
    if kept is not None:
        return _prepared(batch.filter(kept), keys, before, where, order)
    for name in batch.schema.names:
        if name == "time":
            times = parse_time_text(batch.column(name))
            columns[name] = parse_time_text(batch.column(name), order()) if is_text(times.type) else times
        elif name not in keys:
            columns[name] = trim(as_item_text(batch.column(name), name))
    return pa.table({**columns, "count": pa.array(np.ones(batch.num_rows, np.int64))})


def find_complete(
    keys: Mapping[str, pa.Array], before: int, where: Callable[[int], str] | None
) -> pa.Array | None:
    """Return a mask of the rows that lack no key, or None if no row lacks one.

    With `where`, such a row is an error at the place that it names; `before` rows precede these.
    """
    absent = {
        name: pc.fill_null(pc.equal(column, ""), True) if is_text(column.type) else pc.is_null(column)
        for name, column in keys.items()
    }
    lacking = [name for name in keys if pc.any(absent[name]).as_py()]
    if lacking and where is not None:
        place = where(before + pc.index(absent[lacking[0]], True).as_py())
        raise DataError(f"an event has no {lacking[0]} in {place}: {fill_in()}")
    return pc.invert(reduce(pc.or_, absent.values())) if lacking else None


def mixed_times() -> DataError:
    """Return the error of times that cannot be compared."""
    return DataError(
        "the times have different formats; write all of them in one format, for example 2025-12-31 18:05"
    )


def _added(tables: list[pa.Table], keys: list[str]) -> pa.Table:
    try:
        table = pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        raise mixed_times() from error
    # The maximum does not depend on the order of rows, and an empty text sorts before all others.
    others = [name for name in table.column_names if name not in (*keys, "count")]
    grouped = table.group_by(keys).aggregate([("count", "sum"), *((name, "max") for name in others)])
    return grouped.select([*keys, "count_sum", *(f"{name}_max" for name in others)]).rename_columns(
        [*keys, "count", *others]
    )


def _newest(
    table: pa.Table, group: NDArray[np.int64], pairs: int
) -> tuple[NDArray[np.int64] | None, tuple[str, ...]]:
    if "time" not in table.column_names:
        return None, ()
    time, notes = parse_times(table["time"])
    if time is None:
        return None, notes
    newest = np.full(pairs, np.iinfo(np.int64).min)
    np.maximum.at(newest, group, time)
    return newest, notes


def total_weight(
    count: NDArray[np.int64],
    events: EventWeights,
    group: NDArray[np.int64],
    pairs: int,
    *,
    of_kind: Callable[[str], NDArray[np.bool_]],
) -> NDArray[np.float64]:
    """Return the total weight of each pair's events, from the `count` of events in each row and the pair of the row.

    Kinds are added in a fixed order, so the sum is bit-identical for any order of rows. `of_kind` returns the
    rows of a kind.
    """
    if not isinstance(events, Mapping):
        return float(events) * np.bincount(group, weights=count, minlength=pairs).astype(np.float64)
    strength = np.zeros(pairs)
    for kind in sorted(events):
        rows = of_kind(kind)
        strength += events[kind] * np.bincount(group[rows], weights=count[rows], minlength=pairs)
    return strength


def refuse_none(name: str, rows: int, used: int) -> None:
    """Raise `DataError` if there are no events, or none with a weight."""
    if not rows:
        raise DataError(f"{name} has no events; give a table with at least one row")
    if not used:
        raise DataError(
            f"{name} has only events with weight 0; give one of their kinds a weight above 0 with {option('events')}"
        )


def _refuse_unknown(table: pa.Table, events: Mapping[str, float]) -> None:
    unknown = table.filter(pc.invert(pc.is_in(table["event"], value_set=pa.array(list(events), TEXT))))
    if unknown.num_rows:
        totals = unknown.group_by("event").aggregate([("count", "sum")])
        kinds = dict(zip(totals["event"].to_pylist(), totals["count_sum"].to_pylist(), strict=True))
        raise unknown_kinds(kinds, events)


def unknown_kinds(counts: Mapping[str, int], events: Mapping[str, float]) -> DataError:
    """Return the error of kinds of events without a weight, given their numbers of events."""
    kinds = sorted(counts, key=lambda kind: (-counts[kind], kind))
    examples = ", ".join(
        [f"{kind[:30]} ({counts[kind]:,})" for kind in kinds][:8] + ["..."] * (len(kinds) > 8)
    )
    return DataError(
        f"{option('events')} has no weight for these kinds: {examples}; add them, with 0 to leave them out, for example"
        f" {option('events', {**events, kinds[0][:30]: 0})}"
    )


def _kinds(events: EventWeights) -> list[str]:
    return list(events) if isinstance(events, Mapping) else []
