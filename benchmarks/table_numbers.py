"""Measure what the updates of the public tables tell a curious party on ML-100K (`research/attacks/table_attack.py`).

    python benchmarks/table_numbers.py run NAME --seed 0 [--out results/attacks/tables]
    python benchmarks/table_numbers.py write

`run` attacks one setting of `SETTINGS` and keeps a record. `write` puts the records into results/attacks.md.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

import verfedgnn as vf
from verfedgnn.research.attacks.table_attack import attack_tables
from verfedgnn.research.experiments.result_tables import markdown
from verfedgnn.research.experiments.training_cell import commit

RESULTS = Path(__file__).resolve().parent.parent / "results"
RECORDS = RESULTS / "attacks" / "tables"
ROUNDS = 300
NOISED = {"exchange.mode": "noised", "exchange.noise": 0.05, "exchange.row_clip": 0.5}
"""What two parties exchange by default."""
ALONE = {"model.raters": 0}
OFF = {"exchange.mode": "off"}


@dataclass(frozen=True)
class AttackedTraining:
    """A training to attack: how the page names it, the number of parties, and settings beside those of preset best."""

    title: str
    parties: int
    values: dict[str, Any] = field(default_factory=dict)
    victims: int = 500


SETTINGS = {
    "ten-without": AttackedTraining("ten parties, without the second model", 10, ALONE),
    "ten": AttackedTraining("ten parties", 10),
    "ten-reads": AttackedTraining("ten parties, four reads a round", 10, {"training.reads": 4}),
    "ten-off-without": AttackedTraining(
        "ten parties, no exchange, without the second model", 10, OFF | ALONE
    ),
    "ten-off": AttackedTraining("ten parties, no exchange", 10, OFF),
    "four-without": AttackedTraining("four parties, without the second model", 4, ALONE, 250),
    "four": AttackedTraining("four parties", 4, victims=250),
    "two-without": AttackedTraining("two parties, without the second model", 2, NOISED | ALONE, 100),
    "two": AttackedTraining("two parties", 2, NOISED, 100),
}
TITLE = "## From the public tables"
ATTACKS = {
    "party, fakes": "one party with fake accounts",
    "party, insider": "one party, insider",
    "colluders, fakes": "all but one, with fake accounts",
    "colluders, insider": "all but one, insider",
}
TABLES = {
    "users": "e_u, user embeddings",
    "rater_users": "w_u of the second model",
    "rater_values": "z_u of the second model",
    "rater_marks": "y_u of the second model",
    "all tables": "all tables",
}


def measure(setting: AttackedTraining, seed: int) -> dict[str, Any]:
    """Return the AUCs of all attacks on one setting and seed."""
    parties = vf.read_parties("ml-100k", parties=setting.parties, seed=seed)
    values = {"training.gate": False, "lists": False, "training.epochs": ROUNDS, **setting.values}
    config = vf.Config.preset("best").with_values({**values, "seed": seed})
    return attack_tables(parties, config, rounds=ROUNDS, victims=setting.victims, seed=seed)


def section() -> list[str]:
    """Return the lines of this section of results/attacks.md: one row for each setting and attacker, with means over seeds."""
    rows = []
    by_table = []
    for name, setting in SETTINGS.items():
        paths = sorted(RECORDS.glob(f"{name}-[0-9].json"))
        if not paths:
            continue
        found = [json.loads(path.read_text())["found"] for path in paths]
        seeds = ", ".join(path.stem[-1] for path in paths)
        attacks = list(ATTACKS)[:2] if setting.parties == 2 else list(ATTACKS)
        rows += [
            [setting.title, seeds, ATTACKS[attack], *_figures(found, f"{attack}, all tables")]
            for attack in attacks
        ]
        if not setting.values.keys() & ALONE:
            by_table += [
                [setting.title, seeds, title, *_figures(found, f"party, fakes, {table}")]
                for table, title in TABLES.items()
            ]
    figures = ["popularity", "attack and popularity", "same item", "against held-out"]
    return [
        TITLE,
        "",
        "What the updates of the public tables tell about a user's items at another party",
        "(`research/attacks/table_attack.py`). ML-100K, preset `best` with GCN and 300 rounds of ratings, one",
        "fake account an item. Two parties exchange noised sums and see each other's gradients; more parties",
        "exchange masked sums. Insiders know what the target's items add to a row in every round, the most",
        "that can be known. AUCs as above, means over seeds and their standard deviation; *without the second",
        "model* is `--set model.raters=0`. Trainings of ten parties have 500 victims, that of two 100. With several",
        "reads a round, the attacks know the average over the reads; an insider who knew each read could do better.",
        "`benchmarks/table_numbers.py` wrote this section; the records are in `attacks/tables/`.",
        "",
        markdown(["training", "seeds", "attacker", *figures], rows),
        "One party with fake accounts, by what it reads:",
        "",
        markdown(["training", "seeds", "table", *figures], by_table),
    ]


def _figures(found: list[dict[str, dict[str, float]]], attack: str) -> list[str]:
    columns = [[record[attack][key] for record in found] for key in ("guess", "all", "within", "held")]
    spread = [f" ± {stdev(values):.2f}" if len(values) > 1 else "" for values in columns]
    return [f"{mean(values):.2f}{more}" for values, more in zip(columns, spread, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.add_argument("name", choices=SETTINGS)
    run.add_argument("--seed", type=int, default=0)
    run.add_argument("--out", type=Path, default=RECORDS)
    commands.add_parser("write")
    chosen = parser.parse_args()
    if chosen.command == "run":
        record = {"commit": commit(), "found": measure(SETTINGS[chosen.name], chosen.seed)}
        chosen.out.mkdir(parents=True, exist_ok=True)
        (chosen.out / f"{chosen.name}-{chosen.seed}.json").write_text(json.dumps(record, indent=1) + "\n")
        print(chosen.name, chosen.seed, flush=True)
        return
    page = RESULTS / "attacks.md"
    before = page.read_text().split(f"\n{TITLE}\n")[0]
    page.write_text("\n".join([before.rstrip("\n"), "", *section()]))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
