"""The publishers' own files, against their published counts; skipped where the data is not there."""

import os
from pathlib import Path

import numpy as np
import pytest

from verfedgnn.data import check_parties, read_parties, read_ratings, split_items


def need(name):
    folder = os.environ.get("VERFEDGNN_DATA")
    if not folder or not (Path(folder) / name).exists():
        pytest.skip(f"{name} is not in VERFEDGNN_DATA")
    return name


def test_movielens_1m():
    ratings = read_ratings(need("ml-1m"))
    assert (len(ratings), ratings.n_users, ratings.n_items) == (1_000_209, 6_040, 3_706)
    assert np.bincount(ratings.rating.astype(int)).tolist() == [0, 56_174, 107_557, 261_197, 348_971, 226_310]
    assert (ratings.name, ratings.scale, ratings.notes) == ("ml-1m", (1, 5), ())
    assert (ratings.titles != "").all()
    assert ratings.titles[ratings.item_ids.tolist().index("12")] == "Dracula: Dead and Loving It (1995)"
    assert len(np.unique(ratings.columns["genre"])) == 18
    # Row by row as in the file: 1::1193::5::978300760 is its first line.
    first = (
        ratings.user_ids[ratings.user[0]],
        ratings.item_ids[ratings.item[0]],
        ratings.rating[0],
        ratings.time[0],
    )
    assert first == ("1", "1193", 5.0, 978300760)
    check_parties(split_items(ratings, 10))


def test_movielens_100k():
    ratings = read_ratings(need("ml-100k"))
    assert (len(ratings), ratings.n_users, ratings.n_items) == (100_000, 943, 1_682)
    assert (ratings.titles[0], ratings.columns["genre"][0]) == ("Toy Story (1995)", "Animation")


def test_bookcrossing():
    name = need("book-crossing")
    subset = read_ratings(name)
    assert subset.notes[0] == "716,109 implicit rows (rating 0) left out"
    assert (len(subset), subset.n_users, subset.n_items) == (66_610, 5_380, 3_000)
    assert subset.notes[-1].endswith("66,610 of 433,671 ratings; dropped 620 users left without a rating")
    assert (subset.titles != "").mean() > 0.97


def test_amazon():
    books, movies = read_parties(need("amazon-books-movies-dense"), users="all")
    assert (books.name, movies.name) == ("Amazon-Books-Dense", "Amazon-Movies-Dense")
    assert books.ratings.n_users == movies.ratings.n_users == 1_329
    assert (books.ratings.n_items, movies.ratings.n_items) == (723, 1_338)
    assert books.ratings.notes == (
        "6,645 rows repeat a (user, item) pair: kept the first",
        "kept 1,329 of 1,426 users; 1,216 ratings of users who are not at every party were dropped",
    )
    assert movies.ratings.notes[0] == "5,939 rows repeat a (user, item) pair: kept the first"
