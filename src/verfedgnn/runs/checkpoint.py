"""Checkpoints on disk, of a training on one machine and of a service.

A service writes a checkpoint every round: two files that are overwritten in turn, one flush to disk each. New files and renames
would take four. A file holds a SHA-256 of its content. If a kill or a power cut interrupts a write, that file is not valid, and the
other one holds the checkpoint before it. The first write of each file goes beside it and is renamed into place, so that a kill
during the very first checkpoint leaves none.

Arrays are written from their own memory and hashed part by part. A checkpoint that is read reads each array when it is asked for.
No second copy of a checkpoint is therefore ever in memory.
"""

from __future__ import annotations

import hashlib
import json
import os
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


def join_states(states: Mapping[str, CheckpointState]) -> CheckpointState:
    """Return one state that holds several by name, as `SlotCheckpoint.part` gives them back."""
    arrays = {f"{name}/{key}": array for name, state in states.items() for key, array in state.arrays.items()}
    return CheckpointState(arrays, {name: state.values for name, state in states.items()})


class SlotCheckpoint(NamedTuple):
    """A checkpoint as it was written."""

    round: int
    state: CheckpointState
    values: dict[str, Any]
    sequence: int
    """Number of checkpoints before this one."""
    slot: int
    """Which of the two files holds it."""

    def part(self, name: str) -> CheckpointState:
        """Return one of the states that `join_states` joined, with its arrays in memory."""
        start = f"{name}/"
        arrays = self.state.arrays
        own = {key.removeprefix(start): arrays[key] for key in arrays if key.startswith(start)}
        return CheckpointState(own, self.state.values[name])


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
            if path.exists():
                self._overwrite(path, state.arrays, about)
            else:
                files.make_folder(self.folder)
                with files.replacing(path) as file:
                    write_parts(file.write, state.arrays, about)
        self._next = (sequence + 1, 1 - slot)

    def _overwrite(self, path: Path, arrays: Arrays, about: Mapping[str, str]) -> None:
        handle = os.open(path, os.O_WRONLY)
        try:
            size = write_parts(lambda part: files.write_all(handle, part), arrays, about)
            os.ftruncate(handle, size)
            if self.durable:
                os.fdatasync(handle)
        finally:
            os.close(handle)

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
