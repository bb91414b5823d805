"""API keys of the server: several keys with rights, parties and rate limits, and an access log that names no user."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import verfedgnn as vf
from helpers import config
from verfedgnn.core.errors import ConfigError
from verfedgnn.serving.catalogue import Catalogue

pytest.importorskip("fastapi", reason="the extra serve is not installed")

from fastapi import FastAPI

from served import serving
from verfedgnn.serving.app import make_app
from verfedgnn.serving.request_guard import (
    OPEN_PATHS,
    RIGHTS,
    AccessLog,
    ApiKey,
    TokenBucket,
    digest_key,
    read_keys,
)

KEY = "a-key-that-is-long-enough"


@pytest.fixture(scope="module")
def run(small_parties: list[vf.PartyData]) -> vf.Run:
    return vf.train(small_parties, config())


@pytest.fixture(scope="module")
def catalogue(run: vf.Run) -> Catalogue:
    return Catalogue(run, "trial")


class Caller:
    """A client with a key."""

    def __init__(self, address: str, key: str) -> None:
        self.client = httpx.Client(base_url=address, headers={"Authorization": f"Bearer {key}"}, timeout=180)

    def get(self, path: str, **parameters: object) -> httpx.Response:
        return self.client.get(path, params={name: str(value) for name, value in parameters.items()})


@contextmanager
def calling(app: FastAPI, *keys: str) -> Iterator[list[Caller]]:
    """Serve the application, and yield one client for each key."""
    with serving(app) as address:
        callers = [Caller(address, key) for key in keys]
        yield callers
        for caller in callers:
            caller.client.close()


def make_key(name: str, **values: Any) -> ApiKey:
    return ApiKey(name, digest_key(f"{name}-{KEY}"), **values)


def test_a_key_sees_nothing_of_other_parties(run: vf.Run, catalogue: Catalogue) -> None:
    """Neither items nor ratings, ids of users, names of parties or figures; in no endpoint."""
    own, other = run.parties[0], run.parties[1]
    user = str(own.ratings.user_ids[0])
    key = make_key("film", parties=(own.name,))
    with calling(make_app(catalogue, keys=[key]), f"film-{KEY}") as (caller,):
        answers = [
            caller.get("/v1/recommendations", user=user, k=100),
            caller.get("/v1/recommendations", user=user, k=100, why=3),
            caller.client.post("/v1/recommendations", json={"ratings": [], "k": 100}),
            caller.get("/v1/similar", item=own.ratings.item_ids[0], k=100),
            caller.get("/v1/history", user=user, k=100),
            caller.get("/v1/run"),
            caller.get("/v1/users"),
        ]
        for answer in answers:
            assert answer.status_code == 200
            assert own.name in answer.text or "users" in answer.json()
            assert other.name not in answer.text
        item = other.ratings.item_ids[0]
        refused = [
            caller.get("/v1/recommendations", user=user, party=other.name),
            caller.get("/v1/recommendations", user=user, party=other.name, why=1),
            caller.client.post("/v1/recommendations", json={"ratings": [], "party": other.name}),
            caller.client.post("/v1/recommendations", json={"ratings": [{"item": str(item), "rating": 3}]}),
            caller.get("/v1/similar", item=item),
            caller.get("/v1/similar", item=own.ratings.item_ids[0], among=other.name),
            caller.get("/v1/history", user=user, party=other.name),
            caller.get("/v1/users", party=other.name),
        ]
        absent = caller.get("/v1/recommendations", user=user, party="nowhere").json()
        for answer in refused:
            assert answer.status_code == 404
            assert other.name not in answer.text
        assert refused[0].json() == absent


def test_only_users_of_its_parties_are_listed(run: vf.Run, catalogue: Catalogue) -> None:
    rows = catalogue.index_users((0,)).find_prefix("", 1000)
    assert set(rows) == set(run.parties[0].ratings.user.tolist())
    assert catalogue.index_users((0, 1, 2)) is catalogue.users


def test_a_key_for_the_only_party_that_is_served_names_no_users_of_the_others(run: vf.Run) -> None:
    name = run.parties[0].name
    table = run.parties[0].ratings
    mine = np.flatnonzero(np.bincount(table.user, minlength=table.n_users))[5:]  # a few users are new here
    run = replace(
        run,
        parties=[
            vf.PartyData(name, table.take(np.isin(table.user, mine))),
            *run.parties[1:],
        ],
        parts=[run.parts[0][np.isin(table.user, mine)], *run.parts[1:]],
    )
    keys = [make_key("film", parties=(name,)), make_key("boss")]
    users = set(table.user_ids[mine].tolist())
    app = make_app(Catalogue(run, "first", name), keys=keys)
    with calling(app, f"film-{KEY}", f"boss-{KEY}") as callers:
        seen = []
        for caller in callers:
            found = caller.get("/v1/users", k=1000).json()["users"]
            about = caller.get("/v1/run").json()
            assert [text.partition(":")[0] for text in about["about"]] == ["Cost", "Others learn"]
            shown = [*found, *about["examples"], *about["parties"][0]["examples"]]
            seen.append({each["user"] for each in shown})
    assert seen[0] == users
    assert seen[1] > users


def test_every_endpoint_needs_its_right(catalogue: Catalogue, run: vf.Run) -> None:
    app = make_app(catalogue)
    endpoints = {
        (method, route.path)  # type: ignore[attr-defined]
        for route in app.routes
        for method in route.methods - {"HEAD"}  # type: ignore[attr-defined]
    }
    open_to_every_key = {("GET", "/openapi.json")}
    assert endpoints - open_to_every_key == set(RIGHTS) | {("GET", path) for path in OPEN_PATHS}
    keys = [make_key(right, rights=frozenset([right])) for right in sorted(set(RIGHTS.values()))]
    user = str(run.parties[0].ratings.user_ids[0])
    with calling(make_app(catalogue, keys=keys), *(f"{key.name}-{KEY}" for key in keys)) as callers:
        for key, caller in zip(keys, callers, strict=True):
            for (method, path), right in RIGHTS.items():
                body = {"json": {}} if method == "POST" else {"params": {"user": user}}
                status = caller.client.request(method, path, **body).status_code
                assert (status == 403) == (right != key.name), (key.name, method, path)


def test_a_line_feed_after_a_path_gives_no_right(catalogue: Catalogue) -> None:
    """Routes of Starlette match it, since `$` does."""
    keys = [make_key("figures", rights=frozenset({"metrics"})), make_key("boss")]
    user = str(catalogue.user_ids[0])
    with calling(make_app(catalogue, keys=keys), f"figures-{KEY}", f"boss-{KEY}") as callers:
        for caller in callers:
            for method, path in RIGHTS:
                body = {"json": {"ratings": []}} if method == "POST" else {}
                answer = caller.client.request(method, f"{path}%0A?user={user}", **body)
                assert answer.status_code == 404, (method, path)


def test_a_wrong_key_gets_no_hint(catalogue: Catalogue) -> None:
    app = make_app(catalogue, keys=[make_key("shop", parties=("party-0",))])
    wrong = ["x", "wrong", KEY, f"shop-{KEY[:-1]}", f"shop-{KEY}x", f"Shop-{KEY}", f"Bearer shop-{KEY}"]
    with calling(app, *wrong) as callers:
        paths = ("/v1/run", "/nowhere", "/v1/similar", "/openapi.json")
        answers = [caller.get(path) for caller in callers for path in paths]
    assert {answer.status_code for answer in answers} == {401}
    (text,) = {answer.text for answer in answers}
    assert "shop" not in text


def test_a_key_is_limited_and_others_are_not(catalogue: Catalogue) -> None:
    keys = [make_key("slow", per_second=0.5, burst=3.0), make_key("fast")]
    with calling(make_app(catalogue, keys=keys), f"slow-{KEY}", f"fast-{KEY}") as (slow, fast):
        answers = [slow.get("/v1/users") for _ in range(6)]
        assert [answer.status_code for answer in answers] == [200] * 3 + [429] * 3
        assert 1 <= int(answers[-1].headers["retry-after"]) <= 2
        assert fast.get("/v1/users").status_code == 200


def test_tokens_come_back_with_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    bucket = TokenBucket(per_second=2.0, burst=2.0)
    assert [bucket.take() for _ in range(3)] == [0.0, 0.0, 0.5]
    now += 0.5
    assert bucket.take() == 0.0
    now += 100
    assert [bucket.take() > 0 for _ in range(3)] == [False, False, True]


def test_the_access_log_names_keys_and_routes_but_no_users(
    run: vf.Run, catalogue: Catalogue, tmp_path: Path
) -> None:
    user, item = str(run.parties[0].ratings.user_ids[0]), str(run.parties[0].ratings.item_ids[0])
    file = tmp_path / "access.jsonl"
    app = make_app(catalogue, keys=[make_key("shop")], log=AccessLog(file))
    with calling(app, f"shop-{KEY}", "wrong") as (caller, stranger):
        caller.get("/v1/recommendations", user=user)
        caller.get("/v1/recommendations", user="nobody-known\nforged")
        caller.get("/v1/similar", item=item, party="party-0")
        caller.get(f"/nowhere/{user}")
        caller.client.post("/v1/recommendations", json={"ratings": [], "user": user})
        stranger.get("/v1/users", starts=user)
    text = file.read_text("utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    assert [(line["key"], line["method"], line["route"], line["status"]) for line in lines] == [
        ("shop", "GET", "/v1/recommendations", 200),
        ("shop", "GET", "/v1/recommendations", 404),
        ("shop", "GET", "/v1/similar", 200),
        ("shop", "GET", "other", 404),
        ("shop", "POST", "/v1/recommendations", 200),
        (None, "GET", "other", 401),
    ]
    assert all(set(line) == {"time", "key", "method", "route", "status", "ms"} for line in lines)
    assert all(line["ms"] >= 0 and line["time"].endswith("+00:00") for line in lines)
    assert f'"{user}"' not in text
    assert "nobody" not in text
    assert KEY not in text
    assert file.stat().st_mode & 0o077 == 0


def write_private(file: Path, text: str) -> Path:
    file.touch(mode=0o600)
    file.write_text(text)
    return file


def test_keys_are_read_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VERFEDGNN_API_KEY", raising=False)
    assert read_keys(None) == ()
    (key,) = read_keys(write_private(tmp_path / "key", KEY + "\n"))
    assert key == ApiKey("key", digest_key(KEY))
    monkeypatch.setenv("VERFEDGNN_API_KEY", "short")
    with pytest.raises(ConfigError, match="16 or more"):
        read_keys(None)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_keys(tmp_path / "absent")


@pytest.mark.parametrize("name", ["key", "keys.toml"])
def test_a_key_file_that_others_can_read_is_refused(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_text(KEY)
    for mode in (0o644, 0o640, 0o602):
        file.chmod(mode)
        with pytest.raises(ConfigError, match="chmod 600"):
            read_keys(file)


SHOP = f'[shop]\nkey = "{KEY}-1"\nrights = ["recommend"]\n'


def test_several_keys_in_one_file(tmp_path: Path) -> None:
    text = f'{SHOP}parties = ["film"]\nper_second = 20\n[boss]\nkey = "{KEY}-2"\nrights = ["browse", "metrics"]\n'
    shop, boss = read_keys(write_private(tmp_path / "keys.toml", text))
    assert shop == ApiKey("shop", digest_key(f"{KEY}-1"), frozenset({"recommend"}), ("film",), 20.0, 20.0)
    assert boss == ApiKey("boss", digest_key(f"{KEY}-2"), frozenset({"browse", "metrics"}))
    assert KEY not in repr((shop, boss))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no key"),
        ("[shop", "not valid TOML"),
        (f'[shop]\nkey = "{KEY}"\n', "shop.rights: field required"),
        (SHOP.replace("recommend", "everything"), r"shop.rights.*'recommend'.*'browse'"),
        (SHOP + "limit = 3\n", "shop.limit"),
        (SHOP + "per_second = 0\n", "shop.per_second.*greater than 0"),
        (SHOP + "per_second = inf\n", "finite"),
        (SHOP.replace(KEY, ""), "16 or more"),
        (SHOP.replace("[shop]", '["shop\\u001b[2J"]'), "match"),
        (SHOP + SHOP.replace("shop", "twin"), "one key under two names"),
    ],
)
def test_mistakes_in_a_key_file_are_named_without_the_key(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        read_keys(write_private(tmp_path / "keys.toml", text))
    assert KEY not in str(caught.value)


def test_a_key_for_a_party_that_is_not_served_is_refused_at_the_start(catalogue: Catalogue) -> None:
    with pytest.raises(ConfigError, match="'nowhere', which is not served; use: party-0"):
        make_app(catalogue, keys=[make_key("shop", parties=("nowhere",))])


def test_serve_refuses_a_readable_key_file(
    tmp_path: Path, command: Callable[..., tuple[int, str, str]]
) -> None:
    (tmp_path / "key").write_text(KEY)
    (tmp_path / "key").chmod(0o644)
    code, _, error = command("serve", tmp_path, "--api-key-file", tmp_path / "key", "--port", 0)
    assert code == 2
    assert "chmod 600" in error
