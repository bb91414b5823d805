"""Counts beyond 32 bits are refused or counted with 64, without arrays of that size."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import verfedgnn as vf
from verfedgnn.core.graph import MOST_EDGES, build_graph
from verfedgnn.data import ids
from verfedgnn.data.ids import find_positions, number_ids, sort_ids, sort_numbered


def test_more_edges_than_a_graph_counts_are_refused_before_any_work() -> None:
    """Row pointers have 32 bits and would wrap silently. The array has no memory: all its edges are one."""
    edges = np.broadcast_to(np.int32(0), MOST_EDGES + 1)
    with pytest.raises(vf.DataError, match=r"2,147,483,648 ratings are more than .* divide the items"):
        build_graph(edges, edges, users=1, items=1)


def test_ids_of_more_than_two_gigabytes_have_wide_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the few ids here had 2 GiB: the same codes and positions, counted with 64 bits."""
    column = pa.chunked_array([["b", "a", None], ["c", "a"]], pa.string())
    few = np.array(["10", "9", "x"])
    before = (
        sort_numbered(*number_ids(column.drop_null(), "user")),
        find_positions(few, few[::-1]),
        sort_ids(few),
    )
    monkeypatch.setattr(ids, "MOST_TEXT_BYTES", 0)
    assert ids.encode_unordered(column)[1].type == pa.large_string()
    assert {array.type for array in ids._as_arrow_ids(few, few)} == {pa.large_string()}
    after = (
        sort_numbered(*number_ids(column.drop_null(), "user")),
        find_positions(few, few[::-1]),
        sort_ids(few),
    )
    for then, now in zip(before, after, strict=True):
        np.testing.assert_equal(now, then)
