"""Checkpoints on disk, of a training on one machine and of a service.

A checkpoint is one file, which the next one replaces: after a kill or a power cut it holds one of the two, whole. Arrays are written
from their own memory, and read when they are asked for, so that no second copy of a checkpoint is ever in memory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from verfedgnn.core.array_files import ArrayFile, write_parts
from verfedgnn.core.files import make_folder, parsing, replacing, writing
from verfedgnn.protocol.replica import CheckpointState

CHECKPOINT = "checkpoint.safetensors"
_TEXT = "checkpoint"


def join_states(states: Mapping[str, CheckpointState]) -> CheckpointState:
    """Return one state that holds several by name, as `Checkpoint.part` gives them back."""
    arrays = {f"{name}/{key}": array for name, state in states.items() for key, array in state.arrays.items()}
    return CheckpointState(arrays, {name: state.values for name, state in states.items()})


class Checkpoint(NamedTuple):
    """A checkpoint as it was written."""

    round: int
    state: CheckpointState
    values: dict[str, Any]

    def part(self, name: str) -> CheckpointState:
        """Return one of the states that `join_states` joined, with its arrays in memory."""
        start = f"{name}/"
        arrays = self.state.arrays
        own = {key.removeprefix(start): arrays[key] for key in arrays if key.startswith(start)}
        return CheckpointState(own, self.state.values[name])


class CheckpointFile:
    """The last checkpoint of one state, in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, round: int, state: CheckpointState, values: Mapping[str, Any]) -> None:
        """Replace the checkpoint; it is on disk when this returns."""
        text = json.dumps({"round": round, "state": state.values, "values": dict(values)})
        with writing(self.folder):
            make_folder(self.folder)
            with replacing(self.folder / CHECKPOINT) as file:
                write_parts(file.write, state.arrays, {_TEXT: text})

    def read(self) -> Checkpoint | None:
        """Return the last checkpoint; None if there is none. Raise `RunError` if its file is not valid.

        Its arrays are read from the file when they are asked for, so take them before the next `write`.
        """
        path = self.folder / CHECKPOINT
        if not path.is_file():
            return None
        with parsing(f"the checkpoint in {self.folder}", "train the run again"):
            arrays = ArrayFile(path)
            plain = json.loads(arrays.about[_TEXT])
            return Checkpoint(plain["round"], CheckpointState(arrays, plain["state"]), plain["values"])
