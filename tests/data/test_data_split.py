"""Splits: what a rating's part may depend on, and how far the fractions may stray."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import make_ratings
from verfedgnn.data import (
    TEST,
    TRAIN,
    VALID,
    split_by_date,
    split_by_rating,
    split_items,
    synthetic_ratings,
)
from verfedgnn.data.splits import FEWEST_TEST_USERS, choose_dates, hash64, suits
from verfedgnn_research.baselines.pooled_parties import pool_parties

DAY = 24 * 60 * 60

text = st.text(
    st.characters(
        min_codepoint=33, max_codepoint=0x1F600, exclude_categories=["Cs", "Z"], exclude_characters="\x85"
    ),
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


days = st.integers(0, 60).map(lambda day: date(2025, 1, 1) + timedelta(days=day))


def dated(rows, **more):
    """Return a table of (user, seconds since 1 January 2025)."""
    user, seconds = (np.array(column) for column in zip(*rows, strict=True))
    time = seconds + int(datetime(2025, 1, 1, tzinfo=UTC).timestamp())
    return make_ratings(user, np.arange(len(rows)), np.ones(len(rows)), time=time, **more)


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 61 * DAY)), min_size=1),
    st.tuples(days, days).filter(lambda pair: pair[0] != pair[1]).map(sorted).map(tuple),
)
def test_a_split_by_date_compares_days(rows, dates):
    ratings = dated(rows)
    first, second = dates
    on = [datetime.fromtimestamp(int(time), UTC).date() for time in ratings.time]
    expected = [TRAIN if day < first else VALID if day < second else TEST for day in on]
    assert split_by_date(ratings, dates).tolist() == expected


def test_a_date_begins_at_midnight():
    ratings = dated([(0, DAY - 1), (0, DAY), (0, 2 * DAY - 1), (0, 2 * DAY)])
    assert split_by_date(ratings, (date(2025, 1, 2), date(2025, 1, 3))).tolist() == [
        TRAIN,
        VALID,
        VALID,
        TEST,
    ]


def visits(users, tested):
    """Return a table in which every user rates on the first 80 days, 50 on each; `tested` of them rate again after 90 days."""
    rows = [(user, day * DAY) for user in range(users) for day in (user % 80, (user + 40) % 80)]
    rows += [(user, (80 + user % 10) * DAY) for user in range(users // 4)]
    rows += [(user, (90 + user % 10) * DAY) for user in range(tested)]
    return dated(rows)


@pytest.mark.parametrize(("tested", "enough"), [(FEWEST_TEST_USERS, True), (FEWEST_TEST_USERS - 1, False)])
def test_a_split_by_date_needs_known_customers_after_the_second_date(tested, enough):
    dates = (date(2025, 1, 1) + timedelta(days=80), date(2025, 1, 1) + timedelta(days=90))
    table = visits(1200, tested)
    assert suits(table, dates) is enough
    assert not suits(table, None)
    assert not suits(replace(table, time=None), dates)


def test_customers_who_come_after_the_first_date_are_not_known():
    table = visits(1200, 400)
    early = split_by_date(table, (date(2025, 3, 22), date(2025, 4, 1))) == TRAIN
    later = table.take(~early | (table.user >= 200))
    assert not suits(later, (date(2025, 3, 22), date(2025, 4, 1)))


def test_a_split_by_date_needs_a_validation_part():
    table = visits(1200, 400)
    assert not suits(table, (date(2030, 1, 1) - timedelta(days=4000), date(2030, 1, 1)))
    parts = split_by_date(table, (date(2025, 3, 22), date(2025, 4, 1)))
    assert not suits(table.take(parts != VALID), (date(2025, 3, 22), date(2025, 4, 1)))


def test_dates_divide_all_ratings_by_the_fractions():
    tables = [visits(1200, 320), visits(2000, 400)]
    dates = choose_dates(tables, (0.8, 0.1, 0.1))
    counts = np.zeros(3)
    for table in tables:
        counts += np.bincount(split_by_date(table, dates), minlength=3)
    assert np.abs(counts / counts.sum() - (0.8, 0.1, 0.1)).max() < 0.02
    assert dates[0] < dates[1]


def test_no_dates_where_a_table_does_not_suit_them():
    good, few = visits(2000, 400), visits(280, 70)
    fractions = (0.8, 0.1, 0.1)
    assert choose_dates([good], fractions) is not None
    assert choose_dates([good, few], fractions) is None
    assert choose_dates([good, replace(good, time=None)], fractions) is None
    assert choose_dates([good, good.take(np.zeros(len(good), bool))], fractions) is None
    assert choose_dates([replace(good, time=good.time * 10**9)], fractions) is None, "not seconds since 1970"


def test_dates_of_one_day_are_still_in_order():
    rows = [(user, user % DAY) for user in range(2000)]
    assert choose_dates([dated(rows)], (0.8, 0.1, 0.1)) is None, "nobody is in two parts"
