"""Checkpoints of a service, which writes one every round: two files that are overwritten in turn, one flush to disk each.

Overwriting a file takes one flush where new files and a rename take four. A file holds a SHA-256 of its content. If a kill or a
power cut interrupts a write, that file is not valid, and the other one holds the checkpoint before it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from verfedgnn.core.errors import RunError
from verfedgnn.core.files import make_folder, sync_folder, write_all, writing
from verfedgnn.protocol.checkpoint_state import CheckpointState

_SLOTS = ("slot-0.safetensors", "slot-1.safetensors")
_TEXT = "checkpoint"
_HASH = "sha256"


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
            newest = self.read()
            self._next = (0, 0) if newest is None else (newest.sequence + 1, 1 - newest.slot)
        sequence, slot = self._next
        plain = {"sequence": sequence, "round": round, "state": state.values, "values": dict(values)}
        data = _pack(state.arrays, json.dumps(plain))
        path = self.folder / _SLOTS[slot]
        with writing(self.folder):
            is_new = not path.exists()
            if is_new:
                make_folder(self.folder)
            handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                write_all(handle, data)
                os.ftruncate(handle, len(data))
                if self.durable:
                    os.fdatasync(handle)
            finally:
                os.close(handle)
            if is_new and self.durable:
                sync_folder(self.folder)
        self._next = (sequence + 1, 1 - slot)

    def read(self) -> SlotCheckpoint | None:
        """Return the newest valid checkpoint, None if there is no file; raise `RunError` if no file is valid."""
        paths = [(slot, self.folder / name) for slot, name in enumerate(_SLOTS)]
        found = [_unpack(path.read_bytes(), slot) for slot, path in paths if path.is_file()]
        valid = [each for each in found if each is not None]
        if found and not valid:
            raise RunError(f"the checkpoint in {self.folder} cannot be read; train the run again")
        return max(valid, key=lambda each: each.sequence, default=None)


def repack(data: bytes, arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return the content of a checkpoint's file with other arrays; a file without a checkpoint's text gets none."""
    text = _read_metadata(data).get(_TEXT)
    return safetensors.numpy.save(dict(arrays)) if text is None else _pack(arrays, text)


def _pack(arrays: Mapping[str, NDArray[Any]], text: str) -> bytes:
    plain = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    return safetensors.numpy.save(plain, {_TEXT: text, _HASH: _digest(plain, text)})


def _unpack(data: bytes, slot: int) -> SlotCheckpoint | None:
    """Return the checkpoint in a file's content; None if it is not valid."""
    try:
        arrays = safetensors.numpy.load(data)
        about = _read_metadata(data)
        if about[_HASH] != _digest(arrays, about[_TEXT]):
            return None
        plain = json.loads(about[_TEXT])
        state = CheckpointState(arrays, plain["state"])
        return SlotCheckpoint(plain["round"], state, plain["values"], plain["sequence"], slot)
    except (ValueError, KeyError, TypeError, safetensors.SafetensorError):
        return None


def _read_metadata(data: bytes) -> dict[str, str]:
    """Return the texts in the header of safetensors: its length in eight bytes, then JSON."""
    length = int.from_bytes(data[:8], "little")
    found: dict[str, str] = json.loads(data[8 : 8 + length]).get("__metadata__", {})
    return found


def _digest(arrays: Mapping[str, NDArray[Any]], text: str) -> str:
    found = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        found.update(f"\n{name} {arrays[name].dtype} {arrays[name].shape}\n".encode())
        found.update(np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8).data)
    return found.hexdigest()
