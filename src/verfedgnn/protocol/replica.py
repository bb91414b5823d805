"""The public step, and the copy of the public parameters that everybody keeps; all copies stay bit-identical.

Below it is what each side checks before it takes a message in, and the form of a checkpoint.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.config.sections import TrainingConfig
from verfedgnn.core.errors import ProtocolError
from verfedgnn.core.graph import clip_rows
from verfedgnn.gnn.model import Model
from verfedgnn.privacy.projection import Exchange, make_exchange
from verfedgnn.privacy.protections import protection_of
from verfedgnn.protocol.forward_backward import neighbourhood_shape, neighbourhood_type
from verfedgnn.protocol.messages import BESIDES_ARRAYS, RoundReply, RoundStart, Welcome, copied_state
from verfedgnn.protocol.solved_round import SolvedRound


@dataclass(frozen=True)
class RoundSum:
    """A sum over parties in one round: the update of the public parameters, or neighbourhoods."""

    round: int
    parties: list[int]
    """Indices of the parties in the sum; empty without one, as in an abandoned round."""
    total: NDArray[Any]


def split_updates(message: RoundStart, size: int) -> list[RoundSum]:
    """Split the updates of a message by round; `size` is the number of public parameters."""
    groups = message.update_parties
    ends = np.cumsum([size if group else 0 for group in groups])[:-1]
    updates = np.zeros(0, np.int8) if message.updates is None else message.updates
    totals = np.split(updates, ends)
    rounds = range(message.updates_from, message.updates_from + len(groups))
    return [  # without updates, there is one empty total
        RoundSum(n, group, total) for n, group, total in zip(rounds, groups, totals, strict=False)
    ]


class Replica:
    """Public parameters and their optimiser's state after the public step of `round`."""

    def __init__(
        self,
        config: Config,
        model: Model,
        items: Sequence[int],
        ratings: int,
        typical: float,
        device: torch.device,
        start: Tensor | None = None,
    ) -> None:
        """Draw the parameters before the first round; `ratings` counts the training ratings of all parties.

        With the public parameters `start` of another training, it continues from them, and counts ratings anew.
        """
        self.config, self.model, self.ratings = config, model, ratings
        self.protection = protection_of(config, len(items))
        self.items = list(items)
        """Number of items of each party."""
        self.solved = SolvedRound(model, model.solved, ratings, sum(items)) if model.solved else None
        """The arithmetic of rounds in which items are solved; None where they are trained."""
        if start is None:
            self.parameters = model.initial_public(config.seed, typical).to(device)
        else:
            self.parameters = start.clone().to(device)
            model.views(self.parameters)["totals"].zero_()
        self.accumulator = torch.zeros_like(self.parameters)
        self.round = 0
        self.rounds_per_epoch = rounds_per_epoch(config.training, ratings)
        self.rounds = config.training.epochs * self.rounds_per_epoch
        """Number of rounds of the whole training."""
        self._digest = (-1, "")
        """Round and hash of the parameters as last asked for."""
        self._copies: WeakValueDictionary[tuple[int, str], NDArray[np.float32]] = WeakValueDictionary()
        """Arrays of full copies by round and name, as long as a message holds them."""
        self.best = (0, self.parameters.clone())
        """Round of the best validation that this replica saw, and the parameters that were validated."""

    @cached_property
    def exchange(self) -> Exchange:
        """Exchange of neighbourhoods for all users; on one machine it is shared with the replica."""
        return make_exchange(self.config, self.model.users, self.parameters.device)

    def evaluates_in(self, round: int) -> bool:
        """Return whether a round has a validation."""
        every = self.config.training.evaluate_every or self.rounds_per_epoch
        return round % every == 0 or round == self.rounds

    def keep_best(self, best_round: int) -> None:
        """Keep a copy of the parameters if the best validation was the last one here; call it before the next step."""
        if best_round == self.round + 1 and self.best[0] != best_round:
            self.best = (best_round, self.parameters.clone())

    # -- copies ----------------------------------------------------------------------------------------------

    @property
    def _state(self) -> dict[str, Tensor]:
        return {"parameters": self.parameters, "accumulator": self.accumulator}

    def arrays(self) -> dict[str, NDArray[np.float32]]:
        """Return the state by name, as arrays that later steps change."""
        return {name: values.cpu().numpy() for name, values in self._state.items()}

    def full_copy(self) -> dict[str, NDArray[np.float32]]:
        """Return a copy of the state that nobody can write, for messages; all messages of one round share it."""
        copies = {}
        for name, values in self._state.items():
            copy = self._copies.get((self.round, name))
            if copy is None:
                copy = values.to("cpu", copy=True).numpy()
                copy.flags.writeable = False
            copies[name] = self._copies[self.round, name] = copy
        return copies

    def load(self, arrays: Mapping[str, NDArray[np.float32]], round: int) -> None:
        """Take over a full copy; its arrays are asked for one by one."""
        for name, values in self._state.items():
            source = arrays[name]
            values.copy_(torch.from_numpy(source if source.flags.writeable else source.copy()))
        self.round = round
        self._digest = (-1, "")
        self._copies.clear()

    def digest(self) -> str:
        """Return the hash of the parameters; computed once a round."""
        if self._digest[0] != self.round:
            self._digest = (self.round, hashlib.sha256(self.parameters.cpu().numpy().data).hexdigest())
        return self._digest[1]

    def state_digest(self) -> str:
        """Return the hash of the whole state: the parameters and the optimiser's state."""
        return parameters_digest(*self._state.values())

    # -- the public step -------------------------------------------------------------------------------------

    def catch_up(self, message: RoundStart) -> None:
        """Bring the parameters to the start of the message's round; raise `ProtocolError` if that is not possible."""
        self.keep_best(message.best_round)
        if message.parameters is not None and message.accumulator is not None:
            if self.round < message.round - 1:
                self.load(copied_state(message), message.round - 1)
        else:
            for update in split_updates(message, self.model.size):
                if update.round > self.round + 1:
                    break
                self.apply(update)
        if self.round != message.round - 1:
            raise ProtocolError(
                f"the coordinator starts round {message.round}, but the public parameters here are of round "
                f"{self.round}; rejoin to get a full copy"
            )

    def apply(self, update: RoundSum) -> None:
        """Take the public step of a round: the summed protected gradients of its parties, scaled to all (Sec. 4.6).

        An abandoned round changes no parameter, and neither does an update that was applied before.
        """
        if update.round <= self.round:
            return
        assert update.round == self.round + 1, f"update of round {update.round} on a replica of {self.round}"
        self.round = update.round
        total = torch.from_numpy(update.total).to(self.parameters.device)
        if update.parties and self.solved is not None:
            self.solved.apply_update(self.parameters, self.accumulator, total)
        elif update.parties:
            self._step(total, update.parties)

    def _step(self, total: Tensor, parties: Sequence[int]) -> None:
        """Take the step of a summed gradient of the `parties`, with the regularisers of the users."""
        training = self.config.training
        factor = self.protection.worth(participation_scale(self.items, parties))
        biased = self.model.config.biases
        regularisers = {
            "users": 2 * training.l2 / (self.rounds_per_epoch if biased else self.model.users),
            "user_bias": 2 * training.l2_bias / self.rounds_per_epoch,
        }
        now, sums = self.model.views(self.parameters), self.model.views(self.accumulator)
        for name, change in self.model.views(total).items():
            gradient = change.to(torch.float32) * factor
            if name in regularisers:
                gradient += regularisers[name] * now[name]
            step(now[name], sums[name], gradient, training.lr)
        if self.model.config.bound is not None:
            now["users"].copy_(clip_rows(now["users"], self.model.config.bound))

    # -- checks: a party checks every RoundStart, the coordinator checks every RoundReply -------------------------

    def check_start(self, message: RoundStart, index: int, fewest: int) -> None:
        """Raise `ProtocolError` unless a RoundStart asks for what was agreed on, and its sums have the right form.

        `index` is the place of the receiving party; it adds to no sum over fewer than `fewest` parties.
        """
        number, active, parties = message.round, message.active, len(self.items)
        groups, updates, shared = message.update_parties, message.updates, message.neighbourhoods
        if number > self.rounds:
            raise ProtocolError(
                f"the coordinator starts round {number}, but {self.rounds} rounds were agreed on; start a new training"
            )
        if message.evaluate and not self.evaluates_in(number):
            raise ProtocolError(
                f"round {number} asks for a validation that was not agreed on; see training.evaluate_every"
            )
        if active != sorted(set(active)) or not active or not 0 <= active[0] <= active[-1] < parties:
            raise ProtocolError(f"round {number} names parties that do not exist")
        needed = max(fewest, self.protection.fewest)
        if index in active and len(active) < needed:
            raise ProtocolError(
                f"round {number} asks for a sum over {len(active)} parties, fewer than the agreed {needed}"
            )
        if message.parameters is not None:
            check_full_copy(message, self.model)
        if any(not set(group) <= set(range(parties)) for group in (*groups, message.neighbourhood_parties)):
            raise ProtocolError(f"round {number} brings sums over parties that do not exist")
        if shared is not None:
            expected = neighbourhood_shape(self.config, self.model)
            if shared.shape != expected or shared.dtype.kind != "i":
                raise ProtocolError(f"received neighbourhoods of shape {shared.shape} instead of {expected}")
        if updates is None and not any(groups):
            return
        if updates is None or not any(groups) or message.updates_from < 1:
            raise ProtocolError(f"round {number} brings updates of nobody")
        shape, kind = (self.model.size * sum(map(bool, groups)),), self.protection.sum_type
        if updates.shape != shape or updates.dtype != kind:
            raise ProtocolError(
                f"round {number} brings updates of shape {updates.shape} and type {updates.dtype}"
            )
        for update in split_updates(message, self.model.size):
            if not self.protection.fits(update.total, len(update.parties)):
                raise ProtocolError(
                    f"round {number} brings a sum of signs with values of more than its {len(update.parties)} parties"
                )

    def find_problem(self, reply: RoundReply, start: RoundStart, *, active: bool) -> str | None:
        """Return why a reply of a party, which is `active` or not, does not fit its RoundStart; None if it does."""
        if reply.place != start.place:
            return f"it replies to round {reply.round}, but round {start.round} is open"
        config, protection = self.config, self.protection
        gradient, shared = reply.gradient, reply.neighbourhoods
        if (gradient is not None) != active or (shared is not None) != (active and config.exchange != "off"):
            return "its reply does not hold what was asked for"
        if gradient is not None:
            if gradient.shape != (self.model.size,) or gradient.dtype != protection.sent_type:
                return f"it sent a gradient of shape {gradient.shape} and type {gradient.dtype}"
            # Checked here, where it is known whose gradient it is; a sum would not tell.
            if not config.masking and not protection.fits(gradient, 1):
                return "it sent a gradient with values that are not ternary"
        if shared is not None:
            shape, kind = shared.shape, shared.dtype
            if shape != neighbourhood_shape(config, self.model) or kind != neighbourhood_type(config):
                return f"it sent neighbourhoods of shape {shape} and type {kind}"
        if start.evaluate:
            if reply.error is None or reply.count is None:
                return "its reply holds no validation error"
            if reply.digest != self.digest():
                return "its public parameters differ from the coordinator's; it must rejoin"
        return None


def participation_scale(items: Sequence[int], active: Sequence[int], without: int | None = None) -> float:
    """Return sum of all M_i / sum of M_i over the active parties (Sec. 4.6), 0 if no party is left to scale.

    `without` leaves one party out of both sums.
    """
    whole = sum(m for p, m in enumerate(items) if p != without)
    part = sum(items[p] for p in active if p != without)
    return whole / part if part else 0.0


def rounds_per_epoch(training: TrainingConfig, ratings: int) -> int:
    """Return how many rounds one epoch over `ratings` training ratings takes."""
    return max(1, math.ceil(ratings / training.batch)) if training.batch else 1


def parameters_digest(*flat: Tensor) -> str:
    """Return the SHA-256 of flat parameters, and of further arrays of theirs. Masks depend on it, so it is never shortened."""
    digest = hashlib.sha256()
    for values in flat:
        digest.update(values.cpu().contiguous().numpy().data)
    return digest.hexdigest()


# The optimiser's step for public and private parameters, identical to the bit on every replica.
#
# It uses only additions, products, divisions and square roots, which IEEE 754 rounds the same way everywhere.


EPS = 1e-10


def step(parameters: Tensor, accumulator: Tensor, gradient: Tensor, lr: float) -> None:
    """Take a step of Adagrad in place: G += g^2, x -= lr g / (sqrt(G) + eps)."""
    accumulator += gradient * gradient
    parameters -= (lr * gradient) / (accumulator.sqrt() + EPS)


# -- sizes of messages -----------------------------------------------------------------------------------------


FULL_COPY = 8
"""Bytes per parameter of a full copy: the parameter and its accumulator."""
ALIGNMENT_BYTES = 40
"""Bytes a user in messages of the alignment: a point of the curve and its seal, or a pseudonym and an earlier row."""


def largest_alignment(users: int) -> int:
    """Return the bytes of the largest message about the alignment of a party with that many users."""
    return BESIDES_ARRAYS + ALIGNMENT_BYTES * users


def largest_message(config: Config, model: Model, width: int) -> int:
    """Return the bytes of the largest message of a round, with `width` bytes for each public parameter and neighbourhoods."""
    return BESIDES_ARRAYS + width * model.size + _neighbourhood_bytes(config, model)


def largest_array(config: Config, model: Model, width: int) -> int:
    """Return the bytes of the largest packed array in such a message."""
    return max(width * model.size, _neighbourhood_bytes(config, model))


def _neighbourhood_bytes(config: Config, model: Model) -> int:
    return math.prod(neighbourhood_shape(config, model)) * neighbourhood_type(config).itemsize


# -- public parameters from the coordinator ------------------------------------------------------------------------------


LARGEST_PARAMETER = 1e6
"""Largest absolute value of a public parameter, the only limit where the model has no bound."""
ROUNDING = 1e-5
"""Relative excess over the model's bound that rounding may cause."""

_ROWS = 1 << 16
"""Number of user embeddings whose norms are computed at a time."""


def check_full_copy(message: Welcome | RoundStart, model: Model) -> None:
    """Raise `ProtocolError` unless a message holds a full copy of a model's public parameters, within their bounds."""
    check_public(message.parameters, model)
    accumulator = _sized(message.accumulator, model)
    signed = model.solved is not None  # its last step, instead of sums of squares
    if not ((signed or accumulator.min() >= 0) and np.isfinite(accumulator).all()):
        raise _refused("the optimiser's sums of squares are negative or not finite")


def _sized(values: NDArray[Any] | None, model: Model) -> NDArray[Any]:
    """Return flat values of a copy; raise `ProtocolError` unless they have the model's size."""
    if values is None or values.shape != (model.size,):
        raise ProtocolError("the public parameters received do not have the size of this model's")
    return values


def check_public(parameters: NDArray[Any] | None, model: Model) -> None:
    """Raise `ProtocolError` unless flat public parameters have the model's size and keep its bound.

    The sensitivity of preset private assumes user embeddings within `model.bound`. Without a bound there is no such promise, and
    `LARGEST_PARAMETER` only keeps the arithmetic finite.
    """
    parameters = _sized(parameters, model)
    if not (parameters.max() <= LARGEST_PARAMETER and parameters.min() >= -LARGEST_PARAMETER):
        raise _refused(f"public parameters are not finite or beyond {LARGEST_PARAMETER:,.0f}")
    bound = model.config.bound
    if bound is not None:
        rows = parameters[: model.users * model.config.dim].reshape(model.users, model.config.dim)
        parts = (rows[at : at + _ROWS].astype(np.float64) for at in range(0, model.users, _ROWS))
        longest = max(float(np.linalg.norm(part, axis=1).max()) for part in parts)
        if longest > bound * (1 + ROUNDING):
            raise _refused(f"user embeddings have a norm of {longest:.3g}, beyond the agreed bound {bound:g}")


def _refused(problem: str) -> ProtocolError:
    return ProtocolError(
        f"the coordinator's parameters are refused: {problem}; rejoin once the coordinator sends those of the training"
    )


# -- the state of either side in a checkpoint ------------------------------------------------------------------------------


EvaluatedModel = tuple[int, dict[str, Tensor]]
"""The round of an evaluation, and the evaluated model: h_u, h_v and e_v^0."""


@dataclass
class CheckpointState:
    """Arrays, and values that fit into JSON."""

    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Arrays by name; those of a file are read when they are asked for."""
    values: dict[str, Any] = field(default_factory=dict)


def to_tensor(values: NDArray[Any], device: torch.device) -> Tensor:
    """Copy an array into a new tensor on `device`."""
    return torch.from_numpy(np.array(values)).to(device)
