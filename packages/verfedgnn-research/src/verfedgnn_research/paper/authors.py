"""VerFedGNN under the protocol of its authors' released code, wherever that differs from ours.

Items are cut in order of first appearance, 80 % of the ratings train, the best *test* epoch is reported, Phi is a count sketch,
and initial values are a_k = 1/(K+1) and, for GAT and GGNN, weights from N(0, 1), without biases in GGNN.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn import plugins
from verfedgnn.config import Config
from verfedgnn.core.graph import Graph
from verfedgnn.data import PartyData, Ratings, read_ratings
from verfedgnn.gnn.model import OPERATORS
from verfedgnn.gnn.operator import Neighbourhood, Operator, Weights
from verfedgnn.privacy.projection import IdentityProjection
from verfedgnn.protocol.party import Party
from verfedgnn.training.train import train
from verfedgnn_research.baselines import Where
from verfedgnn_research.experiments.training_cell import Cell

DIFFERENCES = (
    "items are cut in order of first appearance into parties of equal size; 80 % of the ratings train, and the best *test* "
    "epoch is reported; Phi is a count sketch; initially a_k = 1/(K+1), and the weights of GAT and GGNN are from N(0, 1), "
    "GGNN's without biases. Embeddings, GCN's weights, batches, the optimiser and the protection of gradients are ours"
)


@dataclass(frozen=True)
class AuthorsCell(Cell):
    """A training of VerFedGNN under the authors' protocol; the RMSE of its record is that of the best test epoch."""

    def config(self) -> Config:
        """Return the settings, with all ratings in the training and in what is called the validation part."""
        config = super().config()
        return config.with_values(
            {"split.fractions": (0.8, 0.2, 0.0), "model.gnn": start_as_authors(config.model.gnn)}
        )

    def read(self) -> list[PartyData]:
        """Read the data and cut its items in order of first appearance."""
        assert self.parties is not None
        return _read(self.data[0], self.parties)

    def key(self) -> str:
        """Return the hash that identifies the cell's record."""
        return hashlib.sha256(json.dumps(["authors", super().key()]).encode()).hexdigest()[:16]

    def run(self, where: Where) -> dict[str, Any]:
        """Train, and return the record."""
        run = train(
            self.read(),
            self.config(),
            device=where.device,
            party=SketchParty,
            watch=where.watch,
            stop=where.stop,
        )
        error = run.metrics["valid"]["rmse"]
        return {**self.about(where), "test": {"rmse": round(error, 6)}, "seconds": run.metrics["seconds"]}


@lru_cache(maxsize=2)
def _read(data: str, parties: int) -> list[PartyData]:
    return cut_by_appearance(read_ratings(data), parties)


def cut_by_appearance(table: Ratings, parties: int) -> list[PartyData]:
    """Cut the items, in the order in which they first appear in the table, into groups of equal size; the last takes the rest."""
    items, first = np.unique(table.item, return_index=True)
    order = items[np.argsort(first)]
    width = len(order) // parties
    groups = np.split(order, range(width, width * parties, width))
    tables = [
        replace(table.select_items(np.sort(group)), name=f"party-{place}", catalogue=len(group))
        for place, group in enumerate(groups)
    ]
    return [PartyData(each.name, each) for each in tables]


class CountSketch(IdentityProjection):
    """A projection with one entry, +1 or -1, in every column. Theorem 1 does not hold for it."""

    def __init__(self, users: int, ratio: float, seed: int, device: torch.device) -> None:
        super().__init__(users)
        self.rows = max(1, int(users / ratio))
        rng = np.random.default_rng(seed)
        self.row = torch.from_numpy(rng.integers(self.rows, size=users)).to(device)
        self.sign = torch.from_numpy(rng.choice(np.array([-1, 1], np.float32), (users, 1))).to(device)

    def project(self, x: Tensor) -> Tensor:
        """Compute Y = Phi X: (N, C) -> (q, C)."""
        return x.new_zeros(self.rows, x.shape[1]).index_add_(0, self.row, self.sign * x)

    def reconstruct(self, y: Tensor) -> Tensor:
        """Compute X^ = Phi^T Y: (q, C) -> (N, C)."""
        return self.sign * y[self.row]


class SketchParty(Party):
    """A party whose projection is a count sketch."""

    def __init__(self, *joining: Any) -> None:
        super().__init__(*joining)
        config = self.config
        assert config.exchange != "off"
        self.exchange = CountSketch(self.data.users, config.exchange, config.seed, self.setup.device)


def start_as_authors(gnn: str) -> str:
    """Register a GNN with the authors' initial values, and return its name."""
    name = f"authors-{gnn}"
    plugins.register(type("AuthorsGNN", (AuthorsStart, OPERATORS[gnn]), {"name": name, "gnn": gnn}))
    return name


class AuthorsStart(Operator):
    """A GNN with the initial values of the authors' code; GGNN has no biases."""

    gnn: ClassVar[str]

    def weights(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shapes of all weights but biases."""
        shapes = super().weights()  # type: ignore[safe-super]
        return {name: shape for name, shape in shapes.items() if name != "gru_bias"}

    def initial(self, name: str, shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.float32]:
        """Draw a weight from N(0, 1); those of GCN as usual."""
        if self.gnn == "gcn":
            return super().initial(name, shape, rng)
        return rng.normal(size=shape).astype(np.float32)

    def initial_mix(self, typical: float) -> float:
        """Return a_k = 1/(K+1)."""
        return 1 / (self.layers + 1)

    def layer(
        self, k: int, weights: Weights, users: Tensor, items: Tensor, graph: Graph, others: Tensor | None
    ) -> tuple[Neighbourhood, Tensor, Tensor]:
        """Compute layer k, with biases of 0."""
        whole = {"gru_bias": users.new_zeros(4 * self.dim), **weights}
        return super().layer(k, whole, users, items, graph, others)  # type: ignore[safe-super]
