"""The generator: its promises, and that joining pays on what it makes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verfedgnn.data import (
    TEST,
    TRAIN,
    read_parties,
    read_ratings,
    split_by_rating,
    split_items,
    synthetic_ratings,
)
from verfedgnn.data.synthetic import synthetic_tables


def test_default_is_deterministic_and_long_tailed():
    ratings = synthetic_ratings()
    again = read_ratings("synthetic", seed=0)
    for field in ("user", "item", "rating", "time", "user_ids", "item_ids", "titles"):
        assert (getattr(ratings, field) == getattr(again, field)).all()
    assert (ratings.rating[:1000] != read_ratings("synthetic", seed=1).rating[:1000]).any()
    assert abs(len(ratings) - 60_000) < 1_500
    per_item = np.sort(np.bincount(ratings.item))[::-1]
    assert per_item[:60].sum() > 0.25 * len(ratings)
    assert set(ratings.rating.tolist()) == {1.0, 2.0, 3.0, 4.0, 5.0}
    first = ratings.item_ids.tolist().index("film-017")
    assert ratings.titles[first] == "Dark film 017"
    assert ratings.columns["category"][first] == "film"


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 60), st.integers(5, 60), st.integers(0, 2000), st.integers(1, 5), st.integers(0, 5))
def test_everyone_has_five_ratings_and_every_item_one(users, items, ratings, categories, seed):
    made = synthetic_ratings(users=users, items=items, ratings=ratings, categories=categories, seed=seed)
    assert (made.n_users, made.n_items) == (users, items)
    assert np.bincount(made.user).min() >= 5
    assert np.bincount(made.item).min() >= 1
    assert len(np.unique(made.columns["category"])) == categories


def test_other_scales():
    made = synthetic_ratings(users=50, items=30, ratings=800, scale=(0, 10))
    assert set(made.rating.tolist()) == {0.0, 2.5, 5.0, 7.5, 10.0}


def squared_errors(ratings, dim=6, ridge=4.0, rounds=8):
    """Squared test errors of matrix factorisation with biases, fitted by alternating least squares."""
    part = split_by_rating(ratings)
    train, test = ratings.take(part == TRAIN), ratings.take(part == TEST)
    mean = float(train.rating.mean())
    rng = np.random.default_rng(0)
    # Rows are (bias, 1, vector) of a user and (1, bias, vector) of an item: the prediction is their inner product.
    user = np.column_stack(
        [np.zeros(ratings.n_users), np.ones(ratings.n_users), np.zeros((ratings.n_users, dim))]
    )
    item = np.column_stack(
        [np.ones(ratings.n_items), np.zeros(ratings.n_items), rng.normal(0, 0.1, (ratings.n_items, dim))]
    )

    def solve(target, rows, other, columns, fixed):
        free = [k for k in range(dim + 2) if k != fixed]
        x = other[columns][:, free]
        y = train.rating - mean - other[columns][:, fixed]
        n = len(target)
        gram = np.stack(
            [[np.bincount(rows, x[:, a] * x[:, b], n) for b in range(dim + 1)] for a in range(dim + 1)]
        )
        right = np.stack([np.bincount(rows, x[:, a] * y, n) for a in range(dim + 1)])
        system = gram.transpose(2, 0, 1) + ridge * np.eye(dim + 1)
        target[:, free] = np.linalg.solve(system, right.T[..., None])[..., 0]

    for _ in range(rounds):
        solve(user, train.user, item, train.item, 1)
        solve(item, train.item, user, train.user, 0)
    guess = mean + (user[test.user] * item[test.item]).sum(1)
    return (np.clip(guess, *ratings.scale) - test.rating) ** 2


@pytest.mark.parametrize("seed", [0, 1])
def test_pooling_beats_each_party_alone(seed):
    ratings = synthetic_ratings(seed=seed)
    pooled = np.sqrt(squared_errors(ratings).mean())
    alone = np.sqrt(
        np.concatenate([squared_errors(p.ratings) for p in split_items(ratings, by="category")]).mean()
    )
    assert 0.75 < pooled < 0.85
    assert alone > pooled + 0.05
    assert alone < 0.95


@pytest.mark.parametrize(("overlap", "shared"), [(0, 0), (0.2, 20), (1, 100)])
def test_tables_of_parties_overlap_as_asked(overlap: float, shared: int) -> None:
    tables = synthetic_tables(3, overlap, users=100, items=30, ratings=1500, seed=2)
    sets = [set(table.user_ids.tolist()) for table in tables]
    assert [len(users) for users in sets] == [100, 100, 100]
    assert len(sets[0] & sets[1]) == len(set.intersection(*sets)) == shared
    assert all(np.unique(table.user).tolist() == list(range(100)) for table in tables)
    assert [table.user_ids.tolist() == sorted(table.user_ids.tolist()) for table in tables] == [True] * 3
    again = synthetic_tables(3, overlap, users=100, items=30, ratings=1500, seed=2)
    np.testing.assert_array_equal(again[2].rating, tables[2].rating)


def test_the_command_writes_one_table_per_party(command: Any, tmp_path: Path) -> None:
    out = tmp_path / "shops"
    words = ["data", "synth", "--overlap", "0.25", "--parties", "2", "--users", "40", "--out", out]
    code, text, _ = command(*words, "--json")
    assert code == 0
    assert json.loads(text)["shared_users"] == 10
    parties = read_parties(out)
    assert [party.name for party in parties] == ["book", "film"]
    assert {party.ratings.n_users for party in parties} == {70}
    code, _, err = command(*words)
    assert code == 2
    assert "exists already" in err
    assert command(*words, "--overwrite")[0] == 0
