"""docs/architecture.md agrees with the code: rooms with the import contracts, equations and files with the modules."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

import check_prose

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "verfedgnn"
PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
CONTRACTS = {
    contract["id"]: contract
    for contract in tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
}


def find_module(name: str) -> Path | None:
    """Return the file of a path below src/verfedgnn, below the sources of another package, or below the repository."""
    places = (PACKAGE, *ROOT.glob("packages/*/src"), ROOT)
    return next((place / name for place in places if (place / name).exists()), None)


def table(heading: str, page: str = PAGE, nth: int = 0) -> list[list[str]]:
    """Return the rows of a table below a heading, without its head."""
    section = re.split(r"^## ", page.split(f"\n## {heading}\n", 1)[1], flags=re.MULTILINE)[0]
    tables = re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in tables[nth].splitlines()]
    return rows[2:]


def names(cell: str) -> list[str]:
    """Return what a cell has in backticks."""
    return [name.rstrip("/") for name in re.findall(r"`([^`]+)`", cell)]


def layers(contract: str) -> list[list[str]]:
    """Return the layers of a contract, lowest first, without the package's name."""
    return [
        [name.strip().removeprefix("verfedgnn.") for name in layer.split("|")]
        for layer in reversed(CONTRACTS[contract]["layers"])
    ]


def allowed_by_contract() -> dict[str, set[str]]:
    """Return, by room, the rooms that import-linter lets it import."""
    below: set[str] = set()
    allowed = {}
    for layer in layers("rooms")[:-1]:  # the last one holds the other packages
        allowed |= {room: set(below) for room in layer}
        below |= set(layer)
    return allowed


def allowed_by_table(rows: list[list[str]]) -> dict[str, set[str]]:
    """Return, by room, the rooms that the table lets it import: "–", "all above", or "all above but `x`"."""
    above: list[str] = []
    allowed = {}
    for room_cell, _, may in rows:
        (room,) = names(room_cell)
        assert may == "–" or may == "all above" or may.startswith("all above but `"), may
        allowed[room] = set() if may == "–" else set(above) - set(names(may))
        above.append(room)
    return allowed


def test_the_rooms_are_those_of_the_contract() -> None:
    assert allowed_by_table(table("Rooms")) == allowed_by_contract()


def test_every_folder_of_the_package_is_a_room() -> None:
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert folders == set(allowed_by_contract())


def test_the_order_within_rooms_is_that_of_the_contracts() -> None:
    for room_cell, order in table("Rooms", nth=1):
        (room,) = names(room_cell)
        assert [set(names(part)) for part in order.split("→")] == [set(layer) for layer in layers(room)]


def test_a_different_table_is_noticed() -> None:
    rows = table("Rooms")
    assert allowed_by_table(rows[:-1]) != allowed_by_contract(), "a missing room"
    changed = [[*row[:2], "all above"] for row in rows]
    assert allowed_by_table(changed) != allowed_by_contract(), "another 'may import'"


@pytest.mark.parametrize("row", table("Rooms"), ids=lambda row: names(row[0])[0])
def test_files_named_in_a_room_exist(row: list[str]) -> None:
    room = PACKAGE / names(row[0])[0]
    missing = [name for name in names(row[1]) if not (room / name).exists()]
    assert missing == []


def defined(module: Path) -> set[str]:
    """Return the functions, classes and methods of a module, methods as `Class.method`."""
    found = set()
    for node in ast.parse(module.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{one.name}" for one in node.body if isinstance(one, ast.FunctionDef)}
    return found


@pytest.mark.parametrize(
    "row",
    [
        *table("Where is equation ...?"),
        *table("One training, from command to metrics.json"),
        *table("One round"),
    ],
    ids=lambda row: row[0][:30],
)
def test_code_is_where_the_tables_say(row: list[str]) -> None:
    module: Path | None = None
    checked = 0
    for name in names(row[1]):
        if name.endswith(".py"):
            module = find_module(name)
            assert module is not None, name
        else:
            assert module is not None, name
            assert name in defined(module), f"{module.name} has no {name}"
            checked += 1
    assert checked, "every row names a function or a class"


@cache
def defined_anywhere() -> set[str]:
    """Return the functions, classes and methods of all modules."""
    modules = [*PACKAGE.rglob("*.py"), *ROOT.glob("packages/*/src/**/*.py")]
    return set().union(*(defined(path) for path in modules))


def pages_that_name_modules() -> list[Path]:
    return [path for path in check_prose.pages() if path.parent != ROOT / "results"]


@pytest.mark.parametrize("page", pages_that_name_modules(), ids=lambda page: page.name)
def test_modules_named_in_a_page_exist(page: Path) -> None:
    """A path such as `gnn/gcn.py` is found by `find_module`."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    paths = re.findall(r"`((?:[\w-]+/)+[\w-]+\.py)`", text)
    missing = [name for name in paths if find_module(name) is None]
    assert missing == []
    classes = re.findall(r"\b(Coordinator|Party|Operator|Replica)\.(\w+)\b", text)
    assert [f"{owner}.{name}" for owner, name in classes if f"{owner}.{name}" not in defined_anywhere()] == []
