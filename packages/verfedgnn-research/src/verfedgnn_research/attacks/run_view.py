"""What an adversary sees of a finished run: exchanged neighbourhoods, generated ones, and gradients as
sent.

Everything is recomputed from the run's final model. In the paper's protocol every party receives every other
party's Y. Here the coordinator does, and parties receive sums. So these are attacks of the coordinator, or of a
party in the paper's protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from verfedgnn.core.errors import ConfigError
from verfedgnn.core.graph import Graph, build_graph, move_graph
from verfedgnn.core.key_stream import NoiseKey
from verfedgnn.gnn.model import Model, neighbour_from
from verfedgnn.gnn.operator import Neighbourhood
from verfedgnn.privacy.projection import Exchange, IdentityProjection, make_exchange
from verfedgnn.privacy.protections import protection_of
from verfedgnn.protocol.forward_backward import Batch, PassResult, compute
from verfedgnn.runs.prepared_data import Prepared
from verfedgnn.runs.run import Run
from verfedgnn_research.baselines.fedsage import Completed


@dataclass(frozen=True, eq=False)
class RunInternals:
    """The model of a run, every party's graph, and what follows from them."""

    run: Run
    prepared: list[Prepared]
    model: Model
    graphs: list[Graph]

    @classmethod
    def of(cls, run: Run) -> RunInternals:
        """Build the parties' graphs as in training."""
        config = run.config.model
        if config.form != "propagation":
            raise ConfigError("the paper's attacks need the paper's model; set model.form = propagation")
        prepared = run.prepared()
        items = [len(model.embeddings) for model in run.models]
        graphs = [_graph(each, run, sum(items) / m) for each, m in zip(prepared, items, strict=True)]
        return cls(run, prepared, Model(config, run.parties[0].ratings.n_users), graphs)

    @cached_property
    def public(self) -> Mapping[str, Tensor]:
        """Public parameters by name."""
        return self.model.views(self.run.public.to(self.run.device))

    @cached_property
    def exchange(self) -> Exchange:
        """The exchange of the run, with its Phi."""
        return make_exchange(self.run.config, self.model.users, self.run.device)

    def neighbourhood(self, party: int) -> Neighbourhood:
        """Return X_p^0 and the scale of each row (N, C): what party p aggregates of its own items in
        the first layer.
        """
        items = self.run.models[party].embeddings.to(self.run.device)
        own, _, _ = self.model.operator.layer(
            0, self.public, self.public["users"], items, self.graphs[party], None
        )
        return own

    def reconstructed(self, x: Tensor) -> Tensor:
        """Return X^ = Phi^T Phi X for X (N, C), which is X itself where the exchange is exact."""
        if not isinstance(self.exchange, IdentityProjection):
            raise ConfigError("this run exchanges no neighbourhoods, so there is nothing to attack")
        return self.exchange.reconstruct(self.exchange.project(x))

    def generated(self, party: int) -> Tensor:
        """Return what party p generates for the neighbourhoods it does not see, first layer (N, D)
        (FedSage+).
        """
        operator = self.model.operator
        if not isinstance(operator, Completed):
            raise ConfigError("this run generates no neighbourhoods; choose a run of FedSage+")
        own = self.neighbourhood(party).own
        return operator.generate(0, self.public, self.public["users"], own, self.graphs[party])

    def mean_coefficient(self, party: int) -> float:
        """Return the mean of E_p(b_uv) over the edges of party p (GAT).

        A user's coefficients add up to w / (1 + ratio w) = (1 - s) / ratio, with s = 1 / (1 + ratio w) the
        scale of its row.
        """
        graph = self.graphs[party]
        summed = (1 - self.neighbourhood(party).scale).sum() / graph.ratio.sum()
        return float(summed) / max(1, len(graph.order))

    def user_gradient(self, party: int) -> Tensor:
        """Return party p's gradient of all public parameters, flat and before protection, over all its
        training ratings.

        A round of small batches would show few of the victims and adversaries; an attacker who waits for an
        epoch sees them all.
        """
        found = self._compute(party, self.others[party], Batch(self.prepared[party].train))
        return found.public_gradient

    def _compute(self, party: int, others: Tensor | None, batch: Batch | None = None) -> PassResult:
        return compute(
            self.model,
            self.graphs[party],
            self.run.public.to(self.run.device),
            self.private(party),
            self.run.config.training,
            exchange=self.exchange,
            others=others,
            batch=batch,
        )

    def released(self, gradient: Tensor, key: NoiseKey) -> Tensor:
        """Return a gradient as it leaves the party: rescaled, clipped, then ternary or noised."""
        released = protection_of(self.run.config, len(self.run.parties)).protect(gradient, key)
        return torch.from_numpy(released).to(self.run.device, torch.float32)

    def of_users(self, gradient: Tensor) -> Tensor:
        """Return the user embeddings' part (N, D) of a flat gradient."""
        return self.model.views(gradient)["users"]

    def private(self, party: int) -> dict[str, Tensor]:
        """Return party p's private parameters: e_v^0 (M_p, D)."""
        return {"items": self.run.models[party].embeddings.to(self.run.device)}

    @cached_property
    def others(self) -> list[Tensor | None]:
        """Return what each party knows of the others (K, q, C) after K complete exchanges."""
        parties = range(len(self.graphs))
        others: list[Tensor | None] = [None for _ in parties]
        if not self.exchange.rows:
            return others
        for _ in range(self.model.operator.layers):
            found = [self._compute(p, others[p]) for p in parties]
            own = [each.neighbourhoods for each in found if each.neighbourhoods is not None]
            total = torch.stack(own).sum(0)
            others = [total - each for each in own]
        return others


def _graph(prepared: Prepared, run: Run, ratio: float) -> Graph:
    """Build a party's graph as the party does: neighbours are training ratings from the threshold on."""
    train = prepared.train
    table = prepared.party.ratings
    chosen = (train.rating >= neighbour_from(run.config.model, table.scale)).cpu().numpy()
    user = train.user.cpu().numpy()[chosen]
    item = train.item.cpu().numpy()[chosen]
    return move_graph(
        build_graph(user, item, users=table.n_users, items=table.n_items, ratio=ratio), run.device
    )
