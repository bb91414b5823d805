"""Serving: the recommendations of `Run.recommend`, filters, indexes, tables and commands."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import verfedgnn as vf
from verfedgnn.cli.main import main
from verfedgnn.core.errors import RunError
from verfedgnn.core.item_item import ItemScores
from verfedgnn.core.pairs import Choices
from verfedgnn.data.ids import spell
from verfedgnn.reports.phrases import warn_of_lists
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.runs.prepared_data import prepare
from verfedgnn.serving.catalogue import Catalogue, IdIndex
from verfedgnn.serving.ranker import NO_ITEMS, ItemRanker, RankingQuery
from verfedgnn.serving.run_answers import describe_run, write_table
from verfedgnn.serving.split_test import FEDERATED
from verfedgnn.training.own_models import ease_model

httpx = pytest.importorskip("httpx", reason="httpx is not installed: no client")
pytest.importorskip("fastapi", reason="the extra serve is not installed")

from served import as_alone, serving, without_alone  # noqa: E402
from verfedgnn.serving.app import make_app  # noqa: E402


def users(run: vf.Run) -> list[str]:
    return [str(user) for user in run.parties[0].ratings.user_ids]


def same_items(found: list[dict[str, Any]], wanted: list[vf.Recommendation]) -> bool:
    """Return whether items, order, scores and predicted ratings agree; items with equal scores may change places."""
    for a, b in zip(found, wanted, strict=True):
        assert a["score"] == pytest.approx(b.score, abs=1e-4)
    ratings = {(b.party, b.item): b.rating for b in wanted}
    above = [a for a in found if a["score"] > found[-1]["score"] + 1e-6]  # a tie may be cut either way
    for a in above:
        rating = ratings[a["party"], a["item"]]
        assert a["rating"] == (None if rating is None else pytest.approx(rating, abs=1e-4))
    scores = [b.score for b in wanted]
    if len({round(score, 6) for score in scores}) < len(scores):
        return True
    return [(a["party"], a["item"]) for a in found] == [(b.party, b.item) for b in wanted]


def test_many_at_once_get_what_recommend_gives(run: vf.Run, client: Any) -> None:
    asked = users(run)[:60]

    def ask(user: str) -> list[dict[str, Any]]:
        return client.get("/v1/recommendations", params={"user": user, "k": 7}).json()["recommendations"]

    with ThreadPoolExecutor(16) as pool:
        for user, found in zip(asked, pool.map(ask, asked), strict=True):
            assert same_items(found, run.recommend(user, 7))


def test_a_ranking_is_served_in_shares(ranking_run: vf.Run) -> None:
    with (
        serving(make_app(Catalogue(ranking_run, "ranking"))) as address,
        httpx.Client(base_url=address, timeout=180) as client,
    ):
        for user in users(ranking_run)[:5]:
            found = client.get("/v1/recommendations", params={"user": user, "k": 5, "why": 2}).json()[
                "recommendations"
            ]
            assert same_items(found, ranking_run.recommend(user, 5))


def test_lists_use_the_item_weights(run: vf.Run, catalogue: Catalogue) -> None:
    rankers = catalogue.lists[FEDERATED].rankers
    weighted = [p for p, ranker in enumerate(rankers) if ranker.item_weights is not None]
    assert weighted, "no party of this run mixes in EASE"
    for p in weighted:
        model = run.ranker.models[p]
        assert model.item_scores is not None
        people = list(range(0, 200, 7))
        wishes = [
            RankingQuery(model.users[user], 9, NO_ITEMS, None, rankers[p].find_owned(user)) for user in people
        ]
        for user, found in zip(people, rankers[p].rank(wishes), strict=True):
            shares = model.score(torch.tensor([user]))[0].softmax(0)
            assert found.scores == pytest.approx(shares.topk(9).values.tolist(), rel=1e-4)
            assert found.scores == pytest.approx(shares[found.rows].tolist(), rel=1e-4)
        # A newcomer with the items and the vector of a trained user has the same list.
        owned = rankers[p].find_owned(people[3])
        weights = model.item_scores.weights[torch.isin(model.item_scores.kept, torch.from_numpy(owned))].sum(
            0
        )
        scores = model.items @ model.users[people[3]]
        scores[model.item_scores.kept] += weights
        rows = rankers[p].rank(wishes[3:4])[0].rows
        assert len(set(rows)) == 9
        assert scores[rows].tolist() == pytest.approx(scores.topk(9).values.tolist(), rel=1e-4)


def test_item_weights_of_some_items_only() -> None:
    generator = torch.Generator().manual_seed(0)
    kept = torch.tensor([1, 4, 5])
    weights = torch.randn(3, 3, generator=generator)
    scores = ItemScores(weights, kept, torch.tensor([0, 2, 2]), torch.tensor([0, 2], dtype=torch.int32), 7)
    nothing = torch.zeros(2, 0)
    ranker = ItemRanker(PartyModel(nothing, torch.zeros(7, 0), torch.zeros(7, 0), scores), ranks=True)
    assert ranker.item_weights is not None
    assert ranker.find_owned(0).tolist() == [1, 5]
    assert ranker.find_owned(1).tolist() == []
    wishes = [RankingQuery(nothing[0], 7, NO_ITEMS, None, owned) for owned in (np.array([1, 5, 6]), NO_ITEMS)]
    some, none = ranker.rank(wishes)
    expected = torch.zeros(7)
    expected[kept] = weights[0] + weights[2]
    assert some.scores == pytest.approx(expected.softmax(0).sort(descending=True).values.tolist())
    assert none.scores == pytest.approx([1 / 7] * 7)
    assert ranker.item_weights.split_score(4, np.array([1, 5, 6])) == pytest.approx(
        [float(weights[0, 1]), float(weights[2, 1]), 0]
    )
    assert not ranker.item_weights.split_score(0, np.array([1, 5])).any()


def test_items_with_a_share_of_almost_nothing_are_listed() -> None:
    items = torch.tensor([[0.0], [500.0], [1000.0]])
    ranker = ItemRanker(PartyModel(torch.ones(1, 1), items, items), ranks=True)
    assert ranker.rank([RankingQuery(torch.ones(1), 3, NO_ITEMS)])[0].rows == [2, 1, 0]


def test_a_party_that_mixes_only_item_weights_is_served(run: vf.Run, known: str) -> None:
    assert run.lists is not None
    parts = prepare(run.parties, run.config, torch.device("cpu"), run.parts)
    lists = replace(run.lists, models=[ease_model(party.input, Choices()) for party in parts])
    catalogue = Catalogue(replace(run, lists=lists), "items")
    with serving(make_app(catalogue)) as address, httpx.Client(base_url=address, timeout=180) as client:
        found = client.get("/v1/recommendations", params={"user": known, "k": 5, "why": 2}).json()
        assert same_items(found["recommendations"], catalogue.run.recommend(known, 5))
        assert all(item["why"]["items"] != 0 for item in found["recommendations"])
        item = str(run.parties[0].ratings.item_ids[0])
        rating = {"item": item, "party": run.parties[0].name, "rating": 5}
        folded = client.post("/v1/recommendations", json={"ratings": [rating], "k": 3, "why": 1}).json()
        assert len(folded["recommendations"]) == 3
        similar = client.get("/v1/similar", params={"item": item, "party": run.parties[0].name}).json()
        assert similar["similar"][0]["similarity"] > 0  # from the vectors of the predicted ratings


def test_an_answer_names_the_parties_that_serve_their_own_models(
    run: vf.Run, known: str, tmp_path: Path, command: Callable[..., tuple[int, str, str]]
) -> None:
    metrics, (party, other, *_) = deepcopy(run.metrics), run.parties
    for row in metrics["parties"]:
        row["list_gate"] = {who: {"popularity": 0.1, "federated": 1.0} for who in ("known", "newcomers")}
    gate = metrics["parties"][0]["list_gate"]
    gate["known"]["federated"] = 0.0
    own = replace(run, metrics=metrics)
    assert not own.mixes_federated(0, known=True)
    assert own.mixes_federated(0, known=False)
    assert own.mixes_federated(1, known=True)
    with (
        serving(make_app(Catalogue(own, "own"))) as address,
        httpx.Client(base_url=address, timeout=180) as client,
    ):
        for name, expected in ((party.name, [party.name]), (other.name, None), (None, [party.name])):
            asked = {"user": known} | ({"party": name} if name else {})
            answer = client.get("/v1/recommendations", params=asked).json()
            assert answer.get("own_models") == expected, name
        alone = client.get("/v1/recommendations", params={"user": known, "model": "alone"}).json()
        assert "own_models" not in alone
    own.save(tmp_path / "run")
    for name in (party.name, other.name):
        code, _, err = command("recommend", tmp_path / "run", "--user", known, "--party", name)
        assert code == 0, err
        said = (
            f"{known} is known to {name}: {name} serves its own model, since the federated one was not better"
        )
        assert (said in err) == (name == party.name)


def test_the_overview_names_lists_that_lose_to_popularity(run: vf.Run) -> None:
    metrics = deepcopy(run.metrics)
    for row in metrics["parties"]:
        row["popularity"]["ndcg@20"] = 0.0
    changed = replace(run, metrics=metrics)
    assert describe_run(Catalogue(changed, "x"), range(len(run.parties)))["warning"] is None
    metrics["parties"][1] |= {"test": {"ndcg@20": 0.028}, "popularity": {"ndcg@20": 0.078}}
    warning = describe_run(Catalogue(changed, "x"), range(len(run.parties)))["warning"]
    assert "worse than the most popular items" in warning
    assert f"at {run.parties[1].name} (NDCG@20 0.0280, popularity 0.0780)" in warning
    assert describe_run(Catalogue(changed, "x", run.parties[0].name), [0])["warning"] is None


def test_large_catalogues_are_sorted_exactly() -> None:
    generator = torch.Generator().manual_seed(0)
    items, people = torch.randn(5000, 8, generator=generator), torch.randn(9, 8, generator=generator)
    shelf = ItemRanker(PartyModel(people, items, items), ranks=False)
    even = torch.arange(5000) % 2 == 0
    wishes = [
        RankingQuery(person, 5 + place, np.arange(place * 100), even if place % 2 else None)
        for place, person in enumerate(people)
    ]
    for place, (wish, found) in enumerate(zip(wishes, shelf.rank(wishes), strict=True)):
        scores = items @ people[place]
        scores[: place * 100] = -torch.inf
        if wish.allowed is not None:
            scores[~wish.allowed] = -torch.inf
        assert found.rows == scores.topk(5 + place).indices.tolist()


def test_party_and_column_narrow_the_answer(run: vf.Run, client: Any) -> None:
    user, party = users(run)[0], run.parties[1].name
    column, values = next(iter(run.parties[1].ratings.columns.items()))
    found = client.get("/v1/recommendations", params={"user": user, "party": party}).json()["recommendations"]
    assert {item["party"] for item in found} == {party}
    narrow = client.get("/v1/recommendations", params={"user": user, column: str(values[0])}).json()[
        "recommendations"
    ]
    assert narrow
    assert {item["columns"][column] for item in narrow} == {str(values[0])}
    none = client.get("/v1/recommendations", params={"user": user, column: "no such value"})
    assert (none.status_code, none.json()) == (200, {"recommendations": []})


def test_the_cache_of_filters_is_bounded(catalogue: Catalogue) -> None:
    party = catalogue.parties[0]
    value = str(party.table.columns["category"][0])
    assert int(party.filter_items({"category": value}).sum()) > 0
    for length in range(1, 400):
        assert not party.filter_items({"category": value + "\0" * length}).any()
    assert party._cached_filter.cache_info().currsize <= 256


def test_a_catalogue_can_run_out(run: vf.Run, client: Any) -> None:
    user, table = users(run)[0], run.parties[0].ratings
    found = client.get(
        "/v1/recommendations", params={"user": user, "k": 1000, "party": run.parties[0].name}
    ).json()
    assert len(found["recommendations"]) == table.n_items - int((table.user == 0).sum())


def test_alone_is_another_model(run: vf.Run, client: Any) -> None:
    user, party = users(run)[3], run.parties[0].name
    assert run.alone is not None
    found = client.get(
        "/v1/recommendations", params={"user": user, "party": party, "model": "alone", "k": 5}
    ).json()
    assert same_items(found["recommendations"], as_alone(run).recommend(user, 5, party=party))
    with serving(make_app(Catalogue(without_alone(run), "x"))) as address:
        refused = httpx.get(
            f"{address}/v1/recommendations", params={"user": user, "model": "alone"}, timeout=180
        )
    assert refused.status_code == 404
    assert "preset best" in refused.json()["error"]["remedy"]


def test_a_partys_own_run_is_served(run: vf.Run, known: str) -> None:
    own = keep_party(run, 1)
    own.lists = keep_party(run.ranker, 1)
    with (
        serving(make_app(Catalogue(own, "own"))) as address,
        httpx.Client(base_url=address, timeout=180) as client,
    ):
        about = client.get("/v1/run").json()
        assert [party["name"] for party in about["parties"]] == [run.parties[1].name]
        found = client.get("/v1/recommendations", params={"user": known, "k": 5}).json()["recommendations"]
        assert same_items(found, own.recommend(known, 5))


def keep_party(run: vf.Run, party: int) -> vf.Run:
    """Return the run that one party of a federation would have."""
    assert run.alone is not None
    kept = slice(party, party + 1)
    return replace(
        run, parties=run.parties[kept], parts=run.parts[kept], models=run.models[kept], alone=run.alone[kept]
    )


def test_ids_are_found_by_text_and_by_their_start() -> None:
    ids = IdIndex(np.array(["2", "10", "1", "21", "x y"]))
    assert [ids.find(text) for text in ("10", "x y", "3", "", "100")] == [1, 4, None, None, None]
    assert ids.find_prefix("1", 8) == [2, 1]
    assert ids.find_prefix("2", 1) == [0]


def test_an_id_may_come_in_a_party_s_own_spelling(
    run: vf.Run, tmp_path: Path, command: Callable[..., tuple[int, str, str]]
) -> None:
    table = run.parties[0].ratings
    written = next(user for user in users(run) if spell(np.array([user]), "number")[0] != user)
    spelled = spell(table.user_ids, "number")
    parties = [replace(p, ratings=replace(p.ratings, user_ids=spelled, ids="number")) for p in run.parties]
    same = replace(run, parties=parties)
    same.save(tmp_path / "run")
    wanted = run.recommend(written, 5)
    assert [item.item for item in vf.Run.load(tmp_path / "run").recommend(written, 5)] == [
        item.item for item in wanted
    ]
    with (
        serving(make_app(Catalogue(same, "same"))) as address,
        httpx.Client(base_url=address, timeout=180) as client,
    ):
        found = client.get("/v1/recommendations", params={"user": written, "k": 5}).json()
        assert same_items(found["recommendations"], wanted)
        assert client.get("/v1/history", params={"user": written}).json()["known"]
    code, out, err = command("recommend", tmp_path / "run", "--user", written, "--top", 5, "--json")
    assert code == 0, err
    assert [item["item"] for item in json.loads(out)] == [item.item for item in wanted]
    with pytest.raises(RunError, match="not in training"):
        run.recommend(str(spell(np.array([written]), "number")[0]), 5)


def test_everybody_as_a_table(run: vf.Run, catalogue: Catalogue, tmp_path: Path) -> None:
    path = tmp_path / "all.parquet"
    assert write_table(catalogue, path, 4) == 4 * run.parties[0].ratings.n_users
    rows = pq.read_table(path).to_pylist()
    for user in users(run)[::50]:
        mine = [row for row in rows if row["user"] == user]
        assert [row["place"] for row in mine] == [1, 2, 3, 4]
        assert same_items(mine, run.recommend(user, 4))


def test_commands(
    run: vf.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = tmp_path / "run", tmp_path / "all.parquet"
    run.save(folder)

    def verfedgnn(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["verfedgnn", *words])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        return code, *capsys.readouterr()

    _, printed, said = verfedgnn("recommend", str(folder), "--user", users(run)[0], "--json")
    assert json.loads(printed)[0].keys() == {"item", "title", "party", "score", "rating", "reason"}
    assert (warn_of_lists(run.metrics) or "diagnosis: ") in said
    assert said.splitlines()[-1] == f"next: verfedgnn serve {folder}"
    _, printed, _ = verfedgnn("recommend", str(folder), "--user", users(run)[0])
    assert "reason" in printed
    assert "rating" in printed
    _, printed, _ = verfedgnn("recommend", str(folder), "--all", "--out", str(out), "--top", "2", "--json")
    assert json.loads(printed)["rows"] == 2 * run.parties[0].ratings.n_users
    for words in (
        [],
        ["--all"],
        ["--user", "1", "--out", "x.parquet"],
        ["--user", "1", "--all", "--out", "x.parquet"],
    ):
        code, _, error = verfedgnn("recommend", str(folder), *words)
        assert code == 2
        assert "--all --out FILE.parquet" in error
    assert (
        "is not a Parquet file name"
        in verfedgnn("recommend", str(folder), "--all", "--out", str(tmp_path / "all.csv"))[2]
    )
    assert "already exists" in verfedgnn("recommend", str(folder), "--all", "--out", str(out))[2]
    code, _, error = verfedgnn("serve", str(folder), "--host", "0.0.0.0")
    assert code == 2
    assert "--api-key-file" in error
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "choose another" in verfedgnn("serve", str(folder), "--port", str(taken.getsockname()[1]))[2]


def test_recommend_says_that_popularity_is_better(
    run: vf.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = deepcopy(run.metrics)
    metrics["parties"][0]["popularity"]["ndcg@20"] = 1.0
    replace(run, metrics=metrics).save(tmp_path / "run")
    words = ["verfedgnn", "recommend", str(tmp_path / "run"), "--user", users(run)[0], "--party"]
    monkeypatch.setattr(sys, "argv", [*words, run.parties[0].name])
    with pytest.raises(SystemExit):
        main()
    assert "worse than the most popular items" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", [*words, run.parties[0].name, "--quiet"])
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("warm")
def test_the_command_serves(run: vf.Run, known: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run.save(folder)
    command = [
        sys.executable,
        "-m",
        "verfedgnn",
        "serve",
        str(folder),
        "--port",
        "0",
        "--party",
        run.parties[0].name,
    ]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    watchdog = threading.Timer(180, server.kill)
    watchdog.start()
    try:
        assert server.stdout is not None
        address = server.stdout.readline().split(" at ")[1].split()[0]
        with httpx.Client(base_url=address, timeout=180) as client:
            found = client.get("/v1/recommendations", params={"user": known, "k": 3}).json()[
                "recommendations"
            ]
            assert same_items(found, run.recommend(known, 3, party=run.parties[0].name))
            client.get("/v1/recommendations", params={"user": "somebody-secret"})
    finally:
        server.terminate()
        written = "".join(server.communicate(timeout=180))
        watchdog.cancel()
    assert "somebody-secret" not in written
