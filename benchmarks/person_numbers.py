"""Measure what it costs to protect all ratings of a user at a party, and what the protection of single ratings
gives whole persons. Writes results/persons.md.

    VERFEDGNN_DATA=... .venv/bin/python benchmarks/person_numbers.py
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np

from verfedgnn import Config, read_parties, train
from verfedgnn.data.parties import parties_from_tables
from verfedgnn.data.synthetic import synthetic_tables
from verfedgnn.privacy.rating_dp import fit_budget
from verfedgnn.research.attacks.overlap_attack import attack_overlap
from verfedgnn.research.experiments.result_tables import markdown, mean_std

RESULTS = Path(__file__).resolve().parent.parent / "results"
DATA = {"ml-1m": "ML-1M", "ml-100k": "ML-100K"}
BUDGETS = (4.0, 8.0)
CAPS = (4, 8, 16, 32)
DELTA = 1e-6
SEEDS = range(3)


def config(budget: float, seed: int, cap: int | None) -> Config:
    """Return preset private for a budget of single ratings, or of users with at most `cap` ratings at a party."""
    chosen = Config.preset("private", seed=seed, gate=False)
    if cap is not None:
        chosen = chosen.with_values({"gradients.protects": "user", "gradients.user_ratings": cap})
    return fit_budget(chosen, wanted=budget, delta=DELTA)


def train_all() -> list[dict[str, Any]]:
    """Return one record for each training."""
    records = []
    for data in DATA:
        for seed in SEEDS:
            parties = read_parties(data, parties=10, seed=seed)
            for budget in BUDGETS:
                for cap in (None, *CAPS):
                    metrics = train(parties, config(budget, seed, cap)).metrics
                    record = {"data": data, "seed": seed, "epsilon": budget, "cap": cap}
                    record |= {"rmse": metrics["test"]["rmse"], "persons": metrics["privacy"]["persons"]}
                    records.append(record)
                    print(data, seed, budget, cap, record["rmse"], flush=True)
    return records


def attack_all() -> dict[str, list[float]]:
    """Return the best AUC of the attack on overlap, by configuration, one value for each seed."""
    variants: dict[str, tuple[float, int | None]] = {
        f"single ratings, ε = {budget:g}": (budget, None) for budget in (1.0, 4.0, 8.0)
    }
    variants |= {f"users, ε = {budget:g}": (budget, 16) for budget in (1.0, 4.0, 8.0)}
    found: dict[str, list[float]] = {name: [] for name in variants}
    for seed in SEEDS:
        parties = parties_from_tables(synthetic_tables(3, 0.2, seed=seed))
        for name, (budget, cap) in variants.items():
            attacks = attack_overlap(parties, config(budget, seed, cap), seed=seed)["attacks"]
            found[name].append(max(each["auc"] for each in attacks.values()))
            print(name, seed, found[name][-1], flush=True)
    return found


def person_rows(records: list[dict[str, Any]]) -> list[list[str]]:
    rows = []
    for data, title in DATA.items():
        for budget in BUDGETS:
            parties = [
                party
                for record in records
                if (record["data"], record["epsilon"], record["cap"]) == (data, budget, None)
                for party in record["persons"]["parties"].values()
            ]
            row = [title, f"{budget:g}"]
            for which in ("median", "largest"):
                ratings = [each[which]["training"] + each[which]["validation"] for each in parties]
                epsilon = [each[which]["epsilon"] for each in parties]
                row.append(f"{np.mean(epsilon):,.0f} ({np.mean(ratings):,.0f} ratings)")
            rows.append(row)
    return rows


def main() -> None:
    records = train_all()
    attacks = attack_all()

    def rmse(data: str, budget: float, cap: int | None) -> str:
        wanted = (data, budget, cap)
        return mean_std([r["rmse"] for r in records if (r["data"], r["epsilon"], r["cap"]) == wanted])

    cost = [
        [DATA[data], f"{budget:g}", *(rmse(data, budget, cap) for cap in (None, *CAPS))]
        for data in DATA
        for budget in BUDGETS
    ]
    text = [
        "# Protection of whole persons",
        "",
        "Preset `private`, ten parties, seeds 0-2, δ = 1e-6, 40 rounds ([Privacy](../docs/privacy.md#persons)).",
        "",
        "## What the protection of single ratings gives a person",
        "ε for all ratings of one user at one party, where ε for one rating is 4 or 8. Mean over parties and seeds.",
        "An ε above 10 promises nothing in practice.",
        "",
        markdown(
            ["data", "ε of a rating", "ε of the median user", "ε of the most active user"],
            person_rows(records),
        ),
        "## What it costs to protect users",
        "Test RMSE (lower is better), mean ± standard deviation. *Single ratings* has the same ε for one rating; the",
        "other columns have it for all ratings of a user at a party. K is `gradients.user_ratings`.",
        "",
        markdown(["data", "ε", "single ratings", *(f"users, K = {cap}" for cap in CAPS)], cost),
        "## Who is elsewhere",
        "AUC of the best attack by which a party tells which of its users are at other parties; 0.5 is a guess. Three",
        "synthetic parties of 1,000 users with 20 ratings each share a fifth of their users; K = 16. Mean and range",
        "over seeds 0-2.",
        "",
        markdown(
            ["protection", "AUC", "range"],
            [
                [name, f"{statistics.mean(each):.3f}", f"{min(each):.3f}-{max(each):.3f}"]
                for name, each in attacks.items()
            ],
        ),
        "Made by `benchmarks/person_numbers.py`; the records are in `privacy/persons.json`.",
        "",
    ]
    (RESULTS / "persons.md").write_text("\n".join(text))
    kept = {"trainings": records, "overlap": attacks}
    (RESULTS / "privacy" / "persons.json").write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
