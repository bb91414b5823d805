"""Withheld users: a party draws them under its own secret, and nothing of them is in its training part."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import make_ratings
from verfedgnn.data import NEWCOMER, TEST, TRAIN, UNUSED, VALID, split_items, synthetic_ratings
from verfedgnn.data.splits import WITHHELD, draw_withheld, withhold

SECRET = bytes(range(32))
secrets = st.binary(min_size=16, max_size=32)


def drawn(ratings, secret=SECRET):
    """Return the part of each withheld user by id."""
    part = draw_withheld(ratings, secret)
    return {str(ratings.user_ids[row]): int(part[row]) for row in np.flatnonzero(part != TRAIN)}


def many(count=20_000):
    return make_ratings(np.arange(count).astype(str), ["a"] * count, np.ones(count))


@given(st.integers(0, 1000), secrets)
def test_a_party_draws_alone(seed, secret):
    """Neither other users nor the order or number of rows nor new ratings change who is withheld."""
    rng = np.random.default_rng(seed)
    user = rng.integers(0, 40, 200).astype(str)
    item = np.arange(200).astype(str)
    whole = drawn(make_ratings(user, item, np.ones(200)), secret)
    few = rng.permutation(200)[:50]
    alone = drawn(make_ratings(user[few], item[few], np.ones(50)), secret)
    present = set(user[few].tolist())
    assert alone == {name: part for name, part in whole.items() if name in present}


def test_users_of_other_parties_are_not_withheld():
    """In a federation every party has the rows of all users; only those with ratings here can be withheld."""
    parties = split_items(synthetic_ratings(users=200, items=60, ratings=700, seed=2), parties=3, seed=0)
    for party in parties:
        table = party.ratings
        present = np.unique(table.user)
        own = table.select_users(present.astype(np.int64))
        assert len(present) < table.n_users
        assert drawn(table) == drawn(own)


def test_a_twentieth_chooses_and_a_tenth_judges():
    """20,000 users: the shares have a standard deviation of 0.21 % at most, and 1.2 % away has a chance of 1 in 100 million."""
    part = draw_withheld(many(), SECRET)
    for which, expected in ((VALID, WITHHELD[0]), (NEWCOMER, WITHHELD[1]), (TRAIN, 1 - sum(WITHHELD))):
        assert abs((part == which).mean() - expected) < 0.012


def test_other_secrets_draw_other_users():
    """Independent draws: a hundredth of 20,000 users judges in two of them, with a standard deviation of 14 users."""
    first, second = (draw_withheld(many(), secret) == NEWCOMER for secret in (SECRET, b"another"))
    assert 130 < int((first & second).sum()) < 270


def test_the_draw_never_changes():
    # Runs are resumed and compared over years: these values must never change.
    assert drawn(many(30)) == {"2": 4, "3": 1, "4": 4, "9": 4, "14": 4, "24": 4, "27": 4}


@st.composite
def splits(draw):
    """Draw a table, the part of each rating, and the part of each user."""
    pairs = st.tuples(st.integers(0, 6), st.integers(0, 9))
    rows = draw(st.lists(pairs, min_size=1, max_size=40, unique=True))
    table = make_ratings([user for user, _ in rows], [item for _, item in rows], np.ones(len(rows)))
    parts = draw(st.lists(st.sampled_from([TRAIN, VALID, TEST]), min_size=len(rows), max_size=len(rows)))
    users = st.lists(
        st.sampled_from([TRAIN, VALID, NEWCOMER]), min_size=table.n_users, max_size=table.n_users
    )
    return table, np.array(parts, np.int8), np.array(draw(users), np.int8)


@given(splits(), st.booleans())
def test_a_withheld_user_is_in_no_other_part(split, by_date):
    table, parts, withheld = split
    after = withhold(table, parts, withheld, dated=by_date)
    assert after.dtype == np.int8
    for row in np.unique(table.user):
        mine = after[table.user == row]
        if withheld[row] == TRAIN:
            assert (mine == parts[table.user == row]).all(), "the others keep their parts"
        else:
            assert set(mine.tolist()) <= {int(withheld[row]), UNUSED}
    assert not (after == NEWCOMER)[withheld[table.user] != NEWCOMER].any()


@given(splits())
def test_only_withheld_users_have_unused_ratings_and_only_of_other_dates(split):
    table, parts, withheld = split
    after = withhold(table, parts, withheld, dated=True)
    dates = {VALID: VALID, NEWCOMER: TEST}
    for before, now, whose in zip(parts, after, withheld[table.user], strict=True):
        assert (now == UNUSED) == (whose != TRAIN and before != dates[int(whose)])
    assert UNUSED not in withhold(table, parts, withheld, dated=False)


@pytest.mark.parametrize(
    ("by_date", "expected"),
    [
        (False, [TRAIN, VALID, TEST, VALID, VALID, VALID, NEWCOMER, NEWCOMER, NEWCOMER]),
        (True, [TRAIN, VALID, TEST, UNUSED, VALID, UNUSED, UNUSED, UNUSED, NEWCOMER]),
    ],
    ids=["random", "date"],
)
def test_withheld_users_by_hand(by_date, expected):
    """Ann is known, Ben chooses the mixture for newcomers, and Cid judges it; each has a rating in every part."""
    table = make_ratings(list("aaabbbccc"), list("xyz" * 3), np.ones(9))
    parts = np.array([TRAIN, VALID, TEST] * 3, np.int8)
    withheld = np.array([TRAIN, VALID, NEWCOMER], np.int8)
    assert withhold(table, parts, withheld, dated=by_date).tolist() == expected
