"""The recommender around an operator: public parameters, propagation, prediction (eq. 1-4)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from verfedgnn.config import ModelConfig
from verfedgnn.gnn.gat import GAT
from verfedgnn.gnn.gcn import GCN
from verfedgnn.gnn.ggnn import GGNN
from verfedgnn.gnn.operator import Operator
from verfedgnn.graph import Graph

OPERATORS: dict[str, type[Operator]] = {cls.name: cls for cls in (GCN, GAT, GGNN)}


@dataclass(frozen=True)
class Propagation:
    """What one forward pass gives."""

    users: Tensor
    """h_u (S, N, D)."""
    items: Tensor
    """h_v (S, M, D)."""
    neighbourhoods: list[Tensor]
    """X^k for k < K, each (S, N, C), detached."""

    def predict(self, user: Tensor, item: Tensor) -> Tensor:
        """h_u . h_v for rows of the flattened (S*N, D) users and (S*M, D) items (eq. 4)."""
        # index_select, not []: its backward adds up in a fixed order on the CPU, so that the same seed gives the same bits.
        return (self.users.flatten(0, 1).index_select(0, user) * self.items.flatten(0, 1).index_select(0, item)).sum(-1)


def typical_rating(scale: tuple[float, float]) -> float:
    """The middle of a rating scale, which first predictions should be near; for a scale around 0, half its reach."""
    low, high = scale
    middle = (low + high) / 2
    return middle if middle > 0 else max(abs(low), abs(high), 1e-6) / 2


def upper_quarter(scale: tuple[float, float]) -> float:
    """The rating from which an item counts as liked: 4 on a scale of 1-5, 8 on 1-10, the paper's thd (App. G)."""
    low, high = scale
    return low + 0.75 * (high - low)


class Model:
    """Shapes and arithmetic of one configuration for N users; it holds no parameters."""

    def __init__(self, config: ModelConfig, users: int) -> None:
        self.config, self.users = config, users
        self.operator = OPERATORS[config.gnn](
            dim=config.dim, layers=config.layers, activation=config.activation, estimators=config.estimators
        )
        self.shapes: dict[str, tuple[int, ...]] = {
            "users": (users, config.dim),
            "mix": (config.layers + 1,),
            **self.operator.weights(),
        }

    @property
    def size(self) -> int:
        """Number of public parameters."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    @property
    def user_size(self) -> int:
        """How many of them are user embeddings; they come first."""
        return math.prod(self.shapes["users"])

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """The public parameters by name, as views of one flat vector (..., size)."""
        sizes = [math.prod(shape) for shape in self.shapes.values()]
        parts = torch.split(flat, sizes, -1)
        lead = flat.shape[:-1]
        return {name: part.view(*lead, *shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}

    def initial_public(self, seed: int, typical: float) -> Tensor:
        """Public parameters before the first round, from a seed; `typical` (see `typical_rating`) is public."""
        rng = np.random.default_rng([seed, 1])
        flat = torch.zeros(self.size)
        for name, view in self.views(flat).items():
            if name == "users":
                view.copy_(self.initial_embeddings(rng, self.users))
            elif name == "mix":
                view.fill_(self.config.init_mix * 2 / self.config.layers * math.sqrt(typical / self.config.dim))
            elif not name.endswith("bias"):
                bound = math.sqrt(3 / self.config.dim)
                view.copy_(torch.from_numpy(rng.uniform(-bound, bound, view.shape).astype(np.float32)))
        return flat

    def initial_embeddings(self, rng: np.random.Generator, rows: int) -> Tensor:
        """User or item embeddings before the first round."""
        values = rng.normal(0.0, self.config.init_std, (rows, self.config.dim))
        return torch.from_numpy(values.astype(np.float32))

    def propagate(
        self, public: Mapping[str, Tensor], items: Tensor, graph: Graph, others: Sequence[Tensor] | None
    ) -> Propagation:
        """K layers and their mixture, h = sum_k a_k e^k (eq. 1-3).

        `public` with a leading S, `items` (S, M, D), `others` the other parties' X^k, k < K, each (S, N, C), constants.
        """
        users, mix = public["users"], public["mix"]
        weights = {name: value for name, value in public.items() if name not in ("users", "mix")}
        share = mix.view(*mix.shape, 1, 1).unbind(1)
        h_users, h_items = share[0] * users, share[0] * items
        neighbourhoods = []
        for k in range(self.config.layers):
            own, users, items = self.operator.layer(k, weights, users, items, graph, others[k] if others else None)
            neighbourhoods.append(own.own.detach())
            h_users = h_users + share[k + 1] * users
            h_items = h_items + share[k + 1] * items
        return Propagation(h_users, h_items, neighbourhoods)
