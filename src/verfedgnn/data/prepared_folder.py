"""Folders of prepared ratings: arrays that a training maps into memory instead of reading a table.

A prepared folder holds one `.npy` file per array of a `Ratings` table, and `prepared.json`, which is written
last. A folder without it is not finished, whatever else it holds.
"""

import io
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import DTypeLike, NDArray

from verfedgnn.core.errors import DataError
from verfedgnn.core.files import write_bytes
from verfedgnn.core.option_names import option
from verfedgnn.data.ids import StrArray
from verfedgnn.data.ratings import Ratings

DESCRIPTION = "prepared.json"
"""Name of the file that makes a folder a prepared one."""
WORK = "unfinished"
"""Name of the subfolder of a preparation that has not finished."""
_FORMAT = 1
_HEADER = 128
"""Bytes of the header of a one-dimensional .npy file. NumPy pads it, so that the length can grow."""
_PART = 1 << 20
"""Number of entries that are copied at once."""


def is_prepared(path: Path) -> bool:
    """Return whether a path is a folder of prepared ratings; raise `DataError` if its preparation has not finished."""
    if (path / DESCRIPTION).is_file():
        return True
    if (path / WORK).is_dir():
        raise DataError(
            f"the preparation of {path} has not finished; run the same `verfedgnn data prepare` again, which resumes it"
        )
    return False


def read_prepared(folder: Path, given: Mapping[str, Any]) -> Ratings:
    """Return the ratings of a prepared folder. Arrays stay on disk and are read on demand.

    `given` holds the options of `read_ratings`, which must have been given when the folder was prepared.
    """
    named = [name for name, value in given.items() if value is not None]
    if named:
        raise DataError(
            f"{option(named[0])} cannot change {folder}, which is prepared; give it to `verfedgnn data prepare`"
        )
    try:
        about = json.loads((folder / DESCRIPTION).read_text("utf-8"))
        if about["format"] != _FORMAT:
            raise DataError(
                f"{folder} was prepared by another version (format {about['format']}, not {_FORMAT}); prepare it again"
            )
        arrays = {name: _mapped(folder / f"{name}.npy") for name in about["arrays"]}
        return Ratings(
            **arrays,
            columns={name: _mapped(folder / file) for name, file in about["columns"].items()},
            scale=tuple(about["scale"]),
            scale_declared=about["scale_declared"],
            catalogue=about["catalogue"],
            name=folder.resolve().name,
            notes=tuple(about["notes"]),
        )
    except (OSError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{folder} is damaged ({error}); prepare it again") from error


def write_prepared(ratings: Ratings, folder: Path) -> None:
    """Write ratings that are in memory to `folder`."""
    for name in ("user", "item", "rating", "time", "user_ids", "item_ids", "titles"):
        values = getattr(ratings, name)
        if values is not None:
            write_array(folder / f"{name}.npy", [values], values.dtype)
    for number, values in enumerate(ratings.columns.values()):
        write_array(folder / column_file(number), [values], values.dtype)
    describe_folder(
        folder,
        columns=list(ratings.columns),
        scale=ratings.scale,
        scale_declared=ratings.scale_declared,
        catalogue=ratings.catalogue,
        notes=ratings.notes,
    )


def column_file(number: int) -> str:
    """Return the name of the file of an item column; the column's own name may not be a file name."""
    return f"column-{number}.npy"


def describe_folder(
    folder: Path,
    *,
    columns: Iterable[str],
    scale: tuple[float, float],
    scale_declared: bool,
    catalogue: int | None,
    notes: Iterable[str],
    **more: Any,
) -> None:
    """Write the description of a folder whose arrays are complete, which finishes it."""
    optional = [name for name in ("time", "titles") if (folder / f"{name}.npy").exists()]
    about = {
        "format": _FORMAT,
        "arrays": ["user", "item", "rating", "user_ids", "item_ids", *optional],
        "columns": {name: column_file(number) for number, name in enumerate(columns)},
        "scale": list(scale),
        "scale_declared": scale_declared,
        "catalogue": catalogue,
        "notes": list(notes),
        **more,
    }
    write_bytes(folder / DESCRIPTION, json.dumps(about, indent=2, ensure_ascii=False).encode())


class GrowingArray:
    """A one-dimensional .npy file that is appended to, and that is valid once it is closed."""

    def __init__(self, file: BinaryIO, dtype: DTypeLike, size: int) -> None:
        self.file = file
        self.dtype = np.dtype(dtype)
        self.size = size

    def append(self, values: NDArray[Any]) -> None:
        """Append entries, converted to the type of the file."""
        self.file.write(np.ascontiguousarray(values, self.dtype).data.cast("B") if len(values) else b"")
        self.size += len(values)

    def flush(self) -> None:
        """Hand all entries to the operating system."""
        self.file.flush()

    def write_header(self) -> None:
        """Write the header for the present number of entries."""
        header = io.BytesIO()
        about = {"descr": self.dtype.str, "fortran_order": False, "shape": (self.size,)}
        np.lib.format.write_array_header_1_0(header, about)
        assert len(header.getvalue()) == _HEADER
        self.file.seek(0)
        self.file.write(header.getvalue())


@contextmanager
def growing_array(path: Path, dtype: DTypeLike, size: int = 0) -> Iterator[GrowingArray]:
    """Open an array file to append to it after its first `size` entries; the entries after them are dropped."""
    with path.open("r+b" if size else "wb") as file:
        file.truncate(_HEADER + size * np.dtype(dtype).itemsize)
        file.seek(0, io.SEEK_END)
        array = GrowingArray(file, dtype, size)
        yield array
        array.write_header()


def write_array(path: Path, parts: Iterable[NDArray[Any]], dtype: DTypeLike) -> None:
    """Write an array file from its parts, in small pieces."""
    with growing_array(path, dtype) as array:
        for part in parts:
            for start in range(0, len(part), _PART):
                array.append(part[start : start + _PART])


def _mapped(path: Path) -> Any:
    """Map an array file into memory. The result is a plain read-only array."""
    mapped: StrArray | NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    return np.asarray(mapped)
