"""Ratings: reading them from files and tables in memory, generating, splitting and dividing them among parties."""

from verfedgnn.data.parties import PartyData, align_users, check_parties, read_parties, split_items
from verfedgnn.data.rating_reader import read_ratings
from verfedgnn.data.ratings import Ratings
from verfedgnn.data.splits import NEWCOMER, TEST, TRAIN, UNUSED, VALID, split_by_date, split_by_rating
from verfedgnn.data.synthetic import synthetic_ratings

__all__ = [
    "NEWCOMER",
    "TEST",
    "TRAIN",
    "UNUSED",
    "VALID",
    "PartyData",
    "Ratings",
    "align_users",
    "check_parties",
    "read_parties",
    "read_ratings",
    "split_by_date",
    "split_by_rating",
    "split_items",
    "synthetic_ratings",
]
