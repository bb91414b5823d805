"""The validation error over all parties, and the best validation so far."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from verfedgnn.config import Config
from verfedgnn.gnn.factor_model import ROUNDS_BEFORE_PRIOR
from verfedgnn.protocol.checkpoint_state import CheckpointState
from verfedgnn.protocol.wire.messages import RoundReply


class BestValidation:
    """The best validation so far, and the last result of every party."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.errors: dict[str, tuple[float, int]] = {}
        """Squared error and count of each party's last validation."""
        self.digests: dict[int, str] = {}
        """Hash of the public parameters at each validation, by round."""
        self.error = math.inf
        self.round = 0
        self.since = 0
        """Number of validations since the best one."""
        self.holders: set[str] = set()
        """Parties that took part in it and have not rejoined since, so they have its parameters."""

    def judge(
        self,
        round: int,
        replies: Mapping[str, RoundReply],
        names: Sequence[str],
        digest: str,
    ) -> float:
        """Return the error over all parties, and note it if it is the best; an absent party counts with its last validation."""
        for name, reply in replies.items():
            self.errors[name] = (reply.error or 0.0, reply.count or 0)
        known = [self.errors[name] for name in names if name in self.errors]
        error = mean_error(sum(error for error, _ in known), sum(count for _, count in known), self.config)
        self.digests[round] = digest
        self.since += 1
        if error < self.error:
            self.error = error
            self.round = round
            self.since = 0
            self.holders = set(replies)
        return error

    @property
    def is_newest(self) -> bool:
        """Whether the last validation is the best one."""
        return self.since == 0

    @property
    def patience_is_over(self) -> bool:
        """Whether `patience` validations have passed without a better one, and since a solved model has settled.

        Until its items have a prior of their own, curves rest for some rounds and fall again.
        """
        settled = ROUNDS_BEFORE_PRIOR if self.config.model.form == "solved" and not self.config.ranks else 0
        since = min(self.since, max(self.digests, default=0) - settled)
        return 0 < self.config.training.patience <= since

    def put(self, state: CheckpointState) -> None:
        """Store the best validation in a checkpoint."""
        state.values |= {
            "errors": self.errors,
            "digests": list(self.digests.items()),
            "best": [self.error if self.round else None, self.round, self.since],
            "holders": sorted(self.holders),
        }

    def restore(self, state: CheckpointState) -> None:
        """Read what `put` stored."""
        values = state.values
        self.errors = {name: (squared, count) for name, (squared, count) in values["errors"].items()}
        self.digests = dict(values["digests"])
        self.holders = set(values["holders"])
        error, self.round, self.since = values["best"]
        self.error = math.inf if error is None else error


def mean_error(error: float, count: int, config: Config) -> float:
    """Return the RMSE from summed squared errors; for lists, the mean of 1 - NDCG@20 over users."""
    mean = error / max(1, count)
    return mean if config.ranks else math.sqrt(mean)
