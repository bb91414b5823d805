"""FedSage and FedSage+ (Zhang et al., *Subgraph federated learning with missing neighbor generation*, NeurIPS 2021)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from verfedgnn import plugins
from verfedgnn.config import Config
from verfedgnn.core.graph import Graph
from verfedgnn.data import PartyData
from verfedgnn.gnn.model import OPERATORS
from verfedgnn.gnn.operator import Neighbourhood, Operator
from verfedgnn_research.baselines.method import Declaration, Method, MethodResult, Where
from verfedgnn_research.baselines.verfedgnn_method import federated

_OPEN = {"masking": False, "gradients.mechanism": "none", "gradients.clip": None}
"""Settings for unprotected gradients."""


class FedSage(Method):
    """Every party propagates over its own subgraph; shared parameters are trained together.

    Adapted: FedSage averages GraphSAGE classifiers of clients that hold different nodes. Here users are nodes of every client, so
    their embeddings are shared parameters too, the layer is GCN, GAT or GGNN, and gradients are summed every round, as in
    VerFedGNN, instead of averaging weights after local epochs. A user's degree is that of the party's own subgraph.
    """

    name = "fedsage"
    title = "FedSage"
    declares = Declaration(
        high_order=True,
        gradient_protection=False,
        cross_graph=False,
        storage="local",
        protects="neighbourhoods stay; the coordinator sees every party's gradients, user by user",
    )

    def configure(self, base: Config) -> Config:
        """Return settings without exchange, with own degrees and unprotected gradients."""
        return base.with_values({**_OPEN, "exchange": "off", "model.estimators": False})

    def train(self, parties: Sequence[PartyData], config: Config, where: Where) -> MethodResult:
        """Train a federation without an exchange."""
        return federated(parties, config, where)


class FedSagePlus(FedSage):
    """FedSage on subgraphs that a generator completes with missing neighbours; all parties train the
    generator together.

    Adapted to a bipartite graph whose users are at every party (`Completed`). NeighGen generates a number
    of neighbours and their features from a node's embedding; a layer needs only their sum, so that is
    generated, for every layer, since features are trained embeddings here. NeighGen learns by hiding nodes of
    its own subgraph, and from gradients of the distance to other clients' nodes: a client sends what it
    generates and gets the gradient back. With users known to everybody, what is missing at one party is at
    the others, so that second term is used alone: the sum of the others' neighbourhoods is what the gradient
    2 (generated - others) shows anyway, and as many numbers travel. The Gaussian noise in NeighGen's input is
    left out.
    """

    name = "fedsage+"
    title = "FedSage+"
    declares = replace(
        FedSage.declares,
        cross_graph=True,
        protects="nothing that is sent: gradients, and neighbourhoods to train the generator, are open",
    )

    def configure(self, base: Config) -> Config:
        """Return settings with an unprotected exchange, which trains the generator."""
        values = {"exchange": 0, "unprotected": ["projection"], "model.gnn": complete(base.model.gnn)}
        return base.with_values({**_OPEN, **values})


PREFIX = "fedsage-"
"""Start of the name of a GNN whose parties complete their subgraphs."""


def complete(gnn: str) -> str:
    """Register a GNN with generated neighbourhoods, and return its name."""
    name = PREFIX + gnn
    operator = OPERATORS.get(gnn) or plugins.load_gnn(gnn)
    plugins.register(type("CompletedGNN", (Completed, operator), {"name": name}))
    return name


class Completed(Operator):
    r"""A GNN whose parties generate the others' neighbourhoods from what they know about a user.

    .. math::
        \hat X_u^k = \left(\tfrac{\sum_i M_i}{M_p} - 1\right) \left( B^k \tanh(A^k [e_u^k, X_{p,u}^k]) + b^k \right),
        \qquad L = \sum_{k, u} \left| \hat X_u^k - \textstyle\sum_{q \ne p} X_{q,u}^k \right|^2

    The factor says how many times the party's own share is missing, by the estimator of Sec. 4.3. It replaces NeighGen's learnt number
    of missing neighbours. L trains only the generator, and only L trains it: the far larger prediction loss would make it an arbitrary
    function of e_u.

    Weights: `imagine_in` (K, 2D, H), `imagine_out` (K, H, D), `imagine_bias` (K, D), with H = 2D.
    """

    def weights(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shapes of the GNN's weights and of the generator's."""
        k, d, h = self.layers, self.dim, 2 * self.dim
        own = {"imagine_in": (k, 2 * d, h), "imagine_out": (k, h, d), "imagine_bias": (k, d)}
        return {**super().weights(), **own}  # type: ignore[safe-super]

    def layer(
        self,
        k: int,
        weights: Mapping[str, Tensor],
        users: Tensor,
        items: Tensor,
        graph: Graph,
        others: Any,
    ) -> tuple[Neighbourhood, Tensor, Tensor]:
        """Compute layer k of the GNN with generated neighbourhoods; the others' true ones only train the generator."""

        def generate(x: Tensor) -> Tensor:
            fixed = {name: value.detach() for name, value in weights.items()}
            generated = self.generate(k, fixed, users, x, graph)
            if others is None:
                return generated
            guess = self.generate(k, weights, users.detach(), x.detach(), graph)
            loss: Tensor = AddLoss.apply(generated, (guess - others).square().sum())  # type: ignore[no-untyped-call]
            return loss

        return super().layer(k, weights, users, items, graph, generate)  # type: ignore[safe-super, arg-type]

    def gather(
        self, own: Tensor, weight: Tensor, others: Any, graph: Graph, normalise: Callable[[Tensor], Tensor]
    ) -> Neighbourhood:
        """Return the neighbourhood with what `others` generates from the own part."""
        scale = normalise(graph.ratio * weight)
        x = own * scale
        return Neighbourhood(x, x + others(x), scale)

    def generate(
        self, k: int, weights: Mapping[str, Tensor], users: Tensor, own: Tensor, graph: Graph
    ) -> Tensor:
        """Return the generated X^k (N, D) of the others."""
        hidden = torch.tanh(torch.cat([users, own], -1) @ weights["imagine_in"][k])
        share = hidden @ weights["imagine_out"][k] + weights["imagine_bias"][k]
        return (graph.ratio - 1) * share


class AddLoss(torch.autograd.Function):
    """The identity, which adds a second argument to the loss."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor) -> Tensor:
        """Return x."""
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor]:
        """Return the slopes of both arguments."""
        return slope, slope.new_ones(())
