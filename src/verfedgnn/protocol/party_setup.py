"""What a party insists on towards a coordinator that others run, and its check of the coordinator's Welcome."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.core.errors import DataError
from verfedgnn.core.graph import Graph, build_graph, move_graph
from verfedgnn.core.metrics import measure_errors, rank_each
from verfedgnn.core.option_names import option
from verfedgnn.core.pairs import Pairs, PartyInput, scale_unit, upper_quarter
from verfedgnn.core.random_streams import PartyRandomness, PartyStream
from verfedgnn.core.rating_means import arrays
from verfedgnn.gnn.list_model import pair_weights
from verfedgnn.gnn.model import Model, neighbour_from
from verfedgnn.protocol.forward_backward import Batch
from verfedgnn.protocol.solved_round import ITEM_DAMPING


class Vouching(Protocol):
    """Signatures that bind public keys to parties. Without them, a coordinator could hand out its own keys."""

    def sign(self, purpose: str, key: str) -> str:
        """Return this party's signature of its own key for one purpose."""

    def check(self, purpose: str, party: int, key: str, signature: str) -> None:
        """Raise `ProtocolError` unless `key` belongs to that party, for that purpose."""


class NoVouching:
    """Nobody vouches for keys, as on one machine."""

    def sign(self, purpose: str, key: str) -> str:
        """Return an empty signature."""
        return ""

    def check(self, purpose: str, party: int, key: str, signature: str) -> None:
        """Accept every key."""


_NOBODY = NoVouching()


@dataclass(frozen=True)
class Policy:
    """A party's conditions for taking part when others run the coordinator."""

    agreement: str | None = None
    """SHA-256 of the federation file."""
    alignment: str | None = None
    """Name of the user alignment that the rows follow."""
    vouching: Vouching = _NOBODY
    """Signatures of mask keys."""
    smallest: int = 1
    """Fewest parties in a sum that this party adds to."""
    place: tuple[int, int] | None = None
    """The party's place in the roster, and the length of the roster; None if there is no roster."""
    most_rounds: int = 1 << 32
    """Number of rounds of a training, at most."""
    masks: bool = True
    """Whether to add masks if the configuration has them. On one machine they would hide nothing; messages only keep their form."""
    fresh_noise: bool = False
    """Whether noise also depends on the values it hides, so that a repeated round with other values has other noise."""

    @property
    def mask_purpose(self) -> str:
        """What signatures of mask keys are for. They name the alignment, so parties with other rows do not accept each other."""
        return name_mask_purpose(self.alignment)


def name_mask_purpose(alignment: str | None) -> str:
    """Return what the signature of a mask key is for, in a federation with that alignment."""
    return f"mask {alignment}"


LOCAL = Policy(masks=False)
"""The policy on one machine, where there is nobody to distrust."""


# -- What a party brings to a training and never changes: its data and targets, the configuration, its secret, device and policy


@dataclass(frozen=True)
class Targets:
    """Training pairs in the units of the loss, and the conversion of predictions to stars.

    With biases, targets are ratings minus the party's mean, in quarters of its scale. So one set of hyper-parameters serves 1-5 and
    1-10 stars, even in one federation. Predictions are converted back to stars.
    """

    data: PartyInput
    train: Pairs
    """Training pairs: standardised if the model needs that; for lists, only the liked ones."""
    centre: float | None
    """Mean training rating, if predictions are deviations from it."""
    unit: float
    """Stars per unit of the targets."""
    ranks: bool
    """Whether the model orders lists."""

    @classmethod
    def of(cls, data: PartyInput, config: Config) -> Targets:
        """Derive the targets from a party's data and the configuration."""
        if config.ranks:
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
        if not config.model.biases:
            return cls(data, train, None, 1.0, False)
        low, high = data.scale
        # A mean would be one more release to account for. The biases learn it as well.
        centre = (
            (low + high) / 2 if config.gradients.protects_ratings else float(train.rating.double().mean())
        )
        unit = scale_unit(data.scale)
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
        ranks = rank_each(
            lambda rows: users[rows] @ items.T, len(users), len(items), [self.data.train], wanted, sample=True
        )
        return max(0.0, len(ranks.users) - float(ranks.ndcg.sum())), len(ranks.users)


def deviations(train: Pairs, data: PartyInput) -> NDArray[np.float64]:
    """Return each rating less the mean of its item, in units of the party's scale."""
    _, item, rating = arrays(train)
    mean = rating.mean()
    count = np.bincount(item, minlength=data.items)
    offset = np.bincount(item, rating - mean, data.items) / (count + ITEM_DAMPING)
    units: NDArray[np.float64] = (rating - mean - offset[item]) / scale_unit(data.scale)
    return units


@dataclass(frozen=True)
class PartySetup:
    """The fixed facts about one party."""

    data: PartyInput
    config: Config
    secret: bytes
    """Seed of its noise, batches and initial items; no message carries it."""
    device: torch.device
    policy: Policy

    @cached_property
    def randomness(self) -> PartyRandomness:
        """Source of its noise, batches and initial items."""
        return PartyRandomness(self.secret)

    @cached_property
    def model(self) -> Model:
        """Model of all users."""
        return Model(self.config.model, self.data.users)

    @cached_property
    def targets(self) -> Targets:
        """Training pairs in the units of the loss."""
        return Targets.of(self.data, self.config)

    @property
    def name(self) -> str:
        """Name of the party."""
        return self.data.name

    @property
    def protects_ratings(self) -> bool:
        """Whether noise gives single ratings differential privacy, so that everything that leaves must be noised."""
        return self.config.gradients.protects_ratings

    @property
    def announced_items(self) -> int:
        """Number of items to announce; where single ratings are protected, that of the declared catalogue."""
        if not self.protects_ratings:
            return self.data.items
        if self.data.catalogue is None:
            raise DataError(
                f"party '{self.name}' has no declared catalogue to announce; declare one with {option('catalogue')}"
            )
        return self.data.catalogue

    @property
    def announced_ratings(self) -> int:
        """Number of training ratings to announce; 0 where single ratings are protected, since the number is not needed there."""
        return 0 if self.protects_ratings else len(self.data.train)

    @property
    def threshold(self) -> float:
        """Rating from which an item is a neighbour of its user."""
        return neighbour_from(self.config.model, self.data.scale)

    @cached_property
    def solved_targets(self) -> Tensor:
        """What the solver of items fits, in the order of the graph's edges by user (E,): targets, or for lists the pairs' weights."""
        if not self.targets.ranks:
            return self.targets.train.rating.to(self.device)
        train = self.data.train
        order = torch.argsort(train.user.long() * self.data.items + train.item.long())
        return pair_weights(train.rating[order], upper_quarter(self.data.scale)).to(self.device)

    def make_graph(self, all_items: int) -> Graph:
        """Build the party's graph from its training ratings; `all_items` counts the items of all parties."""
        train = self.data.train
        neighbour = (train.rating >= self.threshold).cpu().numpy()
        graph = build_graph(
            train.user.cpu().numpy()[neighbour],
            train.item.cpu().numpy()[neighbour],
            users=self.data.users,
            items=self.data.items,
            ratio=all_items / self.data.items,
            values=deviations(train, self.data)[neighbour] / 2 if self.config.model.raters else None,
        )
        return move_graph(graph, self.device)


class Batches:
    """A party's batches, shuffled with its own randomness."""

    def __init__(self, setup: PartySetup, rounds_per_epoch: int) -> None:
        self.setup = setup
        self.rounds_per_epoch = rounds_per_epoch
        self._shuffled: tuple[int, Pairs] | None = None
        """The epoch, and all ratings in that epoch's order."""

    def in_round(self, round: int) -> Batch:
        """Return the batch of a round: a slice of this epoch's shuffle of all ratings, or all of them."""
        pairs = self.setup.targets.train
        count = self.rounds_per_epoch
        if count == 1:
            return Batch(pairs, edges=self.setup.config.model.form != "propagation")
        epoch, slot = divmod(round - 1, count)
        if self._shuffled is None or self._shuffled[0] != epoch:
            rng = self.setup.randomness.generator(PartyStream.SHUFFLE, epoch)
            order = torch.from_numpy(rng.permutation(len(pairs))).to(pairs.user.device)
            self._shuffled = (epoch, pairs.take(order))
        shuffled = self._shuffled[1]
        part = slice(slot * len(pairs) // count, (slot + 1) * len(pairs) // count)
        return Batch(shuffled.take(part), 1 / count)
