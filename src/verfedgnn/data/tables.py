"""Plain tables: CSV, TSV, RecBole's .inter and Parquet with columns user, item, rating and, if they like, more."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
from numpy.typing import NDArray

from verfedgnn.data.ids import TEXT
from verfedgnn.data.ratings import Ratings, make_ratings
from verfedgnn.data.source import TextTable, first_bytes, readable
from verfedgnn.errors import DataError

TABLE_SUFFIXES = (".csv", ".tsv", ".inter", ".parquet", ".pq")
REQUIRED = ("user", "item", "rating")

# As people spell them, in lower case without punctuation; the earlier wins.
ALIASES: dict[str, tuple[str, ...]] = {
    "user": ("user", "userid", "uid", "customer", "customerid", "reviewerid"),
    "item": ("item", "itemid", "iid", "movieid", "businessid", "productid", "bookid", "isbn", "asin", "sku"),
    "rating": ("rating", "ratings", "stars", "score", "overall", "bookrating"),
    "time": ("time", "timestamp", "ts", "date", "datetime", "unixreviewtime"),
    "title": ("title", "name", "itemtitle", "booktitle"),
    "category": ("category",),
    "genre": ("genre",),
}


def table_stem(path: Path) -> str:
    """The name of a table without its folder, suffix and .gz."""
    name = path.name.removesuffix(".gz")
    suffix = next((s for s in TABLE_SUFFIXES if name.lower().endswith(s)), "")
    return name[: len(name) - len(suffix)] or name


def is_table(path: Path) -> bool:
    """Whether the file's name says that it is a table."""
    return path.name.lower().removesuffix(".gz").endswith(TABLE_SUFFIXES)


def read_table(
    path: Path,
    *,
    columns: Mapping[str, str] | None = None,
    duplicates: str | None = None,
    encoding: str | None = None,
    delimiter: str | None = None,
    scale: tuple[float, float] | None = None,
    keep: Sequence[str] = (),
    name: str | None = None,
) -> Ratings:
    """Ratings from one table; `columns` maps user, item, rating, time, title or any item column to the file's names.

    `keep` names further item columns that stay if the file has them.

    A (user, item) pair that occurs again is an error, except in .inter files, where the first one is kept.
    """
    head = first_bytes(path)
    inter = path.name.lower().removesuffix(".gz").endswith(".inter")
    text: TextTable | None = None
    if head.startswith(b"PAR1"):
        table, names = _read_parquet(path, columns or {}, keep)
    else:
        text = TextTable(path, delimiter=delimiter or _delimiter(path, head), encoding=encoding, quoted=not inter)
        names = _matched(header(text, head), columns or {}, keep, path)
        kinds = {"rating": pa.float64(), "time": None}
        table = text.read({column: kinds.get(role, TEXT) for role, column in names.items()})
    if not table.num_rows:
        raise DataError(f"{path} holds no ratings: it has a header but no rows")
    time, notes = seconds(table[names["time"]]) if "time" in names else (None, ())
    return make_ratings(
        _trimmed(table[names["user"]]),
        _trimmed(table[names["item"]]),
        _as_float(table[names["rating"]], path),
        time=time,
        titles=table[names["title"]] if "title" in names else None,
        columns={role: table[names[role]] for role in names if role not in (*REQUIRED, "time", "title")},
        scale=scale,
        name=name or table_stem(path),
        duplicates=duplicates or ("first" if inter else "error"),
        notes=notes,
        where=text.at if text else lambda row: f"row {row + 1} of {path.name}",
    )


def plain(name: str) -> str:
    """A column's name in lower case without punctuation."""
    # RecBole writes the type behind the name: user_id:token.
    return re.sub(r"[^a-z0-9]", "", name.split(":")[0].lower())


def _matched(found: list[str], wanted: Mapping[str, str], keep: Sequence[str], path: Path) -> dict[str, str]:
    """The file's name for each role it has a column for."""
    absent = [f"{role}={column}" for role, column in wanted.items() if column not in found]
    names = {role: column for role, column in wanted.items() if column in found}
    for role, aliases in ALIASES.items():
        if role not in wanted:
            by_alias = {plain(column): column for column in reversed(found)}
            hit = next((by_alias[alias] for alias in aliases if alias in by_alias), None)
            if hit is not None and hit not in names.values():
                names[role] = hit
    names |= {column: column for column in keep if column in found and column not in names}
    missing = [role for role in REQUIRED if role not in names and role not in wanted]
    if absent or missing:
        lack = f"--columns names {', '.join(absent)}, which is not there" if absent else f"no column for {', '.join(missing)}"
        shown = ", ".join(column[:30] for column in found[:12]) + (", ..." if len(found) > 12 else "")
        raise DataError(
            f"{path}: {lack}; its first line has: {shown}; name them with --columns user=...,item=...,rating=..."
            " (or add a header if it has none)"
        )
    return names


def _delimiter(path: Path, head: bytes) -> str:
    if path.name.lower().removesuffix(".gz").endswith((".tsv", ".inter")):
        return "\t"
    line = head.split(b"\n", 1)[0]
    return max((",", "\t", ";", "|"), key=lambda character: line.count(character.encode()))


def header(text: TextTable, head: bytes) -> list[str]:
    """The column names in the first line of a text table whose start is `head`."""
    wide = (text.encoding or "").lower().replace("-", "").startswith(("utf16", "utf32"))
    if b"\0" in head and not wide:
        raise DataError(f"{text.path} is not a text table: give a CSV, TSV or Parquet file (gzip or not)")
    lines = head.decode(text.encoding or "utf-8", "replace").lstrip("\ufeff").splitlines()
    return next(text.records(line for line in lines if line), [])


def _read_parquet(path: Path, columns: Mapping[str, str], keep: Sequence[str]) -> tuple[pa.Table, dict[str, str]]:
    with readable(path):
        try:
            with pa.parquet.ParquetFile(path) as file:
                names = _matched(file.schema_arrow.names, columns, keep, path)
                return file.read(columns=list(names.values())), names
        except pa.ArrowException as error:
            raise _broken_parquet(path) from error


def _broken_parquet(path: Path) -> DataError:
    return DataError(f"{path} is a Parquet file that is cut off or damaged: write or download it again")


def _trimmed(column: pa.ChunkedArray) -> pa.ChunkedArray:
    # '17, 4, 5' must not make ' 4' another item than '4' at the next party.
    return pc.utf8_trim_whitespace(column) if pa.types.is_string(column.type) else column


def _as_float(column: pa.ChunkedArray, path: Path) -> pa.ChunkedArray:
    try:
        return pc.cast(column, pa.float64(), safe=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        text = pc.cast(column, TEXT, safe=False).to_pylist() if pa.types.is_string(column.type) else []
        number = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*|inf|nan", re.IGNORECASE)
        row = next((i for i, value in enumerate(text) if value is not None and not number.fullmatch(value)), None)
        place = f" {text[row][:40]!r} in row {row + 1}" if row is not None else f" column (type {column.type})"
        raise DataError(f"the rating{place} of {path} is not a number: correct or convert it") from error


def seconds(column: pa.ChunkedArray) -> tuple[NDArray[np.int64] | None, tuple[str, ...]]:
    """Seconds since 1970 from numbers (seconds or milliseconds), dates or timestamps, and a note if that went wrong."""
    kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        column = pc.cast(pc.cast(pc.cast(column, pa.timestamp("us")), pa.timestamp("s"), safe=False), pa.int64())
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind):
        column = pc.cast(column, pa.int64(), safe=False)
    else:
        return None, ("the times are neither numbers nor dates: left out",)
    if column.null_count:
        return None, (f"{column.null_count:,} rows have no time: all times are left out",)
    seconds: NDArray[np.int64] = column.to_numpy()
    # In seconds 1e11 is the year 5138.
    if len(seconds) and np.median(np.abs(seconds)) > 1e11:
        return seconds // 1000, ("times were read as milliseconds",)
    return seconds, ()
