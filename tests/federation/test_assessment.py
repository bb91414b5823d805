"""The page for a security officer says what the agreement says, and what the tables of the documentation say."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import verfedgnn as vf
from hub import agree
from verfedgnn.cli.main import app
from verfedgnn.federation.agreement import FILE, save_agreement
from verfedgnn.federation.assessment import assess
from verfedgnn.federation.certificates import short_fingerprint
from verfedgnn.privacy.visibility import who_sees_what


@pytest.mark.parametrize("preset", ["best", "private", "paper", "means"])
def test_the_page_answers_an_officers_questions(tmp_path: Path, preset: str) -> None:
    config = vf.Config.preset(preset).with_values({"masking": True})
    agreement, _ = agree(tmp_path, ["film", "book", "music"], config, max_users=12_345)
    page = assess(agreement)
    for heading in ("Who takes part", "Which data", "What leaves a party", "Guarantee", "What is kept"):
        assert f"## {heading}" in page
    assert short_fingerprint(agreement.digest()) in page
    for member in agreement.members:
        assert f"| {member.name} |" in page
        assert short_fingerprint(member.parsed.fingerprint) in page
    for row in who_sees_what(config, 3):
        assert f"| {' | '.join(row)} |" in page
    assert "12,345 users" in page
    assert "**Forgetting a customer.**" in page
    assert "**Leaving.**" in page
    assert ("epsilon" in page) == (preset == "private")
    assert ("--share-verdict" in page) == (preset != "private")
    assert len(page.split()) < 900, "one page"


def test_show_writes_it(tmp_path: Path) -> None:
    agreement, _ = agree(tmp_path, ["film", "book"], vf.Config.preset("best"))
    save_agreement(tmp_path / FILE, agreement)
    file = tmp_path / "assessment.md"
    done = CliRunner().invoke(app, ["federation", "show", str(tmp_path), "--assessment", str(file)])
    assert done.exit_code == 0, done.output
    assert file.read_text() == assess(agreement)
    assert "Either of two parties can subtract" in file.read_text()
