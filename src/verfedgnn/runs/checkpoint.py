"""Checkpoints on disk, of a training on one machine and of a service.

`write_checkpoint` writes a new checkpoint beside the last one and renames it into place. If the process is killed, a complete one remains.

`CheckpointSlots` is for a service, which writes a checkpoint every round: two files that are overwritten in turn, one flush to disk each.
Overwriting a file takes one flush where new files and a rename take four. A file holds a SHA-256 of its content. If a kill or a
power cut interrupts a write, that file is not valid, and the other one holds the checkpoint before it.

Arrays are written from their own memory and hashed part by part. A checkpoint that is read reads each array when it is asked for.
No second copy of a checkpoint is therefore ever in memory.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from verfedgnn.core import files
from verfedgnn.core.array_files import ArrayFile, Arrays, Buffer, as_bytes, cut, write_parts
from verfedgnn.core.errors import RunError
from verfedgnn.protocol.replica import CheckpointState

_SLOTS = ("slot-0.safetensors", "slot-1.safetensors")
_TEXT = "checkpoint"
_HASH = "sha256"
_NAME = re.compile(r"round-(\d{8})~?")
"""Folder name of a checkpoint; a trailing ~ marks one that is being replaced by another of the same round."""


def write_checkpoint(
    folder: Path, round: int, states: Mapping[str, CheckpointState], values: Mapping[str, Any]
) -> None:
    """Write all states of `round` to `folder`/round-N, then remove older checkpoints."""
    with files.writing(folder):
        _write_checkpoint(folder, round, states, values)


def _write_checkpoint(
    folder: Path, round: int, states: Mapping[str, CheckpointState], values: Mapping[str, Any]
) -> None:
    files.make_folder(folder)
    final = folder / f"round-{round:08d}"
    part = folder / f".round-{round:08d}.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(mode=0o700)
    for name, state in states.items():
        with files.creating(part / f"{name}.safetensors") as file:
            write_parts(file.write, state.arrays)
    plain = {"round": round, "states": {name: state.values for name, state in states.items()}, **values}
    with files.creating(part / "state.json") as file:
        file.write(json.dumps(plain).encode())
    files.sync_folder(part)
    if final.exists():
        aside = folder / f"{final.name}~"
        shutil.rmtree(aside, ignore_errors=True)
        final.rename(aside)
    part.rename(final)
    files.sync_folder(folder)
    for old in folder.iterdir():
        if old != final:
            shutil.rmtree(old, ignore_errors=True)


def read_checkpoint(folder: Path) -> tuple[dict[str, CheckpointState], dict[str, Any]] | None:
    """Return the states and plain values of the newest complete checkpoint, or None if there is none.

    Arrays are read from their file when they are asked for, so take them before the next checkpoint is written.
    """
    found = (
        sorted(path for path in folder.glob("round-*") if _NAME.fullmatch(path.name))
        if folder.is_dir()
        else []
    )
    if not found:
        return None
    complete = [path for path in found if (path / "state.json").is_file()] or found
    newest = max(complete, key=lambda path: (path.name[:14], not path.name.endswith("~")))
    try:
        plain = json.loads((newest / "state.json").read_text("utf-8"))
        states = {
            name: CheckpointState(ArrayFile(newest / f"{files.check_file_name(name)}.safetensors"), values)
            for name, values in plain.pop("states").items()
        }
    except (OSError, ValueError, KeyError) as error:
        raise RunError(f"the checkpoint {newest} cannot be read ({error}); train the run again") from None
    return states, plain


class SlotCheckpoint(NamedTuple):
    """A checkpoint as it was written."""

    round: int
    state: CheckpointState
    values: dict[str, Any]
    sequence: int
    """Number of checkpoints before this one."""
    slot: int
    """Which of the two files holds it."""


class CheckpointSlots:
    """The checkpoints of one state in `folder`. Those that are not `durable` may be lost in a power cut, not by a kill."""

    def __init__(self, folder: Path, *, durable: bool = True) -> None:
        self.folder = folder
        self.durable = durable
        self._next: tuple[int, int] | None = None
        """Sequence and slot of the next checkpoint; None until the folder was read."""

    def write(self, round: int, state: CheckpointState, values: Mapping[str, Any]) -> None:
        """Write a checkpoint over the one before the last, and flush it to disk if it must be durable."""
        if self._next is None:
            newest = self._newest()
            self._next = (0, 0) if newest is None else (newest.sequence + 1, 1 - newest.slot)
        sequence, slot = self._next
        plain = {"sequence": sequence, "round": round, "state": state.values, "values": dict(values)}
        about = _describe(state.arrays, json.dumps(plain))
        path = self.folder / _SLOTS[slot]
        with files.writing(self.folder):
            is_new = not path.exists()
            if is_new:
                files.make_folder(self.folder)
            handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                size = write_parts(lambda part: files.write_all(handle, part), state.arrays, about)
                os.ftruncate(handle, size)
                if self.durable:
                    os.fdatasync(handle)
            finally:
                os.close(handle)
            if is_new and self.durable:
                files.sync_folder(self.folder)
        self._next = (sequence + 1, 1 - slot)

    def read(self) -> SlotCheckpoint | None:
        """Return the newest valid checkpoint; None if there is none. Raise `RunError` if no file is valid.

        Its arrays are read from the file when they are asked for, so take them before the next `write`.
        """
        newest = self._newest()
        if newest is None and any((self.folder / name).is_file() for name in _SLOTS):
            raise RunError(f"the checkpoint in {self.folder} cannot be read; train the run again")
        return newest

    def _newest(self) -> SlotCheckpoint | None:
        paths = [(slot, self.folder / name) for slot, name in enumerate(_SLOTS)]
        found = [_open(path, slot) for slot, path in paths if path.is_file()]
        newest_first = sorted((each for each in found if each is not None), key=lambda each: -each.sequence)
        return next((each for each in newest_first if _is_valid(each.state.arrays)), None)


def _describe(arrays: Arrays, text: str) -> dict[str, str]:
    """Return the texts of a checkpoint's file: the checkpoint without its arrays, and the hash of everything."""
    parts = {name: cut(as_bytes(np.ascontiguousarray(array))) for name, array in arrays.items()}
    heads = {name: f"{array.dtype} {array.shape}" for name, array in arrays.items()}
    return {_TEXT: text, _HASH: _digest(text, heads, parts)}


def _open(path: Path, slot: int) -> SlotCheckpoint | None:
    """Return the checkpoint in a file whose arrays are not verified; None if the file is not one of a checkpoint."""
    try:
        arrays = ArrayFile(path)
        plain = json.loads(arrays.about[_TEXT])
        state = CheckpointState(arrays, plain["state"])
        return SlotCheckpoint(plain["round"], state, plain["values"], plain["sequence"], slot)
    except (ValueError, KeyError, TypeError):
        return None


def _is_valid(arrays: Arrays) -> bool:
    """Return whether a file has the content whose hash it holds."""
    assert isinstance(arrays, ArrayFile)
    heads = {name: f"{place.dtype} {place.shape}" for name, place in arrays.places.items()}
    parts = {name: arrays.parts(name) for name in arrays}
    try:
        return arrays.about.get(_HASH) == _digest(arrays.about[_TEXT], heads, parts)
    except ValueError:
        return False


def _digest(text: str, heads: Mapping[str, str], parts: Mapping[str, Iterator[Buffer]]) -> str:
    found = hashlib.sha256(text.encode())
    for name in sorted(heads):
        found.update(f"\n{name} {heads[name]}\n".encode())
        for part in parts[name]:
            found.update(part)
    return found.hexdigest()
