"""Tables in the shape of large data sets: counts to the last one, long tails, and something to learn."""

from dataclasses import replace

import numpy as np
import pytest
from test_data_synthetic import squared_errors

from helpers import means_errors
from verfedgnn.core.errors import DataError
from verfedgnn.data import TEST, read_parties, read_ratings, split_by_rating
from verfedgnn.data import synthetic_shapes as shapes


def small(users, items, ratings):
    return replace(shapes.LIKE["yelp"], users=users, items=items, ratings=ratings)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Yelp's proportions, a hundredth of it, in several row groups."""
    path = tmp_path_factory.mktemp("shapes") / "yelp.parquet"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shapes, "ROW_GROUP", 20_000)
        shapes.write_ratings(small(19_879, 1_503, 69_903), path)
    return path


def test_counts_are_exact_and_nobody_is_left_out(table):
    ratings = read_ratings(table)  # refuses pairs that occur twice
    assert (ratings.n_users, ratings.n_items, len(ratings)) == (19_879, 1_503, 69_903)
    assert set(ratings.rating.tolist()) == {1, 2, 3, 4, 5}
    assert len(ratings.user_ids[0]) == 22
    assert set(ratings.columns["category"]) == set(shapes.LIKE["yelp"].categories)
    assert ratings.time is not None


def test_tails_are_long(table):
    ratings = read_ratings(table)
    of_user, of_item = np.bincount(ratings.user), np.bincount(ratings.item)
    assert np.median(of_user) in (1, 2)
    assert of_user.max() > 100
    assert 10 < np.median(of_item) < 20
    assert of_item.max() > 500


@pytest.mark.parametrize(
    ("users", "items", "ratings"), [(1, 1, 1), (50, 3, 50), (3, 50, 50), (4, 20, 40), (40, 11, 190)]
)
def test_every_shape_that_can_be(tmp_path, users, items, ratings):
    shapes.write_ratings(small(users, items, ratings), tmp_path / "small.parquet", seed=3)
    made = read_ratings(tmp_path / "small.parquet")
    assert (made.n_users, made.n_items, len(made)) == (users, items, ratings)


@pytest.mark.parametrize(
    ("users", "items", "ratings", "remedy"),
    [
        (50, 10, 49, "at least 50"),
        (10, 50, 49, "at least 50"),
        (4, 10, 21, "at most 20"),
        (0, 1, 0, "at least 1 of each"),
    ],
)
def test_a_shape_that_cannot_be_says_why(users, items, ratings, remedy):
    with pytest.raises(DataError, match=remedy):
        small(users, items, ratings)


def test_the_seed_decides(tmp_path):
    tables = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        shapes.write_ratings(small(300, 40, 1000), tmp_path / name, seed=seed)
        tables.append((tmp_path / name).read_bytes())
    assert tables[0] == tables[1] != tables[2]


def test_it_goes_to_parties(table):
    parties = read_parties(table, parties=10)
    assert len(parties) == 10
    assert {party.ratings.n_users for party in parties} == {19_879}


def test_there_are_biases_and_tastes_to_learn(table):
    ratings = read_ratings(table)
    parts = split_by_rating(ratings)
    mean = ratings.rating[parts == TEST].std()
    biases = means_errors(ratings, parts)
    factors = np.sqrt(squared_errors(ratings, dim=2).mean())
    assert np.sqrt(biases.squared / biases.count) < mean - 0.04
    assert factors < mean - 0.1
