"""The neighbour generator of FedSage+ (Zhang et al., NeurIPS 2021), for users that several parties share."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from verfedgnn.core.graph import Graph


class NeighbourhoodGenerator:
    r"""A generator of the other parties' neighbourhoods from what a party knows about a user.

    .. math::
        \hat X_u^k = \left(\tfrac{\sum_i M_i}{M_p} - 1\right) \left( B^k \tanh(A^k [e_u^k, X_{p,u}^k]) + b^k \right),
        \qquad L = \sum_{k, u} \left| \hat X_u^k - \textstyle\sum_{q \ne p} X_{q,u}^k \right|^2

    The factor says how many times the party's own share is missing, by the estimator of Sec. 4.3. It replaces NeighGen's learnt number
    of missing neighbours. L trains only the generator, and only L trains it: the far larger prediction loss would make it an arbitrary
    function of e_u.

    Weights: `imagine_in` (K, 2D, H), `imagine_out` (K, H, D), `imagine_bias` (K, D), with H = 2D.
    """

    def __init__(self, dim: int, layers: int) -> None:
        self.dim = dim
        self.layers = layers

    def weights(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shapes of the shared weights by name; all are public."""
        k, d, h = self.layers, self.dim, 2 * self.dim
        return {"imagine_in": (k, 2 * d, h), "imagine_out": (k, h, d), "imagine_bias": (k, d)}

    def bind(
        self,
        k: int,
        weights: Mapping[str, Tensor],
        users: Tensor,
        graph: Graph,
        others: Tensor | Callable[[Tensor], Tensor] | None,
        penalties: list[Tensor],
    ) -> Callable[[Tensor], Tensor]:
        """Return the generator of layer k, a function of the own X^k (N, D); if `others` is known, it adds L to `penalties`."""

        def generate(own: Tensor) -> Tensor:
            if isinstance(others, Tensor):
                penalties.append(
                    (self._imagined(k, weights, users.detach(), own.detach(), graph) - others).square().sum()
                )
            fixed = {name: weights[name].detach() for name in self.weights()}
            return self._imagined(k, fixed, users, own, graph)

        return generate

    def _imagined(
        self, k: int, weights: Mapping[str, Tensor], users: Tensor, own: Tensor, graph: Graph
    ) -> Tensor:
        hidden = torch.tanh(torch.cat([users, own], -1) @ weights["imagine_in"][k])
        share = hidden @ weights["imagine_out"][k] + weights["imagine_bias"][k]
        return (graph.ratio - 1) * share
