"""The tutorial notebook and the Python guide run, and the notebook reproduces its stored output."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed: it is in the extra dev")
nbformat = pytest.importorskip("nbformat")

ROOT = Path(__file__).parents[2]
DATA = 'vf.read_ratings("synthetic"'
SMALL = "users=200, items=90, ratings=5_000"
NOTEBOOK = ROOT / "examples" / "tutorial.ipynb"


def printed(notebook) -> str:  # type: ignore[no-untyped-def]
    return "".join(
        out.get("text", "")
        for cell in notebook.cells
        for out in cell.get("outputs", [])
        if out.get("name") == "stdout"
    )


def errors(text: str) -> list[float]:
    """Return the RMSEs in printed text."""
    return [float(number) for number in re.findall(r"(?<![\d.])[01]\.\d{3}(?!\d)", text)]


@pytest.mark.usefixtures("warm")
def test_the_tutorial_runs_and_its_results_are_those_stored(tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    stored = printed(notebook)
    nbclient.NotebookClient(
        notebook,
        timeout=300,
        startup_timeout=180,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    ).execute()
    found = printed(notebook)
    assert "overall" in found
    assert found.count("yes") == stored.count("yes") == 4
    assert found.count("passed:") == stored.count("passed:")
    assert errors(found) == pytest.approx(errors(stored), abs=0.003)
    assert len(errors(found)) > 20
    assert NOTEBOOK.stat().st_size < 100_000, "outputs are kept small"


@pytest.mark.usefixtures("warm")
def test_two_data_frames_reach_a_verdict(tmp_path: Path) -> None:
    notebook = nbformat.read(ROOT / "examples" / "two-shops.ipynb", as_version=4)
    nbclient.NotebookClient(
        notebook,
        timeout=300,
        startup_timeout=180,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    ).execute()
    shown = [out["data"] for cell in notebook.cells for out in cell.get("outputs", []) if "data" in out]
    pages = [data["text/html"] for data in shown if 'class="verfedgnn"' in data.get("text/html", "")]
    assert len(pages) == 3, "the check, the lift, and the run that was loaded again"
    assert "trained together" in pages[0]
    for page in pages[1:]:
        assert re.search(r"[Jj]oining", page)
        assert "<svg" in page
    assert "by items there" in pages[1]
    assert (tmp_path / "two-shops.html").is_file()
    assert (tmp_path / "runs" / "two-shops" / "metrics.json").is_file()


def test_the_python_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With three rounds instead of those in the guide, and with less data."""
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "docs" / "python.md").read_text("utf-8"), re.S | re.M
    )
    names: dict[str, object] = {"__name__": "guide"}
    for block in blocks:
        shorter = re.sub(r"\bepochs=\d+", "epochs=3", block).replace(DATA, f"{DATA}, {SMALL}")
        exec(compile(shorter, "docs/python.md", "exec"), names)
    assert len(blocks) >= 6
    assert sum(DATA in block for block in blocks) == 1
    assert (tmp_path / "runs" / "film" / "metrics.json").is_file()


def test_the_example_of_the_readme_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text("utf-8"), re.S | re.M)
    exec(compile(block, "README.md", "exec"), {"__name__": "readme"})
    assert capsys.readouterr().out.splitlines() == re.findall(r"^# (.*)$", block, re.M)
