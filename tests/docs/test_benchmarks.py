"""Benchmark scripts are not run by the suite, so their imports are checked here."""

import ast
import importlib
import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import attack_numbers
import result_tables
from verfedgnn.config import Config
from verfedgnn.core.errors import RunError

SCRIPTS = sorted((Path(__file__).parents[2] / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_benchmark_imports_what_the_package_has(script: Path) -> None:
    for node in ast.walk(ast.parse(script.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("verfedgnn"):
            module = importlib.import_module(node.module or "")
            for name in node.names:
                if not hasattr(module, name.name):
                    importlib.import_module(f"{node.module}.{name.name}")


# -- the page that decides ---------------------------------------------------------------------------


@pytest.fixture
def page() -> ModuleType:
    """benchmarks/decision_page.py as a module."""
    (path,) = (script for script in SCRIPTS if script.stem == "decision_page")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cell(method: str, valid: float, test: float, seed: int = 0) -> dict[str, Any]:
    """A record of compare with one figure for lists of newcomers."""
    figures = {
        part: {"newcomers": {"hitrate@20": value, "ndcg@20": value}, "known": {}}
        for part, value in (("valid", valid), ("test", test))
    }
    return {"method": method, "seed": seed, "commit": "abc", "customers": figures}


def test_the_best_simple_method_is_chosen_on_the_validation_part(page: ModuleType) -> None:
    """EASE has the better test figure, and ItemKNN the better validation figure: ItemKNN is shown."""
    cells = [cell("itemknn", 0.4, 0.3), cell("ease", 0.3, 0.5), cell("popularity-alone", 0.1, 0.1)]
    cells += [
        cell("pipeline", 0.5, 0.6),
        cell("pipeline-alone", 0.1, 0.2),
        cell("best-gated", 0.4, 0.5),
    ]
    ((name, question, alone, *ways, pooled, share),) = page.compared_rows({"amazon": cells})
    assert (name, question) == (page.TITLES["amazon"], "lists, new customers")
    assert alone == "10.0 (Popularity)"
    assert ways == ["20.0", "50.0", "**60.0**"]
    assert pooled == "30.0 (ItemKNN)"
    assert share == "75%"
    assert page.newcomer_rows({"amazon": cells})[0][2] == "50.0 / 0.500"
    assert page.better_than_federated({"amazon": cells}) == "Pipeline of preset best (amazon)"


def test_methods_are_compared_on_seeds_that_all_have(page: ModuleType) -> None:
    cells = [cell("ease", 0, 0.2), cell("ease", 0, 0.8, seed=1), cell("itemknn", 0, 0.3)]
    assert page.figures(cells, "test", "newcomers", "ndcg@20") == {"ease": 0.2, "itemknn": 0.3}


def test_an_interval_over_seeds_by_hand(page: ModuleType) -> None:
    """Deviation 1, three seeds: 4.303 / sqrt(3) = 2.48."""
    assert page.over_seeds([1.0, 2.0, 3.0], 2) == "+2.00 ± 2.48"
    assert page.over_seeds([-1.0]) == "-1.0"


def test_the_rows_of_all_data_weigh_data_sets_equally(page: ModuleType) -> None:
    page.tables = lambda gain, metric, customers: [{"overall": {"gain": {"value": gain, "percent": gain}}}]
    mean, new = page.all_data_rows({"amazon": [0.01], "genre": [0.02, 0.04, 0.03], "ml-1m": [0.02]})
    assert mean[:1] + mean[5:8] == ["all data", "+2.0 ± 2.5", "+2.0 ± 2.5", "+0.0 ± 0.0 %"]
    assert new[0] == "one training on new data"
    assert new[5] == page.expected([[1.0], [2.0, 4.0, 3.0], [2.0]])
    assert new[7] == page.expected([[0.01], [0.02, 0.04, 0.03], [0.02]], " %")


def test_what_to_expect_of_new_data_by_hand(page: ModuleType) -> None:
    """Means 1, 2 and 3 have variance 1, and a new mean 1 + 1/3: 4.303 sqrt(4/3) = 4.97. Two seeds of variance 2 add 1: 6.57."""
    assert page.expected([[1.0], [2.0], [3.0]]) == "-3.0 to +7.0 (seen +1.0 to +3.0)"
    assert page.expected([[0.0, 2.0], [1.0, 3.0], [2.0, 4.0]]) == "-4.6 to +8.6 (seen +0.0 to +4.0)"
    assert page.expected([[1.0], [2.0]]) == "–"


def test_a_training_that_is_recorded_twice_makes_no_page(page: ModuleType, tmp_path: Path) -> None:
    for name in ("best.json", "best-amazon.json"):
        (tmp_path / name).write_text('[{"data": "amazon", "seed": 0, "commit": "a"}]')
    page.PROOF = tmp_path
    with pytest.raises(RunError, match=r"\('amazon', 0\) twice"):
        page.read_proof()


@pytest.mark.parametrize("commits", [["a", "b"], ["a+"], [None]])
def test_records_of_several_or_changed_commits_make_no_page(
    page: ModuleType, commits: list[str | None]
) -> None:
    with pytest.raises(RunError, match="measure all of them at one clean commit"):
        page.one_commit("bench", [{"commit": commit} for commit in commits])
    assert page.one_commit("bench", [{"commit": "a"}, {"commit": "a"}]) == "a"


def test_the_page_says_which_pooled_pipeline_was_measured(page: ModuleType) -> None:
    cells = [cell("pipeline", 0.5, 0.6), cell("pipeline-alone", 0.1, 0.2), cell("best-gated", 0.4, 0.5)]
    cells += [cell("popularity", 0.1, 0.1), cell("popularity-alone", 0.1, 0.1)]
    assert "one mixture for all customers" in page.page([], {"amazon": cells})
    text = page.page([], {"amazon": [record | {"version": 2} for record in cells]})
    assert "as the gate of a\nfederation does" in text


def test_attacks_of_another_commit_are_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def attack(case: str, seed: int, variant: str, values: object, found: dict[str, Any]) -> None:
        found.setdefault(variant, []).append(seed)

    monkeypatch.setattr(attack_numbers, "RESULTS", tmp_path)
    monkeypatch.setattr(attack_numbers, "attack", attack)
    monkeypatch.setattr("sys.argv", ["attack_numbers.py", "--cases", "ciao-any", "--seeds", "0"])
    for commit, seeds in (("one", [0]), ("one", [0, 0]), ("two", [0])):
        monkeypatch.setattr(attack_numbers, "commit", lambda commit=commit: commit)
        attack_numbers.main()
        found = json.loads((tmp_path / "ciao-any.json").read_text())
        assert found == {"commit": commit, "default": seeds}


def test_a_failed_attack_makes_no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_tables, "read", lambda name: {"default": {"lists": {"0": {"failed": "x"}}}})
    assert result_tables.attacked("douban", "ratings") == []
    with pytest.raises(RunError, match="has a failed attack of default, lists"):
        result_tables.attacked("douban", "lists")


def test_numbers_about_a_user_by_hand(page: ModuleType) -> None:
    """20 ratings a user: 16 + 1 numbers a round of ratings and 64 of lists; with 63, the second model adds 3 · 64 + 1."""
    record = {"users": 10, "parties": 3, "all_ratings": 200, "final": None, "lift": {"metric": "rmse"}}
    record |= {"ratings": {"rounds": 3}, "lists": {"rounds": 2}}
    page.judged_tables = lambda lift: [("known", {"metric": "rmse"})]
    assert page.numbers_per_user(record) == 2 + 2 * 17 + 1 + 64
    record["all_ratings"] = 630
    assert page.numbers_per_user(record) == 2 + 2 * (17 + 193) + 1 + 64
    record["parties"] = 2  # whose second model is short
    assert page.numbers_per_user(record) == 2 + 2 * (17 + 49) + 1 + 64


def test_docs_say_how_many_numbers_about_a_user_leave_a_party(page: ModuleType) -> None:
    """The most rounds of docs/model.md with few and with many ratings a user; preset private has 40 rounds of D + 1."""
    most = []
    for ratings in (5, 50):
        record = {"users": 10, "parties": 3, "all_ratings": 10 * ratings, "lift": {}}
        record |= {"ratings": {"rounds": 30}, "lists": {"rounds": 22}}
        record["final"] = {"rounds": 15, "lists": {"rounds": 6}}
        page.judged_tables = lambda lift: [("known", {"metric": "rmse"})]
        most.append(page.numbers_per_user(record))
    private = Config.preset("private")
    text = (page.ROOT / "docs" / "privacy.md").read_text("utf-8")
    assert f"at most {most[0]:,} to {most[1]:,}, by ratings a user" in text
    assert f"{private.training.epochs * (private.model.dim + 1)}, all with noise" in text
