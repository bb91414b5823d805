"""The parts of a party's ratings: by date or at random, users who are withheld, twins, and everything for what is served."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import verfedgnn as vf
from verfedgnn.core.random_streams import simulated_secret
from verfedgnn.data import NEWCOMER, TEST, TRAIN, UNUSED, VALID, align_users
from verfedgnn.data.splits import FEWEST_TEST_USERS, draw_withheld
from verfedgnn.runs.prepared_data import (
    Prepared,
    choose_config,
    choose_split,
    describe_twins,
    leave_out_twins,
    prepare,
    split_ratings,
)
from verfedgnn.training.gate import why_random

BEST = vf.Config.preset("best")
CPU = torch.device("cpu")
LENGTH = 200 * 24 * 60 * 60


def shops(users: int = 600, *, rating: float | None = None, seed: int = 0) -> list[vf.PartyData]:
    """Return two parties whose customers rate at any time within 200 days."""
    table = vf.read_ratings("synthetic", users=users, items=80, ratings=20 * users, seed=seed)
    time = 1_700_000_000 + np.random.default_rng(seed).integers(0, LENGTH, len(table))
    given = table.rating if rating is None else np.full(len(table), rating, np.float32)
    return vf.split_items(replace(table, time=time, rating=given), parties=2, seed=seed)


def timeless(parties: list[vf.PartyData]) -> list[vf.PartyData]:
    return [vf.PartyData(party.name, replace(party.ratings, time=None)) for party in parties]


def ready(parties: list[vf.PartyData], config: vf.Config = BEST) -> list[Prepared]:
    return prepare(parties, choose_config(parties, config), CPU)


def test_by_date_where_all_parties_have_dates_and_enough_customers_after_them() -> None:
    parties = shops()
    split = choose_split(parties, BEST).split
    assert split.kind == "date"
    assert split.dates is not None
    for each in ready(parties):
        parts = np.bincount(each.parts, minlength=5) / len(each.parts)
        assert parts[TRAIN] == pytest.approx(0.85 * 0.8, abs=0.05)
        assert parts[UNUSED] > 0
        assert len(np.unique(each.test.user)) >= 0.8 * FEWEST_TEST_USERS


def test_a_split_at_random_says_why() -> None:
    few = shops(100)
    for parties, why in (
        (few, f" (fewer than {FEWEST_TEST_USERS} customers return after the date)"),
        ([few[0], *timeless(few[1:])], " (no dates at party-1)"),
        (shops(), ""),
    ):
        config = BEST.with_values({"split.kind": "random"})
        assert why_random(ready(parties, config), config) == why


def test_at_random_where_a_party_has_no_dates_or_too_few_customers() -> None:
    first, second = shops()
    for parties in (
        shops(FEWEST_TEST_USERS - 1),
        [first, *timeless([second])],
        timeless([first, second]),
    ):
        assert choose_split(parties, BEST).split.kind == "random"
    assert choose_split([first, second], vf.Config.preset("private")).split.kind == "random", "dates reveal"


def test_what_is_chosen_by_hand_stays() -> None:
    parties = shops()
    for kind in ("random", "rating", "all"):
        assert choose_split(parties, BEST.with_values({"split.kind": kind})).split.kind == kind
    given = {"split.dates": ["2024-01-01", "2024-02-01"]}
    assert (
        choose_split(parties, BEST.with_values(given)).split.model_dump(mode="json")["dates"]
        == given["split.dates"]
    )


def test_a_party_of_a_federation_is_judged_by_the_agreed_dates_where_they_suit_it() -> None:
    """Each decides for itself: in a federation, auto stays in the agreement."""
    parties = shops()
    dates = choose_split(parties, BEST).split.dates
    assert dates is not None
    agreed = BEST.with_values({"split.dates": [str(day) for day in dates]}).split
    by_date = split_ratings(parties[0], agreed, 0, b"secret")
    assert UNUSED in by_date
    few = shops(FEWEST_TEST_USERS - 1)[0]
    at_random = split_ratings(few, agreed, 0, b"secret")
    assert UNUSED not in at_random
    assert (
        at_random == split_ratings(few, BEST.with_values({"split.kind": "random"}).split, 0, b"secret")
    ).all()


@settings(max_examples=10)
@given(st.integers(0, 1000), st.booleans())
def test_every_rating_is_in_one_part_and_a_withheld_user_in_no_other(seed: int, dated: bool) -> None:
    parties = shops(400, seed=seed % 3)
    config = BEST.with_values({"seed": seed})
    prepared = ready(parties if dated else timeless(parties), config)
    for index, each in enumerate(prepared):
        parts = (each.train, each.valid, each.test, each.newcomers)
        table = each.party.ratings
        assert sum(map(len, parts)) + int((each.parts == UNUSED).sum()) == len(table)
        withheld = draw_withheld(table, simulated_secret(seed, index))
        users = [set(torch.unique(part.user).tolist()) for part in parts]
        judged = set(np.flatnonzero(withheld == NEWCOMER).tolist())
        choosing = set(np.flatnonzero(withheld == VALID).tolist())
        assert users[3] <= judged
        assert not judged & (users[0] | users[1] | users[2])
        assert not choosing & (users[0] | users[2] | users[3])
        assert choosing & users[1]
        assert dated == bool((each.parts == UNUSED).any())
        unused = np.unique(table.user[each.parts == UNUSED])
        assert (withheld[unused] != TRAIN).all()


def test_what_is_served_trains_on_everything() -> None:
    for each in ready(shops()):
        whole = each.with_everything(BEST)
        assert len(whole.train) == len(each.party.ratings)
        assert len(whole.valid) == len(whole.test) == len(whole.newcomers) == 0


def test_ratings_that_are_all_likes_train_lists_only() -> None:
    parties = shops(rating=5.0)
    liked = [vf.PartyData(p.name, replace(p.ratings, scale=(1.0, 5.0))) for p in parties]
    config = choose_config(liked, BEST)
    assert config.ranks
    assert not config.trains_lists
    assert config.training.epochs == BEST.training.epochs
    assert config.trains_final
    assert not choose_config(shops(), BEST).ranks


def twin_shops() -> list[vf.PartyData]:
    """Two parties of which the second lists ten products of the first one, too, with the same buyers."""
    first, second = timeless(shops(400))
    copied = np.argsort(np.bincount(first.ratings.item))[:10]
    copies = first.ratings.take(np.isin(first.ratings.item, copied)).select_items(np.sort(copied))
    table = second.ratings
    both = replace(
        table,
        user=np.concatenate([table.user, copies.user]),
        item=np.concatenate([table.item, copies.item + np.int32(table.n_items)]),
        rating=np.concatenate([table.rating, copies.rating]),
        item_ids=np.concatenate([table.item_ids, np.char.add("copy of ", copies.item_ids)]),
        titles=None,
        columns={},
        catalogue=None,
    )
    return align_users([first, vf.PartyData(second.name, both)])


def test_test_ratings_that_the_partner_has_trained_on_are_left_out() -> None:
    before = ready(twin_shops())
    after = leave_out_twins(before, choose_config([each.party for each in before], BEST))
    count = 0
    trained = [
        {
            (user, str(each.party.ratings.item_ids[item]).removeprefix("copy of "))
            for user, item in zip(each.train.user.tolist(), each.train.item.tolist(), strict=True)
        }
        for each in before
    ]
    for here, (was, now) in enumerate(zip(before, after, strict=True)):
        table = now.party.ratings
        changed = was.parts != now.parts
        assert (now.parts[changed] == UNUSED).all()
        assert (now.parts == TRAIN).sum() == (was.parts == TRAIN).sum()
        for row in np.flatnonzero(changed):
            name = str(table.item_ids[table.item[row]]).removeprefix("copy of ")
            assert (int(table.user[row]), name) in trained[1 - here]
        count += int(changed.sum())
    assert count > 0
    said = describe_twins(after)
    assert said is not None
    assert said.startswith(f"{count} test and validation ratings left out")
    assert describe_twins(before) is None
    assert "A party cannot check that alone" in str(describe_twins(after[:1]))


def test_nothing_is_left_out_without_twins() -> None:
    before = ready(timeless(shops(400)))
    assert all(was is now for was, now in zip(before, leave_out_twins(before, BEST), strict=True))
    assert TEST in before[0].parts


def test_where_one_party_has_only_likes_only_lists_are_trained() -> None:
    """Its ratings have no spread, and a model of stars would diverge on them."""
    film, book = vf.split_items(vf.read_ratings("synthetic", users=60, items=40, ratings=900), parties=2)
    likes = replace(book.ratings, rating=np.full(len(book.ratings), 4, np.float32))
    assert not choose_config([film, book], BEST).ranks
    assert choose_config([film, vf.PartyData("book", likes)], BEST).ranks
