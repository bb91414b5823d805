"""Files that are whole or not there, folders that one process keeps to itself, and what is said when a disk fails.

Standard library only: commands that write a key or a federation file do not wait for torch.
"""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from verfedgnn.core.errors import RunError


def write_bytes(path: Path, data: bytes) -> None:
    """A file that is whole or not there."""
    part = path.with_name(f".{path.name}.part")
    try:
        write_through(part, data)
        part.replace(path)
    except OSError:
        with suppress(OSError):
            part.unlink()
        raise


def write_through(path: Path, data: bytes) -> None:
    """A file that is on the disk when this returns; a kill on the way leaves a part of it."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Names in `folder` are on the disk when this returns: a rename outlives a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """Turn a failed write into an error that names the place and the remedy."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        full = error.errno == errno.ENOSPC
        remedy = (
            "make room, then repeat the command, or --resume a training" if full else "choose another --out"
        )
        raise RunError(f"cannot write {place}: {reason}; {remedy}") from None


def check_writable(folder: Path) -> None:
    """An error if `folder` cannot be written, or made, before hours are spent on what it is for."""
    with writing(folder):
        there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
        tempfile.TemporaryDirectory(prefix=".verfedgnn-", dir=there).cleanup()


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Keep a run folder to this process."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunError(
                f"{folder} is in use by another process; stop that one, or choose another --out"
            ) from None
        yield
    finally:
        os.close(handle)
