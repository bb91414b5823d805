"""A party's bipartite graph of users and items, and the sums over neighbours that all models use."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.core.errors import DataError

# torch warns once per process; we use only products of CSR and dense matrices, which are long established.
warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta", category=UserWarning)

MOST_EDGES = 2**31 - 1
"""Number of edges that a graph holds at most: torch multiplies sparse matrices with 32-bit row pointers only."""


@dataclass(frozen=True, eq=False)
class Graph:
    """The edges of a party, sorted by user and by item.

    Shapes: N users, M items, E edges.
    """

    users: int
    items: int
    by_user: tuple[Tensor, Tensor]
    """Row pointers (N + 1) and item columns (E), both int32: the adjacency A as CSR."""
    by_item: tuple[Tensor, Tensor]
    """Row pointers (M + 1) and user columns (E), both int32: the transpose of A as CSR."""
    order: Tensor
    """Position in `by_user` of each edge of `by_item` (E)."""
    user_degree: Tensor
    """N_u^p, the number of each user's neighbours at the party (N, 1)."""
    item_degree: Tensor
    """N_v, the number of each item's neighbours (M, 1); at least 1, so that it can be a divisor."""
    ratio: Tensor
    """sum_i M_i / M_p, the factor of the party-side estimators E_p(.) (Sec. 4.3), a scalar."""
    values: Tensor | None = None
    """What an item reads of each rating, in `by_user` order (E); None if the model reads only that there is one."""

    @cached_property
    def edge_users(self) -> Tensor:
        """The user row of each edge, in `by_user` order."""
        pointers, columns = self.by_user
        rows = torch.arange(len(pointers) - 1, device=columns.device, dtype=columns.dtype)
        return torch.repeat_interleave(rows, pointers.diff())

    @cached_property
    def adjacency(self) -> tuple[Tensor, Tensor]:
        """A (N, M) and its transpose; every edge has the value 1."""
        ones = torch.ones(len(self.order), device=self.order.device)
        shape = self.users, self.items
        return (
            torch.sparse_csr_tensor(*self.by_user, ones, shape, check_invariants=False),
            torch.sparse_csr_tensor(*self.by_item, ones, shape[::-1], check_invariants=False),
        )

    def multiply(self, dense: Tensor, weights: Tensor | None, *, transposed: bool) -> Tensor:
        """Return the product of A, or of its transpose, with a dense matrix; `weights` (E,) are values of the edges, by default 1."""
        if weights is None:
            return self.adjacency[transposed] @ dense
        pointers, columns = self.by_item if transposed else self.by_user
        values = weights.index_select(0, self.order) if transposed else weights
        shape = len(pointers) - 1, dense.shape[0]
        return torch.sparse_csr_tensor(pointers, columns, values, shape, check_invariants=False) @ dense

    def multiply_along_edges(self, users: Tensor, items: Tensor) -> Tensor:
        """Return x_u . x_v for every edge (E,)."""
        products: Tensor = torch.sparse.sampled_addmm(self.adjacency[0], users, items.T, beta=0.0).values()
        return products

    def sum_items(self, items: Tensor, weights: Tensor | None = None) -> Tensor:
        """Sum weights_uv x_v over the neighbours v of each user: (M, C) -> (N, C)."""
        out: Tensor = _NeighbourSum.apply(self, items, weights, False)  # type: ignore[no-untyped-call]
        return out

    def sum_users(self, users: Tensor, weights: Tensor | None = None) -> Tensor:
        """Sum weights_uv x_u over the neighbours u of each item: (N, C) -> (M, C)."""
        out: Tensor = _NeighbourSum.apply(self, users, weights, True)  # type: ignore[no-untyped-call]
        return out

    def products(self, users: Tensor, items: Tensor) -> Tensor:
        """Return x_u . x_v for every edge, in `by_user` order: (N, C), (M, C) -> (E,)."""
        out: Tensor = _EdgeProducts.apply(self, users, items)  # type: ignore[no-untyped-call]
        return out


class _EdgeProducts(torch.autograd.Function):
    """Inner products along edges: a sampled dense product forward, two sparse products backward.

    No row per edge is materialised.
    """

    @staticmethod
    def forward(ctx: Any, graph: Graph, users: Tensor, items: Tensor) -> Tensor:
        ctx.graph = graph
        ctx.save_for_backward(users, items)
        return graph.multiply_along_edges(users, items)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor, Tensor]:
        users, items = ctx.saved_tensors
        grad = grads[0].contiguous()
        return (
            None,
            ctx.graph.multiply(items, grad, transposed=False),
            ctx.graph.multiply(users, grad, transposed=True),
        )


class _NeighbourSum(torch.autograd.Function):
    """The product A x or A^T x with optional trainable edge weights (E,), sparse in both directions."""

    @staticmethod
    def forward(ctx: Any, graph: Graph, dense: Tensor, weights: Tensor | None, transposed: bool) -> Tensor:
        ctx.graph = graph
        ctx.transposed = transposed
        ctx.save_for_backward(dense, weights)
        return graph.multiply(dense, weights, transposed=transposed)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor | None, Tensor | None, None]:
        graph = ctx.graph
        dense, weights = ctx.saved_tensors
        grad = grads[0].contiguous()
        to_dense = (
            graph.multiply(grad, weights, transposed=not ctx.transposed) if ctx.needs_input_grad[1] else None
        )
        to_weights = None
        if ctx.needs_input_grad[2]:
            of_user, of_item = (dense, grad) if ctx.transposed else (grad, dense)
            to_weights = graph.multiply_along_edges(of_user, of_item)
        return None, to_dense, to_weights, None


def check_edges(count: int) -> None:
    """Raise `DataError` if a graph would have more edges than 32-bit row pointers can count."""
    if count > MOST_EDGES:
        raise DataError(
            f"{count:,} ratings are more than the {MOST_EDGES:,} that one graph holds; divide the items among several parties, "
            "or leave out old ratings"
        )


def build_graph(
    user: NDArray[np.integer[Any]],
    item: NDArray[np.integer[Any]],
    *,
    users: int,
    items: int,
    ratio: float = 1.0,
    values: NDArray[np.floating[Any]] | None = None,
) -> Graph:
    """Build the graph of one party from the user, the item and, if read, the value of each edge. Each pair must occur at most once."""
    check_edges(len(user))
    by_user_order = np.lexsort((item, user))
    user, item = user[by_user_order], item[by_user_order]
    by_item_order = np.argsort(item, kind="stable")
    user_count = np.bincount(user, minlength=users)
    item_count = np.bincount(item, minlength=items)
    return Graph(
        users=users,
        items=items,
        by_user=_csr_rows(user_count, item),
        by_item=_csr_rows(item_count, user[by_item_order]),
        order=torch.from_numpy(by_item_order.astype(np.int64)),
        user_degree=torch.from_numpy(user_count.astype(np.float32)).view(users, 1),
        item_degree=torch.from_numpy(np.maximum(item_count, 1).astype(np.float32)).view(items, 1),
        ratio=torch.tensor(ratio),
        values=None if values is None else torch.from_numpy(values[by_user_order].astype(np.float32)),
    )


def move_graph(graph: Graph, device: torch.device) -> Graph:
    """Move a graph to `device`."""

    def move(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(move, value))
        return value.to(device) if isinstance(value, Tensor) else value

    return replace(graph, **{part.name: move(getattr(graph, part.name)) for part in fields(graph)})


def _csr_rows(counts: NDArray[np.integer[Any]], columns: NDArray[np.integer[Any]]) -> tuple[Tensor, Tensor]:
    pointers = np.append(0, np.cumsum(counts))
    return torch.from_numpy(pointers.astype(np.int32)), torch.from_numpy(columns.astype(np.int32))


def clip_rows(x: Tensor, bound: float) -> Tensor:
    """Shorten every row of `x` (..., C) to an l2 norm of at most `bound`."""
    clipped: Tensor = x * (bound / x.norm(dim=-1, keepdim=True).clamp(min=bound))
    return clipped
