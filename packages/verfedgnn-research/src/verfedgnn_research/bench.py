"""Measured trainings: the rounds, bytes, CPU seconds, RMSE and NDCG@20 that a configuration takes and reaches.

A data set is anything that `train --data` reads, or one of `names.CASES`, which are divided among parties in a fixed way.
All trainings are kept in one JSON file, from which the table is made.
"""

from __future__ import annotations

import json
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from verfedgnn.config import Config
from verfedgnn.core.errors import ConfigError
from verfedgnn.evaluation.verdict import judged_tables
from verfedgnn.runs.metrics_file import describe_environment
from verfedgnn.runs.run import Run
from verfedgnn.training.train import train
from verfedgnn_research.baselines import Where
from verfedgnn_research.experiments.result_tables import markdown, mean_std, write_text
from verfedgnn_research.experiments.training_cell import Record, commit, read_case

HEADER = ("data", "seeds", "RMSE", "rounds", "NDCG@20", "rounds of lists", "MB a party", "CPU seconds")


@dataclass(frozen=True)
class Measurement:
    """One training to be measured."""

    data: str
    """What `train --data` reads, or one of `names.CASES`."""
    config: Config
    parties: int | None = None

    @property
    def name(self) -> str:
        """Name for progress lines."""
        return f"{self.data}, seed {self.config.seed}"

    def key(self) -> Record:
        """Return what identifies the training, without the code."""
        fingerprint = self.config.fingerprint()
        key = {"data": self.data, "split_into": self.parties, "seed": self.config.seed}
        return {**key, "config": fingerprint}

    def run(self, where: Where) -> Record:
        """Train, and return what was reached and what it cost."""
        data = read_case(self.data, self.config.seed, self.parties)
        began, started = time.process_time(), time.perf_counter()
        run = train(data, self.config, device=where.device, watch=where.watch, stop=where.stop)
        record = {
            **self.key(),
            "cpu_seconds": round(time.process_time() - began, 2),
            "wall_seconds": round(time.perf_counter() - started, 1),
            "parties": len(data),
            "users": data[0].ratings.n_users,
            "items": sum(party.ratings.n_items for party in data),
            "all_ratings": sum(len(party.ratings) for party in data),
            "commit": commit(),
            "environment": describe_environment(where.device),
            "ratings": _figures(run.judged),
            "final": run.metrics.get("final"),
            "lift": run.metrics.get("lift"),
        }
        return record | ({} if run.judged.lists is None else {"lists": _figures(run.judged.lists)})


def _figures(run: Run) -> Record:
    """Return the served accuracy, the rounds and the bytes of one training."""
    metrics = run.metrics
    traffic = metrics["bytes"]["up"] + metrics["bytes"]["down"]
    return {
        "test": metrics["test"],
        "valid": metrics["valid"],
        "rounds": metrics["rounds"],
        "best_round": metrics["best_round"],
        "bytes_per_party": round(traffic / len(run.parties)),
    }


class BenchFile:
    """The measured trainings, in one JSON file. A training at another commit is measured again and replaced."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records = read_records(path)

    def _find(self, job: Measurement) -> Record | None:
        return next((each for each in self.records if job.key().items() <= each.items()), None)

    def finished(self, job: Measurement) -> Record | None:
        """Return the record of a training at this commit, or None."""
        record = self._find(job)
        return record if record is not None and record["commit"] == commit() else None

    def put(self, job: Measurement, record: Record) -> None:
        """Keep the record of a training, in the file at once."""
        before = self._find(job)
        self.records = [each for each in self.records if each is not before] + [record]
        write_text(self.path, json.dumps(self.records, indent=1) + "\n")


def read_records(path: Path) -> list[Record]:
    """Return the trainings of a file, none if there is no file."""
    if not path.exists():
        return []
    try:
        found: list[Record] = json.loads(path.read_text("utf-8"))
    except ValueError:
        raise ConfigError(f"{path} is not a file of `verfedgnn bench`; choose another --out") from None
    return found


def bench_rows(records: Sequence[Record]) -> list[list[str]]:
    """Return a row per data set: means and standard deviations over seeds, in the columns of `HEADER`."""
    rows = []
    for name in dict.fromkeys(record["data"] for record in records):
        chosen = [record for record in records if record["data"] == name]
        lists = [record["lists"] for record in chosen if "lists" in record]
        traffic = [
            sum(record[part]["bytes_per_party"] for part in ("ratings", "lists") if part in record)
            for record in chosen
        ]
        rows.append(
            [
                name,
                ", ".join(str(record["seed"]) for record in chosen),
                mean_std(record["ratings"]["test"]["rmse"] for record in chosen),
                _mean(record["ratings"]["rounds"] for record in chosen),
                mean_std(each["test"]["ndcg@20"] for each in lists or [r["ratings"] for r in chosen]),
                _mean(each["rounds"] for each in lists) if lists else "-",
                f"{statistics.mean(traffic) / 1e6:.1f}",
                _mean(record["cpu_seconds"] for record in chosen),
            ]
        )
    return rows


LIFT_HEADER = [
    "data",
    "of",
    "customers",
    "without",
    "with",
    "shared means",
    "gain by seed",
    "words of the parties",
]


def lift_rows(records: Sequence[Record]) -> list[list[str]]:
    """Return a row for each data set and table of its lift: means over seeds for all parties, and how often each word was said."""
    rows = []
    for name in dict.fromkeys(record["data"] for record in records):
        lifts = [record["lift"] for record in records if record["data"] == name and record["lift"]]
        for tables in zip(*(judged_tables(lift) for lift in lifts), strict=True):
            customers, first = tables[0]
            stars = first["metric"] == "rmse"
            overall = [table["overall"] for _, table in tables if table["overall"]["gain"]]
            if not overall:
                continue
            words = Counter(row["pays"] for _, table in tables for row in table["parties"])
            scale, digits = (1, 4) if stars else (100, 1)
            before, after = (
                statistics.mean(
                    scale * row[row["reference"] if way == "before" else "federated"] for row in overall
                )
                for way in ("before", "after")
            )
            means = [row["means"] for row in overall if "means" in row]
            gains = [row["gain"]["percent" if stars else "value"] * (1 if stars else 100) for row in overall]
            rows.append(
                [
                    name,
                    "stars (RMSE)" if stars else "lists (of 100)",
                    customers,
                    f"{before:.{digits}f}",
                    f"{after:.{digits}f}",
                    f"{statistics.mean(means):.4f}" if means else "-",
                    ", ".join(f"{gain:+.1f}" for gain in gains) + (" %" if stars else ""),
                    ", ".join(f"{count} {word}" for word, count in words.most_common()),
                ]
            )
    return rows


def _mean(values: Iterable[float]) -> str:
    return f"{statistics.mean(values):,.0f}"


def bench_page(records: Sequence[Record], command: str) -> str:
    """Return the table as Markdown, with the command that made it."""
    commits = ", ".join(sorted({str(record["commit"]) for record in records}))
    devices = ", ".join(sorted({record["environment"]["device"] for record in records}))
    lines = [
        "# Cost and accuracy of trainings",
        "",
        f"`{command}`, commit {commits}, on {devices}.",
        "Test part; mean ± standard deviation over seeds. RMSE and NDCG@20 are those of what parties serve. MB are one",
        "party's, both directions. CPU seconds are those of all parties and the coordinator together, with the choice of",
        "what each party serves.",
        "",
    ]
    joined = f"\n\n## What joining gains\n{markdown(LIFT_HEADER, lift_rows(records))}"
    return "\n".join(lines) + "\n" + markdown(HEADER, bench_rows(records)) + joined
