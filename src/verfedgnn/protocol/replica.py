"""A copy of the public parameters and of their optimiser's state; all copies stay bit-identical."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.gnn.model import Model
from verfedgnn.privacy.gradients import recover
from verfedgnn.protocol.optimizer import step


class Replica:
    """Public parameters after `round` updates."""

    def __init__(
        self, config: Config, model: Model, items: Sequence[int], parameters: Tensor, accumulator: Tensor, round: int
    ) -> None:
        self.config, self.model, self.items = config, model, list(items)
        self.parameters, self.accumulator, self.round = parameters, accumulator, round
        self._digest: tuple[int, str] | None = None

    @classmethod
    def initial(cls, config: Config, model: Model, items: Sequence[int], typical: float, device: torch.device) -> Replica:
        """Before the first round."""
        parameters = model.initial_public(config.seed, typical).to(device)
        return cls(config, model, items, parameters, torch.zeros_like(parameters), 0)

    def load(self, parameters: NDArray[np.float32], accumulator: NDArray[np.float32], round: int) -> None:
        """Take over a full copy."""
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
        size, training = self.model.user_size, self.config.training
        scale = participation_scale(self.items, parties)
        gradient = recover(total, self.config.gradients, size, scale)
        gradient[:size] += (2 * training.l2 / self.model.users) * self.parameters[:size]
        step(self.parameters, self.accumulator, gradient, training)
        self.round = round

    def digest(self) -> str:
        """Hash of the parameters, 16 hex digits; computed once a round."""
        if self._digest is None or self._digest[0] != self.round:
            self._digest = (self.round, parameters_digest(self.parameters))
        return self._digest[1]


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
