"""FedPerGNN (Wu et al., *A federated graph neural network framework for privacy-preserving personalization*, 2022)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.core.errors import ConfigError
from verfedgnn.core.key_stream import KeyStream
from verfedgnn.core.random_streams import NoiseStream
from verfedgnn.data import TRAIN, PartyData
from verfedgnn.gnn.model import Model, neighbour_from
from verfedgnn.protocol.messages import RoundStart
from verfedgnn.protocol.party import Party, noise_key
from verfedgnn.runs.ledger import Ledger
from verfedgnn.runs.prepared_data import split_ratings
from verfedgnn_research.baselines.method import Declaration, Method, MethodResult, Where
from verfedgnn_research.baselines.verfedgnn_method import federated

ID_BYTES = 16
"""Bytes of an encrypted user id."""
INDEX_BYTES = 4
"""Bytes of the number of an anonymous item or of a row."""
NUMBER_BYTES = 4
"""Bytes of one coordinate of an embedding."""


class FedPerGNN(Method):
    """Graphs expanded by anonymous neighbours, pseudo-interactions and Laplace noise on gradients.

    Adapted as in Sec. 4.1: a client is a party instead of a user. Each party sends the encrypted ids of each item's users and the
    items' embeddings; the server matches users and hands every party its users' items elsewhere, embedding by embedding. With
    them a party aggregates exactly what a central model would, so the arithmetic here is the exchange of exact sums with exact
    degrees (the same numbers, a round late); the ledger counts the messages of FedPerGNN instead of the sums.

    FedPerGNN hides the items of a user's gradients among pseudo-items. A party's gradients are those of users, so it hides which
    users its batch holds: as many others get a row drawn with the mean and covariance of the true ones. These rows are sent, and
    no others; every coordinate is clipped and gets Laplace noise of twice the clip, FedPerGNN's own ratio (0.1 and 0.2) and that
    of epsilon = 1 in Table 6.
    """

    name = "fedpergnn"
    title = "FedPerGNN"
    version = 3
    declares = Declaration(
        high_order=True,
        gradient_protection=True,
        cross_graph=True,
        storage="local",
        protects="gradients: Laplace, epsilon 1 a release; who has which item elsewhere is shown, anonymous until matched",
    )

    def configure(self, base: Config) -> Config:
        """Return settings with exact sums, exact degrees and noisy gradients."""
        return base.with_values(
            {
                "masking": False,
                "exchange": 0,
                "model.estimators": False,
                "gradients.mechanism": "laplace",
                "gradients.epsilon": 1.0,
                "gradients.clip": 0.5,
                "gradients.rescale": 1.0,
                "unprotected": ["degrees", "projection"],
            }
        )

    def train(self, parties: Sequence[PartyData], config: Config, where: Where) -> MethodResult:
        """Train a federation with pseudo-interactions and count the bytes that FedPerGNN would send."""
        if config.training.participation < 1:
            raise ConfigError("FedPerGNN is counted for all parties in every round; leave participation at 1")

        class Counted(PseudoParty):
            rows: ClassVar[Counter[str]] = Counter()

        trained = federated(parties, config, where, Counted)
        count_messages(trained.ledger, parties, config, trained.rounds, Counted.rows)
        return trained


class PseudoParty(Party):
    """A party that sends gradients of the users in its batch and of as many other users, and no others."""

    rows: ClassVar[Counter[str]] = Counter()
    """Number of rows that each party has sent."""

    def protect_gradient(self, gradient: Tensor, message: RoundStart) -> NDArray[Any]:
        """Add pseudo-interactions, then protect the gradient as configured; rows that are not sent are 0."""
        real = np.unique(self.batch(message.round).pairs.user.cpu().numpy())
        key = noise_key(self.setup, NoiseStream.PSEUDO_INTERACTIONS, message, [gradient])
        stream = key.stream("pseudo-interactions")
        drawn = stream.sample(self.data.users, min(len(real), self.data.users))
        pseudo = drawn[~np.isin(drawn, real)]
        flat = gradient.clone()
        rows = self.model.views(flat)["users"]
        true, made = (
            torch.from_numpy(users.astype(np.int64)).to(self.setup.device) for users in (real, pseudo)
        )
        rows.index_copy_(0, made, like(rows[true], len(pseudo), stream))
        released = super().protect_gradient(flat, message)
        others = np.ones(self.data.users, bool)
        others[real] = others[pseudo] = False
        self.rows[self.data.name] += len(real) + len(pseudo)
        released[: self.data.users * rows.shape[1]].reshape(self.data.users, -1)[others] = 0
        return released


def like(rows: Tensor, count: int, stream: KeyStream) -> Tensor:
    """Draw `count` normal rows with the mean and covariance of `rows` (n, C)."""
    mean = rows.mean(0, keepdim=True)
    root = torch.linalg.qr((rows - mean) / max(1, len(rows) - 1) ** 0.5, mode="r").R
    normal = torch.special.ndtri(torch.from_numpy(stream.uniform((count, len(root)))))
    drawn: Tensor = mean + normal.to(rows) @ root
    return drawn


def count_messages(
    ledger: Ledger, parties: Sequence[PartyData], config: Config, rounds: int, rows: Mapping[str, int]
) -> None:
    """Replace the bytes of the simulated exchange by those of FedPerGNN's messages.

    Up: edges once, item embeddings every round, `rows` of user gradients with their numbers, and shared
    weights. Down: the other parties' items and the summed gradient.
    """
    model = Model(config.model, parties[0].ratings.n_users)
    weights = NUMBER_BYTES * (model.size - model.user_size)
    items = [party.ratings.n_items for party in parties]
    edges = [_edges(party, config) for party in parties]
    for party, own_items, own_edges in zip(parties, items, edges, strict=True):
        name = party.name
        row = NUMBER_BYTES * config.model.dim
        ledger.bytes["RoundReply", "up", name] = rounds * (own_items * row + weights) + rows[name] * (
            row + INDEX_BYTES
        )
        ledger.bytes["RoundStart", "down", name] = (rounds - 1) * (
            (sum(items) - own_items) * row + NUMBER_BYTES * model.size
        )
        ledger.record("GraphExpansion", "up", name, own_edges * ID_BYTES)
        expanded = party.ratings.n_users * ID_BYTES + (sum(edges) - own_edges) * INDEX_BYTES
        ledger.record("GraphExpansion", "down", name, expanded)


def _edges(party: PartyData, config: Config) -> int:
    """Return the number of neighbours in the party's training part."""
    table = party.ratings
    parts = split_ratings(party, config.split, config.seed)
    return int(((parts == TRAIN) & (table.rating >= neighbour_from(config.model, table.scale))).sum())
