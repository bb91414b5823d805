"""Text that others wrote, such as titles, ids and states, reaches neither a terminal nor a log as control characters."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import verfedgnn as vf
from helpers import config
from verfedgnn.core.option_names import make_printable
from verfedgnn.reports.console import SafeConsole

Command = Callable[..., tuple[int, str, str]]
HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31mred\x08\u202etxt"
"""Sets the title of a terminal, clears it, colours it, and turns the direction of text."""


def is_harmless(text: str) -> bool:
    return all(character.isprintable() or character == "\n" for character in text)


@pytest.fixture(scope="module")
def hostile_run(small_parties: list[vf.PartyData], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose items have hostile ids and titles."""
    parties = []
    for party in small_parties:
        ids = np.strings.add(party.ratings.item_ids, HOSTILE)
        table = replace(party.ratings, item_ids=ids, titles=ids)
        parties.append(replace(party, ratings=table))
    folder = tmp_path_factory.mktemp("hostile") / "run"
    vf.train(parties, config(), out=folder)
    return folder


def test_titles_and_ids_of_recommendations(hostile_run: Path, command: Command) -> None:
    user = str(vf.Run.load(hostile_run).parties[0].ratings.user_ids[0])
    code, out, err = command("recommend", hostile_run, "--user", user, "--top", 3)
    assert code == 0
    assert "owned" in out
    assert is_harmless(out + err)


def test_a_status_from_elsewhere(tmp_path: Path, command: Command) -> None:
    party = {"here": True, "up": 1, "down": 1, "refused": "[link=http://elsewhere]1[/x]"}
    status = {"federation": HOSTILE, "state": HOSTILE, "parties": {HOSTILE: party}}
    (tmp_path / "status.json").write_text(json.dumps(status))
    code, out, err = command("status", tmp_path)
    assert code == 0
    assert "owned" in out
    assert is_harmless(out + err)


@pytest.mark.parametrize(
    "status",
    [{"parties": 3}, {"parties": {"a": {"up": "x"}}}, {"updated": "x"}, {"members": {"members": []}}],
)
def test_a_status_that_is_none_is_named(tmp_path: Path, command: Command, status: dict[str, Any]) -> None:
    (tmp_path / "status.json").write_text(json.dumps(status))
    code, _, err = command("status", tmp_path)
    assert (code, "the status of" in err) == (2, True)


def test_a_status_that_is_a_link_is_not_followed(tmp_path: Path, command: Command) -> None:
    """Attack: the status of somebody else's run leads to a file of the person who looks, or to one that never ends."""
    (tmp_path / "mine.json").write_text('{"reason": "private"}')
    run = tmp_path / "run"
    run.mkdir()
    (run / "status.json").symlink_to(tmp_path / "mine.json")
    code, out, err = command("status", run)
    assert (code, "a link to a place outside the run" in " ".join(err.split())) == (2, True), err
    assert "private" not in out + err


def test_a_table_of_ratings_and_its_errors(tmp_path: Path, command: Command) -> None:
    rows = "".join(f"u{n},{HOSTILE.replace(chr(8), '')}{n},{n % 5 + 1}\n" for n in range(30))
    (tmp_path / f"{HOSTILE[:9]}.csv").write_text(f"user,item,rating\n{rows}u1,x,{HOSTILE}\n", "utf-8")
    _, out, err = command("data", "check", tmp_path / f"{HOSTILE[:9]}.csv")
    assert "ratings" in out + err
    assert is_harmless(out + err)


def test_the_console_keeps_its_own_colours(capsys: pytest.CaptureFixture[str]) -> None:
    console = SafeConsole(force_terminal=True, color_system="standard")
    console.print(f"[red]{HOSTILE}[/]")
    out = capsys.readouterr().out
    assert out.startswith("\x1b[31m")
    assert "\x1b]0" not in out
    assert "\x9b" not in out


def test_letters_of_all_languages_and_spaces_stay() -> None:
    text = "Amélie – 千と千尋 \N{NO-BREAK SPACE}x\n"
    assert make_printable(text) == "Amélie – 千と千尋  x\n"
