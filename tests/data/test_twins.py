"""Items of two parties that are the same product, found by their raters."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from helpers import make_ratings
from verfedgnn.data import (
    PartyData,
    Ratings,
    align_users,
    read_parties,
    read_ratings,
    split_items,
    synthetic_ratings,
)
from verfedgnn.data.twins import find_twins, twin_cases


def party(name, rated):
    """Return a party from a mapping of items to their raters."""
    pairs = [(user, item) for item, users in rated.items() for user in users]
    users, items = zip(*pairs, strict=True)
    return PartyData(name, make_ratings(users, items, [5.0] * len(pairs), name=name))


def shops(film, book):
    """Return two parties that share 200 users, each of whom rated an item of their own at each party."""
    crowd = range(200)
    return align_users(
        [
            party("film", {f"f{user}": [user] for user in crowd} | film),
            party("book", {f"b{user}": [user] for user in crowd} | book),
        ]
    )


def ids(parties, twins):
    first, second = parties[twins.first].ratings.item_ids, parties[twins.second].ratings.item_ids
    return [(str(first[a]), str(second[b])) for a, b in twins.items]


def cases(parties, masks):
    return [
        {(str(t.user_ids[u]), str(t.item_ids[i])) for u, i in zip(t.user[m], t.item[m], strict=True)}
        for t, m in zip((each.ratings for each in parties), masks, strict=True)
    ]


def test_items_with_the_same_raters_are_twins_and_the_ids_do_not_matter():
    parties = shops(
        {"dune": range(10, 20), "7": range(30, 40)}, {"dune-dvd": range(10, 20), "7": range(50, 60)}
    )
    (twins,) = find_twins(parties)
    assert ids(parties, twins) == [("dune", "dune-dvd")]


def test_twins_may_lack_a_few_raters_but_volumes_of_a_series_are_no_twins():
    film = {"lost": range(10, 20), "volume 1": range(30, 70)}
    parties = shops(film, {"lost": range(11, 21), "volume 2": range(45, 85)})
    (twins,) = find_twins(parties)
    assert ids(parties, twins) == [("lost", "lost")]


def test_an_item_with_one_rater_has_no_twin():
    assert find_twins(shops({}, {})) == []


def test_a_case_is_a_rating_whose_twin_the_same_user_rated_elsewhere():
    parties = shops({"dune": range(10, 20)}, {"dvd": range(10, 19)})
    masks = twin_cases(parties, find_twins(parties))
    film, book = cases(parties, masks)
    assert film == {(str(user), "dune") for user in range(10, 19)}
    assert book == {(str(user), "dvd") for user in range(10, 19)}


def test_only_ratings_that_count_at_the_other_party_make_a_case():
    parties = shops({"dune": range(10, 20)}, {"dvd": range(10, 20)})
    counted = [party.ratings.user != 12 for party in parties]
    before = twin_cases(parties, find_twins(parties))
    after = twin_cases(parties, find_twins(parties), counted)
    lost = [was - now for was, now in zip(cases(parties, before), cases(parties, after), strict=True)]
    twelve = next(int(row) for row in np.flatnonzero(parties[0].ratings.user_ids == "12"))
    assert twelve == 12
    assert lost == [{("12", "dune")}, {("12", "dvd")}]


def test_without_twins_nothing_is_a_case():
    parties = shops({}, {})
    assert not any(mask.any() for mask in twin_cases(parties, []))


@pytest.mark.parametrize("seed", range(3))
def test_chance_makes_no_twins(seed):
    """Many items with two or three raters, drawn among users of whom some are a hundred times as active as others."""
    rng = np.random.default_rng(seed)
    users, items = 2000, 5000
    share = rng.lognormal(0, 1, users)
    drawn = []
    for name in ("film", "book"):
        user = rng.choice(users, 3 * items, p=share / share.sum())
        item = np.repeat(np.arange(items), 3)
        drawn.append(
            PartyData(name, make_ratings(user, item, np.ones(3 * items), duplicates="first", name=name))
        )
    assert sum(len(twins.items) for twins in find_twins(align_users(drawn))) <= 1


@pytest.mark.parametrize("seed", range(3))
def test_items_that_nearly_everybody_rated_are_no_twins(seed):
    """Of 120 users, more than 70 rated the most popular items: they share raters by chance."""
    parties = split_items(
        synthetic_ratings(users=120, items=90, ratings=5400, seed=seed), parties=3, seed=seed
    )
    assert max(int(np.bincount(party.ratings.item).max()) for party in parties) > 70
    assert find_twins(parties) == []


def test_copied_items_are_found_and_nothing_else(monkeypatch):
    """Fifty items are listed at the other party as well, where one of ten raters is missing; blocks change nothing."""
    rng = np.random.default_rng(0)
    first, second = split_items(synthetic_ratings(users=800, items=600, ratings=12_000, seed=3), 2)
    copied = rng.choice(np.flatnonzero(np.bincount(first.ratings.item) >= 8), 50, replace=False)
    kept = np.isin(first.ratings.item, copied) & (rng.random(len(first.ratings)) < 0.9)
    copies = first.ratings.take(kept).select_items(np.sort(copied))
    parties = [first, PartyData("second", add(second.ratings, copies))]
    (twins,) = find_twins(parties)
    found = ids(parties, twins)
    right = [(one, other) for one, other in found if other == f"copy of {one}"]
    assert len(right) >= 48
    assert len(found) - len(right) <= 1
    monkeypatch.setattr("verfedgnn.data.twins._MOST_COUNTS", 500)
    (again,) = find_twins(parties)
    assert np.array_equal(again.items, twins.items)


def add(table: Ratings, copies: Ratings) -> Ratings:
    """Return a table with further items; the users are the same."""
    names = np.array([f"copy of {item}" for item in copies.item_ids])
    return replace(
        table,
        user=np.concatenate([table.user, copies.user]),
        item=np.concatenate([table.item, copies.item + np.int32(table.n_items)]),
        rating=np.concatenate([table.rating, copies.rating]),
        item_ids=np.concatenate([table.item_ids, names]),
        time=None,
        titles=None,
        columns={},
        catalogue=None,
    )


def need(name):
    folder = os.environ.get("VERFEDGNN_DATA")
    if not folder or not (Path(folder) / name).exists():
        pytest.skip(f"{name} is not in VERFEDGNN_DATA")
    return Path(folder) / name


def test_two_amazon_shops_that_list_the_same_products():
    """Products with the same two buyers or more are 13 to 14 % of the interactions; one buyer makes no case."""
    folder = need("amazon-sport-cloth")
    parties = read_parties([folder / "sport.csv.gz", folder / "cloth.csv.gz"], events=5)
    (twins,) = find_twins(parties)
    raters = [[frozenset(part) for part in by_item(each.ratings)] for each in parties]
    same = {one for one in raters[0] if len(one) > 1} & set(raters[1])
    found = {raters[0][a] for a, b in twins.items if raters[0][a] == raters[1][b]}
    assert found == same
    assert len(same) == 2456
    assert len(twins.items) == 2515
    shares = [mask.mean() for mask in twin_cases(parties, [twins])]
    np.testing.assert_allclose(shares, [0.1327, 0.1388], atol=1e-4)


def by_item(ratings):
    order = np.argsort(ratings.item, kind="stable")
    return np.split(ratings.user[order], np.cumsum(np.bincount(ratings.item))[:-1])


def test_shops_without_common_products_have_hardly_any_twins():
    """Five films are the books that they were made from; one catalogue cut in ten has no product twice."""
    shared = read_parties(str(need("amazon-books-movies-dense")))
    assert [len(twins.items) for twins in find_twins(shared)] == [5]
    parts = split_items(read_ratings(need("ml-1m")), by="genre")
    assert find_twins(parts) == []
