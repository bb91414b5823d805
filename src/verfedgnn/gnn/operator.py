"""The interface and the common arithmetic of the GNNs: a layer maps embeddings and the others' neighbourhoods to the next embeddings.

Every operator aggregates a user's items with a weight per edge and divides by a function of the weights' sum,

    n_u = sum_v w_uv x_v * f(w_u),    w_u = sum_v w_uv  over all parties' neighbours v of u,

and differs in w, x and f. A party knows its own part of both sums. With the estimators of Sec. 4.3 it takes
E_p(w_u) = (sum_i M_i / M_p) * own w_u and exchanges the finished X_p = own sum * f(E_p(w_u)), so that n_u = sum_p X_p. Without
them it exchanges both sums (one column more) and n_u is exact.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.core.graph import Graph
from verfedgnn.plugins import GNNS, Plugin

Weights = Mapping[str, Tensor]
"""Shared weights by name."""


@dataclass(frozen=True)
class Neighbourhood:
    """A party's view of one layer's aggregation, for N users and C columns (D, and one more without estimators)."""

    own: Tensor
    """X_p^k, which the party exchanges (N, C)."""
    total: Tensor
    """n_u^k, own and others together (N, D)."""
    scale: Tensor
    """f(w_u) of the estimated or exact sum of edge weights (N, 1)."""


class Operator(Plugin, ABC):
    """One GNN: the shapes of its shared weights, and its layer. It is stateless; weights are arguments."""

    kind = "GNN"
    built_in = GNNS
    name: ClassVar[str]
    """Name of the GNN in a configuration."""

    def __init__(self, *, dim: int, layers: int, estimators: bool = True) -> None:
        self.dim = dim
        self.layers = layers
        self.estimators = estimators

    @property
    def columns(self) -> int:
        """C, the number of columns of an exchanged neighbourhood."""
        return self.dim + (not self.estimators)

    @abstractmethod
    def weights(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shapes of the shared weights by name; all are public."""

    def initial(self, name: str, shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.float32]:
        """Draw a shared weight before the first round: uniform with variance 1/D, biases 0."""
        if name.endswith("bias"):
            return np.zeros(shape, np.float32)
        bound = math.sqrt(3 / self.dim)
        return rng.uniform(-bound, bound, shape).astype(np.float32)

    def initial_mix(self, typical: float) -> float:
        """Return every a_k before the first round: layers of 1/2 then predict the typical rating."""
        return 2 / self.layers * math.sqrt(typical / self.dim)

    @abstractmethod
    def layer(
        self, k: int, weights: Weights, users: Tensor, items: Tensor, graph: Graph, others: Tensor | None
    ) -> tuple[Neighbourhood, Tensor, Tensor]:
        """Compute layer k from users (N, D) and items (M, D); return the neighbourhood, the next users and the next items.

        `others` is the sum of the other parties' X^k (N, C), through which no gradient flows; None if it is not known.
        """

    def gather(
        self,
        own: Tensor,
        weight: Tensor,
        others: Tensor | None,
        graph: Graph,
        normalise: Callable[[Tensor], Tensor],
    ) -> Neighbourhood:
        """Return the neighbourhood from the own sum (N, D) and own weight (N, 1), with estimators or exactly."""
        if self.estimators:
            scale = normalise(graph.ratio * weight)
            x = own * scale
            return Neighbourhood(x, x if others is None else x + others, scale)
        exchanged = torch.cat([own, weight], -1)
        whole = exchanged if others is None else exchanged + others
        scale = normalise(whole[:, -1:])
        return Neighbourhood(exchanged, whole[:, :-1] * scale, scale)


def inverse(degree: Tensor) -> Tensor:
    """Return 1/x, or 0 for a user without neighbours."""
    return torch.where(degree > 0.5, 1 / degree.clamp(min=0.5), torch.zeros_like(degree))


def inverse_sqrt(degree: Tensor) -> Tensor:
    """Return 1/sqrt(x), or 0 for a user without neighbours."""
    return torch.where(degree > 0.5, degree.clamp(min=0.5).rsqrt(), torch.zeros_like(degree))
