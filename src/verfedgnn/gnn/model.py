"""The recommender around an operator: its parameters, propagation, prediction (eq. 1-4, and docs/model.md)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from verfedgnn import plugins
from verfedgnn.config.sections import ModelConfig
from verfedgnn.core.graph import Graph, clip_rows
from verfedgnn.core.random_streams import SharedStream, shared_generator
from verfedgnn.core.rating_scale import upper_quarter
from verfedgnn.gnn import list_model
from verfedgnn.gnn.factor_model import PublicFactors
from verfedgnn.gnn.gat import GAT
from verfedgnn.gnn.gcn import GCN
from verfedgnn.gnn.ggnn import GGNN
from verfedgnn.gnn.list_model import PublicLists
from verfedgnn.gnn.operator import Operator
from verfedgnn.gnn.rater_solver import PublicRaters

OPERATORS: dict[str, type[Operator]] = {cls.name: cls for cls in (GCN, GAT, GGNN)}
"""Built-in operators by GNN."""
INITIAL_STD = 0.1
"""Standard deviation of the initial embeddings."""
LIMBS = 4
"""Small integers that a shared sum travels in (`protocol/solved_round.py`)."""
BYTES = 4
"""Integers of 8 bits that a shared value travels back in."""


@dataclass(frozen=True)
class Propagation:
    """Result of one forward pass."""

    users: Tensor
    """h_u (N, D). With biases (h_u, b_u, 1), so that a prediction is always a product."""
    items: Tensor
    """h_v (M, D). With biases (h_v, 1, b_v)."""
    neighbourhoods: list[Tensor]
    """X^k for k < K, each (N, C)."""

    def predict(self, user: Tensor, item: Tensor) -> Tensor:
        """Return h_u . h_v for rows of users and items (eq. 4)."""
        # The backward of index_select adds in a fixed order on the CPU, that of [] does not.
        return (self.users.index_select(0, user) * self.items.index_select(0, item)).sum(-1)


def neighbour_from(config: ModelConfig, scale: tuple[float, float]) -> float:
    """Return the rating from which an item is a neighbour: as configured, or from the rating scale. Only propagation has one."""
    if config.form != "propagation" or config.threshold == "all":
        return scale[0]
    return upper_quarter(scale) if config.threshold is None else config.threshold


class Model:
    """Shapes and arithmetic of one configuration for N users. It holds no parameters."""

    def __init__(self, config: ModelConfig, users: int) -> None:
        self.config = config
        self.users = users
        self.solved = SolvedLayout(users, config) if config.solved else None
        """Layout of the public parameters of a model that is solved; None for one that is trained by gradients."""
        self.shapes: dict[str, tuple[int, ...]] = {"users": (users, config.dim)}
        """Shapes of the public parameters by name."""
        if self.solved is not None:
            self.shapes = dict(self.solved.per_user)
        elif config.biases:
            self.shapes["user_bias"] = (users, 1)
        self.per_user = tuple(self.shapes)
        """Names of the public parameters that have a row per user."""
        self.user_size = sum(map(math.prod, self.shapes.values()))
        """Number of public parameters that belong to users. They come first."""
        if config.form == "propagation":
            self.shapes |= {"mix": (config.layers + 1,), **self.operator.weights()}
        elif self.solved is not None:
            self.shapes["sums"] = (self.solved.slots,)
        self.size = sum(map(math.prod, self.shapes.values()))
        """Number of public parameters."""

    @cached_property
    def operator(self) -> Operator:
        """The GNN, built in or of a plug-in; only a model of form propagation has one."""
        config = self.config
        assert config.form == "propagation", "a model without a graph has no operator"
        gnn = OPERATORS.get(config.gnn) or plugins.load_gnn(config.gnn)
        assert issubclass(gnn, Operator), "the registry takes nothing else"
        return gnn(dim=config.dim, layers=config.layers, estimators=config.estimators)

    def private_shapes(self, items: int) -> dict[str, tuple[int, int]]:
        """Return the shapes of the private parameters of a party with `items` items."""
        if self.solved is not None:
            return {"items": (items, self.solved.columns), "home": (1, self.solved.columns + 2)}
        bias = {"item_bias": (items, 1)} if self.config.biases else {}
        return {"items": (items, self.config.dim), **bias}

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the public parameters by name, as views of one flat vector (size,)."""
        parts = torch.split(flat, list(map(math.prod, self.shapes.values())))
        views = zip(self.shapes.items(), parts, strict=True)
        return {name: part.view(shape) for (name, shape), part in views}

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
                view.fill_(self.operator.initial_mix(typical))
            elif name != "user_bias":
                view.copy_(torch.from_numpy(self.operator.initial(name, tuple(view.shape), rng)))
        return flat

    def initial_private(self, rng: np.random.Generator, items: int, typical: float) -> dict[str, Tensor]:
        """Draw the private parameters before the first round: random item embeddings, the rest 0."""
        private = {name: torch.zeros(shape) for name, shape in self.private_shapes(items).items()}
        if self.solved is None:
            private["items"] = self.initial_embeddings(rng, items, typical)
        return private

    def initial_embeddings(self, rng: np.random.Generator, rows: int, typical: float) -> Tensor:
        """Draw user or item embeddings. Factors without biases start where they predict the typical rating."""
        config = self.config
        assert not config.solved, "the layout of a solved model draws its users"
        plain = config.form == "factors" and not config.biases
        mean = math.sqrt(typical / config.dim) if plain else 0.0
        values = torch.from_numpy(rng.normal(mean, INITIAL_STD, (rows, config.dim)).astype(np.float32))
        return values if config.bound is None else clip_rows(values, config.bound)

    def propagate(
        self,
        public: Mapping[str, Tensor],
        private: Mapping[str, Tensor],
        graph: Graph,
        others: Sequence[Tensor] | None,
    ) -> Propagation:
        """Compute h_u and h_v.

        Propagation mixes K layers, h = sum_k a_k e^k (eq. 1-3). Factors are e_u and e_v themselves, with biases as columns.
        `others` are the other parties' X^k for k < K, each (N, C); no gradient flows into them.
        """
        users, items = public["users"], private["items"]
        if self.config.form != "propagation":
            if self.config.biases:
                bias, item_bias = public["user_bias"], private["item_bias"]
                users = torch.cat([users, bias, torch.ones_like(bias)], -1)
                items = torch.cat([items, torch.ones_like(item_bias), item_bias], -1)
            return Propagation(users, items, [])
        share = public["mix"]
        h_users, h_items = share[0] * users, share[0] * items
        neighbourhoods: list[Tensor] = []
        for k in range(self.config.layers):
            received = others[k] if others else None
            own, users, items = self.operator.layer(k, public, users, items, graph, received)
            neighbourhoods.append(own.own)
            h_users = h_users + share[k + 1] * users
            h_items = h_items + share[k + 1] * items
        return Propagation(h_users, h_items, neighbourhoods)


class SolvedLayout:
    """The public parameters of a model whose items are solved at home, and the small sums that its parties share.

    With a row per user: `users` (e_u, b_u), or x_u for lists; `raters` (w_u, b_u, z_u, y_u) of the second model; `totals`, the
    number n_u of its ratings and the sum of what item means leave of them. Shared: `sums`, which holds G, Lambda and the unit of each
    column that is released.
    """

    def __init__(self, users: int, config: ModelConfig) -> None:
        self.number = users
        """N, the number of users of the federation."""
        self.config = config
        self.lists = not config.biases
        """Whether the model orders lists instead of predicting ratings."""
        self.columns = config.dim + config.biases
        """K, the columns of the table `users`."""
        self.rater_columns = 3 * config.raters + 1 if config.raters else 0
        """Columns of the table `raters`; 0 without a second model."""
        self.released = self.columns + self.rater_columns
        """Columns of a user in a release."""
        columns = {"users": self.columns, "raters": self.rater_columns, "totals": 2}
        self.per_user = {name: (users, width) for name, width in columns.items() if width}
        """Shapes of the tables with a row per user."""
        width, wide = self.columns, config.raters + 1
        second = {"rater_gram": (wide, wide), "deviation": (1,)} if config.raters else {}
        gram = (2, width, width) if self.lists else (width, width)
        self.sum_shapes: dict[str, tuple[int, ...]] = {"gram": gram, **second, "moments": (self.released,)}
        """Shapes of the small sums that parties share in a round."""
        self.shared_size = 2 * width**2 + self.released
        """How many values at the start of `sums` are in use."""
        up = LIMBS * sum(map(math.prod, self.sum_shapes.values()))
        self.slots = max(up, BYTES * self.shared_size + self.released)
        """Length of `sums`: room for all small sums on their way to the coordinator, and for the shared values on their way back."""

    def shared(self, sums: Tensor) -> dict[str, Tensor]:
        """Return G, Lambda and the units of columns as views of `sums`."""
        size, shape = self.columns**2, (self.columns, self.columns)
        gram, prior, units = torch.split(sums[: self.shared_size], [size, size, self.released])
        return {"gram": gram.view(shape), "prior": prior.view(shape), "units": units}

    def draw(self, views: Mapping[str, Tensor], rng: np.random.Generator) -> None:
        """Draw the users' vectors before the first round, in place; biases follow from the first sums."""
        dim = self.config.dim
        std = list_model.START / dim**0.5 if self.lists else 1.0
        views["users"][:, :dim].copy_(self._normal(rng, dim, std))
        if self.rater_columns:
            hidden = self.config.raters
            views["raters"][:, :hidden].copy_(self._normal(rng, hidden, 0.1))
            views["raters"][:, hidden + 1 : 2 * hidden + 1].copy_(self._normal(rng, hidden, 0.3))
        shared = self.shared(views["sums"])
        start = PublicFactors.initial(torch.zeros(1, self.columns - 1), torch.zeros(1), torch.zeros(1))
        shared["gram"].copy_(start.gram)
        shared["prior"].copy_(start.prior)

    def _normal(self, rng: np.random.Generator, columns: int, std: float) -> Tensor:
        return torch.from_numpy(rng.normal(0.0, std, (self.number, columns)).astype(np.float32))

    def factors(self, views: Mapping[str, Tensor], velocity: Mapping[str, Tensor]) -> PublicFactors:
        """Return the users of the first model."""
        shared = self.shared(views["sums"])
        counts = views["totals"][:, 0]
        return PublicFactors(views["users"], velocity["users"], counts, shared["gram"], shared["prior"])

    def raters(self, views: Mapping[str, Tensor], velocity: Mapping[str, Tensor]) -> PublicRaters:
        """Return the users of the second model."""
        return PublicRaters(views["raters"], velocity["raters"], views["totals"][:, 0])

    def public_lists(
        self, views: Mapping[str, Tensor], velocity: Mapping[str, Tensor], ratings: int, items: int
    ) -> PublicLists:
        """Return the users of a model of lists; `ratings` and `items` count those of all parties."""
        strengths = list_model.choose_strengths(self.number, items, ratings)
        return PublicLists(views["users"], velocity["users"], views["totals"][:, 0], items, strengths)
