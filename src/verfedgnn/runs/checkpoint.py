"""Checkpoints on disk.

A new checkpoint is written beside the last one and renamed into place. If the process is killed, a complete one remains.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verfedgnn.core import files
from verfedgnn.core.array_files import ArrayFile, write_parts
from verfedgnn.core.errors import RunError
from verfedgnn.protocol.replica import CheckpointState

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
