"""Columns of times as seconds since 1970, however they are written."""

import time as clock
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from verfedgnn.data.ids import NOTHING, is_text, trim
from verfedgnn.data.number_parsing import quote_value
from verfedgnn.data.ratings import format_count

EARLIEST = 631_152_000
"""1990: ratings from before are times in another unit, or none."""
_DAY = 86_400
_MOST = 9e18
"""Beyond this (and NaN) is no number of seconds, nor of milliseconds."""
_KINDS = (
    pa.int64(),
    pa.float64(),
    *(pa.timestamp(unit, zone) for unit in ("us", "ns") for zone in (None, "UTC")),
)
_DATE = r"^([0-9]{1,2})%s([0-9]{1,2})%s([0-9]{4})(?:,? +|T|$)"
"""31.12.2025, or 31/12/2025 18:05, or 3-4-2025, 9:05:00, with the mark to be filled in."""
_LATE = "(?:1[3-9]|[23][0-9])"
"""The number of a day that is none of a month."""


def latest_plausible_time(now: int | None = None) -> int:
    """Until when ratings can have been given: tomorrow, because zones differ."""
    return (int(clock.time()) if now is None else now) + _DAY


def parse_times(
    column: pa.ChunkedArray, but: Iterable[NDArray[np.bool_]] = ()
) -> tuple[NDArray[np.int64] | None, tuple[str, ...]]:
    """Seconds since 1970 from numbers (seconds or milliseconds), dates or timestamps, and a note if that went wrong.

    `but` are masks of rows that will be left out, whose times, 0 here, do not matter.
    """
    kept = ~np.logical_or.reduce([np.zeros(len(column), bool), *but])
    if not kept.all():
        found, notes = parse_times(column.filter(pa.array(kept)))
        time = np.zeros(len(kept), np.int64)
        time[kept] = 0 if found is None else found
        return None if found is None else time, notes
    column = _plain(column)
    written = column
    column = parse_time_text(column)
    if is_text(column.type):
        column = parse_time_text(column, detect_day_first([column]))
    kind = column.type
    if _is_date(kind):
        # Not by way of a finer unit, which has no room for the years that a date may hold.
        column = pc.cast(pc.cast(column, pa.timestamp("s"), safe=False), pa.int64())
    elif pa.types.is_floating(kind):
        there = pc.less(pc.abs(column), _MOST)
        column = pc.cast(pc.if_else(there, column, pa.scalar(None, kind)), pa.int64(), safe=False)
    elif pa.types.is_integer(kind) or pa.types.is_null(kind):
        column = pc.cast(column, pa.int64(), safe=False)
    else:
        return None, (_why_not(written),)
    if column.null_count:
        rows = format_count(column.null_count, "row") + (" has" if column.null_count == 1 else " have")
        return None, (f"{rows} no time: all times are left out",)
    numbers: NDArray[np.int64] = column.to_numpy()
    # In seconds 1e11 is the year 5138.
    if not _is_date(kind) and len(numbers) and np.median(np.abs(numbers)) > 1e11:
        return numbers // 1000, ("times were read as milliseconds",)
    return numbers, ()


def _is_date(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def parse_time_text(
    column: pa.Array | pa.ChunkedArray, day_first: bool | None = None
) -> pa.Array | pa.ChunkedArray:
    """Text as numbers, as ISO 8601, with a zone or without, or as 31.12.2025 18:05; anything else as it is.

    31/12/2025 and 31-12-2025 are dates only where `day_first` says which number is the day. What stands for a missing value in
    a CSV file is one here; where nothing else is there, the type is null, which goes together with any other.
    """
    column = _plain(column)
    if not is_text(column.type):
        return column
    given = _given(column)
    if given.null_count == len(given):
        return pa.nulls(len(given))
    found = _cast(given)
    if found is None:
        found = _cast(_as_iso(given, day_first))
    return column if found is None else found


def _cast(given: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray | None:
    """Text as the first kind that all of it is."""
    # What is no kind of time is told by its first value, while Arrow takes long to fail for all of them.
    first = given.slice(pc.index(pc.is_valid(given), True).as_py(), 1)
    for kind in _KINDS:
        try:
            pc.cast(first, kind)
            return pc.cast(given, kind)
        except pa.ArrowInvalid:
            continue
    return None


def detect_day_first(parts: Iterable[pa.Array | pa.ChunkedArray]) -> bool | None:
    """Whether dates such as 3/4/2025 have the day first, which a 31/12/2025 in the same column tells; None: nothing tells.

    Only as many parts of the column are looked at as it takes.
    """
    for part in parts:
        if not is_text(part.type):
            break
        day, month = (
            _any(part, rf"^\s*{form}[/-][0-9]{{4}}") for form in (f"{_LATE}[/-][0-9]+", f"[0-9]+[/-]{_LATE}")
        )
        if day or month:
            return day
    return None


def _any(text: pa.Array | pa.ChunkedArray, pattern: str) -> bool:
    return bool(pc.any(pc.match_substring_regex(text, pattern)).as_py())


def _given(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    text = trim(column)
    missing = pc.is_in(text, value_set=pa.array(NOTHING, text.type))
    return pc.if_else(missing, pa.scalar(None, text.type), text)


def _plain(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """A categorical column by its values."""
    return pc.cast(column, column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _as_iso(text: pa.Array | pa.ChunkedArray, day_first: bool | None) -> pa.Array | pa.ChunkedArray:
    """Dates that begin with the day or the month as ISO 8601; what is none, or may be two, as it is."""
    orders = {r"\.": True} | ({} if day_first is None else {"/": day_first, "-": day_first})
    found = [(_DATE % (mark, mark), r"\3-\2-\1 " if day else r"\3-\1-\2 ") for mark, day in orders.items()]
    # One digit as two: of the month, of the day, of the hour.
    digits = [
        (r"^([0-9]{4}-)([0-9]-)", r"\10\2"),
        (r"^([0-9]{4}-[0-9]{2}-)([0-9] )", r"\10\2"),
        (r" ([0-9]:)", r" 0\1"),
    ]
    for pattern, iso in found + digits:
        if _any(text, pattern):
            text = pc.replace_substring_regex(text, pattern, iso)
    return trim(text)


def _why_not(column: pa.ChunkedArray) -> str:
    """Why a column is not one of times; a value is shown only where all before it are times."""
    if not is_text(column.type):
        return "the times are neither numbers nor dates: left out"
    given = _given(column).drop_null()
    both = [_as_iso(given, order) for order in (True, False)]
    unsure = given.filter(pc.match_substring_regex(given, "^[0-9]{1,2}[/-]"))
    if len(unsure) and not any(is_text(parse_time_text(dates).type) for dates in both):
        example = quote_value(unsure[0].as_py())
        return f"the day or the month may come first in times such as {example}: left out, write them as 2025-12-31 18:05"
    row = max(_alike(dates, kind) for dates in both for kind in _KINDS)
    if not row:
        return "the times are neither numbers nor dates: left out"
    return f"the time {quote_value(given[row].as_py())} cannot be read like those before it: all times are left out"


def _alike(given: pa.ChunkedArray, kind: pa.DataType) -> int:
    """How many values from the first one on are of a kind."""
    low = 0
    high = len(given)
    middle = 1
    while low < high:
        try:
            pc.cast(given[low:middle], kind)
            low = middle
        except pa.ArrowInvalid:
            high = middle - 1
        middle = (low + high + 1) // 2
    return low
