"""Parsing of ratings (decimal points and commas) and of times (numbers, dates in several formats) in whole columns.

A comma is decimal only if nothing else is possible: no rating in the column has a point, and either some comma cannot be a
thousands separator (`3,5`, `0,125`, unlike `1,234`) or the given scale ends below 1,000.
"""

import time as clock
from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from verfedgnn.core.errors import DataError
from verfedgnn.core.option_names import option
from verfedgnn.data.ids import NOTHING, Column, encode_unordered, is_text, trim
from verfedgnn.data.ratings import Mask, count_rows

_COMMA = r"^[-+]?[0-9]*,[0-9]+$"
_POINT = r"^[-+]?([0-9]+\.[0-9]*|\.[0-9]+)$"
_THOUSANDS = r"^[-+]?[1-9][0-9]{0,2},[0-9]{3}$"
CORRECT = "correct or remove them"
EARLIEST = 631_152_000
"""Start of 1990 in seconds since 1970. Earlier times probably have another unit."""
LATEST_SECONDS = 10**11
"""Times whose median is larger are milliseconds: as seconds this is the year 5138."""
NO_TIME = np.iinfo(np.int64).min
_DATES = [pa.timestamp(unit, zone) for unit in ("us", "ns") for zone in (None, "UTC")]
_KINDS = (pa.int64(), pa.float64(), *_DATES)
_DATE = r"^([0-9]{1,2})%s([0-9]{1,2})%s([0-9]{4})(?:,? +|T|$)"
"""Pattern of 31.12.2025, 31/12/2025 18:05 or 3-4-2025, 9:05:00; the separator is filled in."""


def quote_value(value: str) -> str:
    """Return a value for messages: shortened to 40 characters, quoted, and without control characters."""
    return repr(value if len(value) <= 40 else value[:37] + "...")


@dataclass(frozen=True, eq=False)
class ParsedNumbers:
    """A parsed column of ratings, NaN if missing or not a number; `unlike` masks values that are present but not numbers."""

    values: NDArray[np.float64]
    unlike: Mask
    remedy: str = CORRECT
    notes: tuple[str, ...] = ()


def parse_numbers(column: Column, scale: tuple[float, float] | None = None) -> ParsedNumbers:
    """Parse a column of ratings; `scale` is the scale that the user gave."""
    if not is_text(column.type) and not pa.types.is_dictionary(column.type):
        values = _stored(column)
        return ParsedNumbers(values, np.zeros(len(values), bool))
    place, words = encode_unordered(column)
    remedy = CORRECT
    notes: tuple[str, ...] = ()
    if is_text(words.type):
        words = _without_nothing(words)
        numbers = _cast(words, pa.float64())
        if numbers is None:
            words, remedy, notes = _pointed(words, scale)
            single = [_cast(words[row : row + 1], pa.float64()) for row in range(len(words))]
            numbers = pa.array([None if part is None else part[0].as_py() for part in single], pa.float64())
    else:
        numbers = pa.array(_stored(words))
    # The appended entry is for nulls, whose code is -1.
    unlike = np.append(np.asarray(pc.and_(pc.is_valid(words), pc.is_null(numbers)), bool), False)[place]
    values = np.append(numbers.to_numpy(zero_copy_only=False), np.nan)[place]
    return ParsedNumbers(values, unlike, remedy, notes)


def _stored(column: Column) -> NDArray[np.float64]:
    try:
        return np.asarray(pc.cast(column, pa.float64(), safe=False), np.float64)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        what = f"the rating column has type {column.type}, which is not a number"
        raise DataError(f"{what}; correct or convert it") from error


def _without_nothing(column: Column) -> Column:
    """Return trimmed text, null where it means a missing value in a text file."""
    text = trim(column)
    nothing = pc.is_in(text, value_set=pa.array(NOTHING, text.type))
    return pc.if_else(nothing, pa.scalar(None, text.type), text)


def _pointed(words: pa.Array, scale: tuple[float, float] | None) -> tuple[pa.Array, str, tuple[str, ...]]:
    """Replace decimal commas by points, with a note. If commas are ambiguous, return the words unchanged and a remedy."""
    commas = pc.match_substring_regex(words, _COMMA)
    count = pc.sum(commas).as_py()
    if not count:
        return words, CORRECT, ()
    if _any(words, _POINT):
        return words, "some ratings have a decimal comma and others a point; use one of them throughout", ()
    thousands = pc.sum(pc.match_substring_regex(words, _THOUSANDS)).as_py()
    if thousands == count and (scale is None or max(map(abs, scale)) >= 1000):
        given = f"or give the scale if ratings are below 1,000 ({option('scale', (1, 5))})"
        why = "a comma before three digits may be a decimal comma or a thousands separator"
        return words, f"{why}; replace or remove it, {given}", ()
    pointed = pc.if_else(commas, pc.replace_substring(words, ",", "."), words)
    return pointed, CORRECT, ("ratings were read with a decimal comma",)


def _cast(words: Column, kind: pa.DataType) -> Column | None:
    """Cast text to numbers or times; return None if a value is none."""
    try:
        return pc.cast(words, kind)
    except pa.ArrowInvalid:
        return None


def latest_plausible_time() -> int:
    """Return the latest plausible time of a rating: one day from now, because time zones differ."""
    return int(clock.time()) + 86_400


def parse_times(
    column: Column, but: Mask | None = None, *, gaps: bool = False
) -> tuple[NDArray[np.int64] | None, tuple[str, ...], NDArray[np.int64]]:
    """Parse numbers (seconds or milliseconds), dates or timestamps to seconds since 1970, with notes for the user.

    The seconds are None if the column cannot be parsed or, unless `gaps` are allowed, lacks a time; rows to blame come last. Rows
    masked by `but` will be left out; they, and gaps, have the time `NO_TIME`.
    """
    rows = np.arange(len(column)) if but is None else np.flatnonzero(~but)
    given = column if len(rows) == len(column) else column.take(pa.array(rows))
    if pa.types.is_dictionary(given.type):
        given = pc.cast(given, given.type.value_type)
    parsed = _parse_time_text(given) if is_text(given.type) else given
    seconds = _as_seconds(parsed)
    if seconds is None:
        why, wrong = _why_unreadable(given)
        return None, (why,), rows[wrong]
    missing = seconds.null_count
    if missing and (not gaps or missing == len(seconds)):
        return None, (note_missing_times(missing),), rows[np.asarray(pc.is_null(seconds), bool)]
    numbers: NDArray[np.int64] = np.asarray(seconds.drop_null())
    notes: tuple[str, ...] = ()
    if not _is_date(parsed.type) and len(numbers) and np.median(np.abs(numbers)) > LATEST_SECONDS:
        numbers, notes = numbers // 1000, ("times were read as milliseconds",)
    times = np.full(len(column), NO_TIME)
    times[rows[np.asarray(pc.is_valid(seconds), bool)]] = numbers
    return times, notes, rows[:0]


def note_missing_times(count: int) -> str:
    """Return the note about rows without a time, because of which all times are left out."""
    return count_rows(count, "have no time: all times are left out")


def _as_seconds(column: Column) -> Column | None:
    """Return numbers as integers and dates as seconds since 1970, null where there is no time; None for other types."""
    kind = column.type
    if _is_date(kind):
        # A finer unit would overflow for distant years.
        return pc.cast(pc.cast(column, pa.timestamp("s"), safe=False), pa.int64())
    if pa.types.is_floating(kind):
        there = pc.less(pc.abs(column), 9e18)
        return pc.cast(pc.if_else(there, column, pa.scalar(None, kind)), pa.int64(), safe=False)
    if pa.types.is_integer(kind) or pa.types.is_null(kind):
        return pc.cast(column, pa.int64(), safe=False)
    return None


def _is_date(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def _parse_time_text(column: Column) -> Column:
    """Parse text as numbers, as ISO 8601 with or without a zone, or as 31.12.2025 18:05; return other text unchanged.

    12/11/2025 is parsed only if a date such as 31/12/2025 in the column says which number is the day.
    """
    given = _without_nothing(column)
    if given.null_count == len(given):
        return pa.nulls(len(given))
    times = _cast_times(given)
    if times is None:
        late = "(?:1[3-9]|[23][0-9])"
        day_first = _any(column, rf"^\s*{late}[/-][0-9]+[/-][0-9]{{4}}")
        month_first = _any(column, rf"^\s*[0-9]+[/-]{late}[/-][0-9]{{4}}")
        times = _cast_times(_as_iso(given, day_first if day_first or month_first else None))
    return column if times is None else times


def _cast_times(given: Column) -> Column | None:
    """Cast text to the first type that fits all values, or return None."""
    # Testing the first value avoids slow failures on whole columns.
    first = given.slice(pc.index(pc.is_valid(given), True).as_py(), 1)
    kinds = (kind for kind in _KINDS if _cast(first, kind) is not None)
    return next((times for kind in kinds if (times := _cast(given, kind)) is not None), None)


def _any(text: Column, pattern: str) -> bool:
    return bool(pc.any(pc.match_substring_regex(text, pattern)).as_py())


def _as_iso(text: Column, day_first: bool | None) -> Column:
    """Rewrite dates that begin with the day or the month as ISO 8601; leave ambiguous and other texts unchanged."""
    orders = {r"\.": True} | ({} if day_first is None else {"/": day_first, "-": day_first})
    dates = [(_DATE % (mark, mark), r"\3-\2-\1 " if day else r"\3-\1-\2 ") for mark, day in orders.items()]
    # Pad month, day and hour to two digits.
    month, day, hour = r"^([0-9]{4}-)([0-9]-)", r"^([0-9]{4}-[0-9]{2}-)([0-9] )", r" ([0-9]:)"
    for pattern, iso in (*dates, (month, r"\10\2"), (day, r"\10\2"), (hour, r" 0\1")):
        if _any(text, pattern):
            text = pc.replace_substring_regex(text, pattern, iso)
    return trim(text)


def _why_unreadable(column: pa.ChunkedArray) -> tuple[str, list[int]]:
    """Explain why a column is not one of times. A value is shown, with its row, only if all values before it are times."""
    neither = "the times are neither numbers nor dates: left out"
    if not is_text(column.type):
        return neither, []
    given = _without_nothing(column).drop_null()
    both = [_as_iso(given, order) for order in (True, False)]
    unsure = given.filter(pc.match_substring_regex(given, "^[0-9]{1,2}[/-]"))
    if len(unsure) and not any(_cast_times(dates) is None for dates in both):
        example = quote_value(unsure[0].as_py())
        why = f"the day or the month may come first in times such as {example}"
        return f"{why}: left out, write them as 2025-12-31 18:05", []
    counts = range(1, len(given) + 1)
    row = max(
        bisect_left(counts, True, key=lambda n: _cast(dates[:n], kind) is None)
        for dates in both
        for kind in _KINDS
    )
    if not row:
        return neither, []
    why = f"the time {quote_value(given[row].as_py())} cannot be read like those before it: all times are left out"
    return why, [int(np.flatnonzero(pc.is_valid(_without_nothing(column)))[row])]
