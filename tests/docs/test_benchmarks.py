"""Benchmark scripts are not run by the suite, so their imports are checked here, and one that speaks the protocol itself."""

import ast
import importlib
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parents[2] / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_benchmark_imports_what_the_package_has(script: Path) -> None:
    for node in ast.walk(ast.parse(script.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("verfedgnn"):
            module = importlib.import_module(node.module or "")
            for name in node.names:
                if not hasattr(module, name.name):
                    importlib.import_module(f"{node.module}.{name.name}")


@pytest.mark.usefixtures("warm")
def test_the_cost_of_overlap_is_measured_with_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The script runs rounds of its own, which have to follow the protocol of masked sums."""
    monkeypatch.syspath_prepend(SCRIPTS[0].parent)
    script = importlib.import_module("overlap_numbers")
    monkeypatch.setattr(script, "WARM_ROUNDS", 1)
    figures = script.measure_cost(10, 1, 800)
    assert figures["masked"]
    assert figures["bytes"]["up"] > 0
    assert figures["party"]["cpu_mean"] > 0
