"""What a method of the comparison is: what it declares about itself, its settings, and how it is trained."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from verfedgnn.config import Config
from verfedgnn.data import PartyData
from verfedgnn.plugins.contract import MethodPlugin
from verfedgnn.runs.ledger import Ledger
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.training.progress import Watcher


@dataclass(frozen=True)
class Declaration:
    """A column of the paper's Table 1, and one sentence more."""

    high_order: bool
    """Whether it models high-order connectivity by propagation over a graph."""
    gradient_protection: bool
    """Whether gradients leave a party only perturbed."""
    cross_graph: bool
    """Whether it uses neighbours that are at other parties."""
    storage: Literal["central", "local"]
    """Where ratings are while the model trains."""
    protects: str
    """What is protected, and what is shown to whom."""


@dataclass(frozen=True)
class Where:
    """On what a training runs, and who watches it."""

    device: torch.device
    watch: Watcher | None = None
    stop: Callable[[], bool] = lambda: False


@dataclass(frozen=True)
class MethodResult:
    """What a training gave: a model for every party, in order, and what it cost."""

    models: list[PartyModel]
    ledger: Ledger
    rounds: int
    best_round: int
    seconds: float


class Method(MethodPlugin, ABC):
    """One method. Stateless."""

    name: ClassVar[str]
    """On the command line."""
    title: ClassVar[str]
    """In tables."""
    preset: ClassVar[str] = "paper"
    """Where its settings start from."""
    by_gnn: ClassVar[bool] = True
    """Whether it comes with every GNN."""
    version: ClassVar[int] = 1
    """Raised when its arithmetic changes without its settings, so that old records are not taken for new ones."""
    declares: ClassVar[Declaration]

    def gnns(self, wanted: Sequence[str]) -> Sequence[str]:
        """Those of `wanted` that it comes with; a method without a GNN stands under gcn."""
        return wanted if self.by_gnn else ("gcn",)

    def configure(self, base: Config) -> Config:
        """Its settings: those of `base`, and what makes the method."""
        return base

    @abstractmethod
    def train(self, parties: Sequence[PartyData], config: Config, where: Where) -> MethodResult:
        """Train with a configuration that `configure` made."""
