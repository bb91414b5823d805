"""A party's ratings as tensors, split into training, validation and test pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from verfedgnn.config import Config
from verfedgnn.config.sections import SplitConfig
from verfedgnn.core.errors import DataError
from verfedgnn.core.graph import check_edges
from verfedgnn.core.option_names import option
from verfedgnn.core.pairs import Pairs, PartyInput
from verfedgnn.data import (
    TEST,
    TRAIN,
    VALID,
    PartyData,
    Ratings,
    cap_ratings,
    split_by_rating,
    split_by_time,
    split_newcomers,
)
from verfedgnn.data.ratings import format_count
from verfedgnn.privacy.rating_dp import ratings_cap


@dataclass(frozen=True)
class Prepared:
    """A party's data on its device. The test part is for evaluation only and never enters the protocol."""

    party: PartyData
    parts: NDArray[np.int8]
    """`TRAIN`, `VALID` or `TEST` for each rating."""
    train: Pairs
    valid: Pairs
    test: Pairs

    @property
    def input(self) -> PartyInput:
        """The party's input to the protocol, without the test part."""
        table = self.party.ratings
        return PartyInput(
            self.party.name,
            table.n_users,
            table.n_items,
            table.scale,
            self.train,
            self.valid,
            table.catalogue,
        )


def prepare(
    parties: Sequence[PartyData],
    config: Config,
    device: torch.device,
    parts: Sequence[NDArray[np.int8]] | None = None,
) -> list[Prepared]:
    """Split each party's ratings as configured, or as given by `parts`, and move them to `device`."""
    for party in parties:
        check_declared(party.ratings, config)
        check_edges(len(party.ratings))
    if parts is None:
        parts = [split_ratings(party, config.split, config.seed) for party in parties]
    if [len(part) for part in parts] != [len(party.ratings) for party in parties]:
        raise DataError("parts must hold TRAIN, VALID or TEST for every rating of every party, in order")
    return [_prepare(party, part, config, device) for party, part in zip(parties, parts, strict=True)]


def check_declared(ratings: Ratings, config: Config) -> None:
    """Raise `DataError` if single ratings are protected and a size that is announced would be found in the ratings."""
    if not config.gradients.protects_ratings:
        return
    if not ratings.scale_declared:
        raise DataError(
            f"{ratings.name} has no declared rating scale, and one found in the ratings would reveal the lowest and the "
            f"highest of them; declare it with {option('scale', (1, 5))}"
        )
    if ratings.catalogue is None:
        raise DataError(
            f"{ratings.name} has no declared catalogue, and the number of rated items would reveal single ratings; "
            f"declare the number of items that you offer with {option('catalogue', 30000)}"
        )


def split_ratings(party: PartyData, config: SplitConfig, seed: int) -> NDArray[np.int8]:
    """Return `TRAIN`, `VALID` or `TEST` for each rating of a party. It depends on no other party's data."""
    if config.kind == "time":
        return split_by_time(party.ratings)
    if config.kind == "newcomers":
        return split_newcomers(party.ratings, party.name, fractions=config.fractions, seed=seed)
    return split_by_rating(party.ratings, fractions=config.fractions, seed=seed)


def _prepare(party: PartyData, parts: NDArray[np.int8], config: Config, device: torch.device) -> Prepared:
    chosen = {part: parts == part for part in (TRAIN, VALID, TEST)}
    cap = ratings_cap(config)
    if cap is not None:
        chosen[TRAIN] = cap_ratings(party.ratings, chosen[TRAIN], cap, seed=config.seed)
    train, valid, test = (_pairs(party.ratings, mask, device) for mask in chosen.values())
    for name, pairs in (("training", train), ("validation", valid)):
        if not len(pairs):
            raise DataError(
                f"none of the {format_count(len(party.ratings), 'rating')} of party '{party.name}' is in its {name} part; "
                "add data or change split.fractions"
            )
    return Prepared(party, parts, train, valid, test)


def _pairs(ratings: Ratings, chosen: NDArray[np.bool_], device: torch.device) -> Pairs:
    return Pairs(
        torch.from_numpy(ratings.user[chosen]).to(device),
        torch.from_numpy(ratings.item[chosen]).to(device),
        torch.from_numpy(ratings.rating[chosen]).to(device),
    )


def count_data(parties: Sequence[PartyData]) -> tuple[int, int]:
    """Return the number of users, and of ratings of all parties, by which a configuration chooses its sizes."""
    return parties[0].ratings.n_users, sum(len(party.ratings) for party in parties)
