"""The contract of a method in the comparison: its declaration, its settings and its training."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from verfedgnn.config import Config
from verfedgnn.data import PartyData
from verfedgnn.plugins import Plugin
from verfedgnn.runs.ledger import Ledger
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.training.progress import Watcher
from verfedgnn_research.names import METHODS


@dataclass(frozen=True)
class Declaration:
    """A column of the paper's Table 1, with a sentence on what the method protects."""

    high_order: bool
    """Whether the method models high-order connectivity by propagation over a graph."""
    gradient_protection: bool
    """Whether gradients leave a party only perturbed."""
    cross_graph: bool
    """Whether the method uses neighbours at other parties."""
    storage: Literal["central", "local"]
    """Place of the ratings during training."""
    protects: str
    """What is protected, and what is visible to whom."""


@dataclass(frozen=True)
class Where:
    """The device of a training, and the callbacks that watch and stop it."""

    device: torch.device
    watch: Watcher | None = None
    stop: Callable[[], bool] = lambda: False


@dataclass(frozen=True)
class MethodResult:
    """The outcome of a training: one model per party, in order, and the cost."""

    models: list[PartyModel]
    ledger: Ledger
    rounds: int
    best_round: int
    seconds: float
    lists: list[PartyModel] | None = None
    """Models that order lists; None if `models` do."""


class Method(Plugin, ABC):
    """A method of the comparison. Instances hold no state."""

    kind = "method"
    built_in = METHODS
    name: str
    """Name on the command line."""
    title: str
    """Name in tables."""
    preset: ClassVar[str] = "paper"
    """Preset on which the settings are based."""
    settings: ClassVar[str] = "the paper's settings, not tuned to these data"
    """Where the settings come from, for readers of a comparison."""
    by_gnn: ClassVar[bool] = True
    """Whether the method can be combined with every GNN."""
    version: ClassVar[int] = 1
    """Version of the arithmetic. Raise it when results change and settings do not, so that old records are
    not reused.
    """
    declares: Declaration

    def gnns(self, wanted: Sequence[str]) -> Sequence[str]:
        """Return those of `wanted` that the method supports; a method without a GNN is listed under gcn."""
        return wanted if self.by_gnn else ("gcn",)

    def configure(self, base: Config) -> Config:
        """Return the settings of the method, based on `base`."""
        return base

    @abstractmethod
    def train(self, parties: Sequence[PartyData], config: Config, where: Where) -> MethodResult:
        """Train with a configuration from `configure`."""
