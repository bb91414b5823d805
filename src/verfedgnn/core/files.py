"""Atomic file writes, folder locks and readable errors when a disk fails.

This module uses the standard library only, so that commands that write keys or federation files do not load
torch.
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
    """Write `data` to `path` atomically: the file is either complete or unchanged."""
    part = path.with_name(f".{path.name}.part")
    try:
        write_through(part, data)
        part.replace(path)
    except OSError:
        with suppress(OSError):
            part.unlink()
        raise


def write_through(path: Path, data: bytes) -> None:
    """Write `data` to `path` and flush it to disk. If the process is killed, a partial file may remain."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Flush the entries of `folder` to disk, so that a rename survives a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """Turn an `OSError` in the block into a `RunError` that names `place` and the remedy."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        full = error.errno == errno.ENOSPC
        remedy = (
            "free some space, then repeat the command (for a training, add --resume)"
            if full
            else "choose another --out"
        )
        raise RunError(f"cannot write {place}: {reason}; {remedy}") from None


def check_writable(folder: Path) -> None:
    """Raise `RunError` if `folder` cannot be created or written. Call it before any long computation."""
    with writing(folder):
        there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
        tempfile.TemporaryDirectory(prefix=".verfedgnn-", dir=there).cleanup()


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Create `folder` and lock it for this process; raise `RunError` if another process holds the lock."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunError(
                f"{folder} is in use by another process; stop that process, or choose another --out"
            ) from None
        yield
    finally:
        os.close(handle)
