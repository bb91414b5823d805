"""How well the federation does on everybody's validation parts, and which public parameters were the best so far."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from verfedgnn.config.sections import TrainingConfig
from verfedgnn.protocol.checkpoint_state import State, tensor
from verfedgnn.protocol.wire.messages import RoundReply


class Best:
    """The best validation so far, its public parameters, and what every validation said."""

    def __init__(self, training: TrainingConfig) -> None:
        self.training = training
        self.errors: dict[str, tuple[float, int]] = {}
        """Each party's last validation: squared error and count."""
        self.digests: dict[int, str] = {}
        """Hash of the public parameters at each validation."""
        self.error, self.round, self.since = math.inf, 0, 0
        """Its error and round, and how many validations there have been since."""
        self.parameters: Tensor

    def judge(
        self,
        round: int,
        replies: Mapping[str, RoundReply],
        names: Sequence[str],
        parameters: Tensor,
        digest: str,
    ) -> float:
        """The error over everybody's validation part; whoever is away counts as at its last validation."""
        for name, reply in replies.items():
            self.errors[name] = (reply.error or 0.0, reply.count or 0)
        known = [self.errors[name] for name in names if name in self.errors]
        error = mean_error(sum(error for error, _ in known), sum(count for _, count in known), self.training)
        self.digests[round] = digest
        self.since += 1
        if error < self.error:
            self.error, self.round, self.since = error, round, 0
            self.parameters.copy_(parameters)
        return error

    @property
    def long_ago(self) -> bool:
        """Whether there has been no better one for longer than patience lasts."""
        return 0 < self.training.patience <= self.since

    def put(self, state: State) -> None:
        """Into a checkpoint."""
        state.arrays["best"] = self.parameters.cpu().numpy()
        state.values |= {
            "errors": self.errors,
            "digests": list(self.digests.items()),
            "best": [self.error if self.round else None, self.round, self.since],
        }

    def restore(self, state: State, device: torch.device) -> None:
        """What `put` put."""
        values = state.values
        self.parameters = tensor(state.arrays["best"], device)
        self.errors = {name: (squared, count) for name, (squared, count) in values["errors"].items()}
        self.digests = dict(values["digests"])
        error, self.round, self.since = values["best"]
        self.error = math.inf if error is None else error


def mean_error(error: float, count: int, training: TrainingConfig) -> float:
    """RMSE from squared errors and their number; for a ranking the mean of 1 - NDCG@20 over users."""
    mean = error / max(1, count)
    return mean if training.ranks else math.sqrt(mean)
