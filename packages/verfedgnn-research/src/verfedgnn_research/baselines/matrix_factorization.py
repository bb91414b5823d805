"""Matrix factorisation of pooled ratings: the paper's MF, and a variant with biases and a tuned
regulariser.
"""

from __future__ import annotations

from collections.abc import Sequence

from verfedgnn.config import Config
from verfedgnn.data import PartyData
from verfedgnn.runs.metrics_file import evaluate
from verfedgnn.runs.prepared_data import prepare
from verfedgnn_research.baselines.central_gnn import CENTRAL, pooled
from verfedgnn_research.baselines.method import Declaration, Method, MethodResult, Where
from verfedgnn_research.baselines.solo_training import solo_config

_DECLARED = Declaration(
    high_order=False, gradient_protection=False, cross_graph=False, storage="central", protects=CENTRAL
)


class MF(Method):
    """r_uv = e_u . e_v with the paper's D, batches, optimiser and regulariser (eq. 5), and no graph.

    Adapted: nothing is known of the paper's MF but its citation (Koren et al., 2009), whose model has biases. The one without is
    taken, since that is a GNN of no layers; `BiasedMF` is the other. Embeddings start around the value that predicts the middle
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


class BiasedMF(MF):
    """r_uv = mu + b_u + b_v + e_u . e_v with D = 16 and all ratings in every round, as a practitioner
    would try first.

    Not in the paper. The weight of the regulariser is chosen on the validation part, anew for every seed.
    """

    name = "biased-mf"
    title = "MF with biases, tuned"
    settings = "the weight of the regulariser is chosen on the validation part"
    GRID = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
    """Weights of |e_u|^2 and |e_v|^2 that are tried."""

    def configure(self, base: Config) -> Config:
        """Return settings with biases, a larger D and full-batch rounds."""
        return (
            super()
            .configure(base)
            .with_values(
                {
                    "model.biases": True,
                    "model.dim": 16,
                    "training.batch": 0,
                    "training.epochs": 400,
                    "training.lr": 0.15,
                    "training.evaluate_every": 10,
                    "training.patience": 6,
                    "training.l2_bias": 3.0,
                }
            )
        )

    def train(self, parties: Sequence[PartyData], config: Config, where: Where) -> MethodResult:
        """Train once for every weight and keep the model with the lowest validation error; the cost of all
        counts.
        """
        tries = [pooled(parties, config.with_values({"l2": weight}), where) for weight in self.GRID]
        prepared = prepare(parties, config, where.device)

        def error(tried: MethodResult) -> float:
            return float(evaluate(prepared, tried.models)["valid"]["rmse"])

        best = min(tries, key=error)
        return MethodResult(
            best.models, best.ledger, best.rounds, best.best_round, sum(tried.seconds for tried in tries)
        )
