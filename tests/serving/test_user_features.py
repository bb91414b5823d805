"""Customers without any rating, served from features that a party has of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import verfedgnn as vf
from verfedgnn.data.item_table import as_item_table
from verfedgnn.serving.catalogue import ALONE, FEDERATED, Catalogue
from verfedgnn.serving.fold_in import UserRatings
from verfedgnn.serving.user_profile import ServedUser, profile_user

Command = Callable[..., tuple[int, str, str]]
USERS, NEW, ITEMS = 200, 40, 30


@pytest.fixture(scope="module")
def customers() -> pd.DataFrame:
    """Trained and new customers: `kind` decides half of the taste, `noise` and `number` decide nothing."""
    rng = np.random.default_rng(3)
    return pd.DataFrame(
        {
            "user": [f"u{u}" for u in range(USERS + NEW)],
            "kind": rng.choice(["a", "b", "c"], USERS + NEW),
            "noise": rng.choice(list("defgh"), USERS + NEW),
            "number": rng.normal(size=USERS + NEW),
        }
    )


@pytest.fixture(scope="module")
def ratings(customers: pd.DataFrame) -> pd.DataFrame:
    """Ratings of all customers: those of a kind like the items of a third of the catalogue."""
    rng = np.random.default_rng(4)
    own = rng.normal(0, 0.3, (USERS + NEW, 3))
    rows = []
    for u, kind in enumerate(customers["kind"]):
        for v in rng.permutation(ITEMS)[:14]:
            stars = 2.5 + 1.5 * ("abc".index(kind) == v % 3) + own[u, v % 3] + rng.normal(0, 0.4)
            rows.append((f"u{u}", f"i{v}", float(np.clip(stars, 1, 5)), "film" if v % 2 else "book"))
    return pd.DataFrame(rows, columns=["user", "item", "rating", "party"])


@pytest.fixture(scope="module")
def run(ratings: pd.DataFrame) -> vf.Run:
    trained = ratings[ratings["user"].str[1:].astype(int) < USERS]
    return vf.VerFedRecommender(verbose=False, epochs=40, list_epochs=1, dim=4, raters=0).fit(trained).run_


def measure(run: vf.Run, ratings: pd.DataFrame, customers: Any, model: str = FEDERATED) -> float:
    """Return the RMSE of all ratings of new customers, who are known by their features only."""
    tables = (
        {} if customers is None else {party.name: as_item_table(customers, "user") for party in run.parties}
    )
    catalogue = Catalogue(run, "run", features=tables)
    errors = []
    for user, mine in ratings[ratings["user"].str[1:].astype(int) >= USERS].groupby("user"):
        served = ServedUser(None, (), catalogue.find_user_features(str(user), [0, 1]))
        profile = profile_user(catalogue, model, served, [0, 1])
        for p, party in enumerate(catalogue.parties):
            here = mine[mine["party"] == party.name]
            rows = [party.ids.find(item) for item in here["item"]]
            vector = profile[p].rating_vector
            assert vector is not None
            predicted = catalogue.rating_models[model][p].items.numpy()[rows] @ vector
            errors += np.square(predicted - here["rating"]).tolist()
    return float(np.sqrt(np.mean(errors)))


def test_features_help_where_they_matter_and_do_no_harm_where_they_do_not(
    run: vf.Run, ratings: pd.DataFrame, customers: pd.DataFrame
) -> None:
    for model in (FEDERATED, ALONE):
        plain = measure(run, ratings, None, model)
        assert measure(run, ratings, customers, model) < 0.88 * plain
        noise = measure(run, ratings, customers.drop(columns="kind"), model)
        assert noise < 1.01 * plain, "noise costs at most one per cent"


def test_predictions_at_a_party_use_its_own_features_only(run: vf.Run, customers: pd.DataFrame) -> None:
    names = [party.name for party in run.parties]
    both = Catalogue(run, "run", features={name: as_item_table(customers, "user") for name in names})
    one = Catalogue(run, "run", features={names[0]: as_item_table(customers, "user")})
    nothing = profile_user(both, FEDERATED, ServedUser(None), [0, 1])
    user = f"u{USERS}"
    mine = profile_user(one, FEDERATED, ServedUser(None, (), one.find_user_features(user, [0, 1])), [0, 1])
    all_of_it = profile_user(
        both, FEDERATED, ServedUser(None, (), both.find_user_features(user, [0, 1])), [0, 1]
    )
    assert np.array_equal(mine[0].rating_vector, all_of_it[0].rating_vector)  # type: ignore[arg-type]
    assert not np.array_equal(mine[0].rating_vector, nothing[0].rating_vector)  # type: ignore[arg-type]
    assert np.array_equal(mine[1].rating_vector, nothing[1].rating_vector)  # type: ignore[arg-type]


def test_ratings_refine_what_features_say(run: vf.Run, customers: pd.DataFrame) -> None:
    """Somebody of kind a who dislikes what kind a likes is not recommended more of it."""
    catalogue = Catalogue(
        run, "run", features={p.name: as_item_table(customers, "user") for p in run.parties}
    )
    user = next(row.user for row in customers[USERS:].itertuples() if row.kind == "a")
    features = catalogue.find_user_features(user, [0, 1])
    ids = catalogue.parties[0].table.item_ids
    liked = np.array([v for v in range(len(ids)) if int(ids[v][1:]) % 3 == 0])
    low = UserRatings(0, liked[:4], np.full(4, 1.0, np.float32))
    vectors = catalogue.rating_models[FEDERATED][0].items.numpy()[liked[4:]]
    predicted = []
    for newer in ([], [low]):
        vector = profile_user(catalogue, FEDERATED, ServedUser(None, newer, features), [0])[0].rating_vector
        predicted.append(float((vectors @ vector).mean()))
    assert predicted[0] > 3.2
    assert predicted[1] < predicted[0] - 0.5


def test_new_customers_in_python_and_over_http(run: vf.Run, customers: pd.DataFrame) -> None:
    pytest.importorskip("fastapi", reason="the extra serve is not installed")
    import httpx

    from served import serving
    from verfedgnn.serving.http.api_keys import ApiKey, digest_key
    from verfedgnn.serving.http.app import make_app

    user = f"u{USERS + 1}"
    with pytest.raises(vf.RunError, match="not in training"):
        run.recommend(user)
    try:
        run.use_user_features({"film": customers})
        found = run.recommend(user, k=4, party="film")
        assert len(found) == 4
        assert run.recommend([user, "u1"], k=2)[1] == run.recommend("u1", k=2)
        with pytest.raises(vf.RunError, match="not in training"):
            run.recommend("nobody")
        with pytest.raises(vf.RunError, match="no party 'x'"):
            run.use_user_features({"x": customers})
        run.use_user_features({"film": customers.assign(user=customers["user"] + "?")})
        with pytest.raises(vf.DataError, match="name no customer of the run"):
            run.recommend(user)
    finally:
        run.use_user_features({})
    catalogue = Catalogue(run, "run", features={"film": as_item_table(customers, "user")})
    keys = [ApiKey(name, digest_key(name), parties=(name,)) for name in ("film", "book")]
    with serving(make_app(catalogue, keys=keys)) as address:

        def ask(key: str) -> httpx.Response:
            headers = {"authorization": f"Bearer {key}"}
            return httpx.get(f"{address}/v1/recommendations", params={"user": user, "k": 4}, headers=headers)

        assert [item["item"] for item in ask("film").json()["recommendations"]] == [
            item.item for item in found
        ]
        assert ask("book").status_code == 404, "who is in the table of another party stays unknown"


def test_new_customers_on_the_terminal(
    run: vf.Run, customers: pd.DataFrame, command: Command, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    run.save(folder)
    file = tmp_path / "customers.csv"
    customers.assign(kind="secret-" + customers["kind"]).to_csv(file, index=False)
    user = f"u{USERS + 1}"
    words = ("recommend", folder, "--user", user, "--party", "film")
    code, _, err = command(*words, "--user-features", f"film={file}")
    assert code == 0, err
    assert f"{user} has no ratings: this list follows from the features of customers" in err
    assert command(*words)[0] != 0
    code, _, err = command(*words, "--user-features", f"music={file}")
    assert code != 0
    assert "write NAME=" in err
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert not [path for path in files if b"secret" in path.read_bytes()], (
        "features are not copied into the run"
    )
