"""Checkpoints that replace each other: a write that is cut anywhere leaves the one before it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import verfedgnn as vf
from verfedgnn.protocol.replica import CheckpointState
from verfedgnn.runs.checkpoint import CHECKPOINT, CheckpointFile, join_states


def state(number: int) -> CheckpointState:
    rows = np.full((40, 3), number, np.float32)
    return CheckpointState({"rows": rows, "counts": np.arange(number)}, {"number": number, "none": None})


def test_the_newest_checkpoint_is_read(tmp_path: Path) -> None:
    checkpoints = CheckpointFile(tmp_path / "new")
    assert checkpoints.read() is None
    for number in (1, 2, 3):
        checkpoints.write(number, state(number), {"seconds": number / 2})
        found = CheckpointFile(tmp_path / "new").read()
        assert found is not None
        assert (found.round, found.values) == (number, {"seconds": number / 2})
        assert found.state.values == state(number).values
        np.testing.assert_array_equal(found.state.arrays["rows"], state(number).arrays["rows"])
    assert [path.name for path in (tmp_path / "new").iterdir()] == [CHECKPOINT]
    assert (tmp_path / "new" / CHECKPOINT).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("rounds", [0, 1])
def test_a_kill_during_a_write_leaves_what_was_there(
    rounds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a kill in the very first checkpoint there is none, and the training starts from nothing."""
    checkpoints = CheckpointFile(tmp_path)
    for number in range(1, rounds + 1):
        checkpoints.write(number, state(number), {})

    def dies(write: Callable[[bytes], object], *_: object) -> None:
        write(b"half a table of contents")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("verfedgnn.runs.checkpoint.write_parts", dies)
        with pytest.raises(KeyboardInterrupt):
            checkpoints.write(rounds + 1, state(rounds + 1), {})
    (tmp_path / f".{CHECKPOINT}.part").write_bytes(b"half")
    found = checkpoints.read()
    assert (0 if found is None else found.round) == rounds
    checkpoints.write(2, state(2), {})
    again = checkpoints.read()
    assert again is not None
    assert again.round == 2


def test_joined_states_come_apart_again(tmp_path: Path) -> None:
    CheckpointFile(tmp_path).write(1, join_states({"a": state(1), "a_b": state(2)}), {})
    found = CheckpointFile(tmp_path).read()
    assert found is not None
    for name, number in {"a": 1, "a_b": 2}.items():
        part = found.part(name)
        assert part.values == state(number).values
        assert part.arrays.keys() == {"rows", "counts"}
        np.testing.assert_array_equal(part.arrays["rows"], state(number).arrays["rows"])


def test_from_a_damaged_file_the_run_cannot_resume(tmp_path: Path) -> None:
    CheckpointFile(tmp_path).write(1, state(1), {})
    whole = (tmp_path / CHECKPOINT).read_bytes()
    for damaged in (whole[:-1], whole[:9], b""):
        (tmp_path / CHECKPOINT).write_bytes(damaged)
        with pytest.raises(vf.RunError, match="cannot be read"):
            CheckpointFile(tmp_path).read()
