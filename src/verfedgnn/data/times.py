"""Columns of times as seconds since 1970, however they are written."""

import time as clock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from numpy.typing import NDArray

from verfedgnn.data.ids import trimmed
from verfedgnn.data.ratings import counted

EARLIEST = 631_152_000
"""1990: ratings from before are times in another unit, or none."""
_DAY = 86_400
_MOST = 9e18
"""Beyond this (and NaN) is no number of seconds, nor of milliseconds."""
_KINDS = (pa.int64(), pa.float64(), *(pa.timestamp(unit, zone) for unit in ("us", "ns") for zone in (None, "UTC")))
_NO_TIME = pa.array(pa.csv.ConvertOptions().null_values)


def latest(now: int | None = None) -> int:
    """Until when ratings can have been given: tomorrow, because zones differ."""
    return (int(clock.time()) if now is None else now) + _DAY


def seconds(column: pa.ChunkedArray) -> tuple[NDArray[np.int64] | None, tuple[str, ...]]:
    """Seconds since 1970 from numbers (seconds or milliseconds), dates or timestamps, and a note if that went wrong."""
    column = parsed(column)
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
        return None, ("the times are neither numbers nor dates: left out",)
    if column.null_count:
        rows = counted(column.null_count, "row") + (" has" if column.null_count == 1 else " have")
        return None, (f"{rows} no time: all times are left out",)
    seconds: NDArray[np.int64] = column.to_numpy()
    # In seconds 1e11 is the year 5138.
    if not _is_date(kind) and len(seconds) and np.median(np.abs(seconds)) > 1e11:
        return seconds // 1000, ("times were read as milliseconds",)
    return seconds, ()


def _is_date(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def parsed(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Text as numbers or as ISO 8601, with a zone or without; anything else as it is.

    What stands for a missing value in a CSV file is one here; where nothing else is there, the type is null, which goes
    together with any other.
    """
    if not pa.types.is_string(column.type) and not pa.types.is_large_string(column.type):
        return column
    given = pc.if_else(pc.is_in(column, value_set=pc.cast(_NO_TIME, column.type)), pa.scalar(None, column.type), trimmed(column))
    if given.null_count == len(given):
        return pa.nulls(len(given))
    for kind in _KINDS:
        try:
            return pc.cast(given, kind)
        except pa.ArrowInvalid:
            continue
    return column
