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
from verfedgnn.core.random_streams import simulated_secret
from verfedgnn.data import (
    NEWCOMER,
    TEST,
    TRAIN,
    UNUSED,
    VALID,
    PartyData,
    Ratings,
    split_by_date,
    split_by_rating,
)
from verfedgnn.data.ratings import format_count
from verfedgnn.data.splits import choose_dates, draw_withheld, suits, withhold
from verfedgnn.data.twins import find_twins, twin_cases


@dataclass(frozen=True)
class Prepared:
    """A party's data on its device. Test ratings are for evaluation only and never enter the protocol."""

    party: PartyData
    parts: NDArray[np.int8]
    """Part of each rating (`data.splits`)."""
    train: Pairs
    valid: Pairs
    test: Pairs
    newcomers: Pairs
    """Test ratings of withheld users."""

    def with_everything(self, config: Config) -> Prepared:
        """Return the party's data with every rating in the training part."""
        (whole,) = prepare([self.party], config.for_final(), self.train.user.device)
        return whole

    @property
    def input(self) -> PartyInput:
        """The party's input to the protocol, without test ratings."""
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
    secrets: Sequence[bytes] | None = None,
) -> list[Prepared]:
    """Split each party's ratings as configured, or as given by `parts`, and move them to `device`.

    `secrets` draw the users whom each party withholds; on one machine they derive from the seed.
    """
    for party in parties:
        check_declared(party.ratings, config)
        check_edges(len(party.ratings))
    if parts is None:
        own = secrets or [simulated_secret(config.seed, index) for index in range(len(parties))]
        parts = [
            split_ratings(party, config.split, config.seed, secret)
            for party, secret in zip(parties, own, strict=True)
        ]
    if [len(part) for part in parts] != [len(party.ratings) for party in parties]:
        raise DataError("parts must hold TRAIN, VALID or TEST for every rating of every party, in order")
    return [_prepare(party, part, config, device) for party, part in zip(parties, parts, strict=True)]


def choose_config(parties: Sequence[PartyData], config: Config) -> Config:
    """Return the configuration that suits the data: sizes, the split and, where a party has nothing but likes, lists only."""
    config = config.with_code().for_data(*count_data(parties), len(parties))
    if config.trains_lists and any(p.ratings.likes == len(p.ratings) for p in parties):
        config = config.for_lists().with_values({"training.epochs": config.training.epochs})
    return choose_split(parties, config)


def choose_split(parties: Sequence[PartyData], config: Config) -> Config:
    """Return the configuration with the split that the data of all parties allow, where it is auto: by date, else at random."""
    if config.split.kind != "auto":
        return config
    dates = config.split.dates
    if dates is None and not config.gradients.protects_ratings:  # dates from the data would reveal ratings
        dates = choose_dates([party.ratings for party in parties], config.split.fractions)
    if dates is None:
        return config.with_values({"split.kind": "random"})
    return config.with_values({"split.kind": "date", "split.dates": [str(day) for day in dates]})


def split_ratings(
    party: PartyData, split: SplitConfig, seed: int, secret: bytes | None = None
) -> NDArray[np.int8]:
    """Return the part of each rating of a party. It depends on no other party's data.

    `secret` draws the withheld users; without it, nobody is withheld.
    """
    if split.kind == "all":
        return np.full(len(party.ratings), TRAIN, np.int8)
    dated = split.kind == "date" or (split.kind == "auto" and suits(party.ratings, split.dates))
    if dated:
        assert split.dates is not None
        parts = split_by_date(party.ratings, split.dates)
    else:
        parts = split_by_rating(party.ratings, fractions=split.fractions, seed=seed)
    if split.kind == "rating" or secret is None:
        return parts
    return withhold(party.ratings, parts, draw_withheld(party.ratings, secret), dated=dated)


def leave_out_twins(prepared: Sequence[Prepared], config: Config) -> list[Prepared]:
    """Leave out test and validation ratings of products that another party lists, too, if it has trained on the same user's rating.

    With all files on one machine, a model could otherwise copy the answer from the partner.
    """
    parties = [each.party for each in prepared]
    twins = find_twins(parties)
    if not twins:
        return list(prepared)
    cases = twin_cases(parties, twins, [each.parts == TRAIN for each in prepared])
    parts = [
        np.where(case & (each.parts != TRAIN), UNUSED, each.parts).astype(np.int8)
        for each, case in zip(prepared, cases, strict=True)
    ]
    return prepare(parties, config, prepared[0].train.user.device, parts)


def describe_twins(prepared: Sequence[Prepared]) -> str | None:
    """Return how many ratings `leave_out_twins` left out of a random split, or what one party cannot check; None without twins."""
    if len(prepared) == 1:
        return (
            "Judged without dates: if partners list some of your products, too, their training parts may hold the answer, "
            "and the gain is overstated. A party cannot check that alone; compare catalogues, or agree on `split.dates`."
        )
    count = sum(int((each.parts == UNUSED).sum()) for each in prepared)
    if not count:
        return None
    return (
        f"{format_count(count, 'test and validation rating')} left out: another party lists the same product, and its training part "
        "has the answer."
    )


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


def _prepare(party: PartyData, parts: NDArray[np.int8], config: Config, device: torch.device) -> Prepared:
    train, valid, test, newcomers = (
        _pairs(party.ratings, parts == part, device) for part in (TRAIN, VALID, TEST, NEWCOMER)
    )
    needed = {"training": train} | ({} if config.split.kind == "all" else {"validation": valid})
    for name, pairs in needed.items():
        if not len(pairs):
            raise DataError(
                f"none of the {format_count(len(party.ratings), 'rating')} of party '{party.name}' is in its {name} part; "
                "add data or change split.fractions"
            )
    return Prepared(party, parts, train, valid, test, newcomers)


def _pairs(ratings: Ratings, chosen: NDArray[np.bool_], device: torch.device) -> Pairs:
    return Pairs(
        torch.from_numpy(ratings.user[chosen]).to(device),
        torch.from_numpy(ratings.item[chosen]).to(device),
        torch.from_numpy(ratings.rating[chosen]).to(device),
    )


def count_data(parties: Sequence[PartyData]) -> tuple[int, int]:
    """Return the number of users, and of ratings of all parties, by which a configuration chooses its sizes."""
    return parties[0].ratings.n_users, sum(len(party.ratings) for party in parties)
