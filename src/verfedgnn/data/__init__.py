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
    NEWCOMER,
    TEST,
    TRAIN,
    UNUSED,
    VALID,
    cap_ratings,
    choose_dates,
    draw_withheld,
    split_by_date,
    split_by_rating,
    suits,
    withhold,
)
from verfedgnn.data.synthetic import synthetic_ratings
from verfedgnn.data.twins import Twins, find_twins, twin_cases

__all__ = [
    "NEWCOMER",
    "TEST",
    "TRAIN",
    "UNUSED",
    "VALID",
    "PartyData",
    "Ratings",
    "Twins",
    "align_users",
    "cap_ratings",
    "check_parties",
    "choose_dates",
    "draw_withheld",
    "find_pooled_items",
    "find_twins",
    "make_ratings",
    "pool_parties",
    "read_parties",
    "read_ratings",
    "select_densest",
    "split_by_date",
    "split_by_rating",
    "split_items",
    "suits",
    "synthetic_ratings",
    "twin_cases",
    "withhold",
]
