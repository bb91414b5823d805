"""A second model beside the GNN, in which an item's vector is computed from its raters (docs/model.md)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.core.graph import Graph


class RaterModel:
    r"""An autoencoder over an item's raters. A party has all ratings of its items, so nothing is exchanged.

    .. math::
        h_v = \tanh\left( c + \tfrac{1}{\sqrt{N_v}} \sum_{u \in N(v)} (f_{uv} z_u + y_u) \right), \qquad
        \hat r_{uv} = w_u \cdot h_v + b_u + b_v

    :math:`f_{uv}` is the rating less the item's mean. In training, an item reads a random share of its ratings, and the others are
    predicted: a vector that has read a rating would predict it from itself.

    Public, with a row per user: `rater_users` w (N, H), `rater_values` z (N, H), `rater_marks` y (N, H), `rater_bias` b (N, 1).
    Public and shared: `rater_offset` c (H,). Private: `rater_item_bias` (M_p, 1).
    """

    def __init__(self, hidden: int) -> None:
        self.hidden = hidden

    def per_user(self, users: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the public parameters that have a row per user."""
        wide = (users, self.hidden)
        return {"rater_users": wide, "rater_values": wide, "rater_marks": wide, "rater_bias": (users, 1)}

    def weights(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the shared weights."""
        return {"rater_offset": (self.hidden,)}

    def initial(
        self, name: str, shape: tuple[int, ...], rng: np.random.Generator, std: float
    ) -> NDArray[np.float32]:
        """Draw w and z, and start everything else at 0."""
        drawn = name in ("rater_users", "rater_values")
        return (rng.normal(0.0, std, shape) if drawn else np.zeros(shape)).astype(np.float32)

    def propagate(
        self,
        public: Mapping[str, Tensor],
        private: Mapping[str, Tensor],
        graph: Graph,
        read: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Return (w_u, b_u, 1) (S, N, H + 2) and (h_v, 1, b_v) (S, M, H + 2).

        `read` holds the weight with which each edge is read (E); None if all ratings are read.
        """
        assert graph.values is not None, "the graph of this model has the values of its edges"
        values = graph.values if read is None else graph.values * read
        total = graph.sum_users(public["rater_values"], values) + graph.sum_users(public["rater_marks"], read)
        offset = public["rater_offset"].unsqueeze(1)
        vectors = torch.tanh(offset + total * graph.item_degree.rsqrt())
        bias = public["rater_bias"]
        item_bias = private["rater_item_bias"]
        users = torch.cat([public["rater_users"], bias, torch.ones_like(bias)], -1)
        return users, torch.cat([vectors, torch.ones_like(item_bias), item_bias], -1)
