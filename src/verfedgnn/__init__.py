"""verfedgnn: organisations that share users but not items train one graph recommender together.

import verfedgnn as vf

ratings = vf.read_ratings("synthetic")
parties = vf.split_items(ratings, parties=10, seed=0)
run = vf.train(parties, vf.Config.preset("paper", model="gcn"))
run.metrics["test"]["rmse"], run.recommend(user="17", k=10)
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verfedgnn.config import Config
    from verfedgnn.core.errors import ConfigError, DataError, ProtocolError, RunError, VerFedGNNError
    from verfedgnn.data import (
        PartyData,
        Ratings,
        align_users,
        read_parties,
        read_ratings,
        split_items,
    )
    from verfedgnn.estimator.rating_split import RatingSplit
    from verfedgnn.estimator.recommender import VerFedRecommender
    from verfedgnn.evaluation.lift import lift
    from verfedgnn.plugins import register
    from verfedgnn.runs.run import Recommendation, Run
    from verfedgnn.training.train import resume, train

    __version__: str

__all__ = [
    "Config",
    "ConfigError",
    "DataError",
    "PartyData",
    "ProtocolError",
    "RatingSplit",
    "Ratings",
    "Recommendation",
    "Run",
    "RunError",
    "VerFedGNNError",
    "VerFedRecommender",
    "align_users",
    "lift",
    "read_parties",
    "read_ratings",
    "register",
    "resume",
    "split_items",
    "train",
]

_HOMES = {
    "Config": "config",
    "ConfigError": "core.errors",
    "DataError": "core.errors",
    "PartyData": "data",
    "ProtocolError": "core.errors",
    "RatingSplit": "estimator.rating_split",
    "Ratings": "data",
    "Recommendation": "runs.run",
    "Run": "runs.run",
    "RunError": "core.errors",
    "VerFedGNNError": "core.errors",
    "VerFedRecommender": "estimator.recommender",
    "align_users": "data",
    "lift": "evaluation.lift",
    "read_parties": "data",
    "read_ratings": "data",
    "register": "plugins",
    "resume": "training.train",
    "split_items": "data",
    "train": "training.train",
}
"""Where each name lives; it is imported when it is asked for, so that a process that needs no torch does not load it."""


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"verfedgnn.{_HOMES[name]}"), name)
    if name == "__version__":
        return import_module("verfedgnn.core.version").installed_version()
    if name == "data":
        return import_module("verfedgnn.data")
    raise AttributeError(f"module 'verfedgnn' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


def _show_in_notebooks() -> None:
    """Let IPython show runs as their verdict, accuracy and learning curve; the report is loaded when it is needed."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is not None and shell.display_formatter is not None:
        shell.display_formatter.formatters["text/html"].for_type_by_name(
            "verfedgnn.runs.run",
            "Run",
            lambda run: import_module("verfedgnn.reports.run_summary").run_html(run),
        )


_show_in_notebooks()
