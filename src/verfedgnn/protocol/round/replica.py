"""A copy of the public parameters and of their optimiser's state; all copies stay bit-identical."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.config.sections import TrainingConfig
from verfedgnn.core.vectors import clip_rows
from verfedgnn.gnn.model import Model
from verfedgnn.privacy.gradient_protection import Rescale, invert_rescale
from verfedgnn.privacy.rating_dp import unit
from verfedgnn.protocol.round.optimizer import average, pieces, step
from verfedgnn.protocol.round.user_blocks import Rotation, passes

FULL_COPY = 8
"""Bytes per value of a full copy: parameters and accumulator."""


class Replica:
    """Public parameters after `round` updates."""

    def __init__(
        self,
        config: Config,
        model: Model,
        items: Sequence[int],
        ratings: int,
        parameters: Tensor,
        accumulator: Tensor,
        round: int,
    ) -> None:
        self.config, self.model, self.items = config, model, list(items)
        self.parameters, self.accumulator, self.round = parameters, accumulator, round
        self.average = parameters.clone() if config.training.average else None
        """Running average of the parameters, where one is kept."""
        self.ratings = ratings
        self.rotation = Rotation(config, model)
        self.rounds_per_epoch = rounds_per_epoch(config.training, ratings)
        self.passes_per_epoch = self.rounds_per_epoch // config.training.user_blocks
        self.rescale = Rescale.of(config, model.users, len(items), ratings)
        self._digest: tuple[int, str] | None = None

    @classmethod
    def initial(
        cls,
        config: Config,
        model: Model,
        items: Sequence[int],
        ratings: int,
        typical: float,
        device: torch.device,
    ) -> Replica:
        """Before the first round; `ratings` are all parties' training ratings."""
        parameters = model.initial_public(config.seed, typical).to(device)
        return cls(config, model, items, ratings, parameters, torch.zeros_like(parameters), 0)

    @property
    def rounds(self) -> int:
        """How many rounds the training has."""
        return self.config.training.epochs * self.rounds_per_epoch

    @property
    def served(self) -> Tensor:
        """The parameters that are validated and kept."""
        return self.parameters if self.average is None else self.average

    def arrays(self) -> dict[str, Any]:
        """A full copy, as messages and checkpoints carry it."""
        average = None if self.average is None else self.average.cpu().numpy()
        return {
            "parameters": self.parameters.cpu().numpy(),
            "accumulator": self.accumulator.cpu().numpy(),
            "average": average,
        }

    def load(
        self,
        parameters: NDArray[np.float32],
        accumulator: NDArray[np.float32],
        average: NDArray[np.float32] | None,
        round: int,
    ) -> None:
        """Take over a full copy."""
        if self.average is not None and average is not None:
            self.average.copy_(torch.from_numpy(average))
        self.parameters.copy_(torch.from_numpy(parameters))
        self.accumulator.copy_(torch.from_numpy(accumulator))
        self.round, self._digest = round, None

    def apply(self, total: Tensor, parties: Sequence[int], round: int) -> None:
        """One public step: the summed protected gradients of `parties`, scaled to all (Sec. 4.6), plus the user regulariser.

        An update that is already in (a shared replica, a repeated message) changes nothing.
        """
        if round <= self.round:
            return
        if round != self.round + 1:
            raise AssertionError(f"update of round {round} on a replica of round {self.round}")
        part, training = self.rotation.of(round), self.config.training
        scale = participation_scale(self.items, parties)
        if self.config.gradients.mechanism == "skellam":
            worths = Rescale(scale / unit(self.config), scale / unit(self.config))
        else:
            worths = invert_rescale(self.config.gradients, self.rescale, scale)
        now, sums = part.of(self.model, self.parameters), part.of(self.model, self.accumulator)
        pulled = {
            "users": 2 * (training.l2 / self.model.users + training.l2_row / self.passes_per_epoch),
            "user_bias": 2 * training.l2_user_bias / self.passes_per_epoch,
        }
        for name, change in part.model.views(total).items():
            own = name in self.model.per_user
            factor, lr = (
                (worths.users, training.lr) if own else (worths.weights, training.lr * training.lr_weights)
            )
            for values, accumulated, summed in pieces(now[name], sums[name], change):
                gradient = summed.to(torch.float32) * factor
                if name in pulled:
                    gradient += pulled[name] * values
                step(values, accumulated, gradient, training.optimizer, lr)
        if self.model.config.bound is not None:
            now["users"].copy_(clip_rows(now["users"], self.model.config.bound))
        if self.average is not None:
            for name, mean in part.of(self.model, self.average).items():
                own = name in self.model.per_user  # its turn comes once a pass
                decay = training.average**training.user_blocks if own else training.average
                average(mean, now[name], decay, passes(self.config, round) + 1 if own else round)
        self.round = round

    def digest(self) -> str:
        """Hash of the parameters and of their average, 16 hex digits; computed once a round."""
        if self._digest is None or self._digest[0] != self.round:
            both = self.parameters if self.average is None else torch.cat([self.parameters, self.average])
            self._digest = (self.round, parameters_digest(both))
        return self._digest[1]


def rounds_per_epoch(training: TrainingConfig, ratings: int) -> int:
    """How many rounds go once through so many training ratings: some passes over all parts of the users."""
    share = ratings / training.user_blocks
    return training.user_blocks * (max(1, math.ceil(share / training.batch)) if training.batch else 1)


def parameters_digest(parameters: Tensor) -> str:
    """Hash of flat parameters, 16 hex digits."""
    return hashlib.sha256(parameters.cpu().numpy().tobytes()).hexdigest()[:16]


def participation_scale(items: Sequence[int], active: Sequence[int], without: int | None = None) -> float:
    """sum of all M_i / sum of M_i over the active parties (Sec. 4.6); `without` leaves one party out of both sums.

    0 when nobody is left: there is nothing to scale.
    """
    whole = sum(m for p, m in enumerate(items) if p != without)
    part = sum(items[p] for p in active if p != without)
    return whole / part if part else 0.0
