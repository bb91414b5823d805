"""Parsing of times in several formats to seconds since 1970."""

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
"""Start of 1990 in seconds since 1970. Earlier times probably have another unit."""
_DAY = 86_400
LATEST_SECONDS = 10**11
"""Times whose median is larger are milliseconds."""
AS_MILLISECONDS = "times were read as milliseconds"
_MOST = 9e18
"""Largest absolute value of a time in seconds or milliseconds."""
_KINDS = (
    pa.int64(),
    pa.float64(),
    *(pa.timestamp(unit, zone) for unit in ("us", "ns") for zone in (None, "UTC")),
)
_DATE = r"^([0-9]{1,2})%s([0-9]{1,2})%s([0-9]{4})(?:,? +|T|$)"
"""Pattern of 31.12.2025, 31/12/2025 18:05 or 3-4-2025, 9:05:00; the separator is filled in."""
_LATE = "(?:1[3-9]|[23][0-9])"
"""Pattern of a day that cannot be a month."""


def latest_plausible_time(now: int | None = None) -> int:
    """Return the latest plausible time of a rating: one day from now, because time zones differ."""
    return (int(clock.time()) if now is None else now) + _DAY


def parse_times(
    column: pa.ChunkedArray, but: Iterable[NDArray[np.bool_]] = ()
) -> tuple[NDArray[np.int64] | None, tuple[str, ...]]:
    """Parse numbers (seconds or milliseconds), dates or timestamps to seconds since 1970.

    Return the seconds, or None if the column cannot be parsed, and notes for the user. `but` are masks of
    rows that will be left out; their times are 0.
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
    seconds = as_numbers(column)
    if seconds is None:
        return None, (why_unreadable(written),)
    if seconds.null_count:
        return None, (note_missing_times(seconds.null_count),)
    numbers: NDArray[np.int64] = seconds.to_numpy()
    # 1e11 seconds would be the year 5138.
    if not is_date(column.type) and len(numbers) and np.median(np.abs(numbers)) > LATEST_SECONDS:
        return numbers // 1000, (AS_MILLISECONDS,)
    return numbers, ()


def as_numbers(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray | None:
    """Return numbers as integers and dates as seconds since 1970, null where there is no time; None for other types."""
    kind = column.type
    if is_date(kind):
        # A finer unit would overflow for distant years.
        return pc.cast(pc.cast(column, pa.timestamp("s"), safe=False), pa.int64())
    if pa.types.is_floating(kind):
        there = pc.less(pc.abs(column), _MOST)
        return pc.cast(pc.if_else(there, column, pa.scalar(None, kind)), pa.int64(), safe=False)
    if pa.types.is_integer(kind) or pa.types.is_null(kind):
        return pc.cast(column, pa.int64(), safe=False)
    return None


def note_missing_times(count: int) -> str:
    """Return the note about rows without a time, because of which all times are left out."""
    rows = format_count(count, "row") + (" has" if count == 1 else " have")
    return f"{rows} no time: all times are left out"


def is_date(kind: pa.DataType) -> bool:
    """Return whether a column of this type holds dates or timestamps."""
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def parse_time_text(
    column: pa.Array | pa.ChunkedArray, day_first: bool | None = None
) -> pa.Array | pa.ChunkedArray:
    """Parse text as numbers, as ISO 8601 with or without a zone, or as 31.12.2025 18:05; return other columns
    unchanged.

    31/12/2025 and 31-12-2025 are parsed only if `day_first` says which number is the day. Texts that mean a
    missing value in a CSV file become null. If all values are missing, the type is null, which can be
    combined with any other.
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
    """Cast text to the first type that fits all values, or return None."""
    # Testing the first value avoids slow failures on whole columns.
    first = given.slice(pc.index(pc.is_valid(given), True).as_py(), 1)
    for kind in _KINDS:
        try:
            pc.cast(first, kind)
            return pc.cast(given, kind)
        except pa.ArrowInvalid:
            continue
    return None


def detect_day_first(parts: Iterable[pa.Array | pa.ChunkedArray]) -> bool | None:
    """Return whether dates such as 3/4/2025 have the day first, judged by dates such as 31/12/2025 in the
    column.

    Return None if no date decides it. Parts of the column are read only until one does.
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
    """Return a categorical column as its values; return other columns unchanged."""
    return pc.cast(column, column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _as_iso(text: pa.Array | pa.ChunkedArray, day_first: bool | None) -> pa.Array | pa.ChunkedArray:
    """Rewrite dates that begin with the day or the month as ISO 8601; leave ambiguous and other texts
    unchanged.
    """
    orders = {r"\.": True} | ({} if day_first is None else {"/": day_first, "-": day_first})
    found = [(_DATE % (mark, mark), r"\3-\2-\1 " if day else r"\3-\1-\2 ") for mark, day in orders.items()]
    # Pad month, day and hour to two digits.
    digits = [
        (r"^([0-9]{4}-)([0-9]-)", r"\10\2"),
        (r"^([0-9]{4}-[0-9]{2}-)([0-9] )", r"\10\2"),
        (r" ([0-9]:)", r" 0\1"),
    ]
    for pattern, iso in found + digits:
        if _any(text, pattern):
            text = pc.replace_substring_regex(text, pattern, iso)
    return trim(text)


def why_unreadable(column: pa.ChunkedArray) -> str:
    """Explain why a column is not one of times. A value is shown only if all values before it are times."""
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
    """Return how many values from the start can be cast to `kind`."""
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
