"""The recommender around an operator: its parameters, propagation, prediction (eq. 1-4, and docs/model.md)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from verfedgnn import plugins
from verfedgnn.config.model_forms import ModelConfig
from verfedgnn.core.graph import Graph
from verfedgnn.core.rating_scale import upper_quarter
from verfedgnn.core.vectors import clip_rows
from verfedgnn.gnn.gat import GAT
from verfedgnn.gnn.gcn import GCN
from verfedgnn.gnn.ggnn import GGNN
from verfedgnn.gnn.message_operators import MessageGAT, MessageGCN, MessageGGNN
from verfedgnn.gnn.neighbourhood_generator import Generator
from verfedgnn.gnn.operator import Operator, Others

OPERATORS: dict[str, dict[str, type[Operator]]] = {
    "propagation": {cls.name: cls for cls in (GCN, GAT, GGNN)},
    "messages": {cls.name: cls for cls in (MessageGCN, MessageGAT, MessageGGNN)},
}
"""The built-in ones by form and GNN; factors have none, and never call theirs."""


@dataclass(frozen=True)
class Propagation:
    """What one forward pass gives."""

    users: Tensor
    """h_u (S, N, D); with biases (h_u, b_u, 1), so that a prediction is always a product."""
    items: Tensor
    """h_v (S, M, D); with biases (h_v, 1, b_v)."""
    neighbourhoods: list[Tensor]
    """X^k for k < K, each (S, N, C)."""
    penalty: Tensor | None = None
    """How far generated neighbourhoods are from the others', to be added to the loss."""

    def predict(self, user: Tensor, item: Tensor) -> Tensor:
        """h_u . h_v for rows of the flattened users and items (eq. 4)."""
        # index_select, not []: its backward adds up in a fixed order on the CPU, so that the same seed gives the same bits.
        return (
            self.users.flatten(0, 1).index_select(0, user) * self.items.flatten(0, 1).index_select(0, item)
        ).sum(-1)


def neighbour_from(config: ModelConfig, scale: tuple[float, float]) -> float:
    """The rating from which an item is a neighbour: as configured, or by the scale."""
    if config.threshold is None:
        return upper_quarter(scale)
    return scale[0] if config.threshold == "all" else config.threshold


def plugin_operator(gnn: str, form: str) -> type[Operator]:
    """Return the operator that a plug-in registered for a GNN and a model form."""
    found = plugins.load_gnn(gnn, form)
    assert issubclass(found, Operator), "the registry takes nothing else"
    return found


class Model:
    """Shapes and arithmetic of one configuration for N users; it holds no parameters."""

    def __init__(self, config: ModelConfig, users: int) -> None:
        self.config, self.users = config, users
        self.generator = Generator(config.dim, config.layers) if config.generator else None
        built_in = OPERATORS.get(config.form, OPERATORS["propagation"]).get(config.gnn)
        self.operator: Operator = (built_in or plugin_operator(config.gnn, config.form))(
            dim=config.dim,
            layers=config.layers,
            activation=config.activation,
            estimators=config.estimators,
            hears_itself=config.own_messages,
        )
        self.shapes: dict[str, tuple[int, ...]] = {"users": (users, config.dim)}
        if config.biases:
            self.shapes["user_bias"] = (users, 1)
        self.per_user = tuple(self.shapes)
        """Names of the public parameters that belong to users."""
        self.user_size = sum(math.prod(shape) for shape in self.shapes.values())
        """How many public parameters belong to users; they come first."""
        if config.form == "propagation":
            self.shapes["mix"] = (config.layers + 1,)
        if config.form != "factors":
            self.shapes |= self.operator.weights()
        if self.generator is not None:
            self.shapes |= self.generator.weights()
        self.size = sum(math.prod(shape) for shape in self.shapes.values())
        """Number of public parameters."""

    def private_shapes(self, items: int) -> dict[str, tuple[int, int]]:
        """Private parameters of a party with so many items: of items first, then of users."""
        config, dim = self.config, self.config.dim
        wanted = {
            "items": ((items, dim), True),
            "messages": ((items, dim), config.form == "messages"),
            "item_bias": ((items, 1), config.biases),
            "own_users": ((self.users, dim), config.residual),
            "own_user_bias": ((self.users, 1), config.residual and config.biases),
        }
        return {name: shape for name, (shape, present) in wanted.items() if present}

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """The public parameters by name, as views of one flat vector (..., size)."""
        sizes = [math.prod(shape) for shape in self.shapes.values()]
        parts = torch.split(flat, sizes, -1)
        lead = flat.shape[:-1]
        return {
            name: part.view(*lead, *shape)
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }

    def flat(self, views: Mapping[str, Tensor]) -> Tensor:
        """One flat vector (size,) of public parameters by name."""
        return torch.cat([views[name].reshape(-1) for name in self.shapes])

    def initial_public(self, seed: int, typical: float) -> Tensor:
        """Public parameters before the first round, from a seed; `typical` (see `typical_rating`) is public."""
        rng = np.random.default_rng([seed, 1])
        flat = torch.zeros(self.size)
        for name, view in self.views(flat).items():
            if name == "users":
                view.copy_(self.initial_embeddings(rng, self.users, typical))
            elif name == "mix":
                view.fill_(
                    self.config.init_mix * 2 / self.config.layers * math.sqrt(typical / self.config.dim)
                )
            elif name != "user_bias":
                view.copy_(torch.from_numpy(self.operator.initial(name, tuple(view.shape), rng)))
        return flat

    def initial_private(self, rng: np.random.Generator, items: int, typical: float) -> dict[str, Tensor]:
        """Private parameters before the first round: random item embeddings, the rest 0."""
        private = {name: torch.zeros(shape) for name, shape in self.private_shapes(items).items()}
        return private | {"items": self.initial_embeddings(rng, items, typical)}

    def initial_embeddings(self, rng: np.random.Generator, rows: int, typical: float) -> Tensor:
        """User or item embeddings before the first round; plain factors start where they predict the typical rating."""
        plain = self.config.form == "factors" and not self.config.biases
        mean = math.sqrt(typical / self.config.dim) if plain else 0.0
        values = torch.from_numpy(
            rng.normal(mean, self.config.init_std, (rows, self.config.dim)).astype(np.float32)
        )
        return values if self.config.bound is None else clip_rows(values, self.config.bound)

    def propagate(
        self,
        public: Mapping[str, Tensor],
        private: Mapping[str, Tensor],
        graph: Graph,
        others: Sequence[Tensor] | None,
    ) -> Propagation:
        """h_u and h_v: K layers and their mixture, h = sum_k a_k e^k (eq. 1-3), one layer of messages, or e_u and e_v.

        `public` and `private` with a leading S; `others` the other parties' X^k, k < K, each (S, N, C), constants.
        """
        if self.config.form == "factors":
            return self._with_own(public, private, public["users"], private["items"], [])
        if self.config.form == "messages":
            own, users, _ = self.operator.layer(
                0, public, public["users"], private["messages"], graph, others[0] if others else None
            )
            return self._with_own(public, private, users, private["items"], [own.own])
        users, items, mix = public["users"], private["items"], public["mix"]
        share = mix.view(*mix.shape, 1, 1).unbind(1)
        h_users, h_items = share[0] * users, share[0] * items
        neighbourhoods: list[Tensor] = []
        penalties: list[Tensor] = []
        for k in range(self.config.layers):
            told: Others = others[k] if others else None
            if self.generator is not None:
                told = self.generator.bind(k, public, users, graph, told, penalties)
            own, users, items = self.operator.layer(k, public, users, items, graph, told)
            neighbourhoods.append(own.own)
            h_users = h_users + share[k + 1] * users
            h_items = h_items + share[k + 1] * items
        out = self._with_own(public, private, h_users, h_items, neighbourhoods)
        return replace(out, penalty=torch.stack(penalties).sum()) if penalties else out

    def _with_own(
        self,
        public: Mapping[str, Tensor],
        private: Mapping[str, Tensor],
        users: Tensor,
        items: Tensor,
        neighbourhoods: list[Tensor],
    ) -> Propagation:
        """Add a party's own user embeddings, and the biases as columns."""
        if self.config.residual:
            users = users + private["own_users"]
        if self.config.biases:
            bias = public["user_bias"]
            bias = bias + private["own_user_bias"] if self.config.residual else bias
            item_bias = private["item_bias"]
            users = torch.cat([users, bias, torch.ones_like(bias)], -1)
            items = torch.cat([items, torch.ones_like(item_bias), item_bias], -1)
        return Propagation(users, items, neighbourhoods)
