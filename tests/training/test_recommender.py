"""The estimator, predictions by id, and exported vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import verfedgnn as vf
from verfedgnn.data import synthetic_ratings
from verfedgnn.data.rating_reader import read_ratings

pytestmark = pytest.mark.usefixtures("short_own_models")

SHORT: dict[str, Any] = {"epochs": 20, "dim": 8, "final": False}
LISTS: dict[str, Any] = {"biases": False, "raters": 0, "lists": False}
"""Settings of a model that only orders lists."""


class Frame:
    """A data frame of whatever library: all that is known of it is that it speaks Arrow."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)


def arrow(party: vf.PartyData) -> Any:
    table = party.ratings
    return pa.table(
        {"userId": table.user_ids[table.user], "itemId": table.item_ids[table.item], "stars": table.rating}
    )


@pytest.fixture(scope="module")
def fitted(small_parties: list[vf.PartyData]) -> vf.VerFedRecommender:
    return vf.VerFedRecommender(**SHORT).fit(small_parties)


def test_tables_of_every_kind_are_the_same_parties(small_parties: list[vf.PartyData], tmp_path: Path) -> None:
    """A file, an Arrow table, a data frame and arrays give what the parties themselves give, to the bit."""
    film, books, music = small_parties
    pq.write_table(arrow(film), tmp_path / "film.parquet")
    columns = arrow(music)
    sources = {
        film.name: tmp_path / "film.parquet",
        books.name: Frame(arrow(books)),
        music.name: (
            columns["userId"].to_pylist(),
            columns["itemId"].to_numpy(),
            columns["stars"].to_numpy(),
        ),
    }
    one = vf.VerFedRecommender(**SHORT).fit(sources)
    other = vf.VerFedRecommender(**SHORT).fit({party.name: arrow(party) for party in small_parties})
    assert one.parties_ == [party.name for party in small_parties]
    assert one.score() == other.score()
    assert len(one.run_.parties[0].ratings) == len(film.ratings)


def test_one_table_is_cut() -> None:
    table = synthetic_ratings(users=80, items=60, ratings=2000, seed=1)
    estimator = vf.VerFedRecommender(**SHORT, gate=False).fit(table, by="category")
    assert set(estimator.parties_) == set(table.columns["category"])
    frame = pa.table(
        {
            "user": table.user,
            "item": table.item,
            "rating": table.rating,
            "shelf": table.columns["category"][table.item],
        }
    )
    assert (
        vf.VerFedRecommender(**SHORT, gate=False).fit(Frame(frame), by="shelf").parties_ == estimator.parties_
    )
    assert len(vf.VerFedRecommender(**SHORT, gate=False).fit(table, parties=4).parties_) == 4
    with pytest.raises(vf.ConfigError, match="split one table"):
        vf.VerFedRecommender().fit({"a": table}, parties=2)


def test_what_is_no_table_is_named() -> None:
    with pytest.raises(
        vf.DataError, match=r"film: a dict is not a table of ratings; give a path, an Arrow table"
    ):
        vf.VerFedRecommender().fit({"film": {}})
    with pytest.raises(
        vf.DataError,
        match=r"no column for item; its columns are: user, rating, colour; name it with columns=",
    ):
        read_ratings(pa.table({"user": [1], "rating": [2], "colour": ["red"]}))


def test_columns_of_a_frame_are_those_of_a_file(tmp_path: Path) -> None:
    frame = pa.table(
        {"uid": [1], "item": [2], "rating": [3.0], "event": ["view"], "Genre": ["War"], "shelf": ["a"]}
    )
    pq.write_table(frame, tmp_path / "film.parquet")
    for source in (frame, tmp_path / "film.parquet"):
        found = read_ratings(source, keep=("shelf", "Genre"))
        assert {name: values.tolist() for name, values in found.columns.items()} == {
            "genre": ["War"],
            "shelf": ["a"],
            "Genre": ["War"],
        }


def test_predictions_are_judged_as_the_test_part_is(fitted: vf.VerFedRecommender) -> None:
    run = fitted.run_
    assert fitted.metrics_ is run.metrics
    assert fitted.score() == pytest.approx(-run.metrics["test"]["rmse"])


def test_predict_by_ids(fitted: vf.VerFedRecommender) -> None:
    first = fitted.run_.parties[1]
    user, item = first.ratings.user_ids[3], first.ratings.item_ids[2]
    (predicted,) = fitted.predict([user], [item])
    model = fitted.run_.models[1]
    assert predicted == pytest.approx(float((model.users[3] * model.items[2]).sum().clip(1, 5)), abs=1e-6)
    assert fitted.predict(user, str(item), party=first.name) == [predicted]
    with pytest.raises(vf.RunError, match=r"1 item not in the catalogue of 'party-0', first"):
        fitted.predict([user], [item], party="party-0")
    with pytest.raises(
        vf.RunError, match="1 user not in training, first 'nobody': leave them out; known users"
    ):
        fitted.predict(["nobody"], [item])
    with pytest.raises(vf.RunError, match="2 users and 1 items do not form pairs"):
        fitted.predict([user, user], [item])


def test_recommend_one_or_many(fitted: vf.VerFedRecommender) -> None:
    users = fitted.run_.parties[0].ratings.user_ids[:3].tolist()
    lists = fitted.recommend(users, k=4)
    assert [len(each) for each in lists] == [4, 4, 4]
    assert fitted.recommend(users[1], k=4) == lists[1]
    assert {item.party for item in fitted.recommend(users[0], k=5, party="party-2")} == {"party-2"}


def test_before_fit_errors_say_what_to_do() -> None:
    estimator = vf.VerFedRecommender()
    assert not hasattr(estimator, "run_")
    for call in (
        lambda: estimator.predict(["a"], ["b"]),
        lambda: estimator.recommend("a"),
        lambda: estimator.score(),
    ):
        with pytest.raises(vf.RunError, match="not trained yet; call fit"):
            call()
    with pytest.raises(vf.ConfigError, match=r"no setting 'epoch'; did you mean `epochs=`"):
        vf.VerFedRecommender(epoch=3).fit("synthetic")


def test_its_text_is_what_makes_it_again() -> None:
    estimator = vf.VerFedRecommender("paper", model="gat", dim=6)
    assert repr(estimator) == (
        "VerFedRecommender(preset='paper', model='gat', seed=0, device='cpu', verbose=True, dim=6)"
    )


def test_a_ranking_is_scored_by_ndcg(small_parties: list[vf.PartyData]) -> None:
    estimator = vf.VerFedRecommender("best", **LISTS, epochs=4).fit(small_parties)
    assert estimator.score() == pytest.approx(estimator.metrics_["test"]["ndcg@20"])


# -- vectors -----------------------------------------------------------------------------------------------------------------


def scores(run: vf.Run, party: vf.PartyData, users: Any, items: Any) -> None:
    """Products of vectors are what the run predicts, but for the bounds of the scale."""
    low, high = party.ratings.scale
    ids = party.ratings.user_ids, party.ratings.item_ids
    rows, columns = np.divmod(np.arange(60), len(ids[1]))
    predicted = run.predict(ids[0][rows], ids[1][columns])
    np.testing.assert_allclose((users @ items.T).clip(low, high)[rows, columns], predicted, atol=1e-5)


def test_products_of_vectors_are_predictions(fitted: vf.VerFedRecommender) -> None:
    run = fitted.run_
    assert any(party["gate"]["known"]["alone"] > 0 for party in run.metrics["parties"])
    for party, found in zip(run.parties, run.embeddings().values(), strict=True):
        scores(run, party, *found.arrays())
