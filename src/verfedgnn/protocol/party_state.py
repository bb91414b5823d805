"""What a party brings to a training and never changes, and what the training changes at it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.core.errors import DataError, RunError
from verfedgnn.core.graph import Graph, build_graph, clip_rows, move_graph
from verfedgnn.core.metrics import prediction_errors, rank_each
from verfedgnn.core.option_names import option
from verfedgnn.core.pairs import Pairs, PartyInput
from verfedgnn.core.random_streams import PartyStream, private_generator
from verfedgnn.core.rating_means import arrays
from verfedgnn.core.rating_scale import scale_unit, typical_rating, upper_quarter
from verfedgnn.gnn.list_model import pair_weights
from verfedgnn.gnn.model import Model, neighbour_from
from verfedgnn.protocol.replica import CheckpointState, EvaluatedModel, step, to_tensor
from verfedgnn.protocol.solved_round import ITEM_DAMPING


class Vouching(Protocol):
    """Signatures that bind public keys to parties. Without them, a coordinator could hand out its own keys."""

    def sign(self, purpose: str, key: str) -> str:
        """Return this party's signature of its own key for one purpose."""
        return ""

    def check(self, purpose: str, party: int, key: str, signature: str) -> None:
        """Raise `ProtocolError` unless `key` belongs to that party, for that purpose."""


class NoVouching(Vouching):
    """Nobody vouches for keys, as on one machine: signatures are empty, and every key is accepted."""


@dataclass(frozen=True)
class Policy:
    """A party's conditions for taking part when others run the coordinator."""

    agreement: str | None = None
    """SHA-256 of the federation file."""
    alignment: str | None = None
    """Name of the user alignment that the rows follow."""
    vouching: Vouching = field(default_factory=NoVouching)
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


def name_mask_purpose(alignment: str | None) -> str:
    """Return what signatures of mask keys are for; parties whose rows follow another alignment do not accept each other."""
    return f"mask {alignment}"


LOCAL = Policy(masks=False)
"""The policy on one machine, where there is nobody to distrust."""


# -- what never changes: data and targets, the configuration, the secret, the device and the policy -------------------------


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
        train = data.train
        if config.ranks:
            liked = train.take(train.rating >= upper_quarter(data.scale))
            if not len(liked):
                raise DataError(
                    f"party '{data.name}' has no training rating in the upper quarter of its scale to rank first; if its "
                    f"ratings come from events, let one count as a like ({option('events', 5)}), else use a preset that predicts ratings"
                )
            return cls(data, liked, None, 1.0, True)
        if config.model.form != "propagation":
            train = train.take(edge_order(data))
        if config.model.form == "propagation" or not config.model.biases:
            return cls(data, train, None, 1.0, False)
        low, high = data.scale
        # A mean would be one more release to account for. The biases learn it as well.
        centre = (
            (low + high) / 2 if config.gradients.protects_ratings else float(train.rating.double().mean())
        )
        unit = scale_unit(data.scale)
        return cls(data, Pairs(train.user, train.item, (train.rating - centre) / unit), centre, unit, False)

    def serve(self, users: Tensor, items: Tensor, embeddings: Tensor) -> dict[str, Tensor]:
        """Return an evaluated model: h_u and h_v whose product is in stars, and e_v^0. The mean becomes a column."""
        if self.centre is not None:
            users = torch.cat([users, torch.ones_like(users[:, :1])], 1)
            items = torch.cat([items * self.unit, torch.full_like(items[:, :1], self.centre)], 1)
        return {"users": users, "items": items, "embeddings": embeddings.clone()}

    def validate(self, users: Tensor, items: Tensor) -> tuple[float, int]:
        """Return the validation error and its count: squared error over ratings, or 1 - NDCG@20 over users with liked items."""
        valid = self.data.valid
        if not self.ranks:
            errors = prediction_errors(users, items, valid, self.data.scale)
            return float(errors.square().sum()), len(errors)
        wanted = valid.take(valid.rating >= upper_quarter(self.data.scale))
        ranks = rank_each(
            lambda rows: users[rows] @ items.T, len(users), len(items), [self.data.train], wanted, sample=True
        )
        return max(0.0, len(ranks.users) - float(ranks.ndcg.sum())), len(ranks.users)


def edge_order(data: PartyInput) -> Tensor:
    """Return the order of the graph's edges: that of the training pairs by user, then by item."""
    return torch.argsort(data.train.user.long() * data.items + data.train.item.long())


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
    def model(self) -> Model:
        """Model of all users."""
        return Model(self.config.model, self.data.users)

    @cached_property
    def targets(self) -> Targets:
        """Training pairs in the units of the loss."""
        return Targets.of(self.data, self.config)

    @property
    def announced_items(self) -> int:
        """Number of items to announce; where single ratings are protected, that of the declared catalogue."""
        if not self.config.gradients.protects_ratings:
            return self.data.items
        if self.data.catalogue is None:
            raise DataError(
                f"party '{self.data.name}' has no declared catalogue to announce; declare one with {option('catalogue')}"
            )
        return self.data.catalogue

    @property
    def announced_ratings(self) -> int:
        """Number of training ratings to announce; 0 where single ratings are protected, since the number is not needed there."""
        return 0 if self.config.gradients.protects_ratings else len(self.data.train)

    @property
    def threshold(self) -> float:
        """Rating from which an item is a neighbour of its user."""
        return neighbour_from(self.config.model, self.data.scale)

    @cached_property
    def solved_targets(self) -> Tensor:
        """What the solver of items fits, in the order of the graph's edges by user (E,): targets, or for lists the pairs' weights."""
        fitted = self.targets.train.rating
        if self.targets.ranks:
            fitted = pair_weights(
                self.data.train.rating[edge_order(self.data)], upper_quarter(self.data.scale)
            )
        return fitted.to(self.device)

    def make_graph(self, all_items: int) -> Graph:
        """Build the party's graph from its training ratings; `all_items` counts the items of all parties."""
        data = self.data
        user, item, rating = arrays(data.train)
        neighbour = (data.train.rating >= self.threshold).cpu().numpy()
        values = None
        if (
            self.config.model.raters
        ):  # each rating less the mean of its item, in half units of the party's scale
            mean = rating.mean()
            count = np.bincount(item, minlength=data.items)
            offset = np.bincount(item, rating - mean, data.items) / (count + ITEM_DAMPING)
            values = ((rating - mean - offset[item]) / scale_unit(data.scale))[neighbour] / 2
        graph = build_graph(
            user[neighbour],
            item[neighbour],
            users=data.users,
            items=data.items,
            ratio=all_items / data.items,
            values=values,
        )
        return move_graph(graph, self.device)


# -- what a training changes; it outlives a lost connection, and checkpoints hold it ----------------------------------------


@dataclass(frozen=True)
class PrivateParameters:
    """Private parameters by name (`Model.private_shapes`), with Adagrad's sums of squares."""

    parameters: dict[str, Tensor]
    accumulators: dict[str, Tensor]

    def clone(self) -> PrivateParameters:
        """Return a copy that later steps do not change."""
        copies = ({name: value.clone() for name, value in kind.items()} for kind in vars(self).values())
        return PrivateParameters(*copies)

    def step(self, gradients: Mapping[str, Tensor], config: Config) -> None:
        """Take one step in place; if the model has a bound, clip item embeddings to it."""
        bound = config.model.bound
        for name, gradient in gradients.items():
            values = self.parameters[name]
            step(values, self.accumulators[name], gradient, config.training.lr)
            if bound is not None and name == "items":
                values.copy_(clip_rows(values, bound))

    def arrays(self, prefix: str) -> dict[str, NDArray[Any]]:
        """Return the parameters and their optimiser's state as a checkpoint holds them."""
        return {
            f"{prefix}.{kind}.{name}": value.cpu().numpy()
            for kind, values in vars(self).items()
            for name, value in values.items()
        }

    def read(self, stored: Mapping[str, NDArray[Any]], prefix: str) -> PrivateParameters:
        """Return what `arrays` stored; raise `RunError` if its shapes differ from these."""
        read: dict[str, dict[str, Tensor]] = {"parameters": {}, "accumulators": {}}
        for kind, values in read.items():
            for name, value in self.parameters.items():
                values[name] = to_tensor(stored[f"{prefix}.{kind}.{name}"], value.device)
                if values[name].shape != value.shape:
                    raise RunError(
                        f"the checkpoint has {len(values[name]):,} {name}, the ratings have {len(value):,}; give the same data"
                    )
        return PrivateParameters(**read)


@dataclass(frozen=True)
class SentNeighbourhoods:
    """A party's own neighbourhoods as it sent them in a round, before masks."""

    round: int = 0
    values: NDArray[np.integer[Any]] = field(default_factory=lambda: np.zeros(0, np.int32))


@dataclass(frozen=True)
class ReceivedNeighbourhoods:
    """The last sum of all parties' neighbourhoods that a party received; of round 0 before the first."""

    digest: str = ""
    """Hash of the sum; all parties that received the same sum have the same hash."""
    round: int = 0
    others: Tensor | None = None
    """Estimated sum of the other parties' neighbourhoods (K, q, C); None if the party's own share is not known."""


@dataclass(frozen=True)
class RoundSnapshot:
    """A party's state before a round. If the coordinator repeats the round, the party goes back to it."""

    round: int
    """The round; 0 before the first."""
    private: PrivateParameters
    sent: SentNeighbourhoods = SentNeighbourhoods()


@dataclass
class PartyProgress:
    """A party's private parameters, exchange and evaluated models in one training."""

    private: PrivateParameters
    snapshot: RoundSnapshot
    device: torch.device
    sent: SentNeighbourhoods = SentNeighbourhoods()
    received: ReceivedNeighbourhoods = ReceivedNeighbourhoods()
    evaluated: EvaluatedModel = (0, {})
    best: EvaluatedModel = (0, {})
    """The model of the best validation that this party took part in."""
    training: str | None = None
    """Name of the training; None before the party first joins one."""
    announced: tuple[int, str] = (0, "")
    """Round and hash of the public parameters in its last validation reply."""
    verified: tuple[int, str] = (0, "")
    """Round and hash of the last validation where the coordinator confirmed the hash."""

    @classmethod
    def initial(cls, setup: PartySetup) -> PartyProgress:
        """Draw the private parameters before the first round."""
        rng = private_generator(setup.secret, PartyStream.ITEM_EMBEDDINGS)
        drawn = setup.model.initial_private(rng, setup.data.items, typical_rating(setup.data.scale))
        start = {name: value.to(setup.device) for name, value in drawn.items()}
        private = PrivateParameters(start, {name: torch.zeros_like(value) for name, value in start.items()})
        return cls(private, RoundSnapshot(0, private), setup.device)

    def begin_round(self, round: int, best_round: int) -> None:
        """Take a snapshot before a new round, or go back to that of a repeated one, whose sum the coordinator lost.

        A coordinator that starts a round has confirmed the hash of any earlier validation.
        """
        if self.evaluated[0] == best_round:
            self.best = self.evaluated
        if 0 < self.announced[0] < round:
            self.verified = self.announced
        if self.snapshot.round == round:
            self.private, self.sent = self.snapshot.private.clone(), self.snapshot.sent
        else:
            self.snapshot = RoundSnapshot(round, self.private.clone(), self.sent)
        if self.received.round >= round:
            self.received = ReceivedNeighbourhoods()

    def models(self) -> CheckpointState:
        """Return the evaluated models: large, and new only after a validation."""
        kept = {"evaluated": self.evaluated, "best": self.best}
        arrays = {
            f"{name}.{key}": value.cpu().numpy()
            for name, (_, model) in kept.items()
            for key, value in model.items()
        }
        return CheckpointState(arrays, {name: round for name, (round, _) in kept.items()})

    def checkpoint(self) -> CheckpointState:
        """Return everything else that training changed."""
        before = self.snapshot
        values = {
            "training": self.training,
            "verified": self.verified,
            "received": [self.received.digest, self.received.round],
            "sent": self.sent.round,
            "snapshot": [before.round, before.sent.round],
        }
        arrays = self.private.arrays("private") | before.private.arrays("snapshot")
        arrays |= {"sent": self.sent.values, "snapshot.sent": before.sent.values}
        if self.received.others is not None:
            arrays["received"] = self.received.others.cpu().numpy()
        return CheckpointState({name: array for name, array in arrays.items() if array.size}, values)

    def restore(self, state: CheckpointState, models: CheckpointState) -> None:
        """Replace this progress with that of a checkpoint."""
        values, arrays = state.values, state.arrays

        def model(name: str) -> EvaluatedModel:
            stored = {key: models.arrays[key] for key in models.arrays if key.startswith(f"{name}.")}
            read = {key.removeprefix(f"{name}."): to_tensor(v, self.device) for key, v in stored.items()}
            return models.values[name], read

        def sent(round: int, name: str) -> SentNeighbourhoods:
            return SentNeighbourhoods(round, arrays.get(name, SentNeighbourhoods().values))

        self.evaluated, self.best = model("evaluated"), model("best")
        self.private = self.private.read(arrays, "private")
        self.training = values["training"]
        self.verified = tuple(values["verified"])
        self.sent = sent(values["sent"], "sent")
        others = to_tensor(arrays["received"], self.device) if "received" in arrays else None
        digest, received = values["received"]
        self.received = ReceivedNeighbourhoods(digest, received, others)
        round, round_sent = values["snapshot"]
        before = sent(round_sent, "snapshot.sent")
        self.snapshot = RoundSnapshot(round, self.private.read(arrays, "snapshot"), before)
