"""Measure how many rounds a training saves that starts from an earlier run.

    VERFEDGNN_DATA=... .venv/bin/python benchmarks/continue_numbers.py               # results/overlap/later.json
    VERFEDGNN_DATA=... .venv/bin/python benchmarks/continue_numbers.py --night 3     # results/life/ml-1m-0-night-3.json
    .venv/bin/python benchmarks/continue_numbers.py --table                          # the table and picture of results/life.md

Without options: ML-100K, five parties. The earlier run has the first 80 % of the ratings by time, and their users and
items. The later trainings have all ratings. Validations are every second round.

`--night K`: ML-1M, five parties. The first run has the first 70 % of the ratings by time. Each of K nights adds 5 % and
continues from the night before. The last one is compared with a training of the same ratings from
nothing. One thread; each call is a process of its own, so that several can run at the same time.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from verfedgnn.config import Config
from verfedgnn.core.process_memory import keep_freed_memory
from verfedgnn.data import PartyData, align_users, read_ratings, split_items
from verfedgnn.protocol.checkpoint_state import CheckpointState
from verfedgnn.protocol.party import private_start
from verfedgnn.protocol.round import start_state
from verfedgnn.research.bench.measure import machine
from verfedgnn.research.experiments.training_cell import commit
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.runs.prepared_data import Prepared, prepare
from verfedgnn.runs.run import Run
from verfedgnn.runs.start_from import StartState, read_start
from verfedgnn.training.alone import train_alone
from verfedgnn.training.loop import TrainingLoop
from verfedgnn.training.party_gate import gate_party
from verfedgnn.training.train import train

FILE = Path(__file__).resolve().parent.parent / "results" / "overlap" / "later.json"
SEEDS = (0, 1, 2)
PARTIES = 5
EARLIER = 0.8
"""Share of the ratings, by time, that the earlier run has."""
WITHIN = 0.0005
"""Difference of RMSE that counts as reached."""
ROUNDS = 600
LATER_ROUNDS = 180
LIFE = Path(__file__).resolve().parent.parent / "results" / "life"
FIRST = 0.7
"""Share of the ratings, by time, of the first run before the nights."""
SLICES = 6
NIGHT_ROUNDS = 65
EVERYTHING = ("users", "items", "messages", "own_users")
WAYS: dict[str, list[tuple[Any, str, Any]] | None] = {
    "shrunk": [
        (start_state, "SHRUNK", dict.fromkeys(("users", "own_users"), 0.8)),
        (private_start, "ITEM_SUMS", 0.1),
    ],
    "full": None,
    "raters shrunk": [
        (start_state, "SHRUNK", dict.fromkeys(("users", "own_users", "rater_users"), 0.8)),
        (private_start, "ITEM_SUMS", 0.1),
    ],
    "kept": [(start_state, "SHRUNK", {}), (private_start, "ITEM_SUMS", 1.0)],
    "all shrunk": [
        (start_state, "SHRUNK", dict.fromkeys(EVERYTHING, 0.8)),
        (private_start, "ITEM_SUMS", 1.0),
    ],
}
"""How a night starts: constants of the start to replace; None for a training from nothing."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--night", type=int, choices=range(1, SLICES + 1), help="measure this night")
    parser.add_argument("--rounds", type=int, default=NIGHT_ROUNDS, help="rounds of a night")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="how a night starts")
    parser.add_argument("--data", default="ml-1m", help="data of --night and --table")
    parser.add_argument("--seed", type=int, default=0, help="seed of --night and --table")
    parser.add_argument("--device", default="cpu", help="device of --night")
    parser.add_argument("--table", action="store_true", help="print the table and draw the picture")
    parser.add_argument("--out", type=Path, default=LIFE, help="folder of the results")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    chosen.out.mkdir(parents=True, exist_ok=True)
    if chosen.table:
        print(nights_table(chosen.out, f"{chosen.data}-{chosen.seed}"))
    elif chosen.night is not None:
        measure_night(chosen)
    else:
        measure_later()


def measure_night(chosen: argparse.Namespace) -> None:
    """Train the nights up to one from the run before each, and its ratings from nothing; write the figures step by step."""
    path = chosen.out / f"{chosen.data}-{chosen.seed}-night-{chosen.night}.json"
    config = Config.preset("best", seed=chosen.seed, gate=False, lists=False)
    nightly = config.with_values({"epochs": chosen.rounds})
    days = read_days(chosen.data)[: chosen.night + 1]
    ratings = [sum(len(party.ratings) for party in parties) for parties in days]
    found: dict[str, Any] = {"night": chosen.night, "ratings": ratings, "ways": {}}
    alone: list[PartyModel] = []
    device = torch.device(chosen.device)
    prepared = prepare(days[-1], config, device)
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / "first"
        found["first"] = summarise(train(days[0], config, out=base, device=device))
        for way in chosen.ways:
            change = WAYS[way]
            if change is None:
                run = train(days[-1], config, device=device)
            else:
                for module, name, value in change:
                    setattr(module, name, value)
                before = base
                for night, parties in enumerate(days[1:], 1):
                    out = Path(folder) / f"{way}-{night}"
                    run = train(parties, nightly, out=out, start_from=before, device=device)
                    before = out
            found["ways"][way] = summarise(run)
            alone = alone or train_all_alone(prepared, config, device)
            found["ways"][way]["served"] = measure_served(run, alone, prepared)
            write(path, found)


def train_all_alone(prepared: Sequence[Prepared], config: Config, device: torch.device) -> list[PartyModel]:
    """Return each party's model alone, with all rounds. It costs no message."""
    total = sum(len(each.train) for each in prepared)
    return [train_alone(each.party, each.parts, config, len(each.train) / total, device) for each in prepared]


def measure_served(run: Run, alone: Sequence[PartyModel], prepared: Sequence[Prepared]) -> dict[str, float]:
    """Return the RMSE of the mixtures that parties serve."""
    gated = [
        gate_party(party, federated, own, means, run.config).served.model
        for party, federated, own, means in zip(prepared, run.models, alone, run.others_means, strict=True)
    ]
    found = {}
    for part in ("valid", "test"):
        pairs = [getattr(each, part) for each in prepared]
        squares = [
            (model.predict(these).clip(*each.input.scale) - these.rating).square()
            for model, these, each in zip(gated, pairs, prepared, strict=True)
        ]
        found[part] = float(torch.cat(squares).mean().sqrt())
    return found


def read_days(data: str) -> list[list[PartyData]]:
    """Return the parties of the first run and of each night after it."""
    ratings = read_ratings(data)
    assert ratings.time is not None
    cuts = np.quantile(ratings.time, np.linspace(FIRST, 1, SLICES + 1))
    parties = split_items(ratings, PARTIES)
    return [align_users([take_earlier(party, cut) for party in parties]) for cut in cuts]


def write(path: Path, found: dict[str, Any]) -> None:
    """Write a record with the machine and the commit."""
    path.write_text(json.dumps({**found, "machine": machine(), "commit": commit()}, indent=1) + "\n")


def summarise(run: Run) -> dict[str, Any]:
    """Return the rounds, the bytes of all messages and the RMSE of a training, and its validations."""
    return {
        "rounds": run.metrics["rounds"],
        "bytes": run.ledger.total(),
        "best_round": run.metrics["best_round"],
        "valid": run.metrics["valid"]["rmse"],
        "test": run.metrics["test"]["rmse"],
        "curve": [[entry["round"], round(entry["valid_rmse"], 5)] for entry in run.history],
    }


def nights_table(folder: Path, name: str) -> str:
    """Return the nights as a table in Markdown, and draw them."""
    nights = [json.loads(path.read_text()) for path in sorted(folder.glob(f"{name}-night-*.json"))]
    heads = ["night", "ratings", "full training: RMSE", "rounds", "MB", "night: RMSE", "difference"]
    heads += ["share of the rounds", "share of the bytes", "without shrinking", "all embeddings shrunk"]
    rows = [heads, ["---"] * len(heads)]
    for found in nights:
        full, night, kept, every = (found["ways"][way] for way in ("full", "shrunk", "kept", "all shrunk"))
        error = full["served"]["valid"]
        rows.append(
            [
                str(found["night"]),
                f"{found['ratings'][-1]:,}",
                f"{error:.4f}",
                str(full["rounds"]),
                f"{full['bytes'] / 1e6:,.0f}",
                f"{night['served']['valid']:.4f}",
                f"{night['served']['valid'] - error:+.4f}",
                f"{100 * night['rounds'] / full['rounds']:.1f} %",
                f"{100 * night['bytes'] / full['bytes']:.1f} %",
                f"{kept['served']['valid'] - error:+.4f}",
                f"{every['served']['valid'] - error:+.4f}",
            ]
        )
    draw(nights, folder.parent / "life.png")
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def draw(nights: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the validation RMSE of each night, and the rounds of the last one."""
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    names = {
        "full": "full training",
        "shrunk": "from the night before",
        "kept": "the same, without shrinking",
    }
    styles = {"full": "k--o", "shrunk": "C0-o", "kept": "C1-o"}
    numbers = [found["night"] for found in nights]
    for way, label in names.items():
        left.plot(
            numbers,
            [found["ways"][way]["served"]["valid"] for found in nights],
            styles[way],
            label=label,
            ms=3,
        )
        curve = nights[-1]["ways"][way]["curve"]
        right.plot(*zip(*curve, strict=True), styles[way].replace("o", ""), label=label)
    left.set(xlabel="night", ylabel="validation RMSE, served (lower is better)")
    left.legend(fontsize=8)
    best = nights[-1]["ways"]["full"]["valid"]
    right.set(xlabel=f"round of night {numbers[-1]}", xscale="log", ylim=(best - 0.002, best + 0.03))
    right.set(ylabel="validation RMSE, federated model")
    right.legend(fontsize=8)
    figure.savefig(path, dpi=130)


def measure_later() -> None:
    """Measure trainings that continue a run with the first 80 % of ML-100K."""
    ratings = read_ratings("ml-100k")
    assert ratings.time is not None
    parties = split_items(ratings, PARTIES)
    cut = float(np.quantile(ratings.time, EARLIER))
    before = align_users([take_earlier(party, cut) for party in parties])
    about = {
        "users": [before[0].ratings.n_users, ratings.n_users],
        "items": [sum(party.ratings.n_items for party in before), ratings.n_items],
        "ratings": [sum(len(party.ratings) for party in before), len(ratings)],
        "machine": machine(),
        "commit": commit(),
    }
    FILE.write_text(
        json.dumps({**about, "seeds": [measure(seed, before, parties) for seed in SEEDS]}, indent=1) + "\n"
    )


def take_earlier(party: PartyData, cut: float) -> PartyData:
    """Return a party with its ratings up to a time, and the users and items that they are about."""
    assert party.ratings.time is not None
    table = party.ratings.take(party.ratings.time <= cut)
    table = table.select_users(np.unique(table.user))
    return PartyData(party.name, table.select_items(np.unique(table.item)))


def measure(seed: int, before: Sequence[PartyData], parties: Sequence[PartyData]) -> dict[str, Any]:
    """Return the rounds that new and continued trainings need for the best validation of a new one."""
    config = Config.preset(
        "best", seed=seed, epochs=ROUNDS, evaluate_every=2, patience=0, gate=False, lists=False
    )
    later = config.with_values({"epochs": LATER_ROUNDS})
    with tempfile.TemporaryDirectory() as name:
        run = Path(name) / "run"
        train(before, config, out=run)
        start = read_start(run, parties)
    assert start is not None
    fresh = validations(parties, config, None)
    best = min(fresh.values())
    trainings = {
        "new": fresh,
        "continued": validations(parties, later, start),
        "continued without Adagrad's sums": validations(parties, later, forget_sums(start)),
    }
    found = {
        name: {
            "reaches_after": next((round for round, error in errors.items() if error <= best + WITHIN), None),
            "best": min(errors.values()),
            "after_2_rounds": errors[2],
            "after_10_rounds": errors[10],
        }
        for name, errors in trainings.items()
    }
    print(seed, json.dumps(found), flush=True)
    return {"seed": seed, **found}


def validations(parties: Sequence[PartyData], config: Config, start: StartState | None) -> dict[int, float]:
    """Train, and return the validation RMSE by round."""
    loop = TrainingLoop(prepare(parties, config, torch.device("cpu")), config, start=start)
    return {entry["round"]: entry["valid_rmse"] for entry in loop.run().history}


def forget_sums(start: StartState) -> StartState:
    """Return a start with Adagrad's sums of squared gradients at zero."""
    public = replace(start.public, accumulator=torch.zeros_like(start.public.accumulator))
    private = {
        party: replace(
            each,
            state=CheckpointState(
                {
                    name: np.zeros_like(values) if name.endswith(".accumulator") else values
                    for name, values in each.state.arrays.items()
                }
            ),
        )
        for party, each in start.private.items()
    }
    return StartState(public, private)


if __name__ == "__main__":
    main()
