"""What a coordinator holds: the replica, the last sums and updates, the best parameters, and what each party has of them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from verfedgnn.config import Config
from verfedgnn.gnn.factor_model import ROUNDS_BEFORE_PRIOR
from verfedgnn.privacy.masking import GRADIENT, NEIGHBOURHOOD, MaskStream, remove_masks
from verfedgnn.privacy.protections import Unmasking
from verfedgnn.protocol.aggregation import FULL_COPY, sum_neighbourhoods
from verfedgnn.protocol.masks import mask_context, sum_digest
from verfedgnn.protocol.messages import RoundReply, RoundStart
from verfedgnn.protocol.replica import CheckpointState, Replica, Update, to_tensor
from verfedgnn.protocol.solved_round import compute_update

KEPT_UPDATES = 8
"""Updates that are kept for parties that missed them; more would be larger than a full copy."""


@dataclass(frozen=True)
class NeighbourhoodSum:
    """A sum of neighbourhoods that the coordinator hands out."""

    parties: list[int]
    """Indices of the parties in the sum."""
    round: int
    """Round in which they sent their neighbourhoods."""
    total: NDArray[np.integer[Any]] | None


NO_SUM = NeighbourhoodSum([], 0, None)
"""What the coordinator hands out before the first sum."""


class PublicState:
    """The public parameters of one training, and the sums from which they follow."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.config = replica.config
        self.best = replica.parameters.clone()
        """Parameters of the best validation."""
        self.updates: deque[Update] = deque(maxlen=KEPT_UPDATES)
        """The updates of the last rounds, in order."""
        self.neighbourhood_sum = NO_SUM
        """The last sum of neighbourhoods."""
        self.parameters_round: dict[str, int] = {}
        """Round of the public parameters that each party has."""
        self.sums_received: dict[str, int] = {}
        """Round of the summed neighbourhoods that each party has."""

    # -- what parties have -----------------------------------------------------------------------------------

    def welcome(self, name: str) -> None:
        """Note that a party has the public parameters of the present round, and no sum."""
        self.parameters_round[name] = self.replica.round
        self.sums_received.pop(name, None)

    def describe_party(self, name: str) -> tuple[int, int]:
        """Return what a party has; parties for which it is equal get the same RoundStart."""
        return self.parameters_round[name], self.sums_received.get(name, 0)

    def changes_for(self, name: str) -> dict[str, Any]:
        """Return the fields of a RoundStart with updates and sums that a party lacks, or with a full copy instead of updates."""
        known, replica = self.parameters_round[name], self.replica
        updates = [update for update in self.updates if update.round > known]
        size = sum(update.total.nbytes for update in updates)
        complete = len(updates) >= replica.round - known and size <= FULL_COPY * replica.model.size
        updates = updates if complete else []
        shared = self.neighbourhood_sum
        if self.sums_received.get(name) == shared.round:
            shared = NO_SUM
        totals = [update.total for update in updates if update.parties]
        return {
            "updates_from": known + 1,
            "update_parties": [update.parties for update in updates],
            "neighbourhood_parties": shared.parties,
            "neighbourhood_round": shared.round,
            "updates": np.concatenate(totals) if totals else None,
            "neighbourhoods": shared.total,
            **({} if complete else replica.full_copy()),
        }

    def note_reply(self, name: str, start: RoundStart) -> None:
        """Note that a party has taken what its RoundStart carried."""
        self.parameters_round[name] = self.replica.round
        if start.neighbourhoods is not None:
            self.sums_received[name] = start.neighbourhood_round

    # -- one round -------------------------------------------------------------------------------------------

    def mask_context(self, start: RoundStart) -> bytes:
        """Hash what the active parties of a round must have received alike."""
        last = self.neighbourhood_sum
        digest = "" if last is NO_SUM else sum_digest(last.parties, last.round, last.total)
        return mask_context(start, self.replica, digest)

    def add_up(
        self, round: int, replies: Mapping[int, RoundReply], streams: Sequence[MaskStream]
    ) -> NDArray[Any]:
        """Add up the active parties' replies without the masks of `streams`; return the summed gradients, keep the neighbourhoods.

        Raise `SumError` if they do not add up.
        """
        gradients = [reply.gradient for reply in replies.values() if reply.gradient is not None]
        total = self.replica.protection.add_up(gradients, _unmasking(GRADIENT, streams))
        shared = [reply.neighbourhoods for reply in replies.values() if reply.neighbourhoods is not None]
        if shared:
            summed = sum_neighbourhoods(shared, _unmasking(NEIGHBOURHOOD, streams))
            self.neighbourhood_sum = NeighbourhoodSum(list(replies), round, summed)
        return total

    def keep_best(self) -> None:
        """Keep the parameters that were validated in this round as the best ones."""
        self.best.copy_(self.replica.parameters)

    def step(self, round: int, parties: list[int], summed: NDArray[Any]) -> None:
        """Take the public step with the summed gradients of the round."""
        replica = self.replica
        if replica.model.solved is not None:
            summed = compute_update(
                replica.model,
                replica.parameters,
                replica.accumulator,
                torch.from_numpy(summed).to(self.best.device),
                ratings=replica.ratings,
                items=sum(replica.items),
            )
        replica.apply(torch.from_numpy(summed).to(self.best.device), parties, round)
        self.updates.append(Update(round, parties, summed))

    def skip(self, round: int) -> None:
        """Go on to an abandoned round, which has no update."""
        self.replica.skip(round)
        self.updates.append(Update(round, [], np.zeros(0, self.replica.protection.sum_type)))

    # -- checkpoints -----------------------------------------------------------------------------------------

    def put(self, state: CheckpointState) -> None:
        """Store everything in a checkpoint."""
        state.put_arrays(self.replica.arrays())
        state.put_arrays({"best": self.best.cpu().numpy()})
        state.put_arrays({f"update.{i}": update.total for i, update in enumerate(self.updates)})
        state.values |= {
            "updates": [[update.round, update.parties] for update in self.updates],
            "parameters_round": self.parameters_round,
            "sums_received": self.sums_received,
        }
        shared = self.neighbourhood_sum
        if shared.total is not None:
            state.values["neighbourhoods"] = [shared.parties, shared.round]
            state.put_arrays({"neighbourhoods": shared.total})

    def restore(self, state: CheckpointState, round: int) -> None:
        """Read what `put` stored after `round`."""
        values = state.values
        self.replica.load(state.arrays, round)
        self.best = to_tensor(state.arrays["best"], self.best.device)
        self.updates.extend(
            Update(r, p, state.arrays[f"update.{i}"]) for i, (r, p) in enumerate(values["updates"])
        )
        if "neighbourhoods" in values:
            parties, of_round = values["neighbourhoods"]
            self.neighbourhood_sum = NeighbourhoodSum(parties, of_round, state.arrays["neighbourhoods"])
        self.parameters_round = dict(values["parameters_round"])
        self.sums_received = dict(values["sums_received"])


def _unmasking(use: int, streams: Sequence[MaskStream]) -> Unmasking:
    return lambda total: remove_masks(total, streams, use) if streams else total


# -- The validation error over all parties, and the best validation so far ---------------------------------


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
        self, round: int, replies: Mapping[str, RoundReply], names: Sequence[str], digest: str
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
