"""The split that holds out everything of some users at one party."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from verfedgnn.data import (
    TEST,
    TRAIN,
    VALID,
    make_ratings,
    split_by_rating,
    split_items,
    split_newcomers,
    synthetic_ratings,
)


def held_out(ratings, party, **options):
    """Return the ids of the users whose ratings at the party are all `TEST`; nobody else has a `TEST` rating."""
    part = split_newcomers(ratings, party, **options)
    assert part.dtype == np.int8
    ids = ratings.user_ids[ratings.user]
    test = set(ids[part == TEST].tolist())
    assert not test & set(ids[part != TEST].tolist()), "a user's ratings are all held out, or none"
    return test


@given(st.integers(0, 1000), st.sampled_from(["books", "films", "é"]))
def test_a_user_is_held_out_whole(seed, party):
    ratings = synthetic_ratings(users=60, items=30, ratings=600, seed=1)
    assert len(held_out(ratings, party, seed=seed)) < 30
    assert set(split_newcomers(ratings, party, seed=seed).tolist()) <= {TRAIN, VALID, TEST}


@given(st.integers(0, 1000))
def test_a_party_computes_its_split_alone(seed):
    """Neither other users nor the order or number of rows nor new ratings change who is held out."""
    rng = np.random.default_rng(seed)
    user = rng.integers(0, 40, 200).astype(str)
    item = np.arange(200).astype(str)
    whole = held_out(make_ratings(user, item, np.ones(200)), "shop", seed=seed)
    few = rng.permutation(200)[:50]
    alone = held_out(make_ratings(user[few], item[few], np.ones(50)), "shop", seed=seed)
    assert alone == whole & set(user[few].tolist())


def test_others_are_split_as_without_newcomers():
    """Who is not held out has the parts of a split by rating, with the proportion of training and validation."""
    ratings = synthetic_ratings(users=60, items=30, ratings=600, seed=1)
    part = split_newcomers(ratings, "shop", fractions=(0.6, 0.2, 0.2), seed=5)
    usual = split_by_rating(ratings, fractions=(0.75, 0.25, 0.0), seed=5)
    np.testing.assert_array_equal(part[part != TEST], usual[part != TEST])


def test_users_of_other_parties_do_not_matter():
    """In a federation every party has the rows of all users; only those with ratings here have a part."""
    parties = split_items(synthetic_ratings(users=200, items=60, ratings=700, seed=2), parties=3, seed=0)
    for party in parties:
        table = party.ratings
        present = np.unique(table.user)
        own = table.select_users(present.astype(np.int64))
        assert len(present) < table.n_users
        np.testing.assert_array_equal(
            split_newcomers(table, party.name, seed=4), split_newcomers(own, party.name, seed=4)
        )


def test_a_tenth_tests():
    """20,000 users: the shares have a standard deviation of 0.31 % at most, and 1.5 % away has a chance of 1 in 500,000."""
    ratings = make_ratings(np.arange(20_000).astype(str), ["a"] * 20_000, np.ones(20_000))
    part = split_newcomers(ratings, "shop", seed=3)
    for which, expected in ((TEST, 0.1), (VALID, 0.9 * 0.25), (TRAIN, 0.9 * 0.75)):
        assert abs((part == which).mean() - expected) < 0.015
    half = split_newcomers(ratings, "shop", share=0.3, seed=3)
    assert abs((half == TEST).mean() - 0.3) < 0.016
    assert (half[part == TEST] == TEST).all()  # a larger share holds out more, not others


def test_each_party_and_each_seed_hold_out_other_users():
    """Independent draws: a hundredth of 20,000 users tests in two of them, with a standard deviation of 14 users."""
    ratings = make_ratings(np.arange(20_000).astype(str), ["a"] * 20_000, np.ones(20_000))
    first = split_newcomers(ratings, "books", seed=0) == TEST
    for other in (split_newcomers(ratings, "films", seed=0), split_newcomers(ratings, "books", seed=1)):
        assert 130 < int((first & (other == TEST)).sum()) < 270


def test_the_split_never_changes():
    # Runs are resumed and compared over years: these values must never change.
    ratings = make_ratings([str(user) for user in range(30)], ["a"] * 30, np.ones(30))
    assert held_out(ratings, "books", seed=0) == {"13", "25", "26"}
