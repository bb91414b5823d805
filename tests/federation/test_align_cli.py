"""`verfedgnn party --align-only` as its users run it: padding, rows of an earlier run, and tables that cannot be aligned."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from shells import NAMES, Shells, free_port
from verfedgnn.runs.party_tables import read_party_tables

pytest.importorskip("websockets", reason="the extra 'federation' is not installed")


def prepare(shells: Shells, port: int, *, max_users: int = 1000) -> None:
    """Make a federation of two parties."""
    shells.now("federation", "init", "home", "--address", f"127.0.0.1:{port}")
    for name in NAMES[:2]:
        shells.now("federation", "join-request", name)
        shells.now("federation", "approve", "home", f"{name}/{name}.csr", "--yes")
    agreement = shells.folder / "home" / "federation.toml"
    text = agreement.read_text()
    for name, value in (("max_users", max_users), ("min_users", 1), ("min_overlap", 0)):
        text, found = re.subn(rf"(?m)^{name} = [\d.]+$", f"{name} = {value}", text)
        assert found == 1
    agreement.write_text(text)
    for name in NAMES[:2]:
        (shells.folder / name / "federation.toml").write_text(text)


def write_users(path: Path, users: list[str]) -> None:
    """Write a table in which every user rates four items."""
    rows = [f"{user},{path.stem}-{item},{1 + item}" for user in users for item in range(4)]
    path.write_text("\n".join(["user,item,rating", *rows]) + "\n")


def test_padding_adds_empty_rows(shells: Shells, tmp_path: Path) -> None:
    """Ids are spelled in other ways by another party."""
    port = free_port()
    prepare(shells, port)
    shells.start("coordinator", "home", "--listen", f"127.0.0.1:{port}")
    film = [f"user{n}@example.org" for n in range(20)]
    book = [f"USER{n}@example.org" for n in range(15, 40)]
    commands = {}
    for name, users in (("film", film), ("book", book)):
        write_users(tmp_path / f"{name}.csv", users)
        words = [
            "party",
            "--align-only",
            "--federation",
            name,
            "--ratings",
            f"{name}.csv",
            "--out",
            f"{name}/run",
        ]
        words += ["--pad-users", "30"] if name == "film" else []
        commands[name] = words
    other = shells.start(*commands["book"])
    assert re.search(r"\d+ users in the federation", shells.now(*commands["film"]))
    assert other.wait(timeout=180) == 0, shells.logs()
    tables = [read_party_tables(tmp_path / name / "run" / "parties")[0][0].ratings for name in NAMES[:2]]
    assert {table.n_users for table in tables} == {40 + 10}, "ten random users take a row each"
    assert [len(table.known_users) for table in tables] == [20, 25]


@pytest.mark.parametrize(
    ("users", "words", "reason"),
    [
        (["Ann", "ann", "ANN "], [], "has no user whose id is unambiguous"),
        ([], [], "has no ratings"),
        (["ann", "ben", "cleo", "dora"], [], "brings 4 users, but the agreement allows 3"),
        (["ann"], ["--pad-users", "4"], "brings 4 users, but the agreement allows 3"),
    ],
    ids=[
        "one id in three spellings",
        "empty",
        "every possible id",
        "too much padding",
    ],
)
def test_a_table_that_cannot_be_aligned_is_one_line_before_anything_is_sent(
    command: Callable[..., tuple[int, str, str]],
    shells: Shells,
    tmp_path: Path,
    users: list[str],
    words: list[str],
    reason: str,
) -> None:
    """There is no coordinator to send to."""
    prepare(shells, 1, max_users=3)
    write_users(tmp_path / "film.csv", users)
    code, _, err = command(
        "party",
        "--align-only",
        "--federation",
        tmp_path / "film",
        "--ratings",
        tmp_path / "film.csv",
        *words,
    )
    assert code == 2, err
    assert re.search(reason, err), err
    assert "Traceback" not in err
    assert "ann" not in err.replace("cannot", "").lower(), "an error shows no id"
