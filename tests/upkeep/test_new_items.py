"""Items that come after a training: their vectors, their file, and the commands that use them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import verfedgnn as vf
from verfedgnn.core.errors import DataError, RunWarning
from verfedgnn.core.item_item import ItemScores
from verfedgnn.data import TRAIN, synthetic_ratings
from verfedgnn.data.ids import find_positions
from verfedgnn.runs.added_items import AddedItem, added_file, read_added
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.upkeep import new_items
from verfedgnn.upkeep.new_items import (
    ItemPrior,
    NewItems,
    absorb_item_scores,
    fit_distribution,
    fit_item_prior,
)

pytestmark = pytest.mark.usefixtures("short_own_models")

Command = Callable[..., tuple[int, str, str]]
PARTY = "party-0"


@pytest.fixture(scope="module")
def table() -> vf.Ratings:
    """Ratings with times that grow with the item's row; item 0 of the first party is the new one."""
    made = synthetic_ratings(users=150, items=60, ratings=4500, seed=3)
    return replace(made, time=np.random.default_rng(0).integers(0, 10_000, len(made)))


@pytest.fixture(scope="module")
def parties(table: vf.Ratings) -> list[vf.PartyData]:
    return vf.split_items(table, parties=2, seed=1)


@pytest.fixture(scope="module")
def trained(parties: list[vf.PartyData], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without the first item of the first party."""
    first, second = parties
    kept = np.arange(first.ratings.n_items) > 0
    folder = tmp_path_factory.mktemp("runs") / "run"
    others = [vf.PartyData(PARTY, first.ratings.select_items(kept)), second]
    vf.train(others, vf.Config.preset("best", epochs=30, evaluate_every=10), out=folder)
    return folder


@pytest.fixture
def folder(trained: Path) -> Path:
    for file in (trained / "added").glob("*.jsonl"):
        file.unlink()
    return trained


@pytest.fixture(scope="module")
def first_ratings(parties: list[vf.PartyData], tmp_path_factory: pytest.TempPathFactory) -> Path:
    own = parties[0].ratings
    rows = np.flatnonzero(own.item == 0)
    lines = [f"{own.user_ids[own.user[r]]},new,{own.rating[r]:g},{own.time[r]}" for r in rows]
    file = tmp_path_factory.mktemp("files") / "first.csv"
    file.write_text("\n".join(["user,item,rating,time", *lines, "stranger,new,4,5000"]) + "\n")
    return file


def rated_by(file: Path) -> list[str]:
    return [line.split(",")[0] for line in file.read_text().splitlines()[1:-1]]


def test_the_vector_is_the_ridge_regression_on_the_users() -> None:
    rng = np.random.default_rng(0)
    users = rng.normal(size=(30, 3)).astype(np.float32)
    prior = ItemPrior(users, np.ones(3), 2 * np.eye(3), 0.5, 4.0)
    rows = np.arange(12)
    ratings = (users[rows] @ [1.0, 3.0, -2.0]).astype(np.float32)
    x = users[rows].astype(np.float64)
    wanted = np.linalg.solve(x.T @ x / 0.5 + np.eye(3) / 4, x.T @ ratings / 0.5 + np.ones(3) / 4)
    assert prior.estimate(rows, ratings) == pytest.approx(wanted, abs=1e-5)
    assert prior.estimate(rows[:0], ratings[:0]) == pytest.approx(np.ones(3))


def test_columns_that_all_items_share_keep_their_value() -> None:
    vectors = np.column_stack([np.random.default_rng(1).normal(size=(40, 2)), np.ones(40)])
    _, factor = fit_distribution(vectors, np.ones(len(vectors)))
    assert factor.shape == (3, 2)
    assert np.abs(factor[2]).max() < 1e-9


def test_vectors_belong_to_the_models_that_are_served(trained: Path) -> None:
    """Not to the judged ones, whose users have other vectors and fewer ratings."""
    run = vf.Run.load(trained, added=False)
    assert run.lists is not None
    priors = NewItems(trained, run, PARTY).priors
    for name, served, judged in (
        ("model", run, run.judged),
        ("lists/model", run.lists, run.judged.ranker),
    ):
        assert np.array_equal(priors[name].users, served.models[0].users.numpy())
        assert not np.array_equal(priors[name].users, judged.models[0].users.numpy())


def test_an_item_without_ratings_is_predicted_as_the_users_mean_over_ratings(trained: Path) -> None:
    run = vf.Run.load(trained)
    own, part = run.parties[0].ratings, run.parts[0]
    prior = fit_item_prior(run.models[0], own, part, ranks=False)
    nobody = np.zeros(0, np.int64)
    predicted = prior.users @ prior.estimate(nobody, np.zeros(0, np.float32))
    scores = prior.users @ absorb_item_scores(run.models[0]).T
    counts = np.bincount(own.item[part == TRAIN], minlength=own.n_items)
    assert predicted == pytest.approx(scores @ counts / counts.sum(), abs=1e-4)
    rated = own.rating[part == TRAIN]
    asked = own.user[part == TRAIN]
    assert abs(float((predicted[asked] - rated).mean())) < 0.05, "a bias over all ratings"


@pytest.mark.parametrize("exposure", [None, 0.0, 0.3])
def test_the_likelihood_of_likes_is_at_its_maximum(exposure: float | None) -> None:
    rng = np.random.default_rng(2)
    users = rng.normal(size=(50, 3)).astype(np.float32)
    weight = rng.normal(-1, 0.3, 50)
    prior = ItemPrior(users, np.zeros(3), np.eye(3), 1.0, 4.0, (np.arange(50), weight))
    likes = np.arange(6)
    found = prior.estimate(likes, np.full(6, 5, np.float32), exposure=exposure).astype(np.float64)

    def likelihood(h: np.ndarray) -> float:
        total = np.exp(weight + users @ h).sum()
        level = 6 * np.log(total) if exposure is None else np.log(total) + exposure * total
        return float((users[likes] @ h).sum() - level - h @ h / 2)

    best = likelihood(found)
    assert all(likelihood(found + rng.normal(0, 0.05, 3)) < best for _ in range(50))
    assert prior.estimate(likes, np.full(6, 3, np.float32)) == pytest.approx(np.zeros(3)), "nobody likes it"


def test_many_likes_in_a_short_time_make_an_item_popular() -> None:
    users = np.ones((40, 1), np.float32)
    activity = (np.arange(40), np.zeros(40))
    prior = ItemPrior(users, np.zeros(1), np.eye(1), 1.0, 4.0, activity)
    liked = np.full(10, 5, np.float32)
    levels = [float(prior.estimate(np.arange(10), liked, exposure=share)[0]) for share in (0.01, 0.1, 1.0)]
    assert levels[0] > levels[1] > levels[2]
    assert float(prior.estimate(np.arange(10), liked)[0]) == pytest.approx(0, abs=1e-6), "without times"


def test_vectors_absorb_the_weights_between_items() -> None:
    users = torch.eye(2).repeat(5, 1)
    items = torch.zeros(3, 2)
    weights = torch.tensor([[0.0, 0.5], [0.25, 0.0]])
    history = torch.tensor([0, 1] * 5, dtype=torch.int32)
    scores = ItemScores(weights, torch.tensor([0, 2]), torch.arange(11), history, 3)
    found = absorb_item_scores(PartyModel(users, items, items, scores))
    assert found == pytest.approx(np.array([[0, 0.25], [0, 0], [0.5, 0]]), abs=1e-4)


def test_vectors_of_a_model_with_weights_between_items_only_absorb_nothing() -> None:
    vectors = torch.zeros(10, 2)
    history = torch.tensor([0, 1] * 5, dtype=torch.int32)
    scores = ItemScores(torch.eye(2), torch.tensor([0, 2]), torch.arange(11), history, 3)
    assert not absorb_item_scores(PartyModel(vectors, vectors[:3], vectors[:3], scores)).any()


def test_a_new_item_is_recommended_exported_and_not_evaluated(
    folder: Path, first_ratings: Path, tmp_path: Path
) -> None:
    before = vf.Run.load(folder)
    titles = tmp_path / "titles.csv"
    titles.write_text("item,title,category\nnew,A new film,film\n")
    report = vf.add_items(folder, party=PARTY, ratings=first_ratings, items=titles)
    (item,) = report.items
    assert (item.item, item.title, len(item.ratings)) == ("new", "A new film", len(rated_by(first_ratings)))
    assert report.unknown_users == 1
    run = vf.Run.load(folder)
    known = set(rated_by(first_ratings))
    stranger = next(str(user) for user in run.parties[0].ratings.user_ids if str(user) not in known)
    everything = run.parties[0].ratings.n_items
    found = {item.item: item for item in run.recommend(stranger, everything, party=PARTY)}
    assert found["new"].title == "A new film"
    assert "new" not in {item.item for item in run.recommend(next(iter(known)), everything, party=PARTY)}
    assert run.parties[0].ratings.columns["category"][-1] == "film"
    assert float(run.predict(stranger, "new")[0]) == pytest.approx(found["new"].rating)
    assert run.embeddings(PARTY)[PARTY].items["item"].to_pylist()[-1] == "new"
    again = vf.Run.load(folder, added=False)
    assert again.parties[0].ratings.n_items == before.parties[0].ratings.n_items
    assert again.evaluate()["parties"] == before.evaluate()["parties"]


def test_more_ratings_add_up(folder: Path, tmp_path: Path) -> None:
    users = vf.Run.load(folder).parties[0].ratings.user_ids[:3].tolist()
    for user in users:
        file = tmp_path / f"{user}.csv"
        file.write_text(f"user,item,rating\n{user},x,5\n")
        vf.add_items(folder, party=PARTY, ratings=file)
    stored = read_added(added_file(folder, PARTY))
    assert list(stored["x"].ratings) == users
    assert len(added_file(folder, PARTY).read_bytes().splitlines()) == 1, "the file has a line for each item"


def stored_line(folder: Path, **changes: Any) -> bytes:
    """Return a stored line that is right but for the changes."""
    run = vf.Run.load(folder, added=False)
    item = NewItems(folder, run, PARTY).estimate_all([AddedItem("bad")])[0]
    return json.dumps(asdict(item) | changes).encode() + b"\n"


@pytest.mark.parametrize(
    "changes",
    [
        {"ratings": {"u0001": [5, 99999999999999999999]}},
        {"ratings": {"u0001": [5, -1]}},
        {"ratings": {"u0001": [float("nan"), None]}},
        {"ratings": {"u0001": [1e300, None]}},
        {"ratings": {"u\0": [5, None]}},
        {"item": ""},
        {"item": "x" * 257},
        {"item": "TRAINED"},
        {"title": "x" * 161},
        {"columns": {"category": "x" * 161}},
        {"vectors": {}},
        {"vectors": {"model": [1.0]}},
        {"vectors": {"model": [float("inf")]}},
    ],
    ids=str,
)
def test_a_stored_item_that_cannot_be_used_is_left_out(folder: Path, changes: dict[str, Any]) -> None:
    run = vf.Run.load(folder, added=False)
    NewItems(folder, run, PARTY).add({"fine": AddedItem("fine")})
    if changes.get("item") == "TRAINED":
        changes = {"item": str(run.parties[0].ratings.item_ids[0])}
    file = added_file(folder, PARTY)
    file.write_bytes(stored_line(folder, **changes) + file.read_bytes())
    with pytest.warns(RunWarning, match="left out"):
        loaded = vf.Run.load(folder)
    assert loaded.parties[0].ratings.item_ids.tolist() == [*run.parties[0].ratings.item_ids.tolist(), "fine"]
    assert len(loaded.recommend("u0001", 3)) == 3


@pytest.mark.filterwarnings("ignore::verfedgnn.core.errors.RunWarning")
def test_a_line_that_was_cut_short_is_ignored_and_replaced(folder: Path) -> None:
    new = NewItems(folder, vf.Run.load(folder, added=False), PARTY)
    new.add({"a": AddedItem("a"), "b": AddedItem("b")})
    file = added_file(folder, PARTY)
    whole = file.read_bytes()
    file.write_bytes(whole[:-20])
    assert list(read_added(file)) == ["a"]
    assert vf.Run.load(folder).parties[0].ratings.item_ids[-1] == "a"
    new.add({"c": AddedItem("c")})
    assert list(read_added(file)) == ["a", "c"]


def test_ratings_predict_the_new_item_better_than_its_mean(folder: Path, parties: list[vf.PartyData]) -> None:
    run = vf.Run.load(folder, added=False)
    new = NewItems(folder, run, PARTY)
    own = parties[0].ratings
    errors: dict[str, list[float]] = {"folded": [], "mean": []}
    model = run.models[0]
    prior = new.priors["model"]
    for item in range(
        run.parties[0].ratings.n_items
    ):  # each item with half of its ratings, as if it were new
        table = run.parties[0].ratings
        rows = np.flatnonzero(table.item == item)
        shown, hidden = rows[::2], rows[1::2]
        if len(shown) < 5:
            continue
        vector = prior.estimate(table.user[shown].astype(np.int64), table.rating[shown])
        guess = model.users.numpy()[table.user[hidden]] @ vector
        errors["folded"] += np.square(guess - table.rating[hidden]).tolist()
        errors["mean"] += np.square(table.rating[shown].mean() - table.rating[hidden]).tolist()
    assert np.mean(errors["folded"]) < 0.9 * np.mean(errors["mean"])
    assert own.n_items == run.parties[0].ratings.n_items + 1


@pytest.mark.parametrize(
    ("item", "complaint"),
    [
        (AddedItem("?", ratings={"u": (9.0, None)}), "outside the scale"),
        (AddedItem("?", ratings={"u": (float("nan"), None)}), "outside the scale"),
        (AddedItem("?", ratings={"u": (5.0, 10**20)}), "seconds since 1970"),
        (AddedItem("?", ratings={"u": (5.0, 10**10)}), "seconds since 1970"),
        (AddedItem("?", ratings={"u": (5.0, -1)}), "seconds since 1970"),
        (AddedItem("?" * 257), "item: string should have at most 256"),
        (AddedItem("?\0"), "item: string should match"),
        (AddedItem("?", "x" * 161), "title: string should have at most 160"),
        (AddedItem("?", columns={"category": "x" * 161}), "columns: string should have at most 160"),
        (AddedItem("?", columns={str(n): "" for n in range(101)}), "columns: .* at most 100"),
        (AddedItem("trained"), "was in training"),
    ],
)
def test_mistakes_are_refused_before_anything_is_stored(folder: Path, item: Any, complaint: str) -> None:
    run = vf.Run.load(folder, added=False)
    trained = str(run.parties[0].ratings.item_ids[0])
    item = replace(item, item=trained) if item.item == "trained" else item
    with pytest.raises(DataError, match=complaint):
        NewItems(folder, run, PARTY).add({item.item: item})
    assert not added_file(folder, PARTY).exists()


def test_items_are_not_added_without_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack: who may add items fills the disk, and the memory of every server of the run."""
    monkeypatch.setattr(new_items, "LARGEST_ADDED", 100, raising=False)
    new = NewItems(folder, vf.Run.load(folder, added=False), PARTY)
    new.add({"first": AddedItem("first")})
    with pytest.raises(DataError, match="of added items; train again"):
        new.add({"second": AddedItem("second")})
    assert list(read_added(added_file(folder, PARTY))) == ["first"]


def test_a_thousand_items_take_one_search_for_their_users(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack: one request with 1,000 items to a run of a million users, and `forget` waited for nine minutes."""
    searched = []

    def find(ids: Any, among: Any) -> Any:
        searched.append(len(among))
        return find_positions(ids, among)

    monkeypatch.setattr(new_items, "find_positions", find)
    items = {name: AddedItem(name, ratings={"u0001": (5.0, None)}) for name in map(str, range(1000, 1050))}
    report = NewItems(folder, vf.Run.load(folder, added=False), PARTY).add(items)
    assert {len(item.ratings) for item in report.items} == {1}
    assert len(searched) <= 3


def test_what_is_missing_is_named(folder: Path) -> None:
    with pytest.raises(vf.ConfigError, match="give ratings, items or both"):
        vf.add_items(folder)
    with pytest.raises(vf.ConfigError, match="choose one with party="):
        vf.add_items(folder, ratings="x.csv")
