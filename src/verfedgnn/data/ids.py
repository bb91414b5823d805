"""Columns of ids as text: numbering, sorting and joining them.

Ids are fixed-width numpy text (dtype `U`). Sorting, searching and viewing them as integers need no Python objects, and two
million ids of 14 characters take 112 MB. One very long id would widen all of them, so `LONGEST_ID` limits their length.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import date
from decimal import Decimal
from itertools import combinations
from typing import Any, TypeAlias
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from numpy.typing import NDArray

from verfedgnn.core.errors import DataError
from verfedgnn.core.option_names import option

TEXT = pa.large_string()
"""Text whose offsets have 64 bits, since a column of ids may have more than 2 GiB."""
CODED_TEXT = pa.dictionary(pa.int32(), pa.string())
StrArray = NDArray[np.str_]
Column: TypeAlias = pa.Array | pa.ChunkedArray

LONGEST_ID = 256
LONGEST_TITLE = 160
NOTHING = pa.csv.ConvertOptions().null_values
"""Texts that mean a missing number or time in a text file: "", NA, NULL and others, as in Arrow's reader."""


def as_text(values: Any, what: str) -> Column:
    """Convert an array or a sequence of ids to trimmed pyarrow text, null for None and NaN; `what` names the column in errors.

    Whole numbers of any type are written without a decimal point, so 17, 17.0 and "17" are one id.
    """
    array = values if isinstance(values, Column) else _from_python(values, what)
    kind, t = array.type, pa.types
    if t.is_dictionary(kind):
        codes, distinct = encode_unordered(array)
        return as_text(distinct, what).take(pa.array(codes, mask=codes < 0))
    if t.is_fixed_size_binary(kind):
        raise _not_ids(what, "bytes or objects")
    try:
        if t.is_floating(kind):
            array = pc.cast(array, pa.float64())
            return pc.cast(pc.cast(pc.if_else(pc.is_nan(array), None, array), pa.int64()), TEXT)
        # Some writers of Parquet store text as binary.
        plain = (t.is_integer, t.is_boolean, t.is_null, t.is_temporal, t.is_binary, is_text)
        if any(is_kind(kind) for is_kind in plain):
            return trim(pc.cast(array, TEXT))
    except pa.ArrowInvalid as error:
        if not t.is_floating(kind):
            raise _not_ids(what, "bytes that are not UTF-8 text") from error
    # Slow: decimals, UUIDs, numbers above 64 bit. Types that hold no ids are refused.
    return pa.array([id_text(value, what) for value in array.to_pylist()], TEXT)


def id_text(value: Any, what: str = "id") -> str | None:
    """Return one id as text, None if it is missing; raise `DataError` for a value that is not an id."""
    if value is None or type(value) is str:
        return value
    if isinstance(value, np.bool_ | np.integer | np.floating):
        value = value.item() if value.dtype.itemsize <= 8 else float(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float | Decimal):
        if math.isnan(value):
            return None
        if math.isinf(value) or value != int(value):
            raise _not_ids(what, f"fractions such as {value}")
    if isinstance(value, int | float | Decimal):
        if abs(value) >= 10**LONGEST_ID:
            raise _not_ids(what, f"a number of more than {LONGEST_ID} digits")
        return str(int(value))
    if isinstance(value, str | UUID | date | np.datetime64):
        return str(value)
    if type(value).__name__ in ("NAType", "NaTType"):  # of pandas
        return None
    raise _not_ids(what, f"a value of type {type(value).__name__}")


def _not_ids(what: str, content: str) -> DataError:
    column = option("columns", {what: "..."})
    remedy = f"convert it to text, or name another with {column}"
    return DataError(f"the {what} column holds {content}, not ids; {remedy}")


def _from_python(values: Any, what: str) -> Column:
    """Convert a sequence or numpy array of ids; mixed types and integers above 64 bit become text."""
    try:
        array = pa.array(values, from_pandas=True)
        # Arrow turns a list of integers and floats into floats, which changes integers above 2**53.
        whole = not pa.types.is_floating(array.type) or getattr(values, "dtype", None) is not None
        if whole and not pa.types.is_binary(array.type):
            return array
    except (pa.ArrowException, TypeError, OverflowError, ValueError):
        pass
    if not isinstance(values, Iterable):
        raise _not_ids(what, f"a value of type {type(values).__name__}")
    try:
        return pa.array([id_text(value, what) for value in values], TEXT)
    except UnicodeError as error:
        raise _not_ids(what, "text with lone surrogates") from error


def as_item_text(array: Column) -> Column:
    """Convert titles and other item columns of any type to text; lists are joined with |, as in MovieLens' genres."""
    kind = array.type
    try:
        if pa.types.is_floating(kind):
            array = pc.if_else(pc.is_finite(array), array, pa.scalar(None, kind))
            if pc.all(pc.equal(array, pc.trunc(array))).as_py():
                array = pc.cast(array, pa.int64())  # whole numbers have no decimal point
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            return pc.binary_join(pc.cast(array, pa.list_(pa.string())), "|")
        return pc.cast(array, TEXT)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return pa.array([None if value is None else str(value) for value in array.to_pylist()], TEXT)


def trim(column: Column) -> Column:
    """Strip whitespace from text: with '17, 4, 5', the item ' 4' must equal the item '4' of another party."""
    return pc.utf8_trim_whitespace(column) if is_text(column.type) else column


def is_text(kind: pa.DataType) -> bool:
    """Return whether a column of this type holds text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def to_numpy(array: Column, longest: int | None = None) -> StrArray:
    """Convert pyarrow text to numpy text. Nulls become "", and texts are cut to `longest` characters."""
    array = pc.fill_null(array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array, "")
    if longest is not None:
        array = pc.utf8_slice_codeunits(array, 0, longest)
    width = pc.max(pc.binary_length(array)).as_py()
    if width and pc.all(pc.string_is_ascii(array)).as_py():
        # Without a Python object for each text, which takes ten times as long.
        padded = pc.cast(pc.ascii_rpad(array, width, padding="\0"), TEXT)
        return np.frombuffer(padded.buffers()[2], f"S{width}", len(padded)).astype(f"U{width}")
    return array.to_numpy(zero_copy_only=False).astype(np.str_)  # type: ignore[no-any-return]


def order_ids(ids: pa.Array, text: StrArray) -> NDArray[np.int64]:
    """Return the sort order of ids, given in both forms: numeric if all are integers, else by code point."""
    # NumPy sorts fixed-width text in half of Arrow's time.
    by_text: NDArray[np.int64] = np.argsort(text)
    if len(ids) and pc.all(pc.match_substring_regex(ids, r"^-?[0-9]{1,18}$")).as_py():
        numbers = pc.cast(ids, pa.int64()).to_numpy()[by_text]
        return by_text[np.argsort(numbers, kind="stable")]
    return by_text


def sort_ids(ids: StrArray) -> StrArray:
    """Sort ids by `order_ids`, so that all holders of the same ids have them in the same order."""
    return ids[order_ids(pa.array(ids, TEXT), ids)]


def encode_unordered(values: Column) -> tuple[NDArray[np.int32], pa.Array]:
    """Return the code of each value, -1 for nulls, and the distinct values, in no particular order."""
    if not pa.types.is_dictionary(values.type):
        values = pc.dictionary_encode(_widen(values))
    chunks = values.chunks if isinstance(values, pa.ChunkedArray) else [values]
    if not chunks:
        return np.empty(0, np.int32), pa.array([], values.type.value_type)
    coded = [pa.DictionaryArray.from_arrays(chunk.indices, _widen(chunk.dictionary)) for chunk in chunks]
    if len(coded) > 1:
        coded = pa.chunked_array(coded).unify_dictionaries().chunks
    codes = [pc.fill_null(pc.cast(chunk.indices, pa.int32()), -1).to_numpy() for chunk in coded]
    return np.concatenate(codes), coded[-1].dictionary


def _widen(values: Column) -> Column:
    return pc.cast(values, TEXT) if is_text(values.type) else values


def number_ids(values: Column, what: str) -> tuple[NDArray[np.int32], pa.Array]:
    """Return the code of each row's id, -1 if it has none, and the distinct ids in no particular order.

    Only distinct values are converted to text, not every row.
    """
    try:
        codes, distinct = encode_unordered(values)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        codes, distinct = encode_unordered(as_text(values, what))
    ids = as_text(distinct, what)
    if pc.any(pc.match_substring(ids, "\0")).as_py():
        raise _not_ids(what, "text with a zero character")
    if ids.null_count or not ids.equals(distinct) or pa.types.is_dictionary(values.type):
        recoded, ids = encode_unordered(ids)
        codes = np.append(recoded, np.int32(-1))[codes]
    return codes, ids


def sort_numbered(codes: NDArray[np.int32], distinct: pa.Array) -> tuple[NDArray[np.int32], StrArray]:
    """Return codes and ids in the order of ids, without the ids that no row has."""
    used = np.flatnonzero(np.bincount(codes, minlength=len(distinct)))
    distinct = distinct.take(pa.array(used))
    ids = to_numpy(distinct)
    order = order_ids(distinct, ids)
    rank = np.empty(int(used.max(initial=-1)) + 1, np.int32)
    rank[used[order]] = np.arange(len(order), dtype=np.int32)
    return rank[codes], ids[order]


def first_per_item(values: Column, item: NDArray[np.int32], n_items: int, kept: Any) -> StrArray:
    """Return the first non-empty value of each item."""
    coded = pa.types.is_dictionary(values.type)
    codes, texts = encode_unordered(values if coded else as_item_text(values))
    codes = codes[kept]
    # The appended entry is for nulls, whose code is -1.
    dictionary = np.append(to_numpy(as_item_text(texts), LONGEST_TITLE), "")
    filled = np.flatnonzero((dictionary != "")[codes])[::-1]
    first = np.full(n_items, -1, np.int64)
    # Assigned from last to first, so that the first value remains.
    first[item[filled]] = codes[filled]
    return dictionary[first]


def find_positions(ids: StrArray, among: StrArray) -> NDArray[np.int64]:
    """Return the position of each id in `among`, or -1 if it is absent."""
    positions = pc.index_in(pa.array(ids, TEXT), value_set=pa.array(among, TEXT))
    return pc.fill_null(positions, -1).to_numpy(zero_copy_only=False).astype(np.int64)  # type: ignore[no-any-return]


def _as_name(text: str) -> str:
    return (text.casefold().partition("@")[0].strip() or text) if "@" in text else text


SPELLINGS: dict[str, tuple[str, Callable[[str], str]]] = {
    "mail": ("the domains of mail addresses", _as_name),
    "lower": ("capitals or spaces", lambda text: "".join(text.casefold().split())),
    "number": (
        "leading zeros or a .0",
        lambda text: re.sub(r"^(\D*)0*(0|[1-9][0-9]*)(\.0+)?$", r"\1\2", text),
    ),
}
"""Ways to spell user ids alike, in the order in which several apply: in what the ids differ, and the rule."""
WAYS = ["+".join(ways) for count in (1, 2, 3) for ways in combinations(SPELLINGS, count)]
FEWEST_SHARED = 0.02
"""Smallest share of a party's users, or of the others' if they are fewer, who are at another party."""


def spell(ids: StrArray, way: str) -> StrArray:
    """Return ids spelled in one of the `WAYS`, such as "number" or "lower+number"; other ids stay as they are."""
    ways = way.split("+")
    if not {*ways} <= SPELLINGS.keys():
        raise DataError(
            f"{option('ids', way)} is no spelling of ids; use {', '.join(SPELLINGS)}, or several as lower+number"
        )
    texts = ids.tolist()
    for name in (name for name in SPELLINGS if name in ways):
        texts = map(SPELLINGS[name][1], texts)
    return np.array([*texts], np.str_)


def hint_spelling(text: str, known: Callable[[str], bool]) -> str:
    """Say in which of the `WAYS` an unknown id becomes one that is `known`; "" if in none."""
    way = next((way for way in WAYS if known(str(spell(np.array([text]), way)[0]))), None)
    return f"spell the id as {option('ids', way)} does" if way else ""


def _differences(way: str) -> str:
    return " and ".join(SPELLINGS[name][0] for name in way.split("+"))


def suspect_spelling(ids: StrArray) -> str:
    """Say how most of these ids could be spelled in another way, as others may do; "" if they could not.

    Capitals and spaces do not matter where users are aligned.
    """
    plain = spell(ids, "lower")
    ways = [way for way in SPELLINGS if 2 * (spell(plain, way) != plain).sum() > len(ids)]
    return (
        f"Most user ids here have {_differences('+'.join(ways))}; if others write them in another way, agree on "
        f'ids = "{"+".join(ways)}" in federation.toml'
        if ways
        else ""
    )


def find_stranger(users: Mapping[str, StrArray]) -> str | None:
    """Say which party shares nearly no user with the others, and what its ids would need; None if all share some."""
    everybody, count = np.unique(np.concatenate([*users.values()]), return_counts=True)
    known = everybody[count > 1]
    for name, own in users.items():
        shared = int((find_positions(own, known) >= 0).sum())
        others = len(everybody) - len(own) + shared
        if len(users) == 1 or shared >= max(1, FEWEST_SHARED * min(len(own), others)):
            continue
        elsewhere = np.concatenate([ids for other, ids in users.items() if other != name])
        found = {way: len(np.intersect1d(spell(own, way), spell(elsewhere, way))) for way in WAYS}
        best = max(found, key=lambda way: found[way])
        start = f"{name} shares {shared:,} of its {len(own):,} users with the others"
        if found[best] > 2 * shared + FEWEST_SHARED * len(own):
            remedy = f"read all sources with {option('ids', best)}"
            return f"{start}, but {found[best]:,} if ids differ only in {_differences(best)}: {remedy}"
        return f"{start}: spell user ids in the same way in all sources, or leave {name} out"
    return None
