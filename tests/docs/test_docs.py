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


def test_links_lead_somewhere() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "results").glob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text("utf-8")):
            assert "://" in target or (page.parent / target).exists(), f"{page.name}: {target}"
