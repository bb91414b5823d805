"""The public parameters of a model whose items are solved at home, and the small sums that its parties share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from verfedgnn.config.model_forms import ModelConfig
from verfedgnn.gnn import list_model
from verfedgnn.gnn.factor_model import PublicFactors
from verfedgnn.gnn.list_model import PublicLists
from verfedgnn.gnn.rater_solver import PublicRaters

LIMBS = 4
"""Small integers that a shared sum travels in (`protocol/solved_round.py`)."""
BYTES = 4
"""Integers of 8 bits that a shared value travels back in."""


@dataclass(frozen=True)
class SolvedLayout:
    """Shapes of one configuration for N users.

    Public, with a row per user: `users` (e_u, b_u), or x_u for lists; `raters` (w_u, b_u, z_u, y_u) of the second model; `totals`, the
    number n_u of its ratings and the sum of what item means leave of them. Shared: `sums`, which holds G, Lambda and the unit of each
    column that is released.
    """

    number: int
    """Number of users N."""
    config: ModelConfig

    @property
    def lists(self) -> bool:
        """Whether the model orders lists instead of predicting ratings."""
        return not self.config.biases

    @property
    def columns(self) -> int:
        """K, the columns of the table `users`."""
        return self.config.dim + (0 if self.lists else 1)

    @property
    def rater_columns(self) -> int:
        """Columns of the table `raters`; 0 without a second model."""
        return 3 * self.config.raters + 1 if self.config.raters else 0

    @property
    def released(self) -> int:
        """Columns of a user in a release."""
        return self.columns + self.rater_columns

    @property
    def per_user(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the tables with a row per user."""
        raters = {"raters": (self.number, self.rater_columns)} if self.rater_columns else {}
        return {"users": (self.number, self.columns), **raters, "totals": (self.number, 2)}

    @property
    def sum_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the small sums that parties share in a round."""
        width, wide = self.columns, self.config.raters + 1
        shapes: dict[str, tuple[int, ...]] = (
            {"grams": (2, width, width)} if self.lists else {"gram": (width, width)}
        )
        if self.rater_columns:
            shapes |= {"rater_gram": (wide, wide), "deviation": (1,)}
        return shapes | {"moments": (self.released,)}

    @property
    def slots(self) -> int:
        """Length of `sums`: room for all small sums on their way to the coordinator, and for the shared values on their way back."""
        up = LIMBS * sum(int(np.prod(shape)) for shape in self.sum_shapes.values())
        return max(up, BYTES * self.shared_size + self.released)

    def shared(self, sums: Tensor) -> dict[str, Tensor]:
        """Return G, Lambda and the units of columns as views of `sums`."""
        size = self.columns**2
        gram, prior = (sums[at * size : (at + 1) * size].view(self.columns, self.columns) for at in (0, 1))
        return {"gram": gram, "prior": prior, "units": sums[2 * size : 2 * size + self.released]}

    @property
    def shared_size(self) -> int:
        """How many values at the start of `sums` are in use."""
        return 2 * self.columns**2 + self.released

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
