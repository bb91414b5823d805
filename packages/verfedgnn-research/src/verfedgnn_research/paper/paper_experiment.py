"""The contract of a table or figure of the paper: the trainings it needs and the files it writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verfedgnn_research.experiments.result_tables import comma_separated, markdown, write_text
from verfedgnn_research.experiments.training_cell import Cell, Record

GNNS = ("gcn", "gat", "ggnn")
TITLES = {"ml-1m": "ML-1M", "ml-100k": "ML-100K", "book-crossing": "BookCrossing"}
PARTIES = 10
"""Number of parties. The paper does not give it; this is the default of its authors' code."""

CellResults = Mapping[Cell, Record]


@dataclass(frozen=True)
class PaperScope:
    """How much of an experiment is run."""

    data: tuple[str, ...] = ("ml-1m", "book-crossing")
    seeds: int = 5
    study_seeds: int = 3
    """Number of seeds in figures 2-4."""
    coarse: bool = False
    """Whether figures have fewer points and trainings fewer epochs."""
    authors: bool = False
    """Whether Table 2 has a column of the authors' protocol."""

    @classmethod
    def quick(cls) -> PaperScope:
        """Return a scope for minutes on two cores: ML-100K for ML-1M, one seed, a fifth of the epochs, three points per axis."""
        return cls(("ml-100k", "book-crossing"), 1, 1, coarse=True)

    def cell(
        self,
        data: str,
        method: str,
        gnn: str,
        seed: int,
        settings: Mapping[str, Any] | None = None,
        kind: type[Cell] = Cell,
    ) -> Cell:
        """Return a training of this scope."""
        chosen = dict(settings or {})
        if self.coarse and method not in ("bias", "biased-mf", "best", "private"):
            chosen = {"training.epochs": 10, **chosen}
        return kind((data,), method, gnn, seed, PARTIES, tuple(sorted(chosen.items())))

    def told_seeds(self) -> str:
        """Return the command's `--seeds` option, or nothing if the number of seeds is the default."""
        usual = PaperScope.quick() if self.coarse else PaperScope()
        return (
            ""
            if (self.seeds, self.study_seeds) == (usual.seeds, usual.study_seeds)
            else f" --seeds {self.seeds}"
        )

    def points(self, values: Sequence[float], standard: float) -> tuple[float, ...]:
        """Return the values of a figure's axis: all of them, or the ends and the standard one."""
        return tuple(sorted({values[0], standard, values[-1]})) if self.coarse else tuple(values)


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper."""

    name: str
    title: str
    cells: Callable[[PaperScope], list[Cell]]
    write: Callable[[CellResults, PaperScope, Path], str]
    """Writes all files but the page, from the records that exist, and returns the text of the page."""

    def make(self, records: CellResults, scope: PaperScope, folder: Path) -> Path:
        """Write all files of the experiment from the records of its cells and return the page."""
        text = self.write(records, scope, folder)
        page = folder / f"{self.name}.md"
        options = " --quick" * scope.coarse + " --authors" * (scope.authors and self.name == "table2")
        command = f"verfedgnn paper {self.name}{options}{scope.told_seeds()}"
        wanted = len(set(self.cells(scope)))
        so_far = f"**So far: {len(records)} of {wanted} trainings.**\n\n" if len(records) < wanted else ""
        write_text(page, f"# {self.title}\n\n{so_far}{text.rstrip()}\n\n{provenance(records, command)}\n")
        return page


BySeed = dict[int, float]
"""RMSE by seed, for finished seeds."""


def rmse_by_seed(records: CellResults, cells: Iterable[Cell]) -> BySeed:
    """Return the test RMSE of the finished cells."""
    return {cell.seed: float(records[cell]["test"]["rmse"]) for cell in cells if cell in records}


def paired(ours: BySeed, theirs: BySeed) -> list[tuple[float, float]]:
    """Return both values for every common seed; the same seed means the same split for all methods."""
    return [(ours[seed], theirs[seed]) for seed in sorted(ours) if seed in theirs]


def provenance(records: CellResults, command: str) -> str:
    """Return a paragraph on how a page was made."""
    if not records:
        return f"Made by `{command}`."
    found = list(records.values())

    def all_of(of: Callable[[Record], str]) -> str:
        return ", ".join(sorted({of(record) for record in found}))

    data = all_of(lambda r: f"{r['data'][0]} {r['data_sha256'][:16]}")
    seeds = all_of(lambda r: str(r["seed"]))
    commits = all_of(lambda r: str(r["commit"]))
    devices = all_of(lambda r: f"{r['environment']['device']}, torch {r['environment']['torch']}")
    return (
        f"Made by `{command}` from {len(found)} trainings (`cells.jsonl` has each one's settings, configuration hash and "
        f"figures): data (SHA-256) {data}; seeds {seeds}; commit {commits}; on {devices}."
    )


def write_table(folder: Path, name: str, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Write a table as CSV and return it as Markdown."""
    write_text(folder / f"{name}.csv", comma_separated(header, rows))
    return markdown(header, rows)
