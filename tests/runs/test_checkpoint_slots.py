"""Checkpoints that overwrite each other in turn: a write that is cut anywhere leaves the one before it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import verfedgnn as vf
from verfedgnn.protocol.replica import CheckpointState
from verfedgnn.runs.checkpoint import CheckpointSlots, join_states


def state(number: int) -> CheckpointState:
    rows = np.full((40, 3), number, np.float32)
    return CheckpointState({"rows": rows, "counts": np.arange(number)}, {"number": number, "none": None})


def written(folder: Path, rounds: int) -> CheckpointSlots:
    slots = CheckpointSlots(folder)
    for number in range(1, rounds + 1):
        slots.write(number, state(number), {"seconds": number / 2})
    return slots


def test_the_newest_checkpoint_is_read(tmp_path: Path) -> None:
    assert CheckpointSlots(tmp_path / "none").read() is None
    for rounds in (1, 2, 3, 6):
        folder = tmp_path / str(rounds)
        written(folder, rounds)
        found = CheckpointSlots(folder).read()
        assert found is not None
        assert (found.round, found.values) == (rounds, {"seconds": rounds / 2})
        assert found.state.values == state(rounds).values
        np.testing.assert_array_equal(found.state.arrays["rows"], state(rounds).arrays["rows"])
        assert len(list(folder.iterdir())) == min(rounds, 2)
        assert all(path.stat().st_mode & 0o777 == 0o600 for path in folder.iterdir())


def test_a_write_that_is_cut_anywhere_leaves_the_checkpoint_before_it(tmp_path: Path) -> None:
    """A kill or a power cut leaves any part of the new content over the old one, in pages of any size."""
    written(tmp_path, 3)
    target = tmp_path / "slot-1.safetensors"  # holds round 2, and gets round 4
    old = target.read_bytes()
    CheckpointSlots(tmp_path).write(4, state(4), {})
    new = target.read_bytes()
    assert old != new
    length = max(len(old), len(new))
    cuts = [*range(1, length, 37), length - 1]
    for cut in cuts:
        for torn in (new[:cut] + old[cut:], old[:cut] + new[cut:], new[:cut]):
            if torn == new:
                continue
            target.write_bytes(torn)
            found = CheckpointSlots(tmp_path).read()
            assert found is not None
            assert found.round == 3
    target.write_bytes(new)
    resumed = CheckpointSlots(tmp_path)
    resumed.write(5, state(5), {})
    assert target.read_bytes() == new, "the older one is overwritten"


@pytest.mark.parametrize("rounds", [0, 1])
def test_a_kill_during_the_first_write_of_a_file_leaves_what_was_there(
    rounds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a kill in the very first checkpoint there is none, and the training starts from nothing."""
    slots = written(tmp_path, rounds)

    def dies(write: Callable[[bytes], object], *_: object) -> int:
        write(b"half a table of contents")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("verfedgnn.runs.checkpoint.write_parts", dies)
        with pytest.raises(KeyboardInterrupt):
            slots.write(rounds + 1, state(rounds + 1), {})
    (tmp_path / f".slot-{rounds}.safetensors.part").write_bytes(b"half")
    found = CheckpointSlots(tmp_path).read()
    assert (0 if found is None else found.round) == rounds
    written(tmp_path, 2)
    again = CheckpointSlots(tmp_path).read()
    assert again is not None
    assert again.round == 2


def test_joined_states_come_apart_again(tmp_path: Path) -> None:
    CheckpointSlots(tmp_path).write(1, join_states({"a": state(1), "a_b": state(2)}), {})
    found = CheckpointSlots(tmp_path).read()
    assert found is not None
    for name, number in {"a": 1, "a_b": 2}.items():
        part = found.part(name)
        assert part.values == state(number).values
        assert part.arrays.keys() == {"rows", "counts"}
        np.testing.assert_array_equal(part.arrays["rows"], state(number).arrays["rows"])


def test_without_a_valid_file_the_run_cannot_resume(tmp_path: Path) -> None:
    written(tmp_path, 2)
    for path in tmp_path.iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(vf.RunError, match="cannot be read"):
        CheckpointSlots(tmp_path).read()


def test_a_checkpoint_takes_one_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slots = written(tmp_path, 2)
    flushed: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda handle: flushed.append("file or folder"))
    monkeypatch.setattr(os, "fdatasync", lambda handle: flushed.append("slot"))
    slots.write(3, state(3), {})
    assert flushed == ["slot"]
