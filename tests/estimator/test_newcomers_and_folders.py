"""Newcomers, similar items, reports and folders: a recommender and a run answer alike."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import verfedgnn as vf
from verfedgnn.data import TRAIN, synthetic_ratings

pytestmark = pytest.mark.usefixtures("short_own_models")


@pytest.fixture(scope="module")
def fitted() -> vf.VerFedRecommender:
    table = synthetic_ratings(users=120, items=45, ratings=2500, seed=1)
    return vf.VerFedRecommender(epochs=5, dim=6).fit(table, by="category")


def rated_by(run: vf.Run, user: int) -> dict[str, dict[str, float]]:
    """Return the training ratings of a user by party and item."""
    found: dict[str, dict[str, float]] = {}
    for party, part in zip(run.parties, run.parts, strict=True):
        table = party.ratings
        rows = np.flatnonzero((table.user == user) & (part == TRAIN))
        found[party.name] = {
            str(table.item_ids[table.item[row]]): float(table.rating[row]) for row in rows.tolist()
        }
    return found


def test_a_newcomer_is_served_from_their_ratings(fitted: vf.VerFedRecommender) -> None:
    given = rated_by(fitted.run_, 3)
    flat = {item: stars for own in given.values() for item, stars in own.items()}
    found = fitted.recommend(ratings=flat, k=6)
    assert found == fitted.recommend(ratings=given, k=6) == fitted.run_.recommend("nobody", 6, ratings=flat)
    assert not {item.item for item in found} & flat.keys(), "rated items are left out"
    assert [item.score for item in found] == sorted((item.score for item in found), reverse=True)
    assert all(1 <= (item.rating or 0) <= 5 for item in found)
    other = fitted.recommend(ratings=rated_by(fitted.run_, 7), k=6)
    assert found != other, "lists follow from the ratings"
    assert len(fitted.recommend(ratings={}, k=3)) == 3, "without ratings: the average customer's list"


def test_a_customer_of_one_party_is_served_at_another(fitted: vf.VerFedRecommender) -> None:
    here, there = fitted.parties_[:2]
    ratings = {here: rated_by(fitted.run_, 3)[here]}
    found = fitted.recommend(ratings=ratings, party=there, k=4)
    assert {item.party for item in found} == {there}
    assert found != fitted.recommend(ratings={}, party=there, k=4), "the other party's ratings count"


def test_a_known_user_may_have_rated_more(fitted: vf.VerFedRecommender) -> None:
    user = str(fitted.run_.parties[0].ratings.user_ids[3])
    first = fitted.recommend(user, k=1)[0]
    later = fitted.recommend(user, k=10, ratings={first.party: {first.item: 1}})
    assert first.item not in {item.item for item in later if item.party == first.party}


def test_mistakes_about_newcomers_are_explained(fitted: vf.VerFedRecommender) -> None:
    party = fitted.parties_[0]
    item = str(fitted.run_.parties[0].ratings.item_ids[0])
    with pytest.raises(vf.RunError, match=r"first 'x': for a newcomer, pass ratings=\{item: stars\}"):
        fitted.recommend("x")
    with pytest.raises(vf.RunError, match="Pass the id of a user, or ratings="):
        fitted.recommend()
    with pytest.raises(vf.DataError, match=f"'{item}' is 9; {party} rates from 1 to 5"):
        fitted.recommend(ratings={item: 9})
    with pytest.raises(vf.DataError, match="ratings is a list; pass a mapping"):
        fitted.recommend(ratings=[(item, 5)])  # type: ignore[call-overload]
    with pytest.raises(vf.RunError, match="item 'nothing' is in no catalogue; known items look like"):
        fitted.recommend(ratings={"nothing": 5})
    with pytest.raises(vf.RunError, match="no such party here; use one of"):
        fitted.recommend(ratings={"music": {item: 5}})
    with pytest.raises(vf.RunError, match="call recommend once for each newcomer"):
        fitted.recommend(["a", "b"], ratings={item: 5})  # type: ignore[call-overload]


def test_an_id_of_two_parties_needs_its_party() -> None:
    frame = pd.DataFrame([(u, i, 1 + (u * i) % 5) for u in range(30) for i in range(8)])
    frame.columns = ["user", "item", "rating"]
    shops = vf.VerFedRecommender(epochs=1, gate=False, lists=False).fit({"film": frame, "books": frame})
    with pytest.raises(vf.RunError, match=r"'3' is an id of several parties .*ratings=\{'film': \{item"):
        shops.recommend(ratings={3: 5})
    with pytest.raises(vf.RunError, match=r"several parties .*name one with `party`"):
        shops.similar(3)
    assert shops.recommend(ratings={"books": {3: 5}}, k=2)
    assert len(shops.similar(3, 2, party="film")) == 2


def test_a_saved_recommender_answers_as_before(fitted: vf.VerFedRecommender, tmp_path: Path) -> None:
    fitted.save(tmp_path / "run")
    with pytest.raises(vf.RunError, match=r"exists already; .*overwrite=True"):
        fitted.save(tmp_path / "run")
    fitted.save(tmp_path / "run", overwrite=True)
    loaded = vf.VerFedRecommender.load(tmp_path / "run")
    for name in ("preset", "model", "seed", "device", "verbose", "settings"):
        assert getattr(loaded, name) == getattr(fitted, name)
    run = vf.Run.load(tmp_path / "run")
    users = fitted.run_.parties[0].ratings.user_ids[:2].tolist()
    item = str(fitted.run_.parties[1].ratings.item_ids[0])
    for answers in (loaded, run, pickle.loads(pickle.dumps(loaded))):
        assert answers.recommend(users, 3) == fitted.recommend(users, 3)
        assert answers.recommend(ratings={item: 4}, k=3) == fitted.recommend(ratings={item: 4}, k=3)
        assert answers.similar(item, 3) == fitted.similar(item, 3)
        assert answers.predict(users[0], item) == fitted.predict(users[0], item)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").touch()
    with pytest.raises(vf.RunError, match="not a run folder"):
        fitted.save(tmp_path / "other", overwrite=True)


def test_a_list_has_reasons_and_becomes_a_frame(fitted: vf.VerFedRecommender) -> None:
    run = fitted.run_
    user = str(run.parties[0].ratings.user_ids[3])
    found = fitted.recommend(user, k=8)
    frame = found.to_frame()
    assert list(frame) == ["item", "title", "party", "score", "rating", "reason"]
    reasons = 0
    for row in range(30):
        mine = rated_by(run, row)
        titles = {
            str(party.ratings.titles[list(party.ratings.item_ids).index(item)])
            for party in run.parties
            for item, stars in mine[party.name].items()
            if stars >= 4 and party.ratings.titles is not None
        }
        for reason in fitted.recommend(str(run.parties[0].ratings.user_ids[row]), k=8).reasons:
            if reason.startswith("liked ") and "taste" not in reason:
                reasons += 1
                assert set(reason.removeprefix("liked ").split(" and ")) <= titles
    assert reasons
    assert pickle.loads(pickle.dumps(found)) == found == run.recommend(user, k=8)
    item = str(run.parties[0].ratings.item_ids[0])
    assert set(fitted.recommend(ratings={item: 5}).reasons) <= {
        f"liked {run.parties[0].ratings.titles[0] if run.parties[0].ratings.titles is not None else item}",
        "popular with many customers",
        "liked by customers with a similar taste",
        "",
    }
    bare = replace(run, parties=[replace(p, ratings=replace(p.ratings, titles=None)) for p in run.parties])
    assert "title" not in bare.recommend(user).to_frame()


def test_a_report_is_a_page_or_a_folder(fitted: vf.VerFedRecommender, tmp_path: Path) -> None:
    page = fitted.run_.report(tmp_path / "page.html")
    assert page == tmp_path / "page.html"
    assert "<svg" in page.read_text()
    assert fitted.report(tmp_path / "folder") == tmp_path / "folder" / "report.html"
