"""The prose check of `make lint` passes, and notices what it is there for."""

from __future__ import annotations

import pytest

import check_prose
from doc_commands import ROOT

pytest.importorskip("proselint", reason="proselint is not installed: it is in the extra dev")

LONG = "This sentence has " + "one word after the other " * 6 + "until nobody knows how it began."


@pytest.mark.parametrize("path", check_prose.pages(), ids=lambda path: path.name)
def test_a_page_is_plain(path) -> None:  # type: ignore[no-untyped-def]
    assert check_prose.main([str(path)]) == 0


def test_readme_is_short() -> None:
    lines = (ROOT / "README.md").read_text("utf-8").splitlines()
    assert len(lines) <= 80
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LONG, "words in the sentence"),
        (f"| a cell | {LONG} |", "words in the sentence"),
        (f"Short. {LONG} Short.", "words in the sentence"),
        ("It does whatever it is told.", "'whatever'"),
        ("It does whatever it is told.", "'told'"),
        ("word " * 25, "characters in a line"),
    ],
)
def test_a_problem_is_noticed(text: str, message: str) -> None:
    assert any(message in str(found) for found in check_prose.check_text("docs/page.md", text))


@pytest.mark.parametrize(
    "text",
    [
        "It resumes. It stops.",
        "| " + "wide " * 40 + "|",
        f"```text\n{LONG}\n{'x' * 200}\n```",
        f"<!-- begin table1 -->\n{LONG}\n<!-- end table1 -->",
        "See `told` in the code.",
    ],
)
def test_what_is_fine_is_left_alone(text: str) -> None:
    wide_only = [one for one in check_prose.check_text("docs/page.md", text) if "words" not in one.message]
    assert wide_only == []


def test_proselint_runs_on_prose_and_not_on_code() -> None:
    assert check_prose.check_with_proselint("docs/page.md", "This is is a very unique thing.")
    assert not check_prose.check_with_proselint("docs/page.md", "```sh\nthis is is code\n```\nPlain text.")


def test_help_texts_are_checked() -> None:
    names = [name for name, text in check_prose.help_texts() if text]
    assert "verfedgnn train --help" in names
    assert len(names) > 100
