"""Splits: what a rating's part may depend on, and how far the fractions may stray."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verfedgnn.data import (
    TEST,
    TRAIN,
    VALID,
    make_ratings,
    pool_parties,
    split_by_rating,
    split_by_time,
    split_items,
    synthetic_ratings,
)
from verfedgnn.data.splits import hash64

text = st.text(
    st.characters(min_codepoint=33, max_codepoint=0x1F600, exclude_categories=["Cs", "Z"]),
    min_size=1,
    max_size=9,
)
pairs = st.lists(st.tuples(text, text), min_size=1, max_size=30, unique=True)
seeds = st.integers(-(2**40), 2**70)


def parts(ratings, seed, **options):
    users, items = ratings.user_ids[ratings.user].tolist(), ratings.item_ids[ratings.item].tolist()
    return dict(
        zip(
            zip(users, items, strict=True),
            split_by_rating(ratings, seed=seed, **options).tolist(),
            strict=True,
        )
    )


def table(rows):
    return make_ratings([user for user, _ in rows], [item for _, item in rows], np.ones(len(rows)))


@given(pairs, seeds, st.randoms())
def test_a_part_depends_on_seed_and_ids_only(rows, seed, random):
    whole = parts(table(rows), seed)
    shuffled = random.sample(rows, len(rows))
    assert parts(table(shuffled), seed) == whole
    some = rows[: 1 + len(rows) // 2]
    assert parts(table(some), seed) == {pair: whole[pair] for pair in some}


@given(pairs, seeds, st.integers(1, 5))
def test_parties_and_the_pooled_table_agree(rows, seed, count):
    ratings = table(rows)
    whole = parts(ratings, seed)
    parties = split_items(ratings, min(count, ratings.n_items), seed=seed % 1000)
    alone = {}
    for party in parties:
        alone |= parts(party.ratings, seed)
    assert alone == whole
    assert parts(pool_parties(parties), seed) == whole


def test_fractions_hold():
    # Six independent standard deviations: a false alarm in 2e-9 per comparison, over 40 comparisons below 1e-7.
    ratings = synthetic_ratings()
    n = len(ratings)
    for seed in range(20):
        part = split_by_rating(ratings, fractions=(0.7, 0.2, 0.1), seed=seed)
        for which, share in ((TRAIN, 0.7), (TEST, 0.1)):
            assert abs((part == which).sum() - n * share) < 6 * np.sqrt(n * share * (1 - share))


def test_parts_of_a_user_and_of_two_seeds_are_independent():
    # The correlation of n independent pairs has standard deviation 1 / sqrt(n); six of them.
    ratings = synthetic_ratings()
    a, b = ((split_by_rating(ratings, seed=seed) == TRAIN).astype(float) for seed in (0, 1))
    assert abs(np.corrcoef(a, b)[0, 1]) < 6 / np.sqrt(len(a))
    share = np.bincount(ratings.user, a) / np.bincount(ratings.user)
    expected = np.sqrt(0.6 * 0.4 / np.bincount(ratings.user))
    assert abs(np.mean(((share - 0.6) / expected) ** 2) - 1) < 6 * np.sqrt(2 / ratings.n_users)


@pytest.mark.parametrize(
    ("fractions", "there"), [((1, 0, 0), {TRAIN}), ((0.5, 0.5, 0), {TRAIN, VALID}), ((0, 0, 1), {TEST})]
)
def test_parts_of_fraction_zero_are_empty(fractions, there):
    assert (
        set(split_by_rating(synthetic_ratings(users=50, items=20, ratings=500), fractions=fractions)) == there
    )


def test_the_split_stays_what_it_was():
    # Runs are resumed and compared over years: these values must never change.
    ratings = make_ratings(["1", "2", "é", "user-4711"] * 2, ["a"] * 4 + ["b"] * 4, np.ones(8))
    assert split_by_rating(ratings, seed=0).tolist() == [0, 2, 0, 1, 2, 2, 0, 0]
    assert hash64(np.array(["a", "b"]), 0).tolist() == [10361829843645232397, 13579398675583587745]


@given(st.lists(text, min_size=1, max_size=40, unique=True), st.integers(0, 2**64 - 1))
def test_hashes_differ_and_ignore_the_width(ids, seed):
    narrow = np.array(ids)
    wide = narrow.astype("U40")
    assert (hash64(narrow, seed) == hash64(wide, seed)).all()
    assert len(set(hash64(narrow, seed).tolist())) == len(ids)


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 9), st.integers(0, 3)),
        unique_by=lambda r: r[:2],
        min_size=1,
    )
)
def test_split_by_time_leaves_the_last_out(rows):
    user, item, time = (np.array(column) for column in zip(*rows, strict=True))
    ratings = make_ratings(user, item, np.ones(len(rows)), time=time)
    part = split_by_time(ratings)
    for who in set(user.tolist()):
        mine = sorted((t, i, p) for u, i, t, p in zip(user, item, time, part, strict=True) if u == who)
        expected = [TRAIN] * (len(mine) - 2) + [VALID, TEST] if len(mine) >= 3 else [TRAIN] * len(mine)
        assert [p for _, _, p in mine] == expected
