"""verfedgnn: organisations that share users but not items train one graph recommender together.

import verfedgnn as vf

ratings = vf.read_ratings("synthetic")
parties = vf.split_items(ratings, parties=10, seed=0)
run = vf.train(parties, vf.Config.preset("paper", model="gcn"))
run.metrics["test"]["rmse"], run.recommend(user="17", k=10)
"""

from verfedgnn.config import Config
from verfedgnn.data import PartyData, Ratings, align_users, parties_from_files, read_parties, read_ratings, split_items
from verfedgnn.errors import ConfigError, DataError, ProtocolError, RunError, VerFedGNNError
from verfedgnn.evaluation.lift import lift
from verfedgnn.run import Recommendation, Run
from verfedgnn.training import resume, train

__version__ = "0.1.0"

__all__ = [
    "Config",
    "ConfigError",
    "DataError",
    "PartyData",
    "ProtocolError",
    "Ratings",
    "Recommendation",
    "Run",
    "RunError",
    "VerFedGNNError",
    "align_users",
    "lift",
    "parties_from_files",
    "read_parties",
    "read_ratings",
    "resume",
    "split_items",
    "train",
]
