"""Counts beyond 32 bits are refused or counted with 64, without arrays of that size."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import verfedgnn as vf
from verfedgnn.core.graph import MOST_EDGES, build_graph
from verfedgnn.data.ids import find_positions, number_ids, sort_ids, sort_numbered


def test_more_edges_than_a_graph_counts_are_refused_before_any_work() -> None:
    """Row pointers have 32 bits and would wrap silently. The array has no memory: all its edges are one."""
    edges = np.broadcast_to(np.int32(0), MOST_EDGES + 1)
    with pytest.raises(vf.DataError, match=r"2,147,483,648 ratings are more than .* divide the items"):
        build_graph(edges, edges, users=1, items=1)


def test_ids_have_wide_offsets() -> None:
    """They are counted with 64 bits, since a column may have more than 2 GiB."""
    column = pa.chunked_array([["b", "a", None], ["c", "a"]], pa.string())
    codes, ids = number_ids(column.drop_null(), "user")
    assert ids.type == pa.large_string()
    codes, sorted_ids = sort_numbered(codes, ids)
    assert (codes.tolist(), sorted_ids.tolist()) == ([1, 0, 2, 0], ["a", "b", "c"])
    few = np.array(["10", "9", "x"])
    assert find_positions(few, few[::-1]).tolist() == [2, 1, 0]
    assert sort_ids(few[:2]).tolist() == ["9", "10"]
