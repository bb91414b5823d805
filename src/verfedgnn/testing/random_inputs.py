"""Small random graphs and parameters for testing an operator alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from verfedgnn.core.graph import Graph, build_graph
from verfedgnn.gnn.model import Model

USERS = 14
ITEMS = 9


def small_edges(seed: int = 3, items: int = ITEMS) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Draw users and items that are neighbours."""
    user, item = np.nonzero(np.random.default_rng(seed).random((USERS, items)) < 0.4)
    return user, item


def small_graph(seed: int = 3, items: int = ITEMS) -> Graph:
    """Return the graph of a party that holds half of all items."""
    return build_graph(*small_edges(seed, items), users=USERS, items=items, ratio=2.0)


def drawn(shape: tuple[int, ...], seed: int, spread: float = 0.5) -> Tensor:
    """Draw normal numbers of the default dtype."""
    return torch.from_numpy(np.random.default_rng(seed).normal(0, spread, shape)).to(
        torch.get_default_dtype()
    )


def drawn_public(model: Model) -> dict[str, Tensor]:
    """Draw public parameters near their initial values, none of them 0."""
    views = model.views(model.initial_public(1, 3.0))
    near = {
        name: value + drawn(tuple(value.shape), 7 + i, 0.1) for i, (name, value) in enumerate(views.items())
    }
    return near


def drawn_private(model: Model) -> dict[str, Tensor]:
    """Draw private parameters, none of them 0."""
    shapes = model.private_shapes(ITEMS)
    return {name: drawn(shape, 20 + i) for i, (name, shape) in enumerate(shapes.items())}


def drawn_others(model: Model) -> list[Tensor]:
    """Draw the neighbourhoods that others sent, X^k for every layer."""
    shape = (USERS, model.operator.columns)
    return [drawn(shape, 30 + k).abs() for k in range(model.operator.layers)]


@contextmanager
def double() -> Iterator[None]:
    """Make 64-bit floats the default inside the block."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def double_graph(graph: Graph) -> Graph:
    """Return the same graph in 64 bits."""
    return replace(
        graph,
        user_degree=graph.user_degree.double(),
        item_degree=graph.item_degree.double(),
        ratio=graph.ratio.double(),
    )
