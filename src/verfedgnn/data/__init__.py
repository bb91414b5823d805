"""Ratings: reading them from files and databases, generating, splitting and dividing them among parties."""

from verfedgnn.data.parties import (
    PartyData,
    align_users,
    check_parties,
    find_pooled_items,
    pool_parties,
    read_parties,
    split_items,
)
from verfedgnn.data.publishers import select_densest
from verfedgnn.data.rating_checks import make_ratings
from verfedgnn.data.rating_reader import read_ratings
from verfedgnn.data.ratings import Ratings
from verfedgnn.data.splits import (
    TEST,
    TRAIN,
    VALID,
    cap_ratings,
    split_by_rating,
    split_by_time,
    split_newcomers,
)
from verfedgnn.data.synthetic import synthetic_ratings
from verfedgnn.data.twins import Twins, find_twins, twin_cases

__all__ = [
    "TEST",
    "TRAIN",
    "VALID",
    "PartyData",
    "Ratings",
    "Twins",
    "align_users",
    "cap_ratings",
    "check_parties",
    "find_pooled_items",
    "find_twins",
    "make_ratings",
    "pool_parties",
    "read_parties",
    "read_ratings",
    "select_densest",
    "split_by_rating",
    "split_by_time",
    "split_items",
    "split_newcomers",
    "synthetic_ratings",
    "twin_cases",
]
