"""Private and atomic file writes, folder locks and readable errors when a disk fails.

This module uses the standard library only, so that commands that write keys or federation files do not load
torch.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from verfedgnn.core.errors import ConfigError, RunError
from verfedgnn.core.option_names import option

LOCK = ".lock"
"""File in a folder that a process locks while it changes the folder."""
_DAMAGED = (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)
"""What parsing of a damaged or foreign file raises."""
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")


@contextmanager
def replacing(path: Path, *, flush: bool = True) -> Iterator[BinaryIO]:
    """Open a new file for writing, and rename it to `path` when the block ends and all is on disk.

    Only the owner can read the file, from its creation on. After an error, a kill or a power cut, `path` is either
    complete or unchanged; without `flush`, a power cut may lose it.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        part.unlink(missing_ok=True)
        with _create_private(part) as file:
            yield file
            if flush:
                _flush(file)
        part.replace(path)
        if flush:
            sync_folder(path.parent)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise


def write_bytes(path: Path, data: bytes, *, flush: bool = True) -> None:
    """Write `data` to `path` atomically, as `replacing` does."""
    with replacing(path, flush=flush) as file:
        file.write(data)


@contextmanager
def creating(path: Path) -> Iterator[BinaryIO]:
    """Open a new file for writing, and flush it to disk when the block ends. If the process is killed, a partial file may remain."""
    with _create_private(path) as file:
        yield file
        _flush(file)


def write_all(handle: int, data: bytes | bytearray | memoryview) -> None:
    """Write all of `data` to an open file; the operating system may take it in parts."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(handle, rest) :]


def make_folder(folder: Path) -> None:
    """Create `folder` and its parents unless they exist; new ones can be entered by their owner only."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    for place in reversed(missing):
        place.mkdir(exist_ok=True, mode=0o700)


def read_private(path: Path) -> bytes:
    """Read a file with a secret; raise `ConfigError` if other users can read it."""
    with path.open("rb") as file:  # one descriptor: the file that is checked is the file that is read
        mode = os.fstat(file.fileno()).st_mode & 0o777
        if mode & 0o077:
            raise ConfigError(
                f"other users of this machine can read the key {path} (mode {mode:04o}); run `chmod 600 {path}`, "
                "and replace the key if somebody may have read it"
            )
        return file.read()


def check_file_name(name: object) -> str:
    """Return `name` if it is that of a file in the same folder; raise `ValueError` if it may lead elsewhere."""
    if not isinstance(name, str) or not _FILE_NAME.fullmatch(name):
        raise ValueError(f"{str(name)[:80]!a} cannot be a file of the run")
    return name


def check_links(folder: Path) -> None:
    """Raise `RunError` if a link in `folder` leads out of it or in a circle, or for a pipe, as in a run that somebody else has prepared."""
    inside = os.path.realpath(folder)  # raises nothing, also where links lead in a circle
    for place, folders, names in os.walk(folder):
        for path in (Path(place, name) for name in (*folders, *names)):
            if path.is_symlink():
                target = Path(os.path.realpath(path))
                if not target.is_relative_to(inside) or Path(os.path.realpath(place)).is_relative_to(target):
                    where = "a place outside the run, or to a folder around the link"
                    raise RunError(
                        f"{path} is a link to {where}; replace it by the file if you trust the run"
                    )
            elif path.is_fifo():
                raise RunError(f"{path} is a pipe, and reading it might never end; remove it")


def _create_private(path: Path) -> BinaryIO:
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Flush the entries of `folder` to disk, so that a rename survives a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def switch_link(link: Path, target: Path) -> None:
    """Let a symbolic link point to `target`, atomically: there is no moment without the link. Create it if it is missing."""
    if link.exists() and not link.is_symlink():
        raise RunError(f"{link} is not a link, so it is left alone; name a new link with --link")
    with writing(link):
        make_folder(link.parent)
        part = link.with_name(f".{link.name}.part")
        part.unlink(missing_ok=True)
        part.symlink_to(os.path.relpath(target.resolve(), link.parent.resolve()))
        part.replace(link)
        sync_folder(link.parent)


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """Turn an `OSError` in the block into a `RunError` that names `place` and the remedy."""
    try:
        yield
    except OSError as error:
        remedy = f"choose another {option('out')}"
        if error.errno == errno.ENOSPC:
            remedy = "free some space, then repeat the command (a training can be resumed)"
        raise RunError(f"cannot write {place}: {error.strerror or error}; {remedy}") from None


@contextmanager
def parsing(what: str, remedy: str) -> Iterator[None]:
    """Turn what a damaged or foreign file raises in the block into a `RunError` that names the file and the remedy."""
    try:
        yield
    except _DAMAGED as error:
        raise RunError(f"{what} cannot be read ({error}); {remedy}") from None


def check_writable(folder: Path) -> None:
    """Raise `RunError` if `folder` cannot be created or written. Call it before any long computation."""
    with writing(folder):
        there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
        tempfile.TemporaryDirectory(prefix=".verfedgnn-", dir=there).cleanup()


@contextmanager
def lock_folder(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Open `folder` for changes: create it, refuse links that lead out of it, and lock it for this process.

    Every command that writes to a folder or deletes in it does this first. Raise `RunError` if there is such a link, or if another
    process holds the lock. With `wait`, wait for the lock instead.
    """
    with writing(folder):
        make_folder(folder)
        check_links(folder)
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            remedy = f"stop that process, or choose another {option('out')}"
            raise RunError(f"{folder} is in use by another process; {remedy}") from None
        yield
    finally:
        os.close(handle)
