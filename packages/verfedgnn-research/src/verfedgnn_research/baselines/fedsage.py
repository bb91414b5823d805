"""FedSage and FedSage+ (Zhang et al., *Subgraph federated learning with missing neighbor generation*, NeurIPS 2021)."""

from __future__ import annotations

from collections.abc import Sequence

from verfedgnn.config import Config
from verfedgnn.data import PartyData
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

    Adapted to a bipartite graph whose users are at every party (`gnn.generator`). NeighGen generates a number
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
    declares = Declaration(
        high_order=True,
        gradient_protection=False,
        cross_graph=True,
        storage="local",
        protects="nothing that is sent: gradients, and neighbourhoods to train the generator, are open",
    )

    def configure(self, base: Config) -> Config:
        """Return settings with an unprotected exchange, which trains the generator."""
        return base.with_values(
            {**_OPEN, "exchange": 0, "unprotected": ["projection"], "model.generator": True}
        )
