"""The recommender around an operator: its parameters, propagation, prediction (eq. 1-4, and docs/model.md)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from verfedgnn import plugins
from verfedgnn.config.model_forms import ModelConfig
from verfedgnn.core.graph import Graph
from verfedgnn.core.random_streams import SharedStream, shared_generator
from verfedgnn.core.rating_scale import upper_quarter
from verfedgnn.core.vectors import clip_rows
from verfedgnn.gnn.gat import GAT
from verfedgnn.gnn.gcn import GCN
from verfedgnn.gnn.ggnn import GGNN
from verfedgnn.gnn.message_operators import MessageGAT, MessageGCN, MessageGGNN
from verfedgnn.gnn.neighbourhood_generator import NeighbourhoodGenerator
from verfedgnn.gnn.operator import Operator, Others
from verfedgnn.gnn.rater_model import RaterModel
from verfedgnn.gnn.solved_layout import SolvedLayout

OPERATORS: dict[str, dict[str, type[Operator]]] = {
    "propagation": {cls.name: cls for cls in (GCN, GAT, GGNN)},
    "messages": {cls.name: cls for cls in (MessageGCN, MessageGAT, MessageGGNN)},
}
"""Built-in operators by model form and GNN. Form `factors` has none of its own and never calls one."""


@dataclass(frozen=True)
class Propagation:
    """Result of one forward pass."""

    users: Tensor
    """h_u (S, N, D). With biases (h_u, b_u, 1), so that a prediction is always a product."""
    items: Tensor
    """h_v (S, M, D). With biases (h_v, 1, b_v)."""
    neighbourhoods: list[Tensor]
    """X^k for k < K, each (S, N, C)."""
    penalty: Tensor | None = None
    """Squared distance of generated neighbourhoods from the others' true ones, to be added to the loss."""
    raters: Sequence[tuple[Tensor, Tensor]] = ()
    """Users and items of the second model (`RaterModel`), which is trained beside the first, for each of its reads."""

    @property
    def served(self) -> tuple[Tensor, Tensor]:
        """Vectors of users and items that predict: those of the model, or the average of two models as one product."""
        if not self.raters:
            return self.users, self.items
        users, items = self.raters[0]
        return torch.cat([self.users, users], -1), torch.cat([self.items, items], -1) / 2

    def predict(self, user: Tensor, item: Tensor) -> Tensor:
        """Return h_u . h_v for rows of the flattened users and items (eq. 4)."""
        # The backward of index_select adds in a fixed order on the CPU, that of [] does not.
        return (
            self.users.flatten(0, 1).index_select(0, user) * self.items.flatten(0, 1).index_select(0, item)
        ).sum(-1)


def neighbour_from(config: ModelConfig, scale: tuple[float, float]) -> float:
    """Return the rating from which an item is a neighbour: as configured, or from the rating scale."""
    if config.threshold is None:
        return upper_quarter(scale)
    return scale[0] if config.threshold == "all" else config.threshold


def plugin_operator(gnn: str, form: str) -> type[Operator]:
    """Return the operator that a plug-in registered for a GNN and a model form."""
    found = plugins.load_gnn(gnn, form)
    assert issubclass(found, Operator), "the registry takes nothing else"
    return found


class Model:
    """Shapes and arithmetic of one configuration for N users. It holds no parameters."""

    def __init__(self, config: ModelConfig, users: int) -> None:
        self.config = config
        self.users = users
        self.generator = NeighbourhoodGenerator(config.dim, config.layers) if config.generator else None
        built_in = OPERATORS.get(config.form, OPERATORS["propagation"]).get(config.gnn)
        self.operator: Operator = (built_in or plugin_operator(config.gnn, config.form))(
            dim=config.dim,
            layers=config.layers,
            activation=config.activation,
            estimators=config.estimators,
            hears_itself=config.own_messages,
        )
        self.shapes: dict[str, tuple[int, ...]] = {"users": (users, config.dim)}
        """Shapes of the public parameters by name."""
        if config.biases and config.form != "solved":
            self.shapes["user_bias"] = (users, 1)
        self.solved = SolvedLayout(users, config) if config.form == "solved" else None
        """Layout of the public parameters of a model that is solved; None for one that is trained by gradients."""
        if self.solved is not None:
            self.shapes = self.solved.per_user
        self.raters = RaterModel(config.raters) if config.raters and self.solved is None else None
        if self.raters is not None:
            self.shapes |= self.raters.per_user(users)
        self.per_user = tuple(self.shapes)
        """Names of the public parameters that have a row per user."""
        self.user_size = sum(math.prod(shape) for shape in self.shapes.values())
        """Number of public parameters that belong to users. They come first."""
        if config.form == "propagation":
            self.shapes["mix"] = (config.layers + 1,)
        if self.solved is not None:
            self.shapes["sums"] = (self.solved.slots,)
        elif config.form != "factors":
            self.shapes |= self.operator.weights()
        if self.generator is not None:
            self.shapes |= self.generator.weights()
        if self.raters is not None:
            self.shapes |= self.raters.weights()
        self.size = sum(math.prod(shape) for shape in self.shapes.values())
        """Number of public parameters."""
        self.private_per_item: dict[str, int] = {
            "items": config.dim if self.solved is None else self.solved.columns
        }
        """Columns of each private parameter that has a row per item of the party."""
        if config.form == "messages":
            self.private_per_item["messages"] = config.dim
        if config.biases and self.solved is None:
            self.private_per_item["item_bias"] = 1
        if self.raters is not None:
            self.private_per_item["rater_item_bias"] = 1
        self.private_per_user: dict[str, int] = {}
        """Columns of each private parameter that has a row per user."""
        if config.residual:
            self.private_per_user["own_users"] = config.dim
            if config.biases:
                self.private_per_user["own_user_bias"] = 1

    def private_shapes(self, items: int) -> dict[str, tuple[int, int]]:
        """Return the shapes of the private parameters of a party with `items` items: per item, then per user."""
        per_item = {name: (items, columns) for name, columns in self.private_per_item.items()}
        home = {} if self.solved is None else {"home": (1, self.solved.columns + 2)}
        return (
            per_item | {name: (self.users, columns) for name, columns in self.private_per_user.items()} | home
        )

    def map_private_users(
        self, private: Mapping[str, Tensor], change: Callable[[Tensor], Tensor]
    ) -> dict[str, Tensor]:
        """Apply `change` to the private parameters (or gradients) that have a row per user; leave the others as they are."""
        return {
            name: change(value) if name in self.private_per_user else value for name, value in private.items()
        }

    def map_public_users(self, flat: Tensor, change: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        """Split flat public parameters by name and apply `change` to those that have a row per user."""
        return {
            name: change(view) if name in self.per_user else view for name, view in self.views(flat).items()
        }

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the public parameters by name, as views of one flat vector (..., size)."""
        sizes = [math.prod(shape) for shape in self.shapes.values()]
        parts = torch.split(flat, sizes, -1)
        lead = flat.shape[:-1]
        return {
            name: part.view(*lead, *shape)
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }

    def flat(self, views: Mapping[str, Tensor]) -> Tensor:
        """Concatenate public parameters by name into one flat vector (size,)."""
        return torch.cat([views[name].reshape(-1) for name in self.shapes])

    def initial_public(self, seed: int, typical: float) -> Tensor:
        """Draw the public parameters before the first round; `typical` (see `typical_rating`) is public."""
        rng = shared_generator(seed, SharedStream.PUBLIC_PARAMETERS)
        flat = torch.zeros(self.size)
        if self.solved is not None:
            self.solved.draw(self.views(flat), rng)
            return flat
        for name, view in self.views(flat).items():
            if name == "users":
                view.copy_(self.initial_embeddings(rng, self.users, typical))
            elif name == "mix":
                view.fill_(
                    self.config.init_mix * 2 / self.config.layers * math.sqrt(typical / self.config.dim)
                )
            elif self.raters is not None and name.startswith("rater_"):
                view.copy_(
                    torch.from_numpy(self.raters.initial(name, tuple(view.shape), rng, self.config.init_std))
                )
            elif name != "user_bias":
                view.copy_(torch.from_numpy(self.operator.initial(name, tuple(view.shape), rng)))
        return flat

    def initial_private(self, rng: np.random.Generator, items: int, typical: float) -> dict[str, Tensor]:
        """Draw the private parameters before the first round: random item embeddings, the rest 0."""
        private = {name: torch.zeros(shape) for name, shape in self.private_shapes(items).items()}
        if self.solved is not None:
            return private
        return private | {"items": self.initial_embeddings(rng, items, typical)}

    def initial_embeddings(self, rng: np.random.Generator, rows: int, typical: float) -> Tensor:
        """Draw user or item embeddings. Factors without biases start where they predict the typical rating."""
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
        read: Tensor | None = None,
    ) -> Propagation:
        """Compute h_u and h_v.

        Propagation mixes K layers, h = sum_k a_k e^k (eq. 1-3). Messages have one layer. Factors are e_u and e_v themselves.
        `public` and `private` have a leading dimension S. `others` are the other parties' X^k for k < K, each (S, N, C); no
        gradient flows into them. `read` holds the weights of the edges in each read of the second model (reads, E); None for one read
        of all edges.
        """
        if self.config.form == "factors":
            return self._with_own(public, private, public["users"], private["items"], [])
        if self.config.form == "messages":
            own, users, _ = self.operator.layer(
                0, public, public["users"], private["messages"], graph, others[0] if others else None
            )
            out = self._with_own(public, private, users, private["items"], [own.own])
            if self.raters is None:
                return out
            reads = [None] if read is None else read.unbind()
            return replace(
                out, raters=[self.raters.propagate(public, private, graph, weights) for weights in reads]
            )
        users, items, mix = public["users"], private["items"], public["mix"]
        share = mix.view(*mix.shape, 1, 1).unbind(1)
        h_users, h_items = share[0] * users, share[0] * items
        neighbourhoods: list[Tensor] = []
        penalties: list[Tensor] = []
        for k in range(self.config.layers):
            received: Others = others[k] if others else None
            if self.generator is not None:
                received = self.generator.bind(k, public, users, graph, received, penalties)
            own, users, items = self.operator.layer(k, public, users, items, graph, received)
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
        """Add the party's private user embeddings, and the biases as columns."""
        if self.config.residual:
            users = users + private["own_users"]
        if self.config.biases:
            bias = public["user_bias"]
            bias = bias + private["own_user_bias"] if self.config.residual else bias
            item_bias = private["item_bias"]
            users = torch.cat([users, bias, torch.ones_like(bias)], -1)
            items = torch.cat([items, torch.ones_like(item_bias), item_bias], -1)
        return Propagation(users, items, neighbourhoods)
