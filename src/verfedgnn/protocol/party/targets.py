"""A party's training targets and validation, in units of its own rating scale.

With message embeddings, and with factors that have biases, targets are ratings minus the party's mean, in quarters of its scale. So
one set of hyper-parameters serves 1-5 and 1-10 stars, even in one federation. Predictions are converted back to stars.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.core.errors import DataError
from verfedgnn.core.metrics import measure_errors, measure_ranking
from verfedgnn.core.option_names import option
from verfedgnn.core.pairs import Pairs, PartyInput
from verfedgnn.core.rating_scale import upper_quarter


@dataclass(frozen=True)
class Targets:
    """Training pairs in the units of the loss, and the conversion of predictions to stars."""

    data: PartyInput
    train: Pairs
    """Training pairs: standardised if the model needs that; for a ranking, only the liked ones."""
    centre: float | None
    """Mean training rating, if predictions are deviations from it."""
    unit: float
    """Stars per unit of the targets."""
    ranks: bool
    """Whether the objective is a ranking."""

    @classmethod
    def of(cls, data: PartyInput, config: Config) -> Targets:
        """Derive the targets from a party's data and the configuration."""
        if config.training.ranks:
            liked = data.train.take(data.train.rating >= upper_quarter(data.scale))
            if not len(liked):
                raise DataError(
                    f"party '{data.name}' has no training rating in the upper quarter of its scale to rank first; if its "
                    f"ratings come from events, let one count as a like ({option('events', 5)}), else use a preset that predicts ratings"
                )
            return cls(data, liked, None, 1.0, True)
        if config.model.form == "propagation":
            return cls(data, data.train, None, 1.0, False)
        # The order of the graph's edges.
        train = data.train.take(torch.argsort(data.train.user.long() * data.items + data.train.item.long()))
        if config.model.form == "factors" and not config.model.biases:
            return cls(data, train, None, 1.0, False)
        low, high = data.scale
        # A mean would be one more release to account for. The biases learn it as well.
        private = config.gradients.mechanism == "skellam"
        centre = (low + high) / 2 if private else float(train.rating.double().mean())
        unit = (high - low) / 4 if high > low else 1.0
        return cls(data, Pairs(train.user, train.item, (train.rating - centre) / unit), centre, unit, False)

    def to_rating_scale(self, users: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
        """Return h_u and h_v whose product is in stars; the mean becomes a column."""
        if self.centre is None:
            return users, items
        users = torch.cat([users, torch.ones_like(users[:, :1])], 1)
        return users, torch.cat([items * self.unit, torch.full_like(items[:, :1], self.centre)], 1)

    def validate(self, users: Tensor, items: Tensor) -> tuple[float, int]:
        """Return the validation error and its count: squared error over ratings, or 1 - NDCG@20 over users with liked items."""
        valid = self.data.valid
        if not self.ranks:
            errors = measure_errors(users, items, valid)
            return errors.squared, errors.count
        wanted = valid.take(valid.rating >= upper_quarter(self.data.scale))
        found = measure_ranking(
            lambda rows: users[rows] @ items.T, len(users), len(items), [self.data.train], wanted
        )
        return max(0.0, found.users - found.ndcg), found.users
