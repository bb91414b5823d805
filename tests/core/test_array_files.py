"""Arrays as safetensors without the library: the same bytes, and no second copy of the arrays in memory."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from verfedgnn.core import array_files
from verfedgnn.core.array_files import ArrayFile, make_table, read_arrays, view_arrays, write_arrays
from verfedgnn.protocol.replica import CheckpointState
from verfedgnn.runs.checkpoint import CHECKPOINT, CheckpointFile

SAMPLES: dict[str, np.ndarray[Any, Any]] = {
    "rows": np.arange(6, dtype=np.float32).reshape(3, 2),
    "signs": np.array([-1, 0, 1], np.int8),
    "scalar": np.array(7, np.int64),
    "empty": np.zeros((2, 0), np.float32),
    "ünicode": np.array([True, False]),
    "turned": np.arange(6, dtype=np.uint16).reshape(2, 3).T,
    "double": np.array([1.5]),
}


def test_the_library_reads_what_is_written_and_the_other_way_round(tmp_path: Path) -> None:
    write_arrays(tmp_path / "ours", SAMPLES)
    (tmp_path / "theirs").write_bytes(
        safetensors.numpy.save({k: np.ascontiguousarray(v) for k, v in SAMPLES.items()})
    )
    theirs = safetensors.numpy.load((tmp_path / "ours").read_bytes())
    views = view_arrays(memoryview((tmp_path / "ours").read_bytes()))
    for found in (theirs, views, read_arrays(tmp_path / "theirs"), read_arrays(tmp_path / "ours")):
        assert set(found) == set(SAMPLES)
        for name, value in SAMPLES.items():
            assert found[name].dtype == value.dtype
            np.testing.assert_array_equal(found[name], value)


def test_messages_have_the_bytes_of_the_library() -> None:
    arrays = {"b": np.ones((3, 2), np.float32), "a": np.zeros(5, np.uint8), "c": np.zeros(2, np.float32)}
    table, names = make_table(arrays, {"text": "ä"})
    data = table + b"".join(arrays[name].tobytes() for name in names)
    assert data == safetensors.numpy.save(arrays, {"text": "ä"})


def entry(**changes: Any) -> dict[str, Any]:
    return {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes}


@pytest.mark.parametrize(
    "table",
    [
        [],
        {"a": 1},
        {"a": {"dtype": "F32"}},
        entry(dtype="F99"),
        entry(dtype=["F32"]),
        entry(shape=[3]),
        entry(shape=[-2]),
        entry(shape=[2.0]),
        entry(shape=[True, 2]),
        entry(shape=[1 << 62, 1 << 62]),
        entry(shape=[1] * 40 + [2]),
        entry(data_offsets=[4, 12]),
        entry(data_offsets=[8, 0]),
        entry(data_offsets=[0]),
        entry(more=1),
        entry() | {"b": entry()["a"]},
        entry() | {"__metadata__": 3},
        entry() | {"__metadata__": {"x": 3}},
        {},
    ],
)
def test_a_table_that_does_not_fit_its_data_is_refused(table: Any, tmp_path: Path) -> None:
    check_refused(json.dumps(table).encode(), tmp_path)


@pytest.mark.parametrize("text", [b"", b"x", b"[" * 60_000, b"\xff\xfe", b'{"a":'])
def test_a_table_that_is_none_is_refused(text: bytes, tmp_path: Path) -> None:
    check_refused(text, tmp_path)


def check_refused(text: bytes, folder: Path) -> None:
    data = len(text).to_bytes(8, "little") + text + bytes(8)
    with pytest.raises(ValueError, match=r".+"):
        view_arrays(memoryview(data))
    (folder / "file").write_bytes(data)
    with pytest.raises(ValueError, match=r".+"):
        ArrayFile(folder / "file")


@contextmanager
def takes_at_most(size: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] <= size
    finally:
        tracemalloc.stop()


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> CheckpointState:
    monkeypatch.setattr(array_files, "PART", 1 << 18)
    return CheckpointState({name: np.ones(1 << 20, np.float32) for name in ("best", "parameters")})


def test_a_checkpoint_is_written_and_read_without_a_copy(large: CheckpointState, tmp_path: Path) -> None:
    """Its arrays have 8 MB. They are read one by one."""
    with takes_at_most(1 << 20):
        CheckpointFile(tmp_path).write(1, large, {})
        found = CheckpointFile(tmp_path).read()
    assert found is not None
    with takes_at_most(5 << 20):
        for name, value in large.arrays.items():
            np.testing.assert_array_equal(found.state.arrays[name][:9], value[:9])
    assert (tmp_path / CHECKPOINT).stat().st_size > 8 << 20
