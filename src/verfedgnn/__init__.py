"""verfedgnn: organisations that share users but not items train one graph recommender together.

import verfedgnn as vf

recommender = vf.VerFedRecommender().fit({"film": films, "books": books})
recommender.lift()                      # does joining pay?
recommender.recommend("17", k=10)
"""

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
    from verfedgnn.estimator.checked_data import check
    from verfedgnn.estimator.lift_result import Lift, lift
    from verfedgnn.estimator.rated_pairs import RatingSplit
    from verfedgnn.estimator.recommender import VerFedRecommender
    from verfedgnn.estimator.setting_list import settings
    from verfedgnn.estimator.train_run import resume, train
    from verfedgnn.plugins import register
    from verfedgnn.runs.run import Recommendation, Recommendations, Run
    from verfedgnn.upkeep.new_items import add_items

    __version__: str

__all__ = [
    "Config",
    "ConfigError",
    "DataError",
    "Lift",
    "PartyData",
    "ProtocolError",
    "RatingSplit",
    "Ratings",
    "Recommendation",
    "Recommendations",
    "Run",
    "RunError",
    "VerFedGNNError",
    "VerFedRecommender",
    "add_items",
    "align_users",
    "check",
    "lift",
    "read_parties",
    "read_ratings",
    "register",
    "resume",
    "settings",
    "split_items",
    "train",
]

_HOMES = {
    "Config": "config",
    "ConfigError": "core.errors",
    "DataError": "core.errors",
    "Lift": "estimator.lift_result",
    "PartyData": "data",
    "ProtocolError": "core.errors",
    "RatingSplit": "estimator.rated_pairs",
    "Ratings": "data",
    "Recommendation": "runs.run",
    "Recommendations": "runs.run",
    "Run": "runs.run",
    "RunError": "core.errors",
    "VerFedGNNError": "core.errors",
    "VerFedRecommender": "estimator.recommender",
    "add_items": "upkeep.new_items",
    "align_users": "data",
    "check": "estimator.checked_data",
    "lift": "estimator.lift_result",
    "read_parties": "data",
    "read_ratings": "data",
    "register": "plugins",
    "resume": "estimator.train_run",
    "settings": "estimator.setting_list",
    "split_items": "data",
    "train": "estimator.train_run",
}
"""Where each name lives; it is imported when it is asked for, so that a process that needs no torch does not load it."""


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"verfedgnn.{_HOMES[name]}"), name)
    if name == "__version__":
        return import_module("verfedgnn.core.installed").installed_version()
    if name == "data":
        return import_module("verfedgnn.data")
    raise AttributeError(f"module 'verfedgnn' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
