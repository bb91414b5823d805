"""Tests and files that the documentation names exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_fault_has_its_test() -> None:
    rows = [
        line
        for line in (ROOT / "docs" / "faults.md").read_text("utf-8").splitlines()
        if line.startswith("| ") and not line.startswith("| fault |")
    ]
    tests = "".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    assert len(rows) > 20
    for row in rows:
        named = re.findall(r"`(test_\w+|tests/[\w/]+\.py)`", row.rsplit("|", 2)[1])
        assert named or row.startswith("| ..."), row
        for name in named:
            assert (ROOT / name).is_file() if name.startswith("tests/") else f"def {name}(" in tests, name


def test_every_promise_names_its_tests() -> None:
    """Each cell of the table in docs/privacy.md has tests that exist, says what does not hold, or is a dash."""
    page = (ROOT / "docs" / "privacy.md").read_text("utf-8")
    section = page.split("\n## What holds against whom\n", 1)[1].split("\n## ", 1)[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| ")]
    tests = "".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    assert len(rows) > 8
    for head, *cells in rows[1:]:
        assert len(cells) == len(rows[0]) - 1, head
        for role, cell in zip(rows[0][1:], cells, strict=True):
            named = re.findall(r"`(test_\w+)`", cell)
            assert named or cell.strip() == "–" or cell.strip().lower().startswith("no"), (head, role)
            assert [name for name in named if f"def {name}(" not in tests] == [], (head, role)


def test_links_lead_somewhere() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "results").glob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text("utf-8")):
            assert "://" in target or (page.parent / target).exists(), f"{page.name}: {target}"
