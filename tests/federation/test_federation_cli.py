"""A federation as its users run it: commands as separate processes, real sockets, real kills."""

from __future__ import annotations

import json
import os
import re
import signal
import time
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import verfedgnn as vf
from shells import NAMES, Shells, free_port, wait_for_round, wait_until, write_table
from verfedgnn.data import synthetic_ratings

pytest.importorskip("websockets", reason="the extra 'federation' is not installed")


def test_three_organisations_end_to_end(shells: Shells, tmp_path: Path) -> None:
    """Kill a party and the coordinator during training; the result equals the local runtime's."""
    parts = vf.split_items(synthetic_ratings(users=150, items=90, ratings=6000, seed=3), parties=3, seed=3)
    for name, part, spelling in zip(NAMES, parts, ("lower", "upper", "title"), strict=True):
        write_table(tmp_path / f"{name}.csv", part.ratings, spelling)
    port, page = free_port(), free_port()
    settings = [
        "--set",
        "batch=0",
        "--set",
        "epochs=30",
        "--set",
        "evaluate_every=5",
        "--set",
        "unprotected=noise",
    ]
    shells.now(
        "federation",
        "init",
        "home",
        "--address",
        f"127.0.0.1:{port}",
        "--min-parties",
        3,
        "--seed",
        4,
        *settings,
    )
    for name in NAMES:
        shells.now("federation", "join-request", name)
        shells.now("federation", "approve", "home", f"{name}/{name}.csr", "--yes")
    for name in NAMES:
        (tmp_path / name / "federation.toml").write_bytes(
            (tmp_path / "home" / "federation.toml").read_bytes()
        )
    serve = [
        "coordinator",
        "home",
        "--listen",
        f"127.0.0.1:{port}",
        "--status",
        f"127.0.0.1:{page}",
        "--log",
        "json",
    ]
    coordinator = shells.start(*serve)
    parties = {
        name: shells.start("party", "--ratings", f"{name}.csv", "--federation", name) for name in NAMES
    }
    status = f"http://127.0.0.1:{page}"

    wait_for_round(shells, status, 6)
    shells.kill(parties["book"])
    wait_until(shells, status, lambda about: about["state"] == "waiting", "nobody waits for book")
    with urllib.request.urlopen(f"{status}/metrics", timeout=180) as answer:
        assert b"verfedgnn_round " in answer.read()
    assert "away" in shells.now("status", status)
    parties["book"] = shells.start("party", "--federation", "book")
    wait_for_round(shells, status, 14)
    shells.kill(coordinator)
    coordinator = shells.start(*serve)

    for process in (coordinator, *parties.values()):
        assert process.wait(timeout=180) == 0, shells.logs()
    lines = (tmp_path / f"log-{len(shells.running) - 1}.txt").read_text().splitlines()
    assert all(isinstance(json.loads(line), dict) for line in lines), "also the result and what to do next"
    assert any("public" in json.loads(line) for line in lines), "the result"
    runs = [vf.Run.load(tmp_path / name / "run") for name in NAMES]
    users = [[user.lower() for user in run.parties[0].ratings.user_ids.tolist()] for run in runs]
    rows = [set(row) - {""} for row in zip(*users, strict=True)]
    assert all(len(row) == 1 for row in rows), "a row has the same user wherever the user is known"
    shared = np.array([user for row in rows for user in row])
    together = [
        vf.PartyData(run.parties[0].name, replace(run.parties[0].ratings, user_ids=shared)) for run in runs
    ]
    local = vf.train(together, runs[0].judged.config, parts=[run.judged.parts[0] for run in runs])
    for run, model in zip(runs, local.models, strict=True):
        assert torch.equal(run.public, local.public)
        assert torch.equal(run.judged.public, local.judged.public)
        assert torch.equal(run.models[0].items, model.items)
    assert runs[0].config.masking
    assert "recall" in shells.now("evaluate", "film/run")
    known = next(user for user in runs[0].parties[0].ratings.user_ids if user)
    assert shells.now("recommend", "film/run", "--user", known, "--top", 3)
    for secret in ("home/authority.key", "home/coordinator.key", "film/key.pem", "film/run/secret"):
        assert os.stat(tmp_path / secret).st_mode & 0o077 == 0, secret
    assert os.stat(tmp_path / "film" / "run").st_mode & 0o077 == 0
    assert not any(
        "example.org" in line.lower() for line in shells.logs().splitlines() if "recommend" not in line
    )


def test_ctrl_c_and_sigterm_leave_something_to_go_on_with(shells: Shells, tmp_path: Path) -> None:
    shells.now("federation", "init", "home", "--address", f"127.0.0.1:{free_port()}")
    for name in NAMES[:2]:
        shells.now("federation", "join-request", name)
        shells.now("federation", "approve", "home", f"{name}/{name}.csr", "--yes")
    (tmp_path / "film" / "federation.toml").write_bytes((tmp_path / "home" / "federation.toml").read_bytes())
    write_table(tmp_path / "film.csv", synthetic_ratings(users=50, items=40, ratings=900, seed=1), "lower")
    processes = {
        signal.SIGTERM: shells.start("coordinator", "home"),
        signal.SIGINT: shells.start("party", "--ratings", "film.csv", "--federation", "film"),
    }
    deadline = time.monotonic() + 180
    while "waiting for others" not in shells.logs() and time.monotonic() < deadline:
        time.sleep(0.05)
    for number, process in processes.items():
        process.send_signal(number)
        assert process.wait(timeout=180) == 4, shells.logs()


def test_every_line_of_a_json_log_is_json(shells: Shells, tmp_path: Path) -> None:
    """Events, the error of the command and what to do next; text has a date."""
    shells.now("federation", "init", "home", "--address", "127.0.0.1:1")
    for name in NAMES[:2]:
        shells.now("federation", "join-request", name)
        shells.now("federation", "approve", "home", f"{name}/{name}.csr", "--yes")
    (tmp_path / "film" / "federation.toml").write_bytes((tmp_path / "home" / "federation.toml").read_bytes())
    write_table(tmp_path / "film.csv", synthetic_ratings(users=50, items=40, ratings=900, seed=1), "lower")
    words = ["party", "--ratings", "film.csv", "--federation", "film"]
    for options in (["--log", "json"], ["--log-level", "warning"]):
        before = len(shells.logs())
        process = shells.start(*words, *options)
        deadline = time.monotonic() + 180
        while "connection failed" not in shells.logs()[before:] and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=180) == 4, shells.logs()
        lines = [line for line in shells.logs()[before:].splitlines() if line]
        if "json" in options:
            events = [json.loads(line) for line in lines]
            assert {*events[0]} >= {"time", "level", "event"}
            assert (events[-1]["level"], events[-1]["event"][:8]) == ("error", "stopped;")
            assert {event["level"] for event in events} == {"info", "warning", "error"}
        else:
            assert all(" ! " in line for line in lines[:-1]), lines
            assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  ! ", lines[0])


@pytest.mark.parametrize(
    ("words", "reason", "code"),
    [
        (["party", "--federation", "film"], "--ratings is missing", 2),
        (["party", "--federation", "nowhere", "--ratings", "film.csv"], "cannot read the agreement", 2),
        (
            ["party", "--federation", "home", "--key", "stranger/key.pem", "--ratings", "film.csv"],
            "belongs to nobody",
            2,
        ),
        (
            ["party", "--federation", "home", "--key", "home/coordinator.key", "--ratings", "x"],
            "the coordinator's key",
            2,
        ),
        (["party", "--federation", "film", "--ratings", "film.csv", "--log", "xml"], "'text', 'json'", 2),
        (["coordinator", "home", "--log-level", "loud"], "'info', 'warning', 'error'", 2),
        (["coordinator", "film"], "holds no coordinator.key|cannot read the agreement", 2),
        (["coordinator", "home", "--status", "nonsense"], "HOST:PORT", 2),
        (["status", "film"], "no status", 2),
        (["status", "http://127.0.0.1:1"], "no status at", 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_mistakes_are_one_line(
    prepared: Path,
    command: Callable[..., tuple[int, str, str]],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    reason: str,
    code: int,
) -> None:
    monkeypatch.chdir(prepared)
    found, _, err = command(*words)
    assert found == code, err
    assert re.search(reason, err, re.IGNORECASE), err
    assert len(err.splitlines()) == 1


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mistakes")
    shells = Shells(folder)
    shells.now("federation", "init", "home", "--address", "127.0.0.1:1")
    for name in ("film", "book"):
        shells.now("federation", "join-request", name)
        shells.now("federation", "approve", "home", f"{name}/{name}.csr", "--yes")
    shells.now("federation", "join-request", "stranger")
    (folder / "film" / "federation.toml").write_bytes((folder / "home" / "federation.toml").read_bytes())
    (folder / "film.csv").write_text("user,item,rating\na,b,3\n")
    return folder
