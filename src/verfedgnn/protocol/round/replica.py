"""The public step, and the copy of the public parameters that everybody keeps; all copies stay bit-identical."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from weakref import WeakValueDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.config.sections import TrainingConfig
from verfedgnn.core.vectors import clip_rows
from verfedgnn.core.worker_group import WorkerGroup
from verfedgnn.gnn.model import Model
from verfedgnn.privacy.gradient_protection import Rescale, invert_rescale
from verfedgnn.privacy.rating_dp import unit
from verfedgnn.protocol.round.optimizer import average, pieces, step
from verfedgnn.protocol.round.solved_round import apply_update
from verfedgnn.protocol.round.user_blocks import UserBlock, UserBlocks, completed_passes
from verfedgnn.protocol.round.user_groups import hash_arrays, hash_users
from verfedgnn.protocol.round.user_shards import UserShard
from verfedgnn.protocol.round.user_starts import START_BITS, START_SUM
from verfedgnn.protocol.wire.fixed_point import from_fixed

BIASES = {"user_bias", "rater_bias"}
"""Names of the public biases."""
FULL_COPY = 8
"""Bytes per parameter of a full copy: the parameter and its accumulator."""


class Replica:
    """Public parameters and their optimiser's state after the public step of `round`."""

    def __init__(
        self,
        config: Config,
        model: Model,
        items: Sequence[int],
        ratings: int,
        parameters: Tensor,
        accumulator: Tensor,
        round: int,
        shard: UserShard | None = None,
    ) -> None:
        self.config = config
        self.model = model
        self.shard = shard
        """The part of a party's users that this worker holds; None for all users."""
        self.users = model.users if shard is None else shard.whole.users
        """Number of users of the federation."""
        self.items = list(items)
        """Number of items of each party."""
        self.ratings = ratings
        """Training ratings of all parties."""
        self.parameters = parameters
        self.accumulator = accumulator
        self.round = round
        self.average = parameters.clone() if config.training.average else None
        """Running average of the parameters; None if the configuration keeps none."""
        self.blocks = UserBlocks(config, model) if shard is None else shard.blocks
        self.rounds_per_epoch = rounds_per_epoch(config.training, ratings)
        self.passes_per_epoch = self.rounds_per_epoch // config.training.user_blocks
        self.rescale = Rescale.of(config, self.users, len(items), ratings)
        self._digest: tuple[int, str] | None = None
        self._block_hashes: dict[int, bytes] = {}
        """Hashes of the users' parameters by block, of blocks that have not changed since."""
        self._copies: WeakValueDictionary[str, NDArray[np.float32]] = WeakValueDictionary()
        """Arrays of the last full copy, as long as a message holds them."""
        self._copied = -1
        """The round after which the last full copy was made; -1 if there is none."""
        self.best: tuple[int, Tensor] | None = None
        """Round of the best validation and the parameters that it validated, if this replica was there."""

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
        """Draw the replica before the first round; `ratings` counts the training ratings of all parties."""
        parameters = model.initial_public(config.seed, typical).to(device)
        return cls(config, model, items, ratings, parameters, torch.zeros_like(parameters), 0)

    @property
    def rounds(self) -> int:
        """Number of rounds of the whole training."""
        return self.config.training.epochs * self.rounds_per_epoch

    def evaluates_in(self, round: int) -> bool:
        """Return whether a round has a validation."""
        every = self.config.training.evaluate_every or self.rounds_per_epoch
        return round % every == 0 or round == self.rounds

    @property
    def served(self) -> Tensor:
        """The parameters that are validated and kept: the average if there is one."""
        return self.parameters if self.average is None else self.average

    def keep_best(self, best_round: int) -> None:
        """Keep a copy of the parameters if the best validation was the last one here; call it before the next step."""
        if best_round == self.round + 1 and (self.best is None or self.best[0] != best_round):
            self.best = (best_round, self.served.clone())

    def arrays(self) -> dict[str, NDArray[np.float32]]:
        """Return the state by name, as arrays that later steps change."""
        return {name: values.cpu().numpy() for name, values in self._state.items()}

    def full_copy(self) -> dict[str, NDArray[np.float32]]:
        """Return a copy of the state that nobody can write, for messages; all messages of one round share it."""
        if self._copied != self.round:
            self._copies.clear()
            self._copied = self.round
        found = {}
        for name, values in self._state.items():
            copy = self._copies.get(name)
            if copy is None:
                copy = values.to("cpu", copy=True).numpy()
                copy.flags.writeable = False
                self._copies[name] = copy
            found[name] = copy
        return found

    @property
    def _state(self) -> dict[str, Tensor]:
        average = {} if self.average is None else {"average": self.average}
        return {"parameters": self.parameters, "accumulator": self.accumulator} | average

    def load(self, arrays: Mapping[str, NDArray[np.float32]], round: int) -> None:
        """Take over a full copy; its arrays are asked for one by one."""
        for name, values in self._state.items():
            if name in arrays:
                source = arrays[name]
                values.copy_(torch.from_numpy(source if source.flags.writeable else source.copy()))
        self.round = round
        self._digest = None
        self._block_hashes.clear()
        self._copies.clear()

    def apply(
        self, total: Tensor, parties: Sequence[int], round: int, start: NDArray[np.int16] | None = None
    ) -> None:
        """Take the public step of a round: the summed protected gradients of `parties`, scaled to all (Sec. 4.6).

        The regulariser of user parameters is added here. An update that was applied before changes nothing. `start` holds the
        biases that the users of the round start with (`user_starts`); it comes with their first round. Users whose biases a
        training took over from an earlier one keep them.
        """
        if round <= self.round:
            return
        if round != self.round + 1:
            raise AssertionError(f"update of round {round} on a replica of round {self.round}")
        if self.model.solved is not None:
            apply_update(self.model, self.parameters, self.accumulator, total)
            self._block_hashes.clear()
            self.round = round
            return
        block = self.blocks.in_round(round)
        training = self.config.training
        now = block.select(self.model, self.parameters)
        sums = block.select(self.model, self.accumulator)
        fresh = {} if start is None else {name: sums[name] == 0 for name in BIASES & set(sums)}
        worths = self._worth_of_one(participation_scale(self.items, parties))
        regularisers = {
            "users": 2 * (training.l2 / self.users + training.l2_row / self.passes_per_epoch),
            "user_bias": 2 * training.l2_user_bias / self.passes_per_epoch,
            "rater_users": 2 * training.l2_raters / self.passes_per_epoch,
            "rater_values": 2 * training.l2_readers / self.passes_per_epoch,
            "rater_marks": 2 * training.l2_readers / self.passes_per_epoch,
            "rater_bias": 2 * training.l2_user_bias / self.passes_per_epoch,
        }
        for name, change in block.model.views(total).items():
            per_user = name in self.model.per_user
            factor = worths.users if per_user else worths.weights
            lr = training.lr if per_user else training.lr * training.lr_weights
            for values, accumulated, summed in pieces(now[name], sums[name], change):
                gradient = summed.to(torch.float32) * factor
                if name in regularisers:
                    gradient += regularisers[name] * values
                step(values, accumulated, gradient, training.optimizer, lr)
        if self.model.config.bound is not None:
            now["users"].copy_(clip_rows(now["users"], self.model.config.bound))
        if self.average is not None:
            self._update_average(self.average, block, now, round)
        if start is not None:
            self._start_biases(block, start, fresh)
        self._block_hashes.pop(block.index, None)
        self.round = round

    def _start_biases(self, block: UserBlock, start: NDArray[np.int16], fresh: Mapping[str, Tensor]) -> None:
        """Set the biases that are `fresh`, in the parameters and in their average, and the optimiser's state of them."""
        values = from_fixed(torch.from_numpy(start), START_BITS).unsqueeze(1).to(self.parameters.device)
        sums = block.select(self.model, self.accumulator)
        copies = [self.parameters] if self.average is None else [self.parameters, self.average]
        for name, rows in fresh.items():
            for copy in copies:
                here = block.select(self.model, copy)[name]
                here.copy_(torch.where(rows, values, here))
            sums[name].masked_fill_(rows, START_SUM)

    def skip(self, round: int) -> None:
        """Go on to an abandoned round, which changes no parameter."""
        if round > self.round + 1:
            raise AssertionError(f"abandoned round {round} on a replica of round {self.round}")
        self.round = max(self.round, round)

    def _worth_of_one(self, scale: float) -> Rescale:
        """Return the gradient that 1 in a sum of protected gradients is worth, times `scale`."""
        if self.config.gradients.mechanism == "skellam":
            return Rescale(scale / unit(self.config), scale / unit(self.config))
        return invert_rescale(self.config.gradients, self.rescale, scale)

    def _update_average(
        self, averages: Tensor, block: UserBlock, now: Mapping[str, Tensor], round: int
    ) -> None:
        training = self.config.training
        for name, mean in block.select(self.model, averages).items():
            if name in self.model.per_user:  # a user's turn comes once a pass
                decay = training.average**training.user_blocks
                average(mean, now[name], decay, completed_passes(self.config, round) + 1)
            else:
                average(mean, now[name], training.average, round)

    def digest(self) -> str:
        """Return the hash of the parameters and their average; computed once a round.

        It is the hash of the shared weights' hash and of the blocks' hashes. A round hashes again only the block that it changed.
        """
        if self._digest is None or self._digest[0] != self.round:
            copies = [self.parameters] if self.average is None else [self.parameters, self.average]
            arrays = [self.model.views(copy) for copy in copies]
            per_user = [part[name].cpu().numpy() for part in arrays for name in self.model.per_user]
            shared = [
                part[name].cpu().numpy()
                for part in arrays
                for name in part
                if name not in self.model.per_user
            ]
            for block in self.blocks.blocks:
                if block.index not in self._block_hashes:
                    rows = [values[block.users] for values in per_user]
                    self._block_hashes[block.index] = hash_users(rows, self.workers)
            hashes = [self._block_hashes[block.index] for block in self.blocks.blocks]
            self._digest = (self.round, hashlib.sha256(b"".join([hash_arrays(shared), *hashes])).hexdigest())
        return self._digest[1]

    def state_digest(self) -> str:
        """Return the hash of the whole state: the parameters, the optimiser's state and the running average."""
        return parameters_digest(*self._state.values())

    @property
    def workers(self) -> WorkerGroup | None:
        """The workers that share the users; None if this process holds all of them."""
        return None if self.shard is None else self.shard.workers


def rounds_per_epoch(training: TrainingConfig, ratings: int) -> int:
    """Return how many rounds one epoch over `ratings` training ratings takes."""
    share = ratings / training.user_blocks
    return training.user_blocks * (max(1, math.ceil(share / training.batch)) if training.batch else 1)


def parameters_digest(*flat: Tensor) -> str:
    """Return the SHA-256 of flat parameters, and of further arrays of theirs. Masks depend on it, so it is never shortened."""
    return hash_arrays(values.cpu().numpy() for values in flat).hex()


def participation_scale(items: Sequence[int], active: Sequence[int], without: int | None = None) -> float:
    """Return sum of all M_i / sum of M_i over the active parties (Sec. 4.6), 0 if no party is left to scale.

    `without` leaves one party out of both sums.
    """
    whole = sum(m for p, m in enumerate(items) if p != without)
    part = sum(items[p] for p in active if p != without)
    return whole / part if part else 0.0
