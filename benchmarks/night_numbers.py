"""Measure nights that continue a run, against trainings of the same ratings from nothing.

    VERFEDGNN_DATA=... .venv/bin/python benchmarks/night_numbers.py --data ml-1m --seed 0 --night 3
    VERFEDGNN_DATA=... .venv/bin/python benchmarks/night_numbers.py --whole lean --data ml-100k --night 3
    .venv/bin/python benchmarks/night_numbers.py --table                    # the tables and the picture of results/life.md

The first run has the first 70 % of the ratings. Each of six nights adds 5 % and continues from the night before. The order of the
ratings is that of their times; where they have none, it is drawn with seed 0. ML-1M and ML-100K are cut into five random parties, the
other data sets are their publishers' parties. Preset best without lists. `--night K` trains the nights up to K, and the ratings of
night K from nothing. `--whole PRESET` trains a whole preset instead, with its lists, and
compares what is served at the end. Each call is one process with one thread, so several can run at the same time; it writes
results/life/nights/DATA-SEED-K.json step by step.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pays_numbers import read_case
from verfedgnn.config import Config
from verfedgnn.core.process_memory import keep_freed_memory
from verfedgnn.data import PartyData, Ratings, align_users, read_ratings, split_items
from verfedgnn.research.bench.measure import machine
from verfedgnn.research.experiments.training_cell import commit
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.runs.prepared_data import Prepared, prepare
from verfedgnn.runs.run import Run
from verfedgnn.training.party_gate import gate_party, train_own
from verfedgnn.training.train import train

RESULTS = Path(__file__).resolve().parent.parent / "results"
FOLDER = RESULTS / "life" / "nights"
DATA = ("ml-1m", "ml-100k", "amazon", "ciao-any", "book-crossing")
NAMES = {
    "ml-1m": "ML-1M, five parties, by time",
    "ml-100k": "ML-100K, five parties, by time",
    "amazon": "Amazon, two shops",
    "ciao-any": "Ciao, four categories",
    "book-crossing": "BookCrossing, ten parties",
}
CUT = {"ml-1m": 5, "ml-100k": 5}
"""Random parties that a data set is cut into here; the others are read as for results/lift.md."""
FIRST = 0.7
"""Share of the ratings of the first run before the nights."""
NIGHTS = 6
SHOWN = (1, 3, 6)
"""Nights of the table of all data sets."""
WAYS = {
    "night": None,
    "one read": 1,
    "two reads": 2,
    "eight reads": 8,
    "full": 1,
    "full, four reads": 4,
}
"""Reads of the second model in a round; None for those of `Config.for_night`. The last two start from nothing."""
FULL = ("full", "full, four reads")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", choices=DATA, default="ml-1m")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--night", type=int, choices=range(1, NIGHTS + 1), default=1)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=["full", "night", "one read"])
    parser.add_argument("--whole", metavar="PRESET", help="measure a whole preset, with its lists")
    parser.add_argument("--model", default="gcn", help="GNN of --whole")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the records")
    parser.add_argument("--table", action="store_true", help="print the tables and draw the picture")
    chosen = parser.parse_args()
    if chosen.table:
        print(write_tables(chosen.out))
        return
    torch.set_num_threads(1)
    keep_freed_memory()
    chosen.out.mkdir(parents=True, exist_ok=True)
    if chosen.whole:
        measure_whole(chosen)
    else:
        measure(chosen)


def measure(chosen: argparse.Namespace) -> None:
    """Train one night in each of the chosen ways, and write the figures step by step."""
    path = chosen.out / f"{chosen.data}-{chosen.seed}-{chosen.night}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"ways": {}}
    days = read_days(chosen.data)[: chosen.night + 1]
    config = Config.preset("best", seed=chosen.seed, gate=False, lists=False).for_parties(len(days[0]))
    found["ratings"] = [sum(len(party.ratings) for party in parties) for parties in days]
    device = torch.device(chosen.device)
    prepared = prepare(days[-1], config, device)
    alone = train_all_alone(prepared, config)
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / "first"
        if not set(chosen.ways) <= set(FULL):
            train(days[0], config, out=base, device=device)
        for way in chosen.ways:
            began = time.process_time()
            if way in FULL:
                run = train(days[-1], config.with_values({"reads": WAYS[way]}), device=device)
            else:
                nightly = config.for_night()
                if WAYS[way] is not None:
                    nightly = nightly.with_values({"reads": WAYS[way]})
                before = base
                for night, parties in enumerate(days[1:], 1):
                    out = Path(folder) / f"{way}-{night}"
                    began = time.process_time()
                    run = train(parties, nightly, out=out, start_from=before, device=device)
                    before = out
            found["ways"][way] = {
                "rounds": run.metrics["rounds"],
                "bytes": run.ledger.total(),
                "cpu_seconds": time.process_time() - began,
                "federated": {part: run.metrics[part]["rmse"] for part in ("valid", "test")},
                "served": measure_served(run, alone, prepared),
                "curve": [[entry["round"], round(entry["valid_rmse"], 5)] for entry in run.history],
                "machine": machine(),
                "commit": commit(),
            }
            path.write_text(json.dumps(found, indent=1) + "\n")


def measure_whole(chosen: argparse.Namespace) -> None:
    """Train nights up to one with a whole preset, and its ratings from nothing; write the figures of what is served."""
    name = f"{chosen.whole}-{chosen.model}-{chosen.data}-{chosen.seed}-{chosen.night}"
    path = chosen.out / "whole" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    days = read_days(chosen.data)[: chosen.night + 1]
    if chosen.whole == "private":  # sizes must not be found in the ratings
        days = [[declared(party) for party in parties] for parties in days]
    config = Config.preset(chosen.whole, model=chosen.model, seed=chosen.seed).for_parties(len(days[0]))
    with tempfile.TemporaryDirectory() as folder:
        before = Path(folder) / "first"
        train(days[0], config, out=before, device=chosen.device)
        for night, parties in enumerate(days[1:], 1):
            out = Path(folder) / f"night-{night}"
            last = train(parties, out=out, start_from=before, device=chosen.device)
            before = out
        full = train(days[-1], config, device=chosen.device)
    found = {way: summarise(run) for way, run in (("night", last), ("full", full))}
    path.write_text(json.dumps({**found, "machine": machine(), "commit": commit()}, indent=1) + "\n")


def declared(party: PartyData) -> PartyData:
    """Return a party whose rating scale and catalogue are declared, as preset private needs it."""
    table = replace(party.ratings, scale_declared=True, catalogue=10_000)
    return PartyData(party.name, table)


def summarise(run: Run) -> dict[str, Any]:
    """Return the accuracy, the rounds and the bytes of all trainings of a run."""
    stages = [run.metrics] + ([run.metrics["lists"]] if "lists" in run.metrics else [])
    return {
        "valid": run.metrics["valid"],
        "test": run.metrics["test"],
        "rounds": sum(stage["rounds"] for stage in stages),
        "bytes": sum(stage["bytes"][way] for stage in stages for way in ("up", "down")),
        "epsilon": run.metrics["privacy"]["gradients"].get("composed", {}).get("epsilon"),
    }


def read_days(data: str) -> list[list[PartyData]]:
    """Return the parties of the first run and of each night after it."""
    parties = split_items(read_ratings(data), CUT[data]) if data in CUT else read_case(data, 0)
    order = arrival_order([party.ratings for party in parties])
    cuts = np.quantile(np.concatenate(order), np.linspace(FIRST, 1, NIGHTS + 1))
    return [
        align_users([take_earlier(party, when <= cut) for party, when in zip(parties, order, strict=True)])
        for cut in cuts
    ]


def arrival_order(tables: Sequence[Ratings]) -> list[NDArray[Any]]:
    """Return a number for each rating of each table that says when it came: its time, or a drawn number."""
    rng = np.random.default_rng(0)
    return [rng.random(len(table)) if table.time is None else table.time for table in tables]


def take_earlier(party: PartyData, earlier: NDArray[np.bool_]) -> PartyData:
    """Return a party with some of its ratings, and the users and items that they are about."""
    table = party.ratings.take(earlier)
    table = table.select_users(np.unique(table.user))
    return PartyData(party.name, table.select_items(np.unique(table.item)))


def train_all_alone(prepared: Sequence[Prepared], config: Config) -> list[dict[str, PartyModel]]:
    """Return each party's own models by name. They cost no message."""
    return [train_own(each, config) for each in prepared]


def measure_served(
    run: Run, alone: Sequence[dict[str, PartyModel]], prepared: Sequence[Prepared]
) -> dict[str, float]:
    """Return the RMSE of the mixtures that parties serve."""
    gated = [
        gate_party(party, federated, own, means, run.config).served.model
        for party, federated, own, means in zip(prepared, run.models, alone, run.others_means, strict=True)
    ]
    found = {}
    for part in ("valid", "test"):
        squares = [
            (model.predict(pairs).clip(*each.input.scale) - pairs.rating).square()
            for model, each in zip(gated, prepared, strict=True)
            for pairs in (getattr(each, part),)
        ]
        found[part] = float(torch.cat(squares).mean().sqrt())
    return found


# -- the tables and the picture ------------------------------------------------------------------------------


def read_records(folder: Path) -> dict[tuple[str, int], dict[int, Any]]:
    """Return the ways of each data set and night, by seed."""
    found: dict[tuple[str, int], dict[int, Any]] = {}
    for path in sorted(folder.glob("*.json")):
        data, seed, night = path.stem.rsplit("-", 2)
        found.setdefault((data, int(night)), {})[int(seed)] = json.loads(path.read_text())
    return found


def write_tables(folder: Path) -> str:
    """Return the tables in Markdown, and draw the nights of ML-1M."""
    records = read_records(folder)
    main = [night_row(night, records["ml-1m", night]) for night in range(1, NIGHTS + 1)]
    heads = ["night", "ratings", "full training: RMSE", "MB", "night: RMSE", "difference", "by seed"]
    heads += ["share of the rounds", "share of the bytes", "share of the CPU", "with one read"]
    other_heads = [
        "data",
        *(f"night {night}" for night in SHOWN),
        "largest, in per cent",
        "share of the bytes",
    ]
    others = [data_row(data, records) for data in DATA]
    draw(records, RESULTS / "life.png")
    return format_table(heads, main) + "\n\n" + format_table([*other_heads, "with one read"], others)


def differences(by_seed: dict[int, Any], way: str, part: str = "valid", against: str = "full") -> list[float]:
    """Return by how much the served RMSE of a way exceeds that of a full training, by seed."""
    return [
        record["ways"][way]["served"][part] - record["ways"][against]["served"][part]
        for _, record in sorted(by_seed.items())
    ]


def night_row(night: int, by_seed: dict[int, Any]) -> list[str]:
    """Return the row of one night of ML-1M."""
    records = [record for _, record in sorted(by_seed.items())]

    def mean(way: str, *path: str) -> float:
        values = [record["ways"][way] for record in records]
        for key in path:
            values = [value[key] for value in values]
        return float(np.mean(values))

    found = differences(by_seed, "night")
    return [
        str(night),
        f"{records[0]['ratings'][-1]:,}",
        f"{mean('full', 'served', 'valid'):.4f}",
        f"{mean('full', 'bytes') / 1e6:,.0f}",
        f"{mean('night', 'served', 'valid'):.4f}",
        f"**{np.mean(found):+.4f}**",
        ", ".join(f"{each:+.4f}" for each in found),
        *(
            f"{100 * mean('night', key) / mean('full', key):.1f} %"
            for key in ("rounds", "bytes", "cpu_seconds")
        ),
        f"{np.mean(differences(by_seed, 'one read')):+.4f}",
    ]


def data_row(data: str, records: dict[tuple[str, int], dict[int, Any]]) -> list[str]:
    """Return the row of one data set: the mean difference of some nights over the seeds."""
    nights = [records[data, night] for night in SHOWN]
    found = [float(np.mean(differences(by_seed, "night"))) for by_seed in nights]
    single = [float(np.mean(differences(by_seed, "one read"))) for by_seed in nights]
    ways = [record["ways"] for by_seed in nights for record in by_seed.values()]
    whole = np.mean([each["full"]["served"]["valid"] for each in ways])
    shares = [100 * each["night"]["bytes"] / each["full"]["bytes"] for each in ways]
    return [
        NAMES[data],
        *(f"{each:+.4f}" for each in found),
        f"{100 * max(found) / whole:+.2f} %",
        f"{min(shares):.1f} to {max(shares):.1f} %",
        f"{min(single):+.4f} to {max(single):+.4f}",
    ]


def format_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def draw(records: dict[tuple[str, int], dict[int, Any]], path: Path) -> None:
    """Draw the validation RMSE of each night of ML-1M, and the rounds of the last one with seed 0."""
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    labels = {
        "full": "full training, 300 rounds",
        "one read": "night, 30 rounds, one read",
        "night": "night, 30 rounds, four reads",
    }
    styles = {"full": "k--o", "one read": "C1-o", "night": "C0-o"}
    numbers = range(1, NIGHTS + 1)
    last = records["ml-1m", NIGHTS][0]["ways"]
    for way, label in labels.items():
        errors = [
            np.mean([record["ways"][way]["served"]["valid"] for record in records["ml-1m", night].values()])
            for night in numbers
        ]
        left.plot(numbers, errors, styles[way], label=label, ms=3)
        right.plot(*zip(*last[way]["curve"], strict=True), styles[way], label=label, ms=2)
    left.set(xlabel="night", ylabel="validation RMSE, served (lower is better)")
    left.legend(fontsize=8)
    best = last["full"]["federated"]["valid"]
    right.set(xlabel=f"round of night {NIGHTS}", xscale="log", ylim=(best - 0.003, best + 0.03))
    right.set(ylabel="validation RMSE, federated model")
    right.legend(fontsize=8)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
