"""A served link that is switched while requests arrive, and a run whose files change."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

import verfedgnn as vf
from verfedgnn.core.errors import RunError
from verfedgnn.core.files import switch_link
from verfedgnn.runs.run import write_json
from verfedgnn.runs.run_folder import FORGET_JOURNAL
from verfedgnn.serving import server as live_run
from verfedgnn.serving.app import make_app
from verfedgnn.serving.catalogue import Catalogue
from verfedgnn.serving.request_guard import ServerMetrics
from verfedgnn.serving.server import LiveRun
from verfedgnn.upkeep.forget import forget


@pytest.fixture(scope="module")
def nights(small_parties: list[vf.PartyData], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs that recommend other items to most users."""
    folder = tmp_path_factory.mktemp("nights")
    for seed, name in enumerate(("monday", "tuesday")):
        chosen = vf.Config.preset("paper", epochs=2, batch=400, seed=seed)
        vf.train(small_parties, chosen, out=folder / name)
    return folder


def build(folder: Path, metrics: ServerMetrics | None = None) -> FastAPI:
    return make_app(Catalogue(vf.Run.load(folder), folder.name), metrics=metrics)


class Lifespan:
    """Start and stop an application as a server does."""

    def __init__(self, app: LiveRun) -> None:
        self.app = app
        self.asked: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.told: asyncio.Queue[Any] = asyncio.Queue()

    async def __aenter__(self) -> httpx.AsyncClient:
        self.task = asyncio.create_task(self.app({"type": "lifespan"}, self.asked.get, self.told.put))
        self.asked.put_nowait({"type": "lifespan.startup"})
        await self.told.get()
        self.client = httpx.AsyncClient(
            transport=httpx.ASGITransport(self.app), base_url="http://127.0.0.1:8000"
        )
        return self.client

    async def __aexit__(self, *_: object) -> None:
        await self.client.aclose()
        self.asked.put_nowait({"type": "lifespan.shutdown"})
        await self.task


def items(answer: httpx.Response) -> list[str]:
    return [item["item"] for item in answer.json()["recommendations"]]


def expected(folder: Path, user: str) -> list[str]:
    return [item.item for item in vf.Run.load(folder).recommend(user)]


def test_no_request_fails_while_the_link_is_switched(
    nights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_run, "POLL_SECONDS", 0.02)
    link = tmp_path / "current"
    switch_link(link, nights / "monday")
    metrics = ServerMetrics()
    app = LiveRun(link, lambda folder: build(folder, metrics))
    lists = {name: expected(nights / name, "u0003") for name in ("monday", "tuesday")}
    assert lists["monday"] != lists["tuesday"]
    answers: list[httpx.Response] = []

    async def ask(client: httpx.AsyncClient, stop: asyncio.Event) -> None:
        while not stop.is_set():
            answers.append(await client.get("/v1/recommendations", params={"user": "u0003"}))

    async def play() -> None:
        async with Lifespan(app) as client:
            stop = asyncio.Event()
            clients = [asyncio.create_task(ask(client, stop)) for _ in range(4)]
            for name in ("tuesday", "monday", "tuesday"):
                switch_link(link, nights / name)
                while not answers or items(answers[-1]) != lists[name]:
                    await asyncio.sleep(0.01)
            stop.set()
            await asyncio.gather(*clients)

    asyncio.run(asyncio.wait_for(play(), 180))
    assert {answer.status_code for answer in answers} == {200}
    assert {tuple(items(answer)) for answer in answers} == set(map(tuple, lists.values())), "never a mixture"
    counted = f'verfedgnn_requests_total{{route="/v1/recommendations",status="200"}} {len(answers)}.0'
    assert counted in metrics.render().decode(), "the count goes on across switches"


def test_a_new_verdict_is_served_without_a_restart(
    nights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_run, "POLL_SECONDS", 0.02)
    folder = tmp_path / "judged"
    shutil.copytree(nights / "monday", folder)
    app = LiveRun(folder, build)

    async def play() -> None:
        async with Lifespan(app) as client:
            metrics = json.loads((folder / "metrics.json").read_text("utf-8"))
            write_json(folder / "metrics.json", metrics | {"rounds": 4321})
            while (await client.get("/v1/run")).json()["rounds"] != 4321:
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(play(), 180))


def test_a_run_that_cannot_be_read_is_not_served(
    nights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(live_run, "POLL_SECONDS", 0.02)
    link = tmp_path / "current"
    shutil.copytree(nights / "tuesday", tmp_path / "broken")
    (tmp_path / "broken" / "metrics.json").unlink()
    switch_link(link, nights / "monday")
    app = LiveRun(link, build)
    said = ""

    async def play() -> None:
        nonlocal said
        async with Lifespan(app) as client:
            switch_link(link, tmp_path / "broken")
            while "cannot be served" not in said:
                await asyncio.sleep(0.01)
                said += capsys.readouterr().err
            answer = await client.get("/v1/recommendations", params={"user": "u0003"})
            assert items(answer) == expected(nights / "monday", "u0003")

    asyncio.run(asyncio.wait_for(play(), 180))
    assert "is not finished" in said


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_run_that_cannot_be_read_after_a_forget_is_served_no_more(
    nights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    """Also when the link leads to another run, which cannot be read, so that this one is still served."""
    monkeypatch.setattr(live_run, "POLL_SECONDS", 0.02)
    folder, link = tmp_path / "run", tmp_path / "current"
    shutil.copytree(nights / "monday", folder)
    switch_link(link, folder)
    unreadable = False

    def build_here(place: Path) -> FastAPI:
        if unreadable:
            raise ValueError("damaged")
        return build(place)

    app = LiveRun(link, build_here)

    async def play() -> None:
        nonlocal unreadable
        async with Lifespan(app) as client:
            if elsewhere:
                (tmp_path / "nothing").mkdir()
                switch_link(link, tmp_path / "nothing")
            assert (await client.get("/v1/history", params={"user": "u0003"})).json()["count"]
            unreadable = True
            forget(folder, ["u0003"])
            while (await client.get("/v1/history", params={"user": "u0003"})).status_code != 503:
                await asyncio.sleep(0.01)
            assert (await client.get("/readyz")).status_code == 503
            assert (await client.get("/healthz")).status_code == 200, "the process works"
            unreadable = False
            forget(folder, ["u0004"])
            while (await client.get("/readyz")).status_code != 200:
                await asyncio.sleep(0.01)
            assert (await client.get("/v1/history", params={"user": "u0003"})).json()["known"] is False

    asyncio.run(asyncio.wait_for(play(), 180))


def test_a_run_is_not_served_before_a_killed_forget_is_finished(
    nights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(live_run, "POLL_SECONDS", 0.02)
    folder, link = tmp_path / "run", tmp_path / "current"
    shutil.copytree(nights / "tuesday", folder)
    (folder / FORGET_JOURNAL).write_text("{}", "utf-8")
    with pytest.raises(RunError, match="verfedgnn forget"):
        LiveRun(folder, build)
    switch_link(link, nights / "monday")
    app = LiveRun(link, build)

    async def play() -> None:
        said = ""
        async with Lifespan(app) as client:
            switch_link(link, folder)
            while "still serving" not in said:
                await asyncio.sleep(0.01)
                said += capsys.readouterr().err
            (folder / FORGET_JOURNAL).unlink()
            while (await client.get("/v1/run")).json()["name"] != "run":
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(play(), 180))


def test_links_in_a_circle_do_not_end_the_watch_for_forgotten_users(
    nights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_run, "POLL_SECONDS", 0.02)
    folder, link = tmp_path / "run", tmp_path / "current"
    shutil.copytree(nights / "monday", folder)
    (folder / "circle").symlink_to("circle")
    switch_link(link, folder)
    app = LiveRun(link, build)

    async def play() -> None:
        async with Lifespan(app) as client:
            link.unlink()
            link.symlink_to(link.name)
            await asyncio.sleep(0.2)
            forget(folder, ["u0003"])
            while (await client.get("/v1/history", params={"user": "u0003"})).json()["known"]:
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(play(), 180))


HUGE = "x" * 1_900_000
FIRST = {"user": "u0005", "rating": 5}
POISON: list[Any] = [
    {"item": "boom", "ratings": [FIRST | {"time": 99999999999999999999}]},
    {"item": "boom", "ratings": [FIRST | {"time": 10**10}]},
    {"item": "boom", "ratings": [FIRST | {"time": -(10**18)}]},
    {"item": "boom", "ratings": [FIRST | {"rating": 1e308}]},
    {"item": "boom", "ratings": [FIRST | {"rating": float("nan")}]},
    {"item": "boom", "ratings": [FIRST | {"rating": float("inf")}]},
    {"item": "boom", "ratings": [FIRST | {"user": "u0005\0"}]},
    {"item": "boom", "ratings": [FIRST | {"user": "x" * 257}]},
    {"item": "boom\0"},
    {"item": "\ud800"},
    {"item": "x" * 257},
    {"item": "boom", "title": "x" * 161},
    {"item": "boom", "columns": {"category": HUGE}},
    {"item": "boom", "columns": {"\0": "x"}},
    {"item": "boom", "columns": {"year": [[1]]}},
    {"item": "boom", "features": {"year": 1}},
]


def test_no_request_poisons_a_run(nights: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(nights / "monday", folder)
    run = vf.Run.load(folder)
    party = run.parties[0].name
    app = make_app(Catalogue(run, "run"), folder=folder)
    deep = f'{{"party": "{party}", "items": [{{"item": "boom", "columns": {{"a": {"[" * 100_000}'

    async def play() -> None:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:

            async def post(*items: Any) -> int:
                body = json.dumps({"party": party, "items": items})
                sent = {"Content-Type": "application/json"}
                return (await client.post("/v1/items", content=body, headers=sent)).status_code

            for item in POISON:
                assert await post(item) == 400, str(item)[:100]
            assert await post({"item": "boom"}, {"item": "boom"}) == 400
            sent = {"Content-Type": "application/json"}
            assert (await client.post("/v1/items", content=deep, headers=sent)).status_code == 400
            assert not list((folder / "added").glob("*.jsonl"))
            hostile = {"item": "\x1b[2J<b>\u202e", "title": "\r\n", "ratings": [FIRST | {"time": 0}] * 2}
            assert await post(hostile, {"item": "fine", "ratings": [FIRST]}) == 200

    asyncio.run(asyncio.wait_for(play(), 180))
    after = vf.Run.load(folder)
    assert after.parties[0].ratings.item_ids[-2:].tolist() == ["\x1b[2J<b>\u202e", "fine"]
    assert (
        after.parties[0].ratings.columns["category"].dtype == run.parties[0].ratings.columns["category"].dtype
    )


def test_an_item_that_is_posted_is_served_without_a_failed_request(
    nights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_run, "POLL_SECONDS", 0.02)
    folder = tmp_path / "run"
    shutil.copytree(nights / "monday", folder)
    party = vf.Run.load(folder).parties[0]
    metrics = ServerMetrics()

    def build_here(place: Path) -> FastAPI:
        return make_app(Catalogue(vf.Run.load(place), place.name), metrics=metrics, folder=place)

    app = LiveRun(folder, build_here)
    rated = [{"user": str(user), "rating": 5} for user in party.ratings.user_ids[5:9]]
    body = {"party": party.name, "items": [{"item": "new", "title": "New", "ratings": rated}]}

    async def play() -> list[dict[str, Any]]:
        async with Lifespan(app) as client:
            trained = {"item": str(party.ratings.item_ids[0])}
            refused = await client.post("/v1/items", json={"party": party.name, "items": [trained]})
            assert (refused.status_code, "was in training" in refused.text) == (400, True)
            assert (await client.post("/v1/items", json={"items": [{"item": "x"}]})).status_code == 400
            answer = await client.post("/v1/items", json=body)
            assert answer.json() == {"items": [{"item": "new", "ratings": 4}], "unknown_users": 0}
            asked = {"user": "u0003", "k": 1000, "party": party.name}
            while True:
                answer = await client.get("/v1/recommendations", params=asked)
                assert answer.status_code == 200
                found: list[dict[str, Any]] = answer.json()["recommendations"]
                if any(item["item"] == "new" for item in found):
                    return found
                await asyncio.sleep(0.02)

    served = asyncio.run(asyncio.wait_for(play(), 180))
    assert next(item["title"] for item in served if item["item"] == "new") == "New"
