"""Plain tables: text files, Parquet files and tables in memory, read by one path into columns of Arrow.

Columns are matched by role, such as user, item and rating: by common names, or by the option `columns`.
Ids and other text are held as codes, so that 100 million rows take 4 bytes a column and row; times stay as they are written.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from verfedgnn.core.errors import UNKNOWN_COLUMN, DataError, MissingColumns
from verfedgnn.core.option_names import option
from verfedgnn.data.ids import (
    CODED_TEXT,
    LONGEST_TITLE,
    TEXT,
    Column,
    as_item_text,
    as_text,
    encode_unordered,
    is_text,
    to_numpy,
    trim,
)
from verfedgnn.data.ratings import Ratings
from verfedgnn.data.text_files import TextTable, read_first_bytes, reading

RATING_ROLES = ("user", "item", "rating")

# Common names in lower case without punctuation; the earlier one wins.
ALIASES = {
    "user": "user userid uid customer customerid reviewerid visitorid",
    "item": "item itemid iid movieid businessid product productid bookid isbn asin sku",
    "rating": "rating ratings stars score overall bookrating",
    "event": "event eventtype eventname action behavior behaviour behaviortype interaction",
    "time": "time timestamp ts date datetime unixreviewtime when dateadded ratedat ratedon createdat reviewdate"
    " ratingdate purchasedate orderdate",
    "title": "title name itemtitle booktitle",
    "category": "category",
    "genre": "genre",
}

# Parts of names that say what a column may hold, but too little to read it unasked; the user confirms them.
_HINTS = {
    "user": "user customer client member person account buyer viewer listener player",
    "item": "item film movie book song track album game show product title name",
    "rating": "rating stars score grade mark vote points note value feedback",
    "event": "event action behavior behaviour interaction",
    "time": "time date",
    "title": "title name",
}

TABLE_SUFFIXES = (".csv", ".tsv", ".inter", ".parquet", ".pq")
Rows = dict[str, Column]
Load = Callable[[Sequence[str], list[int] | None], Any]
"""Function that returns columns by name; the list receives the records of a text file that are left out."""


@dataclass(frozen=True)
class Table:
    """A table of any source. Rows are read on demand."""

    names: dict[str, str]
    load: Load
    name: str
    """Name of the file or of the table in memory, for messages."""
    unit: str = "row"
    """Unit of places: "line" for text files, "position" for tables in memory, which are counted from 0, else "row"."""
    text: TextTable | None = None
    notes: tuple[str, ...] = ()

    def at(self, row: int) -> str:
        """Describe the place of a row, counted from 0, for messages."""
        number = self.number_rows([row], [])[row]
        if self.unit == "position":
            return f"row {number} of {self.name} (counted from 0)"
        return f"{self.unit} {number} of {self.name}"

    def number_rows(self, rows: Sequence[int], broken: Sequence[int]) -> dict[int, int]:
        """Return the line or the number of some rows, for messages; `broken` records of a text file are no rows."""
        if self.text is None:
            return {row: row + (self.unit == "row") for row in rows}
        gaps = np.array(broken, np.int64)
        records = np.array(rows, np.int64) + (not self.text.columns)
        # Removing the j broken records before broken record j shifts it by j; compare the shifted positions.
        records += np.searchsorted(gaps - np.arange(len(gaps)), records, "right")
        lines = self.text.lines(records.tolist())
        return {row: lines[record] for row, record in zip(rows, records.tolist(), strict=True)}


def text_source(text: TextTable, names: dict[str, str], time: pa.DataType = TEXT) -> Table:
    """Return a text file as a table; `time` is the type of the column of times."""

    def load(columns: Sequence[str], broken: list[int] | None) -> pa.Table:
        types = dict.fromkeys(columns, CODED_TEXT)
        return text.read(types | {names["time"]: time} if names.get("time") in types else types, broken)

    return Table(names, load, text.path.name, "line", text)


def read_rows(table: Table, broken: list[int] | None = None) -> Rows:
    """Read all rows of a table, with ids and text as codes of trimmed texts; `broken` is that of `TextTable.read`."""
    columns = table.load(list(table.names.values()), broken)
    return {role: _coded(in_arrow(columns[name], role), role) for role, name in table.names.items()}


def in_arrow(values: Any, role: str) -> Column:
    """Convert a column of a table in memory; raise `DataError` if its values have no common type."""
    if isinstance(values, Column):
        return values
    if role in ("user", "item"):
        return as_text(values, role)
    with suppress(pa.ArrowException, TypeError, OverflowError):
        return pa.array(values, from_pandas=True)
    if role != "rating":
        raise DataError(f"the {role} column mixes incompatible types; convert all of them to text")
    try:
        return pa.array(
            np.asarray(values, np.float64)
        )  # fractions and other numbers that Arrow does not know
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError("a rating is not a number; correct it or remove the row") from error


def _coded(column: Column, role: str) -> Column:
    if role == "time" or not (is_text(column.type) or pa.types.is_dictionary(column.type)):
        return column
    codes, words = encode_unordered(column)
    return pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes < 0), trim(words))


def open_table(
    source: Any,
    name: str = "ratings",
    *,
    columns: Mapping[str, str] | None = None,
    encoding: str | None = None,
    delimiter: str | None = None,
    keep: Sequence[str] | None = (),
    required: Sequence[str] = RATING_ROLES,
) -> Table:
    """Open a file or a table in memory and match its columns, without reading its rows.

    The first bytes of a file determine its format. `name` is that of a table in memory; `keep` is as in `match_columns`.
    """
    match = partial(match_columns, wanted=columns or {}, required=required, keep=keep)
    if not isinstance(source, str | Path):
        there, column = open_columns(source, name, required)
        names = match(there, source=name)
        return Table(names, lambda names, _: {name: column(name) for name in names}, name, "position")
    path = Path(source)
    head = read_first_bytes(path)
    if head.startswith(b"PAR1"):
        with _parquet(path) as file:
            schema = file.schema_arrow
        coded = [field.name for field in schema if is_text(field.type)]

        def load(names: Sequence[str], _: list[int] | None) -> pa.Table:
            with _parquet(path, read_dictionary=coded) as file:
                return file.read(columns=list(names))

        return Table(match(schema.names, source=str(path)), load, path.name)
    if head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"["):
        raise DataError(f"{path} is JSON: convert it to CSV or Parquet")
    line = head.split(b"\n", 1)[0]
    likely = max(",\t;|", key=lambda character: line.count(character.encode()))
    text = TextTable(path, delimiter or likely, encoding=encoding or "utf-8")
    fields = text.header_names()
    headless = len(fields) in (3, 4) and re.fullmatch(r"\s*-?\d+(\.\d*)?\s*", fields[2])
    if headless and "rating" in required and not columns:
        text = replace(text, columns=("user", "item", "rating", "time")[: len(fields)])
        note = f"no header: the columns were read as {', '.join(text.columns)}"
        return replace(text_source(text, {name: name for name in text.columns}), notes=(note,))
    advice = " (or add a header if it has none)"
    return text_source(text, match(fields, source=str(path), advice=advice))


def table_stem(source: str | Path) -> str:
    """Return the name of a table without folder, suffix and .gz."""
    name = Path(source).name.removesuffix(".gz")
    suffix = next((s for s in TABLE_SUFFIXES if name.lower().endswith(s)), "")
    return name[: len(name) - len(suffix)] or name


def normalise_name(name: str) -> str:
    """Return a column's name in lower case without punctuation."""
    # RecBole appends the type to the name: user_id:token.
    return re.sub(r"[^a-z0-9]", "", name.split(":")[0].lower())


def match_columns(
    there: Sequence[str],
    wanted: Mapping[str, str],
    *,
    required: Sequence[str] = RATING_ROLES,
    keep: Sequence[str] | None = (),
    source: str,
    advice: str = "",
) -> dict[str, str]:
    """Return the name of the table's column for each role; raise `MissingColumns` if a required role has no column.

    Columns of ratings and events are matched only if they are required. `keep` names further columns to keep under their names,
    None all. `advice` is added to the suggested remedy.
    """
    absent = [f"{role}={column}" for role, column in wanted.items() if column not in there]
    names = {role: column for role, column in wanted.items() if column in there}
    by_alias = {normalise_name(column): column for column in reversed(there)}
    for role, aliases in ALIASES.items():
        if role not in wanted and (role in required or role not in ("rating", "event")):
            hit = next((by_alias[alias] for alias in aliases.split() if alias in by_alias), None)
            if hit is not None and hit not in names.values():
                names[role] = hit
    left = [column for column in there if column not in names.values()]
    kept = left if keep is None else [column for column in keep if column in there]
    names |= {column: column for column in kept if column not in names}
    missing = [role for role in required if role not in names and role not in wanted]
    _check_roles(wanted, (*ALIASES, *required, *(keep or ())), lacks=bool(absent or missing))
    if not absent and not missing:
        return names
    left = [column for column in there if column not in names.values() or column == names.get("title")]
    lacking = [role for role in (*wanted, *missing) if role not in names]
    more = {"time", "title"} - names.keys() - wanted.keys()
    guesses = _guess([*lacking, *sorted(more)], left)
    asked = (*wanted, *missing, *sorted(more & guesses.keys()))
    named = {role: names.get(role) or guesses.get(role, UNKNOWN_COLUMN) for role in asked}
    lack = f"no column for {', '.join(missing)}"
    if "rating" in missing[1:]:
        lack += " (tables of purchases need no rating)"
    if absent:
        lack = f"{option('columns')} names {', '.join(absent)}, which does not exist"
    # Without a single known name, a text with numbers is a first row: ids are never shown.
    if advice and not names and any(re.search(r"\d\d|^\d|@", column) for column in there):
        raise DataError(
            f"{source}: {lack}; its first line looks like data: add a header, such as user,item,rating"
        )
    likes = None
    advice = "" if UNKNOWN_COLUMN not in named.values() else advice
    if missing == ["rating"] and not absent:
        advice = f" Without ratings, count every row as a like: {option('events', 5)}"
        if "rating" not in guesses:
            likes = "no column of ratings, so every row is a like"
            if "event" in names or _guess(["event"], left):
                likes += f"; weigh its kinds with {option('events', {'view': 1, 'purchase': 5})}"
    shown = ", ".join(column[:30] for column in there[:12]) + (", ..." if len(there) > 12 else "")
    raise MissingColumns(f"{source}: {lack}; its columns are: {shown}", named, advice, likes=likes)


def _guess(roles: Sequence[str], left: Sequence[str]) -> dict[str, str]:
    """Return the columns that a reader may have meant: for each role, the shortest name with a hint in it, a title last."""
    guesses: dict[str, str] = {}
    for role in roles:
        hints = _HINTS.get(role, "").split()
        free = [column for column in left if column not in guesses.values()]
        if similar := [column for column in free if any(hint in normalise_name(column) for hint in hints)]:
            guesses[role] = min(
                similar, key=lambda name: (name.lower().endswith(("title", "name")), len(name))
            )
    return guesses


def _check_roles(wanted: Mapping[str, str], known: Sequence[str], *, lacks: bool) -> None:
    """Raise `DataError` if the option `columns` misspells a role.

    Other keys name further item columns. They are mistakes if the table `lacks` a column.
    """
    for role, column in wanted.items():
        near = get_close_matches(normalise_name(role), known, 1)
        if role in known or role == column or not (near or lacks):
            continue
        swapped = normalise_name(column) in known
        meant = {near[0]: column} if near else {column: role}
        hint = f"; did you mean {option('columns', meant)}?" if near or swapped else "."
        keys = f"The keys are {', '.join(dict.fromkeys(known))}, and the values are the names of your columns"
        raise DataError(f"{option('columns')} has the unknown key '{role}'{hint} {keys}")


def open_columns(source: Any, name: str, required: Sequence[str]) -> tuple[list[str], Callable[[str], Any]]:
    """Return the names of the columns of a table in memory, and a function that returns one of them."""
    if isinstance(source, tuple) and len(source) == len(required):
        arrays = dict(zip(required, source, strict=True))
        return list(arrays), arrays.__getitem__
    table = _export(source)
    if table is None:
        raise DataError(
            f"{name}: a {type(source).__name__} is not a table of ratings; give a path, an Arrow table, a data frame, or "
            f"{len(required)} arrays ({', '.join(role + 's' for role in required)})"
        )
    try:
        table = pa.table(table)
        # pandas exports an index beside the columns.
        return [label for label in table.column_names if not label.startswith("__index_level_")], table.column
    except (pa.ArrowException, TypeError, OverflowError, UnicodeError):
        if not hasattr(source, "columns"):
            raise
    # A column of mixed types or of integers above 64 bit has no Arrow type; the others have.
    labels = {str(label): label for label in source.columns}
    return list(labels), lambda label: source[labels[label]]


def tables_by_party(source: Any, column: str | None = None) -> dict[str, pa.Table] | None:
    """Return the rows of each value of a column that names parties, by default "party"; None if there is no such column."""
    if isinstance(source, Ratings):
        return None
    there, values = open_columns(source, "ratings", RATING_ROLES)
    if column is not None and column not in there:
        shown = ", ".join(there)
        raise DataError(f'columns names party="{column}", which does not exist; the columns are: {shown}')
    column = column or "party"
    if column not in there:
        return None
    table = pa.table({name: in_arrow(values(name), name) for name in there})
    owner = as_text(table[column], "party")
    if owner.null_count:
        raise DataError(f"the column {column} is empty in some rows; fill it in or leave these rows out")
    # Arrow does not filter the text type of polars.
    plain = [field.with_type(TEXT) if field.type == pa.string_view() else field for field in table.schema]
    table = table.cast(pa.schema(plain))
    return {name: table.filter(pc.equal(owner, name)) for name in sorted(pc.unique(owner).to_pylist())}


def _export(source: Any) -> Any:
    """Return what Arrow can import: the table itself, or the rows of a lazy or distributed frame; None for other objects."""
    if hasattr(source, "__arrow_c_stream__") or hasattr(source, "__arrow_c_array__"):
        return source
    # Spark's frames have both, and collect() returns Python rows.
    for method in ("toArrow", "collect"):
        if callable(getattr(source, method, None)):
            return getattr(source, method)()
    return None


@contextmanager
def _parquet(path: Path, **options: Any) -> Iterator[pa.parquet.ParquetFile]:
    """Open a Parquet file; a damaged one is a `DataError`."""
    try:
        with reading(path), pa.parquet.ParquetFile(path, **options) as file:
            yield file
    except pa.ArrowException as error:
        what = f"{path} is a truncated or damaged Parquet file"
        raise DataError(f"{what}; write or download it again") from error


def read_item_texts(path: Path) -> dict[str, dict[str, str]]:
    """Read a table with a column of item ids, and return the text of its other columns by id; that of titles is `title`."""
    rows = read_rows(open_table(path, required=("item",), keep=None))
    ids = to_numpy(as_text(rows["item"], "item"))
    if len(np.unique(ids)) < len(ids) or (ids == "").any():
        raise DataError(f"{path} has rows without item id or with the same one; give one row per item")
    names = [name for name in rows if name != "item"]
    texts = [to_numpy(as_item_text(rows[name]), LONGEST_TITLE).tolist() for name in names]
    return {item: dict(zip(names, row, strict=True)) for item, *row in zip(ids.tolist(), *texts, strict=True)}
