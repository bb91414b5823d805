"""Delimited text files, with or without gzip. Every failure is a one-line error with a remedy."""

import codecs
import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv

from verfedgnn.core.errors import DataError
from verfedgnn.core.option_names import option

_BLOCK = 8 << 20
_UTF8 = re.compile("UTF8|utf-8")
# Python's csv module, which finds the lines of records, must read the long fields that Arrow reads.
csv.field_size_limit(2 * _BLOCK)


def open_stream(path: Path) -> pa.NativeFile:
    """Open a file as a stream of decompressed bytes."""
    with reading(path):
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        return pa.input_stream(str(path), compression="gzip" if packed else None)


def read_first_bytes(path: Path) -> bytes:
    """Return the first bytes of a file, decompressed if it is gzip; raise `DataError` if it is empty."""
    with reading(path), open_stream(path) as stream:
        head: bytes = stream.read(1 << 16)
    if not head:
        raise DataError(f"{path} is empty; check that it was written or downloaded completely")
    return head


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn an `OSError` about a file into a `DataError`."""
    try:
        yield
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            raise missing_file(path) from error
        reason = (error.strerror or str(error)).splitlines()[0]
        if isinstance(error, IsADirectoryError):
            text = "is a folder; give the path of a file in it"
        elif isinstance(error, PermissionError):
            text = "cannot be read (permission denied); ask its owner or change its mode"
        elif re.search("compress|zlib|gzip", str(error), re.IGNORECASE):
            text = "is a truncated or damaged gzip file; download or compress it again (gzip -t tests it)"
        else:
            text = f"cannot be read ({reason}); check the file and its disk"
        raise DataError(f"{path} {text}") from error


def missing_file(path: str | Path) -> DataError:
    """Return the error for a path that does not exist."""
    return DataError(f"{path} does not exist; check the path, or give the name of a data set such as ml-1m")


@dataclass(frozen=True)
class TextTable:
    """A delimited text file and its format."""

    path: Path
    delimiter: str = ","
    columns: tuple[str, ...] = ()
    quoted: bool = True
    escape: str | None = None
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        try:
            codecs.lookup(self.encoding)
        except LookupError as error:
            what = f"encoding {self.encoding!r} is unknown"
            raise DataError(f"{what}; use for example utf-8 or latin-1") from error
        if len(self.delimiter) != 1:
            raise DataError(f"delimiter {self.delimiter!r} is not one character; use for example ',' or ';'")

    def read(self, types: Mapping[str, pa.DataType], broken: list[int] | None = None) -> pa.Table:
        """Read the columns in `types`. A record with a wrong number of fields is an error, or left out if there is a list `broken`.

        The list receives the numbers of these records, counted from 0 including the header.
        """
        try:
            try:
                return self._read(types, broken, threads=broken is None)
            except pa.ArrowInvalid as error:
                if _UTF8.search(str(error)) or not read_first_bytes(self.path):
                    raise
                # Only a single-threaded read reports the number of the record.
                return self._read(types, broken, threads=False)
        except pa.ArrowInvalid as error:
            raise self._explained(str(error)) from error
        except KeyError as error:
            lack = f"{self.path} lacks a column of {', '.join(types)} in its header"
            raise DataError(f"{lack}; name others with {option('columns')}") from error
        except UnicodeError as error:
            raise self._wrong_encoding() from error

    def _read(self, types: Mapping[str, pa.DataType], broken: list[int] | None, *, threads: bool) -> pa.Table:
        def skip(row: Any) -> str:
            if broken is None:
                return "error"
            broken.append(row.number - 1)
            return "skip"

        names = list(self.columns) or None
        blocks = {"block_size": _BLOCK, "use_threads": threads}
        how = pa.csv.ReadOptions(column_names=names, encoding=self.encoding, **blocks)
        parsing = pa.csv.ParseOptions(
            delimiter=self.delimiter,
            quote_char='"' if self.quoted else False,
            double_quote=self.quoted and self.escape is None,
            escape_char=self.escape or False,
            newlines_in_values=self.quoted,
            invalid_row_handler=skip,
        )
        conversion = pa.csv.ConvertOptions(include_columns=list(types), column_types=dict(types))
        with reading(self.path), open_stream(self.path) as stream:
            return pa.csv.read_csv(stream, how, parsing, conversion)

    def _explained(self, message: str) -> DataError:
        if _UTF8.search(message):
            return self._wrong_encoding()
        row = re.search(r"Row #(\d+)", message)
        record = int(row[1]) - 1 if row else 0
        place = f"line {self.lines([record])[record]} of {self.path}" if row else str(self.path)
        if fields := re.search(r"Expected (\d+) columns, got (\d+)", message):
            count = f"{fields[2]} fields instead of {fields[1]}"
            given = f"give the delimiter with {option('delimiter')} (now {self.delimiter!r})"
            return DataError(f"{place} has {count}; correct the line, or {given}")
        reason = message.splitlines()[0][:120]
        return DataError(f"{place} cannot be read as a table ({reason}); correct or convert the file")

    def _wrong_encoding(self) -> DataError:
        place = str(self.path)
        with reading(self.path), open_stream(self.path) as stream:
            for number, line in enumerate(io.BufferedReader(stream), 1):
                try:
                    line.decode(self.encoding)
                except UnicodeError:
                    place = f"line {number} of {self.path}"
                    break
        remedy = f"give the encoding of the file, for example {option('encoding', 'latin-1')}"
        return DataError(f"{place} is not {self.encoding} text; {remedy}")

    def lines(self, records: Iterable[int]) -> dict[int, int]:
        """Return the line in which each of the records ends. Records are counted from 0, including the header."""
        found = {record: record + 1 for record in records}
        with reading(self.path), open_stream(self.path) as stream, suppress(csv.Error):
            text = io.TextIOWrapper(io.BufferedReader(stream), self.encoding, "replace", newline="")
            reader = self.records(text)
            filled = (reader.line_num for fields in reader if fields)
            for number, line in zip(range(max(found, default=-1) + 1), filled, strict=False):
                if number in found:
                    found[number] = line
        return found

    def records(self, lines: Iterable[str]) -> Any:
        """Return a csv reader for this format, which parses headers and finds lines."""
        return csv.reader(
            lines,
            delimiter=self.delimiter,
            quoting=csv.QUOTE_MINIMAL if self.quoted else csv.QUOTE_NONE,
            doublequote=self.escape is None,
            escapechar=self.escape,
        )

    def header_names(self) -> list[str]:
        """Return the column names in the first line."""
        head = read_first_bytes(self.path)
        wide = self.encoding.lower().replace("-", "").startswith(("utf16", "utf32"))
        if head.startswith((b"\xff\xfe", b"\xfe\xff")) and not wide:
            raise DataError(f"{self.path} is text in UTF-16; read it with {option('encoding', 'utf-16')}")
        if b"\0" in head and not wide:
            files = "a CSV, TSV or Parquet file (with or without gzip), such as an export of a database"
            raise DataError(f"{self.path} is not a text table; give {files}")
        lines = head.decode(self.encoding, "replace").lstrip("\ufeff").splitlines()
        return next(self.records(line for line in lines if line), [])
