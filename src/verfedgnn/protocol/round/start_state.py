"""A training that starts from an earlier one: users and items that are still there keep their parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.gnn.model import Model
from verfedgnn.protocol.round.replica import Replica, parameters_digest

EarlierRows = NDArray[np.int64]
"""For each row now, its row in the earlier training; -1 for a new user or item."""

SHRUNK = {"users": 0.8, "own_users": 0.8}
"""Factors of embeddings that a training takes over; other parameters are kept.

A training that has converged has begun to overfit its ratings, and continuing it with more ratings does not undo that. Smaller
embeddings lose little of what they know, and find a better optimum in a few rounds (Ash and Adams, 2020: "On warm-starting neural
network training"). Chosen on validation ratings (results/life.md).
"""


def take_rows(new: Tensor, old: Tensor, rows: EarlierRows, factor: float = 1.0) -> None:
    """Copy `factor` old[rows[i]] to new[i] for every row i that the earlier training has; leave new rows alone."""
    known = torch.from_numpy(np.flatnonzero(rows >= 0)).to(new.device)
    new[known] = factor * old.to(new.device)[torch.from_numpy(rows[rows >= 0]).to(new.device)]


def shrinkage(model: Model, name: str) -> float:
    """Return the factor of a parameter that is taken over. Embeddings that carry the typical rating are not shrunk."""
    return SHRUNK.get(name, 1.0) if model.config.biases else 1.0


def kept_rows(now: int, before: int) -> EarlierRows:
    """Return the earlier row of each of `now` users if the first `before` of them kept theirs and new ones follow."""
    rows = np.arange(now)
    return np.where(rows < before, rows, -1)


@dataclass(frozen=True)
class PublicStart:
    """The public parameters of an earlier training and the state of their optimiser."""

    parameters: Tensor
    """Parameters of its best validation, flat."""
    accumulator: Tensor
    """Sums of squared gradients after its last round, flat."""
    users: int
    """Number of its users."""
    rows: EarlierRows | None = None
    """Row of each present user in it; None if users kept their rows and new ones follow."""
    recorded: str | None = None
    """Its digest as recorded at the end of that training, before users were forgotten; None to compute it."""
    members: tuple[str, ...] = ()
    """Names of its parties, where they are known."""

    @cached_property
    def digest(self) -> str:
        """Hash by which members find out that they start from the same training."""
        return self.recorded or parameters_digest(self.parameters, self.accumulator)

    def load_into(self, replica: Replica, forgotten: Sequence[int] = ()) -> None:
        """Overwrite the parameters of known users and the shared weights in a replica that has taken no step yet.

        Rows of `forgotten` users stay as drawn.
        """
        self._map(replica.model, self.parameters, replica.parameters, forgotten, shrink=True)
        self._map(replica.model, self.accumulator, replica.accumulator, forgotten, shrink=False)
        if replica.average is not None:
            replica.average.copy_(replica.parameters)

    def matches(self, replica: Replica, forgotten: Sequence[int] = ()) -> bool:
        """Return whether a replica has the parameters of known users and the shared weights of this start.

        It must know nothing of the `forgotten` rows: their parameters are as drawn, and the optimiser has no state of them.
        """
        expected = replica.parameters.clone()
        self._map(replica.model, self.parameters, expected, forgotten, shrink=True)
        return torch.equal(expected, replica.parameters) and self._has_reset(replica, forgotten)

    def _has_reset(self, replica: Replica, forgotten: Sequence[int]) -> bool:
        model = replica.model
        gone = torch.tensor([row for row in forgotten if row < self.users], dtype=torch.int64)
        if replica.average is not None and not torch.equal(replica.average, replica.parameters):
            return False
        sums = model.views(replica.accumulator)
        if any(sums[name][gone].any() for name in model.per_user):
            return False
        now = model.views(replica.parameters)
        if (
            not model.config.biases
        ):  # users' embeddings may carry the typical rating, which a party does not know
            whole = replica.parameters.clone()
            self._map(model, self.parameters, whole, shrink=True)
            return bool((model.views(whole)["users"] != now["users"])[gone].any(1).all())
        drawn = model.views(model.initial_public(replica.config.seed, 0.0).to(replica.parameters.device))
        return all(torch.equal(now[name][gone], drawn[name][gone]) for name in model.per_user)

    def _map(
        self, model: Model, old: Tensor, new: Tensor, forgotten: Sequence[int] = (), *, shrink: bool
    ) -> None:
        rows = kept_rows(model.users, self.users) if self.rows is None else self.rows.copy()
        rows[list(forgotten)] = -1
        places = model.views(new)
        for name, values in Model(model.config, self.users).views(old).items():
            if name in model.per_user:
                take_rows(places[name], values, rows, shrinkage(model, name) if shrink else 1.0)
            else:
                places[name].copy_(values)
