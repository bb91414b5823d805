"""Measure forgetting: how far a repaired model is from one that never saw the users, and whether an attack
still finds them. Writes results/forget/ml-100k-SEED.json and, from all of these, results/forget.md.

    VERFEDGNN_DATA=... .venv/bin/python benchmarks/forget_numbers.py [--epochs 300] [--seed 0]

ML-100K, three parties by genre, preset best without lists. Twenty users are forgotten. A second training
never sees them, and a third one neither, with other random numbers. The distance is the root mean square
difference of predictions for the test ratings of all other users. The attack is membership inference
(research/attacks/membership_inference.py): the squared error of a rating tells the users' training ratings
from their test ratings.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

import verfedgnn as vf
from verfedgnn.data import TEST, TRAIN
from verfedgnn.research.bench.measure import machine
from verfedgnn.research.experiments.training_cell import commit
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.runs.prepared_data import split_ratings
from verfedgnn.upkeep.forget import forget_users

RESULTS = Path(__file__).resolve().parent.parent / "results"
FORGOTTEN = 20


def study(seed: int, epochs: int) -> dict[str, dict[str, float]]:
    """Return distance, RMSE and the attack's AUC, of the model before, after, and of one that never saw the users."""
    table = vf.read_ratings(Path(os.environ["VERFEDGNN_DATA"]) / "ml-100k")
    parties = vf.split_items(table, parties=3, by="genre")
    config = vf.Config.preset("best", seed=seed, epochs=epochs, lists=False)
    parts = [split_ratings(party, config.split, seed) for party in parties]
    gone = np.random.default_rng(seed).permutation(table.n_users)[:FORGOTTEN]
    stay = ~np.isin(np.arange(table.n_users), gone)
    without = [vf.PartyData(party.name, party.ratings.select_users(stay)) for party in parties]
    kept = [part[stay[party.ratings.user]] for party, part in zip(parties, parts, strict=True)]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        before = vf.train(parties, config, parts=parts)
        before.save(folder)
        forget_users(folder, [str(user) for user in table.user_ids[gone]])
        after = vf.Run.load(folder)
    never = [fill_in(model, stay) for model in vf.train(without, config, parts=kept).models]
    again = vf.train(without, config.with_values({"seed": seed + 1000}), parts=kept)
    models = {
        "before": before.models,
        "forgotten": after.models,
        "never seen": never,
        "never seen, again": [fill_in(model, stay) for model in again.models],
    }
    return {name: judge(each, never, parties, parts, gone) for name, each in models.items()}


def fill_in(model: PartyModel, stay: np.ndarray) -> PartyModel:
    """Return a model in which users who were not in training are average."""
    users = model.users.mean(0).repeat(len(stay), 1)
    users[torch.from_numpy(stay)] = model.users
    return replace(model, users=users)


def judge(
    models: list[PartyModel],
    never: list[PartyModel],
    parties: list[vf.PartyData],
    parts: list[np.ndarray],
    gone: np.ndarray,
) -> dict[str, float]:
    """Return the figures of one model."""
    distances: list[np.ndarray] = []
    errors: list[np.ndarray] = []
    attacked: dict[int, list[np.ndarray]] = {TRAIN: [], TEST: []}
    for p, (party, part) in enumerate(zip(parties, parts, strict=True)):
        own = party.ratings
        mine = np.isin(own.user, gone)
        rows = torch.from_numpy(own.user).long(), torch.from_numpy(own.item).long()
        predicted = models[p].predict_rows(*rows).numpy().clip(*own.scale)
        reference = never[p].predict_rows(*rows).numpy().clip(*own.scale)
        test = (part == TEST) & ~mine
        distances.append(np.square(predicted - reference)[test])
        errors.append(np.square(predicted - own.rating)[test])
        for which, found in attacked.items():
            found.append(np.square(predicted - own.rating)[mine & (part == which)])
    train, test_errors = (np.concatenate(attacked[which]) for which in (TRAIN, TEST))
    order = np.sort(test_errors)
    above = len(order) - np.searchsorted(order, train, "right")
    ties = np.searchsorted(order, train, "right") - np.searchsorted(order, train, "left")
    return {
        "distance": float(np.sqrt(np.concatenate(distances).mean())),
        "rmse": float(np.sqrt(np.concatenate(errors).mean())),
        "auc": float((above + ties / 2).mean() / len(order)),
    }


NAMES = {
    "before": "before",
    "forgotten": "after `forget`",
    "never seen": "never saw the users",
    "never seen, again": "never saw them, other random numbers",
}


def page(seeds: list[dict[str, dict[str, float]]]) -> str:
    """Return the figures as a page: means over seeds, and the smallest and largest AUC."""
    lines = [
        "# Forgetting users",
        "",
        f"{FORGOTTEN} users of ML-100K are forgotten, three parties by genre, preset `best` without lists. The distance is",
        "the root mean square difference between a model's predictions and those of a model that never saw the users,",
        "for the test ratings of all others. Two trainings differ in their random numbers, too: the last row is the",
        "distance that these alone make. The attack tells the users' training ratings from their test ratings by the",
        f"squared error; an AUC of 0.5 is chance. Means of {len(seeds)} seed(s), and the range of the AUC.",
        "`benchmarks/forget_numbers.py` wrote this page.",
        "",
        "| model | distance | RMSE of the others | AUC of the attack | range |",
        "|---|---|---|---|---|",
    ]
    for name, shown in NAMES.items():
        rows = [found[name] for found in seeds]
        distance, rmse, auc = (
            float(np.mean([row[key] for row in rows])) for key in ("distance", "rmse", "auc")
        )
        ends = [row["auc"] for row in rows]
        lines.append(
            f"| {shown} | {distance:.4f} | {rmse:.4f} | {auc:.3f} | {min(ends):.3f} to {max(ends):.3f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=300)
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = study(given.seed, given.epochs)
    folder = RESULTS / "forget"
    folder.mkdir(exist_ok=True)
    record = {"epochs": given.epochs, **found, "machine": machine(), "commit": commit()}
    (folder / f"ml-100k-{given.seed}.json").write_text(json.dumps(record, indent=1) + "\n")
    seeds = [json.loads(path.read_text()) for path in sorted(folder.glob("ml-100k-*.json"))]
    (RESULTS / "forget.md").write_text(page(seeds))


if __name__ == "__main__":
    main()
