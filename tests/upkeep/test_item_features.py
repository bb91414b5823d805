"""Features of items: their encoding, the prior that follows from them, and items without ratings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import verfedgnn as vf
from verfedgnn.core.errors import DataError
from verfedgnn.data import synthetic_ratings
from verfedgnn.data.table_sources import read_item_table
from verfedgnn.runs.added_items import added_file, read_added
from verfedgnn.upkeep.item_features import fit_encoder, fit_feature_prior
from verfedgnn.upkeep.item_prior import fit_distribution

Command = Callable[..., tuple[int, str, str]]


def test_each_kind_of_column_is_encoded() -> None:
    table = pa.table(
        {
            "genre": ["Comedy|Romance", "Comedy", "Drama", "Drama", None],
            "year": [1990, 2000, None, 2010, 2020],
            "vector": [[1.0, 0.0], [0.0, 1.0], None, [2.0, 2.0], [1.0, 1.0]],
        }
    )
    encoder = fit_encoder(table)
    found = encoder.encode({name: table[name].to_pylist() for name in table.column_names}, 5)
    assert found.shape == (5, 2 + 1 + 2), "Romance has one item only"
    assert np.square(found[:, :2]).sum(1).mean() == pytest.approx(1)
    assert (found[4, :2] == 0).all()
    assert found[2, 2] == 0
    assert (found[2, 3:] == 0).all()
    assert encoder.encode({"genre": ["Western"]}, 1).any() == np.False_, "what nobody knows says nothing"


def test_words_are_hashed() -> None:
    pytest.importorskip("sklearn", reason="the extra features is not installed")
    titles = [f"the {word} returns" for word in ("shark", "ghost", "robot", "queen", "whale")]
    encoder = fit_encoder(pa.table({"title": titles}))
    found = encoder.encode({"title": ["the shark returns", "the shark", "something else"]}, 3)
    assert found[0] @ found[1] > found[0] @ found[2]


def test_odd_columns_are_refused() -> None:
    with pytest.raises(DataError, match="has the type"):
        fit_encoder(pa.table({"when": pa.array([0], pa.timestamp("s"))}))
    with pytest.raises(DataError, match="differ in length"):
        fit_encoder(pa.table({"vector": [[1.0], [1.0, 2.0]]}))


def test_columns_of_a_text_file_that_hold_numbers_become_numbers(tmp_path: Path) -> None:
    file = tmp_path / "items.csv"
    file.write_text("isbn,author,year\n1,A,1990\n2,B,\n")
    table = read_item_table(file)
    assert table.columns["year"].to_pylist() == [1990.0, None]
    assert table.columns["author"].to_pylist() == ["A", "B"]
    file.write_text("isbn,year\n1,1990\n1,1991\n")
    with pytest.raises(DataError, match="one row per item"):
        read_item_table(file)


def test_the_prior_finds_what_the_features_say_and_ignores_noise() -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(200, 6))
    vectors = features @ rng.normal(size=(6, 4)) + 0.3 * rng.normal(size=(200, 4))
    users = rng.normal(size=(100, 4))
    items = fit_distribution(vectors[:150], np.ones(150))
    counts = np.full(150, 50)
    prior = fit_feature_prior(items, vectors[:150], features[:150], counts, users)
    assert prior.explained > 0.9
    errors = [vectors[v] - prior.describe(features[v]).mean for v in range(150, 200)]
    assert np.mean(np.square(errors)) == pytest.approx(0.09, rel=0.3)
    spread = prior.describe(features[0]).factor
    assert np.diag(spread @ spread.T) == pytest.approx(np.full(4, 0.09), rel=0.5), (
        "the covariance is that of the errors"
    )
    noise = fit_feature_prior(items, vectors[:150], rng.normal(size=(150, 6)), counts, users)
    assert noise.explained < 0.05


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two parties' ratings and the features of the first one's items: their category, of which one item is unrated."""
    folder = tmp_path_factory.mktemp("features")
    for number, name in enumerate(("film", "books")):
        made = synthetic_ratings(users=80, items=60, ratings=2500, seed=number)
        rows = zip(made.user_ids[made.user], made.item_ids[made.item], made.rating, strict=True)
        (folder / f"{name}.csv").write_text(
            "\n".join(["user,item,rating", *(f"{u},{v},{r:g}" for u, v, r in rows)]) + "\n"
        )
        if name == "film":
            ids = [*made.item_ids.tolist(), "unrated"]
            categories = [*made.columns["category"].tolist(), str(made.columns["category"][0])]
            table = pa.table(
                {"item": ids, "category": categories, "year": [1980 + i % 40 for i in range(len(ids))]}
            )
            pq.write_table(table, folder / "items.parquet")
    return folder


def test_an_item_without_ratings_is_recommended_after_a_training_with_features(
    files: Path, command: Command
) -> None:
    data = [word for name in ("film", "books") for word in ("--data", f"{name}={files / name}.csv")]
    run = files / "run"
    features = f"film={files / 'items.parquet'}"
    code, _, err = command(
        *[
            "train",
            *data,
            "--features",
            features,
            "--set",
            "epochs=10",
            "--out",
            run,
            "--quiet",
        ]
    )
    assert code == 0, err
    loaded = vf.Run.load(run)
    assert loaded.parties[0].ratings.item_ids[-1] == "unrated"
    user = str(loaded.parties[0].ratings.user_ids[0])
    assert "unrated" in {item.item for item in loaded.recommend(user, 100, party="film")}
    stored = read_added(added_file(run, "film"))["unrated"]
    (files / "more.csv").write_text(f"user,item,rating\n{user},unrated,5\n")
    assert command("items", "add", run, "--party", "film", "--ratings", files / "more.csv", "--quiet")[0] == 0
    again = read_added(added_file(run, "film"))["unrated"]
    assert again.features == stored.features
    assert again.vectors["model"] != stored.vectors["model"], "a rating refines what the features say"
    assert command("items", "features", run, files / "items.parquet", "--party", "film", "--quiet")[0] == 0
    assert read_added(added_file(run, "film"))["unrated"].ratings == again.ratings, "ratings stay"


def test_mistakes_in_features_are_found_before_the_training(files: Path, command: Command) -> None:
    code, _, err = command("train", "--features", f"film={files / 'items.parquet'}")
    assert (code, "add --out" in err) == (2, True)
    data = ["--data", f"film={files / 'film'}.csv", "--data", f"books={files / 'books'}.csv"]
    code, _, err = command("train", *data, "--features", "music=x.csv", "--out", files / "other")
    assert (code, "one of the parties film, books" in err) == (2, True)
