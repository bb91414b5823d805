"""Checkpoints on disk: written beside the last one and put in place by a rename, so that a kill leaves the last good one."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from verfedgnn.errors import RunError
from verfedgnn.protocol.state import State

_NAME = re.compile(r"round-(\d{8})~?")
"""A checkpoint; with ~ one that is being replaced by another of the same round."""


def write_checkpoint(folder: Path, round: int, states: Mapping[str, State], values: Mapping[str, Any]) -> None:
    """All states of `round` as `folder`/round-N, then remove the older ones."""
    with writing(folder):
        _write_checkpoint(folder, round, states, values)


def _write_checkpoint(folder: Path, round: int, states: Mapping[str, State], values: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    final, part = folder / f"round-{round:08d}", folder / f".round-{round:08d}.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    for name, state in states.items():
        arrays = {key: np.ascontiguousarray(value) for key, value in state.arrays.items()}
        _write(part / f"{name}.safetensors", safetensors.numpy.save(arrays))
    plain = {"round": round, "states": {name: state.values for name, state in states.items()}, **values}
    _write(part / "state.json", json.dumps(plain).encode())
    if final.exists():
        aside = folder / f"{final.name}~"
        shutil.rmtree(aside, ignore_errors=True)
        final.rename(aside)
    part.rename(final)
    _sync(folder)
    for old in folder.iterdir():
        if old != final:
            shutil.rmtree(old, ignore_errors=True)


def read_checkpoint(folder: Path) -> tuple[dict[str, State], dict[str, Any]] | None:
    """The newest complete checkpoint and its plain values, or None if there is none."""
    found = sorted(path for path in folder.glob("round-*") if _NAME.fullmatch(path.name)) if folder.is_dir() else []
    if not found:
        return None
    complete = [path for path in found if (path / "state.json").is_file()] or found
    newest = max(complete, key=lambda path: (path.name[:14], not path.name.endswith("~")))
    try:
        plain = json.loads((newest / "state.json").read_text("utf-8"))
        states = {
            name: State(safetensors.numpy.load((newest / f"{name}.safetensors").read_bytes()), values)
            for name, values in plain.pop("states").items()
        }
    except (OSError, ValueError, KeyError, safetensors.SafetensorError) as error:
        raise RunError(f"the checkpoint {newest} cannot be read ({error}); without it the run must be trained again") from None
    return states, plain


def write_bytes(path: Path, data: bytes) -> None:
    """A file that is whole or not there."""
    part = path.with_name(f".{path.name}.part")
    try:
        _write(part, data)
        part.replace(path)
    except OSError:
        with suppress(OSError):
            part.unlink()
        raise


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """Turn a failed write into an error that names the place and the remedy."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        full = error.errno == errno.ENOSPC
        remedy = "make room, then repeat the command, or --resume a training" if full else "choose another --out"
        raise RunError(f"cannot write {place}: {reason}; {remedy}") from None


def writable(folder: Path) -> None:
    """An error if `folder` cannot be written, or made, before hours are spent on what it is for."""
    with writing(folder):
        there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
        tempfile.TemporaryDirectory(prefix=".verfedgnn-", dir=there).cleanup()


@contextmanager
def holding(folder: Path) -> Iterator[None]:
    """Keep a run folder to this process."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunError(f"{folder} is in use by another process; stop that one, or choose another --out") from None
        yield
    finally:
        os.close(handle)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
