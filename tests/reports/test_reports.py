"""Documents as Markdown and HTML, the report of a run, and the audit of a small run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import verfedgnn as vf
from verfedgnn.cli.audit_command import audit
from verfedgnn.cli.report_command import report
from verfedgnn.privacy.visibility import who_sees_what
from verfedgnn.reports.document import Document, Heading, Paragraph, Picture, Points, Table
from verfedgnn.reports.run_report import run_document
from verfedgnn.research.attacks import audit as auditing
from verfedgnn.research.attacks.audit import THIS, Audit, safer
from verfedgnn.research.attacks.audit_report import audit_document, strongest

HOSTILE = "<script>alert(1)</script> & `x` **y** a|b"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audited") / "run"
    parties = vf.split_items(vf.data.synthetic_ratings(users=100, items=60, ratings=2500, seed=2), parties=3)
    vf.train(
        parties, vf.Config.preset("best").with_values({"epochs": 12, "gate": False, "dim": 4}), out=folder
    )
    return folder


def test_a_document_shows_text_and_runs_nothing(tmp_path: Path) -> None:
    document = Document(HOSTILE)
    blocks = [Heading(HOSTILE), Paragraph(HOSTILE), Points([HOSTILE]), Table([HOSTILE], [[HOSTILE]]), None]
    document.add(*blocks, Picture("drawn", HOSTILE, '<?xml version="1.0"?><svg></svg>'))
    page, text = document.write(tmp_path / "new", "page")
    for path in (page, text):
        assert "<script" not in path.read_text()
    assert page.read_text().count("<strong>y</strong>") == 6  # the title stays plain
    assert "<code>x</code>" in page.read_text()
    assert "a\\|b" in text.read_text()
    assert "](drawn.svg)" in text.read_text()
    assert (tmp_path / "new" / "drawn.svg").is_file()


def test_the_page_needs_nothing_from_elsewhere(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No script, no address but those of SVG's own names; every attacker and every variant is in it."""
    audit(run, 11, 30, True, 1, True)
    page = (run / "audit" / "audit.html").read_text()
    assert not re.findall(r'(?:src|href)="(?!data:)', page)
    assert "<script" not in page
    text = (run / "audit" / "audit.md").read_text()
    for words in (
        "one party",
        "all parties but one",
        "the coordinator",
        "an outsider with the final model",
        *safer(vf.Run.load(run).config),
    ):
        assert words in page
        assert words in text
    assert "written:" in capsys.readouterr().out


def test_an_audit_goes_on_where_it_was(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Audit(run, rounds=7, victims=20, compare=False)
    first, *rest = work.steps
    work.take(first)
    again = Audit(run, rounds=7, victims=20, compare=False)
    assert again.known(first)
    assert not any(again.known(step) for step in rest)
    with monkeypatch.context() as patch:
        patch.setattr(auditing, "membership", None)  # would fail if it were called again
        for step in rest:
            again.take(step)
    assert audit_document(again).html()
    other = Audit(run, rounds=8, victims=20, compare=False)
    assert not other.known(first)
    saved = json.loads((run / "audit" / "findings.json").read_text())
    assert set(saved["found"]) == {THIS}


def test_an_audit_of_a_single_round(run: Path) -> None:
    """Nobody has sent a neighbourhood that shows anything yet."""
    work = Audit(run, rounds=1, victims=5, compare=False)
    for step in work.steps:
        work.take(step)
    assert audit_document(work).html()


def test_the_strongest_attack_is_the_one_furthest_above_its_guess() -> None:
    found = {
        "sums": {
            "party, a": {"f1": 0.5, "guess": {"f1": 0.6}},
            "party, b": {"f1": 0.4, "guess": {"f1": 0.1}},
            "colluders, a": {"f1": 0.2, "guess": {"f1": 0.2}},
        },
        "gradients": {"rounds": {"1": {"any": 0.5, "guess": 0.5}, "10": {"any": 0.9, "guess": 0.8}}},
        "model": {"membership": None},
    }
    reached = strongest(found)
    assert [(r.attacker, r.attack, r.learnt) for r in reached] == [
        ("party", "party, b", True),
        ("colluders", "colluders, a", False),
        ("coordinator", "10 rounds of gradients", True),
    ]


@pytest.mark.parametrize("preset", ["paper", "best", "private", "ranking"])
def test_safer_variants_are_other_configurations_that_show_less(preset: str) -> None:
    config = vf.Config.preset(preset, seed=5)
    variants = safer(config)
    assert config not in variants.values()
    assert all(variant.seed == 5 and variant.split == config.split for variant in variants.values())
    assert ("preset private" in variants) == (preset in ("paper", "best"))
    if preset == "paper":
        assert variants["masks"].masking
        assert (
            "each party's"
            in {row[0]: row[1] for row in who_sees_what(config)}["gradient of public parameters"]
        )
    for variant in variants.values():
        rows = {row[0]: row[1] for row in who_sees_what(variant)}
        assert "each party's" not in rows["gradient of public parameters"]


def test_a_run_of_one_party_cannot_be_audited(tmp_path: Path) -> None:
    parties = vf.split_items(vf.data.synthetic_ratings(users=40, items=20, ratings=400, seed=2), parties=1)
    vf.train(parties, vf.Config.preset("paper", epochs=1, mode="off"), out=tmp_path / "run")
    with pytest.raises(vf.ConfigError, match="needs the parties of a whole federation"):
        audit(tmp_path / "run", 5, 5, True, 1, True)


def test_a_report_holds_the_runs_figures(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report(run, tmp_path / "out")
    text, page = (tmp_path / "out" / "report.md").read_text(), (tmp_path / "out" / "report.html").read_text()
    loaded = vf.Run.load(run)
    assert f"{loaded.metrics['test']['rmse']:.4f}" in text
    for party in loaded.metrics["parties"]:
        assert f"{party['test']['rmse']:.4f}" in text
    assert "protected contributions to a round" in text
    assert "base = " in text
    assert not re.findall(r'(?:src|href)="(?!data:)', page)
    assert "report.html" in capsys.readouterr().out


def test_the_worst_errors_of_a_report_are_the_worst(run: Path) -> None:
    """The first row is the test rating that a loop over all of them finds furthest from its prediction."""
    loaded = vf.Run.load(run)
    table = next(
        b for b in run_document(loaded, "x").blocks if isinstance(b, Table) and "predicted" in b.header
    )
    worst = 0.0
    for prepared, model in zip(loaded.prepared(), loaded.models, strict=True):
        for user, item, rating in zip(
            prepared.test.user, prepared.test.item, prepared.test.rating, strict=True
        ):
            worst = max(worst, abs(float(model.users[user] @ model.items[item]) - float(rating)))
    first = table.rows[0]
    assert abs(float(first[3]) - float(first[4])) == pytest.approx(worst, abs=0.006)
