"""Matrix factorisation of pooled ratings: the paper's MF. The tuned one is in `descent_methods.py`."""

from __future__ import annotations

from collections.abc import Sequence

from verfedgnn.config import Config
from verfedgnn.data import PartyData
from verfedgnn_research.baselines.central_gnn import CENTRAL, pooled
from verfedgnn_research.baselines.method import Declaration, Method, MethodResult, Where
from verfedgnn_research.baselines.solo_training import solo_config

_DECLARED = Declaration(
    high_order=False, gradient_protection=False, cross_graph=False, storage="central", protects=CENTRAL
)


class MF(Method):
    """r_uv = e_u . e_v with the paper's D, batches, optimiser and regulariser (eq. 5), and no graph.

    Adapted: nothing is known of the paper's MF but its citation (Koren et al., 2009), whose model has biases. The one without is
    taken, since that is a GNN of no layers; `descent_methods.BiasedMF` is the other. Embeddings start around the value that predicts the middle
    of the scale, since users with few ratings stay there: around 0, BookCrossing ends above 3.
    """

    name = "mf"
    title = "MF"
    by_gnn = False
    declares = _DECLARED

    def configure(self, base: Config) -> Config:
        """Return settings without a graph, for pooled data."""
        return solo_config(base, 1.0).with_values({"model.form": "factors"})

    def train(self, parties: Sequence[PartyData], config: Config, where: Where) -> MethodResult:
        """Train once on the pooled table."""
        return pooled(parties, config, where)
