"""Requests to a served run: errors, API keys, limits, metrics and headers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import verfedgnn as vf
from verfedgnn.serving.catalogue import Catalogue
from verfedgnn.serving.ranker import ItemRanker

httpx = pytest.importorskip("httpx", reason="httpx is not installed: no client")
pytest.importorskip("fastapi", reason="the extra serve is not installed")

from served import serving  # noqa: E402
from verfedgnn.core.connection_table import is_loopback  # noqa: E402
from verfedgnn.serving.app import make_app  # noqa: E402
from verfedgnn.serving.request_guard import (  # noqa: E402
    LARGEST_BODY,
    ApiKey,
    digest_key,
)
from verfedgnn.serving.schema import Newcomer, NewItemsRequest, StrictRequest  # noqa: E402

KEY = "a-key-that-is-long-enough"


def test_an_internal_error_shows_no_details(
    catalogue: Catalogue, known: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("insides")

    monkeypatch.setattr(ItemRanker, "rank", broken)
    with serving(make_app(catalogue)) as address:
        answer = httpx.get(f"{address}/v1/recommendations", params={"user": known}, timeout=180)
        assert httpx.get(f"{address}/readyz", timeout=180).status_code == 200
    assert answer.status_code == 500
    assert "insides" not in answer.text
    assert "content-security-policy" in answer.headers


@pytest.mark.parametrize("path", ["/v1/users?", "/v1/history?user=x", "/readyz?"])
def test_parameters_that_nobody_reads_are_a_mistake(client: Any, path: str) -> None:
    answer = client.get(f"{path}&category=book")
    assert answer.status_code == 400
    assert answer.json()["error"]["cause"] == "there is no such parameter"


@pytest.mark.parametrize(
    ("path", "status", "word"),
    [
        ("/v1/recommendations?user=nobody", 404, "POST their ratings"),
        ("/v1/recommendations?user=U0000", 404, "spell the id as"),
        ("/v1/recommendations", 400, "correct the request"),
        ("/v1/recommendations?user=1&k=1001", 400, "correct the request"),
        ("/v1/recommendations?user=1&party=nobody", 404, "use one of"),
        ("/v1/recommendations?user=1&colour=red", 400, "columns: "),
        ("/v1/similar?item=nothing", 404, "known items look like"),
        ("/nowhere", 404, "openapi.json"),
    ],
)
def test_errors_have_a_cause_and_a_remedy(client: Any, known: str, path: str, status: int, word: str) -> None:
    answer = client.get(path.replace("user=1", f"user={known}"))
    error = answer.json()["error"]
    assert answer.status_code == status
    assert word in error["remedy"]
    assert error["cause"]
    assert "Traceback" not in answer.text


def test_with_a_key_nothing_but_health_and_the_empty_page_is_open(catalogue: Catalogue, known: str) -> None:
    with (
        serving(make_app(catalogue, keys=[ApiKey("key", digest_key(KEY))])) as address,
        httpx.Client(base_url=address, timeout=180) as client,
    ):
        assert client.get("/readyz").json() == {"status": "ok"}
        assert client.get("/").status_code == 200
        private = [
            "/metrics",
            "/v1/run",
            f"/v1/recommendations?user={known}",
            "/v1/users",
            "/openapi.json",
            "/nowhere",
        ]
        for path in private:
            for wrong in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": KEY}):
                assert client.get(path, headers=wrong).status_code == 401, path
        right = {"Authorization": f"Bearer {KEY}"}
        assert [client.get(path, headers=right).status_code for path in private] == [200] * 5 + [404]


def test_another_name_for_this_machine_is_refused_without_a_key(client: Any, catalogue: Catalogue) -> None:
    assert client.get("/v1/run", headers={"Host": "evil.example"}).status_code == 403
    assert client.get("/v1/run", headers={"Host": "localhost:1"}).status_code == 200
    assert [
        is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "::", "example.org")
    ] == [True] * 3 + [False] * 3


def test_large_requests_are_refused(client: Any) -> None:
    many = {"ratings": [{"item": "0", "rating": 1}] * 10_001}
    assert client.post("/v1/recommendations", json=many).status_code == 400
    assert client.post("/v1/recommendations", content=b" " * (LARGEST_BODY + 1)).status_code == 413

    def pieces() -> Iterator[bytes]:
        for _ in range(30):
            yield b" " * 100_000

    assert client.post("/v1/recommendations", content=pieces()).status_code == 413


MANY = {f"k{number}": 1 for number in range(20_000)}


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (Newcomer, MANY | {"ratings": []}),
        (Newcomer, {"ratings": [], "where": MANY}),
        (Newcomer, {"ratings": [{}] * 10_000}),
        (Newcomer, {"ratings": [MANY]}),
        (NewItemsRequest, {"items": [{"item": "x", "ratings": [{}] * 10_000}] * 60}),
        (NewItemsRequest, {"items": [{"item": "x", "columns": MANY}] * 10}),
        (NewItemsRequest, {"items": [{}] * 1000}),
    ],
)
def test_a_request_does_not_multiply_into_errors(kind: type[StrictRequest], body: dict[str, Any]) -> None:
    """2 MB had 1.3 million errors, which took 22 s, in which nobody was answered, and 1.7 GB."""
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(body)
    assert caught.value.error_count() <= 20


def test_a_long_filter_is_refused(client: Any) -> None:
    """The event loop compared 2 MB with every item, and hundreds of such texts stayed in memory."""
    for name, value in (("category", "x" * 200), ("x" * 300, "book")):
        answer = client.post("/v1/recommendations", json={"ratings": [], "where": {name: value}})
        assert (answer.status_code, "at most" in answer.json()["error"]["cause"]) == (400, True)


def test_metrics_count_routes_and_name_nobody(client: Any, known: str) -> None:
    client.get("/v1/recommendations", params={"user": known})
    client.get("/v1/recommendations", params={"user": "somebody-secret"})
    text = client.get("/metrics").text
    assert 'verfedgnn_requests_total{route="/v1/recommendations",status="200"}' in text
    assert "somebody-secret" not in text


def test_headers_keep_the_page_to_itself(client: Any) -> None:
    for path in ("/", "/v1/run", "/nowhere"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"


def test_a_fuzzer_finds_only_answers_that_openapi_describes(run: vf.Run, tmp_path: Path) -> None:
    """What the schema calls valid may still be refused: an unknown column, or too many items in all."""
    pytest.importorskip("schemathesis", reason="schemathesis is not installed: no fuzzer")
    run.save(tmp_path / "run")
    app = make_app(Catalogue(run, "run", run.parties[0].name), folder=tmp_path / "run")
    with serving(app) as address:
        command = [sys.executable, "-m", "schemathesis.cli", "run", f"{address}/openapi.json"]
        command += ["--generation-deterministic", "--max-examples", "3", "--no-shrink", "--no-color"]
        command += ["--exclude-checks", "positive_data_acceptance"]
        found = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "11 total" in found.stdout
    added = vf.Run.load(tmp_path / "run").parties[0].ratings.n_items - run.parties[0].ratings.n_items
    assert added > 0, "items were added, and they can be read"


def test_openapi_describes_what_there_is(client: Any) -> None:
    described = client.get("/openapi.json").json()
    assert {"/v1/recommendations", "/v1/similar", "/readyz", "/metrics"} <= set(described["paths"])
    example = described["components"]["schemas"]["Newcomer"]["examples"][0]
    assert example["ratings"]


def test_another_method_is_told_which_are_allowed(client: Any) -> None:
    for path, allowed in (("/v1/similar", "GET"), ("/v1/recommendations", "GET, POST"), ("/readyz", "GET")):
        answer = client.request("DELETE", path)
        assert (answer.status_code, answer.headers.get("allow")) == (405, allowed)


BODY = '{"ratings": []}'
JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
    ids=str,
)
def test_a_page_of_another_site_changes_nothing(client: Any, headers: dict[str, str]) -> None:
    for path in ("/v1/recommendations", "/v1/items"):
        answer = client.post(path, content=BODY, headers=JSON | headers)
        assert (answer.status_code, "another site" in answer.text) == (403, True)
    assert client.get("/v1/run", headers=headers).status_code == 200


def test_the_own_page_and_other_programs_may_post(client: Any) -> None:
    own = str(client.base_url).rstrip("/")
    for headers in ({}, {"Origin": own}, {"Origin": own, "Sec-Fetch-Site": "same-origin"}):
        assert client.post("/v1/recommendations", content=BODY, headers=JSON | headers).status_code == 200


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded"])
def test_a_body_that_is_not_declared_as_json_is_refused(client: Any, kind: str | None) -> None:
    """A page of another site may send these without asking the server first."""
    headers = {} if kind is None else {"Content-Type": kind}
    assert client.post("/v1/recommendations", content=BODY, headers=headers).status_code == 400
