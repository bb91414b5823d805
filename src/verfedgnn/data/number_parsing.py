"""Parsing of ratings from numeric columns, and from text with a decimal point or a decimal comma.

A comma is decimal only if nothing else is possible: no rating in the column has a point, and either some
comma cannot be a thousands separator (`3,5`, `0,125`, unlike `1,234`) or the given scale ends below 1,000.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from verfedgnn.core.errors import DataError
from verfedgnn.core.option_names import option
from verfedgnn.data.ids import NOTHING, encode_unordered, is_text, trim

Mask = NDArray[np.bool_]

_COMMA = r"^[-+]?[0-9]*,[0-9]+$"
_POINT = r"^[-+]?([0-9]+\.[0-9]*|\.[0-9]+)$"
_THOUSANDS = r"^[-+]?[1-9][0-9]{0,2},[0-9]{3}$"

NO_RATING = "have a rating that is missing or NaN"
INFINITE = "have a rating that is infinite (more than 3.4e38)"
"""Descriptions of rows with unusable ratings."""
CORRECT = "correct or remove them"
_ONE_WAY = "some ratings have a decimal comma and others a point; use one of them throughout"


@dataclass(frozen=True, eq=False)
class ParsedNumbers:
    """A parsed column of ratings."""

    values: NDArray[np.float64]
    """The ratings, NaN if missing or not a number."""
    unlike: Mask
    """Mask of the values that are present but not numbers."""
    remedy: str = CORRECT
    """What to do about the values that are not numbers."""
    first: str = ""
    """Text of the first value that is not a number."""
    notes: tuple[str, ...] = ()
    """Sentences about how the column was read."""

    def refuse(self, at: Callable[[int], str]) -> None:
        """Raise `DataError` if a value is not a number; `at` describes the place of a row."""
        if self.unlike.any():
            place = at(int(self.unlike.argmax()))
            raise DataError(f"the rating {quote_value(self.first)} in {place} is not a number: {self.remedy}")


def quote_value(value: str) -> str:
    """Return a value for messages: shortened, quoted, and without control characters."""
    return repr(shorten(value))


def shorten(value: str) -> str:
    """Shorten a text to 40 characters."""
    return value if len(value) <= 40 else value[:37] + "..."


def parse_numbers(ratings: Any, scale: tuple[float, float] | None = None) -> ParsedNumbers:
    """Parse ratings from an Arrow column, a numpy array or a sequence; `scale` is the scale that the user
    gave.
    """
    if not isinstance(ratings, pa.Array | pa.ChunkedArray):
        array = np.asarray(ratings)
        if array.dtype.kind in "fiub":
            return _all(array.astype(np.float64, copy=False))
        ratings = _sequence(array)
    if pa.types.is_dictionary(ratings.type):
        ratings = pc.cast(ratings, ratings.type.value_type)
    if not is_text(ratings.type):
        return _all(_stored(ratings))
    place, words = encode_unordered(trim(ratings))
    words = pc.if_else(
        pc.is_in(words, value_set=pa.array(NOTHING, words.type)), pa.scalar(None, words.type), words
    )
    remedy = CORRECT
    notes: tuple[str, ...] = ()
    found = _cast(words)
    if found is None:
        written = words
        words, remedy = _pointed(words, scale)
        notes = () if words is written else ("ratings were read with a decimal comma",)
        found = _cast(words)
    if found is None:
        found = pa.array(
            [None if word is None else _number(word) for word in words.to_pylist()], pa.float64()
        )
    # The appended entry is for nulls, whose code is -1.
    unlike = np.append(np.asarray(pc.and_(pc.is_valid(words), pc.is_null(found)), bool), False)[place]
    values = np.append(found.to_numpy(zero_copy_only=False), np.nan)[place]
    return ParsedNumbers(
        values, unlike, remedy, words[int(place[unlike.argmax()])].as_py() if unlike.any() else "", notes
    )


def find_infinite(rating: NDArray[np.float64]) -> Mask:
    """Return a mask of the ratings that are infinite in single precision, in which they are stored."""
    with np.errstate(over="ignore"):
        return np.isinf(rating.astype(np.float32))


def _all(values: NDArray[np.float64]) -> ParsedNumbers:
    return ParsedNumbers(values, np.zeros(len(values), bool))


def _sequence(array: NDArray[Any]) -> pa.Array:
    try:
        return pa.array(array.tolist(), from_pandas=True)
    except (pa.ArrowException, TypeError, OverflowError):
        pass
    try:  # Number types that Arrow does not support, such as fractions.
        return pa.array(array.astype(np.float64))
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError("a rating is not a number; correct it or remove the row") from error


def _stored(column: pa.Array | pa.ChunkedArray) -> NDArray[np.float64]:
    try:
        cast = pc.cast(column, pa.float64(), safe=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DataError(
            f"the rating column has type {column.type}, which is not a number; correct or convert it"
        ) from error
    values: NDArray[np.float64] = cast.to_numpy(
        **({} if isinstance(cast, pa.ChunkedArray) else {"zero_copy_only": False})
    )
    return values


def _pointed(words: pa.Array, scale: tuple[float, float] | None) -> tuple[pa.Array, str]:
    """Replace decimal commas by points. If commas are ambiguous, return the words unchanged and a remedy."""
    commas = _count(words, _COMMA)
    if not commas:
        return words, CORRECT
    if _count(words, _POINT):
        return words, _ONE_WAY
    if _count(words, _THOUSANDS) == commas and (scale is None or max(map(abs, scale)) >= 1000):
        return words, (
            "a comma before three digits may be a decimal comma or a thousands separator; replace or remove it, or give the"
            f" scale if ratings are below 1,000 ({option('scale', (1, 5))})"
        )
    return pc.if_else(
        pc.match_substring_regex(words, _COMMA), pc.replace_substring(words, ",", "."), words
    ), CORRECT


def _count(words: pa.Array, pattern: str) -> int:
    return int(pc.sum(pc.match_substring_regex(words, pattern)).as_py() or 0)


def _cast(words: pa.Array) -> pa.Array | None:
    try:
        return pc.cast(words, pa.float64())
    except pa.ArrowInvalid:
        return None


def _number(word: str) -> float | None:
    """Return the number that Arrow reads, or None."""
    try:
        return float(pc.cast(pa.scalar(word), pa.float64()).as_py())
    except pa.ArrowInvalid:
        return None
