"""What a party brings to a training and never changes: its data, the configuration, its secret, its device and its policy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.core.errors import DataError
from verfedgnn.core.graph import Graph, build_graph, move_graph
from verfedgnn.core.option_names import option
from verfedgnn.core.pairs import Pairs, PartyInput
from verfedgnn.core.random_streams import PartyRandomness
from verfedgnn.core.rating_means import Means, arrays, fit_means
from verfedgnn.core.rating_scale import scale_unit, upper_quarter
from verfedgnn.gnn.list_model import pair_weights
from verfedgnn.gnn.model import Model, neighbour_from
from verfedgnn.protocol.party.policy import Policy
from verfedgnn.protocol.party.targets import Targets

ITEM_DAMPING = 5.0
"""Number of ratings at the party's mean that an item's mean counts in addition to its own."""


def deviations(train: Pairs, data: PartyInput) -> NDArray[np.float64]:
    """Return each rating less the mean of its item, in units of the party's scale."""
    _, item, rating = arrays(train)
    mean = rating.mean()
    count = np.bincount(item, minlength=data.items)
    offset = np.bincount(item, rating - mean, data.items) / (count + ITEM_DAMPING)
    found: NDArray[np.float64] = (rating - mean - offset[item]) / scale_unit(data.scale)
    return found


@dataclass(frozen=True)
class PartySetup:
    """The fixed facts about one party."""

    data: PartyInput
    config: Config
    randomness: PartyRandomness
    """Source of its noise, batches and initial items; seeded by a secret that no message carries."""
    device: torch.device
    policy: Policy
    model: Model
    targets: Targets

    @classmethod
    def of(
        cls, data: PartyInput, config: Config, secret: bytes, device: torch.device | str, policy: Policy
    ) -> PartySetup:
        """Derive the model and the training targets from data and configuration."""
        return cls(
            data,
            config,
            PartyRandomness(secret),
            torch.device(device),
            policy,
            Model(config.model, data.users),
            Targets.of(data, config),
        )

    def with_data(self, data: PartyInput) -> PartySetup:
        """Return the same setup with other ratings."""
        return replace(self, data=data, targets=Targets.of(data, self.config))

    @property
    def all_data(self) -> PartyInput:
        """The ratings of the whole party; a worker (`shard_setup`) trains on a part of them."""
        return self.data

    @property
    def noise_place(self) -> tuple[int, ...]:
        """What the noise of a worker depends on in addition; nothing for a party in one process."""
        return ()

    @property
    def targets_before(self) -> tuple[int, int]:
        """How many training pairs other workers have: before this worker's, and in all with this worker's."""
        return 0, len(self.targets.train)

    @property
    def name(self) -> str:
        """Name of the party."""
        return self.data.name

    @property
    def protects_ratings(self) -> bool:
        """Whether noise gives single ratings differential privacy, so that everything that leaves must be noised."""
        return self.config.gradients.mechanism == "skellam"

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
    def means(self) -> Means:
        """The party's own user and item means."""
        data = self.data
        return fit_means(data.train, data.valid, data.users, data.items, data.scale)

    @cached_property
    def user_means(self) -> Tensor:
        """What the party tells the others about each user's mean rating (N, 2) (`core.rating_means`)."""
        return torch.from_numpy(self.means.share(scale_unit(self.data.scale))).float().to(self.device)

    @property
    def item_starts(self) -> Tensor:
        """Biases that items start with (M_p, 1): their means, in units of the party's scale."""
        return torch.from_numpy(self.means.item_offset / scale_unit(self.data.scale)).float().unsqueeze(1)

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
        share = 1.0 if self.model.solved is None else 0.5
        graph = build_graph(
            train.user.cpu().numpy()[neighbour],
            train.item.cpu().numpy()[neighbour],
            users=self.data.users,
            items=self.data.items,
            ratio=all_items / self.data.items,
            values=deviations(train, self.data)[neighbour] * share if self.config.model.raters else None,
        )
        return move_graph(graph, self.device)
