"""A party's bipartite graph of users and items, and the sums over neighbours that all three GNNs use.

A graph can hold a stack of S parties. They have the same N users and their own items, padded to the same
number M. The adjacency of a stack is block-diagonal: one product serves all parties, and no party sees
another's edges.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.core.errors import DataError
from verfedgnn.core.worker_group import WorkerGroup, sum_over_workers

# torch warns once per process; we use only products of CSR and dense matrices, which are long established.
warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta", category=UserWarning)

MOST_EDGES = 2**31 - 1
"""Number of edges that a graph holds at most: torch multiplies sparse matrices with 32-bit row pointers only."""


@dataclass(frozen=True, eq=False)
class Graph:
    """The edges of S parties, sorted by user and by item.

    Shapes: S parties, N users, M items (padded), E edges in all.
    """

    parties: int
    users: int
    items: int
    by_user: tuple[Tensor, Tensor]
    """Row pointers (S*N + 1) and item columns (E), both int32: the adjacency A as CSR."""
    by_item: tuple[Tensor, Tensor]
    """Row pointers (S*M + 1) and user columns (E), both int32: the transpose of A as CSR."""
    order: Tensor
    """Position in `by_user` of each edge of `by_item` (E)."""
    user_degree: Tensor
    """N_u^p, the number of each user's neighbours at the party (S, N, 1)."""
    item_degree: Tensor
    """N_v, the number of each item's neighbours (S, M, 1); at least 1, so that it can be a divisor."""
    ratio: Tensor
    """sum_i M_i / M_p, the factor of the party-side estimators E_p(.) (Sec. 4.3), (S, 1, 1)."""
    values: Tensor | None = None
    """What an item reads of each rating, in `by_user` order (E); None if the model reads only that there is one."""
    workers: WorkerGroup | None = None
    """The workers among whom the users are divided; None if all users are here. Sums over users are then sums over all workers."""
    _estimated: dict[Callable[[Tensor], Tensor], Tensor] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def edge_users(self) -> Tensor:
        """The user row (in S*N) of each edge, in `by_user` order."""
        pointers, columns = self.by_user
        rows = torch.arange(len(pointers) - 1, device=columns.device, dtype=columns.dtype)
        return torch.repeat_interleave(rows, pointers.diff())

    @cached_property
    def adjacency(self) -> tuple[Tensor, Tensor]:
        """A (S*N, S*M) and its transpose; every edge has the value 1."""
        ones = torch.ones(len(self.order), device=self.order.device)
        rows = self.parties * self.users
        columns = self.parties * self.items
        return _csr(*self.by_user, ones, (rows, columns)), _csr(*self.by_item, ones, (columns, rows))

    def estimated(self, normalise: Callable[[Tensor], Tensor]) -> Tensor:
        """Return f(E_p(N_u)) with E_p(N_u) = (sum_i M_i / M_p) N_u^p (Sec. 4.3): (S, N, 1).

        The result is cached per function.
        """
        if normalise not in self._estimated:
            self._estimated[normalise] = normalise(self.ratio * self.user_degree)
        return self._estimated[normalise]

    def sum_items(self, items: Tensor, weights: Tensor | None = None) -> Tensor:
        """Sum weights_uv x_v over the neighbours v of each user: (S, M, C) -> (S, N, C)."""
        out: Tensor = _NeighbourSum.apply(self, items.reshape(self.parties * self.items, -1), weights, False)  # type: ignore[no-untyped-call]
        return out.view(self.parties, self.users, -1)

    def sum_users(self, users: Tensor, weights: Tensor | None = None) -> Tensor:
        """Sum weights_uv x_u over the neighbours u of each item: (S, N, C) -> (S, M, C)."""
        out: Tensor = _NeighbourSum.apply(self, users.reshape(self.parties * self.users, -1), weights, True)  # type: ignore[no-untyped-call]
        if self.workers is not None:
            out = sum_over_workers(out, self.workers)
        return out.view(self.parties, self.items, -1)

    def products(self, users: Tensor, items: Tensor) -> Tensor:
        """Return x_u . x_v for every edge, in `by_user` order: (S, N, C), (S, M, C) -> (E,)."""
        flat = users.reshape(self.parties * self.users, -1), items.reshape(self.parties * self.items, -1)
        out: Tensor = _EdgeProducts.apply(self, *flat)  # type: ignore[no-untyped-call]
        return out


class _EdgeProducts(torch.autograd.Function):
    """Inner products along edges: a sampled dense product forward, two sparse products backward.

    No row per edge is materialised.
    """

    @staticmethod
    def forward(ctx: Any, graph: Graph, users: Tensor, items: Tensor) -> Tensor:
        ctx.graph = graph
        ctx.save_for_backward(users, items)
        return _multiply_along_edges(graph, users, items)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor, Tensor]:
        users, items = ctx.saved_tensors
        grad = grads[0].contiguous()
        return None, _multiply(ctx.graph, items, grad, False), _multiply(ctx.graph, users, grad, True)


class _NeighbourSum(torch.autograd.Function):
    """The product A x or A^T x with optional trainable edge weights (E,), sparse in both directions."""

    @staticmethod
    def forward(ctx: Any, graph: Graph, dense: Tensor, weights: Tensor | None, transposed: bool) -> Tensor:
        ctx.graph = graph
        ctx.transposed = transposed
        ctx.save_for_backward(dense, weights)
        return _multiply(graph, dense, weights, transposed)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor | None, Tensor | None, None]:
        graph = ctx.graph
        dense, weights = ctx.saved_tensors
        grad = grads[0].contiguous()
        to_dense = _multiply(graph, grad, weights, not ctx.transposed) if ctx.needs_input_grad[1] else None
        to_weights = None
        if ctx.needs_input_grad[2]:
            of_user, of_item = (dense, grad) if ctx.transposed else (grad, dense)
            to_weights = _multiply_along_edges(graph, of_user, of_item)
        return None, to_dense, to_weights, None


def _multiply_along_edges(graph: Graph, users: Tensor, items: Tensor) -> Tensor:
    """Return x_u . x_v for every edge (E,)."""
    products: Tensor = torch.sparse.sampled_addmm(graph.adjacency[0], users, items.T, beta=0.0).values()
    return products


def _multiply(graph: Graph, dense: Tensor, weights: Tensor | None, transposed: bool) -> Tensor:
    if weights is None:
        return graph.adjacency[transposed] @ dense
    pointers, columns = graph.by_item if transposed else graph.by_user
    values = weights.index_select(0, graph.order) if transposed else weights
    return _csr(pointers, columns, values, (len(pointers) - 1, dense.shape[0])) @ dense


def _csr(pointers: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    return torch.sparse_csr_tensor(pointers, columns, values, shape, check_invariants=False)


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
    user = user[by_user_order]
    item = item[by_user_order]
    by_item_order = np.argsort(item, kind="stable")
    user_count = np.bincount(user, minlength=users)
    item_count = np.bincount(item, minlength=items)
    return Graph(
        parties=1,
        users=users,
        items=items,
        by_user=(_pointers(user_count), _int32(item)),
        by_item=(_pointers(item_count), _int32(user[by_item_order])),
        order=torch.from_numpy(by_item_order.astype(np.int64)),
        user_degree=torch.from_numpy(user_count.astype(np.float32)).view(1, users, 1),
        item_degree=torch.from_numpy(np.maximum(item_count, 1).astype(np.float32)).view(1, items, 1),
        ratio=torch.full((1, 1, 1), ratio),
        values=None if values is None else torch.from_numpy(values[by_user_order].astype(np.float32)),
    )


def restrict_graph(graph: Graph, users: slice | Tensor) -> Graph:
    """Restrict a graph (S = 1) to `users`, in ascending order.

    Items keep their numbers and their full degrees.
    """
    pointers, columns = (part.cpu().numpy() for part in graph.by_user)
    rows = users if isinstance(users, slice) else users.cpu().numpy()
    degree = np.diff(pointers)
    chosen = np.zeros(graph.users, bool)
    chosen[rows] = True
    count = int(chosen.sum())
    user = np.repeat(np.arange(count), degree[rows])
    edges = np.repeat(chosen, degree)
    values = None if graph.values is None else graph.values.cpu().numpy()[edges]
    part = build_graph(user, columns[edges], users=count, items=graph.items, values=values)
    return replace(
        move_graph(part, graph.order.device),
        item_degree=graph.item_degree,
        ratio=graph.ratio,
        workers=graph.workers,
    )


def stack_graphs(graphs: Sequence[Graph]) -> Graph:
    """Stack the graphs of several parties (each S = 1) into one block-diagonal graph.

    Items are padded to the number of the largest party.
    """
    if len(graphs) == 1:
        return graphs[0]
    users = graphs[0].users
    items = max(g.items for g in graphs)
    edges = [len(g.order) for g in graphs]
    check_edges(sum(edges))
    starts = np.concatenate([[0], np.cumsum(edges)])
    user_pointers = []
    item_columns = []
    item_pointers = []
    user_columns = []
    order = []
    for p, (g, start) in enumerate(zip(graphs, starts[:-1].tolist(), strict=True)):
        user_pointers.append(g.by_user[0][:-1] + start)
        item_columns.append(g.by_user[1] + p * items)
        padding = g.by_item[0].new_full((items - g.items,), start + len(g.order))
        item_pointers += [g.by_item[0][:-1] + start, padding]
        user_columns.append(g.by_item[1] + p * users)
        order.append(g.order + start)
    end = user_pointers[0].new_tensor([starts[-1]])
    return Graph(
        parties=len(graphs),
        users=users,
        items=items,
        by_user=(torch.cat([*user_pointers, end]), torch.cat(item_columns)),
        by_item=(torch.cat([*item_pointers, end]), torch.cat(user_columns)),
        order=torch.cat(order),
        user_degree=torch.cat([g.user_degree for g in graphs]),
        item_degree=pad_items([g.item_degree[0] for g in graphs], items, 1.0),
        ratio=torch.cat([g.ratio for g in graphs]),
        values=_join_values(graphs),
    )


def _join_values(graphs: Sequence[Graph]) -> Tensor | None:
    values = [g.values for g in graphs if g.values is not None]
    return torch.cat(values) if values else None


def pad_items(rows: Sequence[Tensor], items: int, value: float = 0.0) -> Tensor:
    """Stack the item rows (M_p, C) of S parties into (S, items, C), padded with `value`."""
    if len(rows) == 1 and len(rows[0]) == items:
        return rows[0].unsqueeze(0)
    out = rows[0].new_full((len(rows), items, rows[0].shape[1]), value)
    for place, row in zip(out, rows, strict=True):
        place[: len(row)] = row
    return out


def move_graph(graph: Graph, device: torch.device) -> Graph:
    """Move a graph to `device`."""
    tensors = ("order", "user_degree", "item_degree", "ratio")
    return replace(
        graph,
        by_user=(graph.by_user[0].to(device), graph.by_user[1].to(device)),
        by_item=(graph.by_item[0].to(device), graph.by_item[1].to(device)),
        **{name: getattr(graph, name).to(device) for name in tensors},
        values=None if graph.values is None else graph.values.to(device),
    )


def _pointers(counts: NDArray[np.integer[Any]]) -> Tensor:
    return _int32(np.concatenate([[0], np.cumsum(counts)]))


def _int32(values: NDArray[np.integer[Any]]) -> Tensor:
    return torch.from_numpy(values.astype(np.int32))
