"""The aims of the bench next to what was measured: the first table of a full report."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from verfedgnn.reports.document import Block, Paragraph, Table
from verfedgnn.research.bench import growth
from verfedgnn.research.bench.bench_suite import Figures

Found = Mapping[str, Figures]


@dataclass(frozen=True)
class Aim:
    """A figure that should be at most `most`."""

    what: str
    unit: str
    most: float
    measured: Callable[[Found], float]
    """Computes the figure from all figures; raises KeyError if some are missing."""
    remark: Callable[[Found], str] = lambda _: ""
    """Returns a remark from the same figures."""

    def row(self, found: Found) -> list[str] | None:
        """Return the row of the table, or None if nothing was measured."""
        try:
            value = self.measured(found)
        except KeyError:
            return None
        asked, have = (self._text(number) for number in (self.most, value))
        return [self.what, asked, f"{have}{self.remark(found)}", "yes" if value <= self.most else "**no**"]

    def _text(self, number: float) -> str:
        if math.isinf(number):
            return "not reached"
        digits = 0 if number == int(number) else 2 if number < 10 else 1
        return f"{number:,.{digits}f}{self.unit}"


def _exponents(name: str) -> Callable[[Found], float]:
    def measured(found: Found) -> float:
        at = growth.series(found, "users")
        if len(at) < 2:
            raise KeyError(name)
        return growth.exponent([size for size, _ in at], [values[name] for _, values in at])

    return measured


def _parties_on_gpu(found: Found) -> float:
    seconds = found["gpu-yelp"]["seconds"]
    return float(seconds["parties"] + seconds["messages"])


def _whole_round(found: Found) -> str:
    return (
        f", messages packed and unpacked; {found['gpu-yelp']['seconds']['round']:.2f} s with the coordinator"
    )


def _share_of_bytes(found: Found) -> float:
    return float(100 * found["curve-best-ggnn-lean"]["bytes"] / found["curve-paper-gcn"]["bytes"])


def _rmse_of_lean(found: Found) -> str:
    names = {"lean": "best-ggnn-lean", "preset best with GCN": "best-gcn", "with GGNN": "best-ggnn"}
    told = {title: found.get(f"curve-{name}", {}).get("test_rmse") for title, name in names.items()}
    return f" (test RMSE: {', '.join(f'{title} {rmse:.4f}' for title, rmse in told.items() if rmse is not None)}; one seed)"


def _times_cornac(found: Found, ours: str = "quick") -> float:
    at, theirs = (found[name]["reached"]["0.9152"] for name in (f"peer-ours-{ours}", "peer-cornac"))
    return float(at["cpu"] / theirs["cpu"]) if at and theirs else math.inf


def _others_than_quick(found: Found) -> str:
    others = [
        f"{name} {_times_cornac(found, name):.1f}"
        for name in ("best", "lean")
        if f"peer-ours-{name}" in found
    ]
    return f" (settings *quick*{''.join(f'; {each}' for each in others)})"


def _aims() -> Iterator[Aim]:
    yield Aim("Yelp: a party's round, wall", " s", 18, lambda f: float(f["yelp"]["party"]["wall"]))
    yield Aim("Yelp: a party's memory", " GB", 4, lambda f: f["yelp"]["party"]["memory"] / 1e9)
    yield Aim("Yelp: the coordinator, wall", " s", 5, lambda f: float(f["yelp"]["coordinator"]["wall"]))
    yield Aim(
        "Yelp: bytes a party and round", " MB", 66, lambda f: f["yelp"]["bytes"]["per_party_per_round"] / 1e6
    )
    yield Aim(
        "the same, 1/20 of the users",
        " MB",
        4,
        lambda f: f["yelp-twentieth"]["bytes"]["per_party_per_round"] / 1e6,
    )
    yield Aim("Yelp on one GPU: all parties' rounds", " s", 2, _parties_on_gpu, _whole_round)
    for name in ("party CPU", "coordinator CPU", "memory", "bytes"):
        yield Aim(f"exponent in users: {name}", "", 1.1, _exponents(name))
    yield Aim("ML-1M: bytes in all, of those of preset paper", " %", 10, _share_of_bytes, _rmse_of_lean)
    yield Aim("ML-1M: CPU time to 0.9152, of Cornac's", " times", 30, _times_cornac, _others_than_quick)
    yield Aim(
        "ML-1M: a round, of its bare kernels",
        " times",
        1.5,
        lambda f: f["round"]["round"]["cpu"] / f["round"]["floor"]["cpu"],
    )
    yield Aim(
        "Yelp: the same",
        " times",
        1.5,
        lambda f: f["yelp"]["party"]["cpu"] / f["yelp"]["party"]["floor"]["cpu"],
    )


def aims(found: Found) -> list[Block]:
    """Return a table of all aims for which something was measured."""
    rows = [row for aim in _aims() if (row := aim.row(found)) is not None]
    if not rows:
        return []
    return [
        Table(["aim", "at most", "measured", "reached"], rows),
        Paragraph("The sections below explain each measurement."),
    ]
