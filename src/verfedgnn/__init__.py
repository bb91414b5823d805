"""verfedgnn: organisations that share users but not items train one graph recommender together.

import verfedgnn as vf

recommender = vf.VerFedRecommender().fit({"film": films, "books": books})
recommender.lift()                      # does joining pay?
recommender.recommend("17", k=10)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verfedgnn.config import Config as Config
    from verfedgnn.core.errors import ConfigError as ConfigError
    from verfedgnn.core.errors import DataError as DataError
    from verfedgnn.core.errors import ProtocolError as ProtocolError
    from verfedgnn.core.errors import RunError as RunError
    from verfedgnn.core.errors import VerFedGNNError as VerFedGNNError
    from verfedgnn.data import PartyData as PartyData
    from verfedgnn.data import Ratings as Ratings
    from verfedgnn.data import align_users as align_users
    from verfedgnn.data import read_parties as read_parties
    from verfedgnn.data import read_ratings as read_ratings
    from verfedgnn.data import split_items as split_items
    from verfedgnn.estimator.checked_data import check as check
    from verfedgnn.estimator.functions import Lift as Lift
    from verfedgnn.estimator.functions import lift as lift
    from verfedgnn.estimator.functions import resume as resume
    from verfedgnn.estimator.functions import settings as settings
    from verfedgnn.estimator.functions import train as train
    from verfedgnn.estimator.recommender import VerFedRecommender as VerFedRecommender
    from verfedgnn.plugins import register as register
    from verfedgnn.runs.run import Recommendation as Recommendation
    from verfedgnn.runs.run import Recommendations as Recommendations
    from verfedgnn.runs.run import Run as Run
    from verfedgnn.upkeep.new_items import add_items as add_items

    __version__: str

_NAMES = {
    "config": "Config",
    "core.errors": "ConfigError DataError ProtocolError RunError VerFedGNNError",
    "data": "PartyData Ratings align_users read_parties read_ratings split_items",
    "estimator.checked_data": "check",
    "estimator.functions": "Lift lift resume settings train",
    "estimator.recommender": "VerFedRecommender",
    "plugins": "register",
    "runs.run": "Recommendation Recommendations Run",
    "upkeep.new_items": "add_items",
}
"""The names of each module; they are imported when asked for, so that a process that needs no torch does not load it."""
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"verfedgnn.{_HOMES[name]}"), name)
    if name == "__version__":
        return import_module("verfedgnn.core.installed").installed_version()
    if name == "data":
        return import_module("verfedgnn.data")
    raise AttributeError(f"module 'verfedgnn' has no attribute '{name}'")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
