"""How good folding in is: users who were not in training, served from their own ratings. Writes results/fold-in.md.

    VERFEDGNN_DATA=... .venv/bin/python benchmarks/fold_in.py [--data ml-100k ml-1m] [--seeds 3]

A tenth of the users is kept out of training. Their training ratings are folded into the model of the others, their test ratings
judge; the same test ratings also judge item means, user and item means, and the model that was trained with everybody.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
from pathlib import Path

import numpy as np
import torch

import verfedgnn as vf
from verfedgnn.data import TEST, TRAIN
from verfedgnn.prepare import split
from verfedgnn.serving.folding import Rated, fold_in
from verfedgnn.serving.tastes import tastes

ROOT = Path(__file__).resolve().parent.parent
SHOWN = (3, 10, 30, None)
WAYS = ("average user", "item means", "user and item means", "**folded in**", "trained with everybody")


def measure(data: str, seed: int, shown: int | None) -> None:
    """Filled by `runs`."""


def runs(data: str, seed: int, epochs: int | None) -> dict[str, dict[str, float]]:
    table = vf.read_ratings(Path(os.environ["VERFEDGNN_DATA"]) / data)
    parties = vf.split_items(table, parties=3, by="genre")
    config = vf.Config.preset("best", seed=seed, **({"epochs": epochs} if epochs else {}))
    parts = [split(p.ratings, config.split, seed) for p in parties]
    new = np.random.default_rng(seed).permutation(table.n_users) < table.n_users // 10
    everybody = vf.train(parties, config, parts=parts)
    others = [vf.PartyData(p.name, p.ratings.select_users(~new)) for p in parties]
    kept = [part[~new[p.ratings.user]] for p, part in zip(parties, parts, strict=True)]
    run = vf.train(others, config, parts=kept)
    places = tastes(run.models, [(p.ratings, part) for p, part in zip(others, kept, strict=True)])
    means = [_means(p.ratings, part) for p, part in zip(others, kept, strict=True)]
    found: dict[str, dict[str, float]] = {}
    for most in SHOWN:
        errors: dict[str, list[float]] = {way: [] for way in WAYS}
        for user in np.flatnonzero(new):
            known = [_of(p.ratings, part, user, TRAIN) for p, part in zip(parties, parts, strict=True)]
            if most is not None:  # the same share of every party, drawn by a hash that does not depend on the party
                whole = [(p, i) for p, (items, _) in enumerate(known) for i in range(len(items))]
                pick = np.random.default_rng([seed, int(user)]).permutation(len(whole))[:most]
                keep = {whole[j] for j in pick}
                known = [(items[[i for i in range(len(items)) if (p, i) in keep]], r[[i for i in range(len(items)) if (p, i) in keep]])
                         for p, (items, r) in enumerate(known)]  # fmt: skip
            rated = [Rated(p, items, ratings) for p, (items, ratings) in enumerate(known) if len(items)]
            z = fold_in(places, rated, ranks=False).z
            gaps = np.concatenate([r - means[p][i] for p, (i, r) in enumerate(known)])
            lean = gaps.sum() / (len(gaps) + 5)
            for p, (party, part) in enumerate(zip(parties, parts, strict=True)):
                items, ratings = _of(party.ratings, part, user, TEST)
                if not len(items):
                    continue
                predicted = (
                    places[p].level[items],
                    means[p][items],
                    means[p][items] + lean,
                    run.models[p].items[items].numpy() @ places[p].vector(z).numpy(),
                    (everybody.models[p].items[items] @ everybody.models[p].users[user]).numpy(),
                )
                for way, guess in zip(WAYS, predicted, strict=True):
                    errors[way].extend((guess - ratings) ** 2)
        found["all" if most is None else str(most)] = {way: math.sqrt(statistics.fmean(e)) for way, e in errors.items()}
    return found


def _of(table: vf.Ratings, part: np.ndarray, user: int, which: int) -> tuple[np.ndarray, np.ndarray]:
    mine = (table.user == user) & (part == which)
    return table.item[mine].astype(np.int64), table.rating[mine]


def _means(table: vf.Ratings, part: np.ndarray) -> np.ndarray:
    """Item means, shrunk towards the party's mean by five ratings."""
    train = part == TRAIN
    centre = table.rating[train].mean()
    sums = np.bincount(table.item[train], weights=table.rating[train] - centre, minlength=table.n_items)
    return centre + sums / (np.bincount(table.item[train], minlength=table.n_items) + 5)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", nargs="+", default=["ml-100k"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int)
    given = parser.parse_args()
    torch.set_num_threads(1)
    for data in given.data:
        for seed in range(given.seeds):
            print(data, seed)
            for most, row in runs(data, seed, given.epochs).items():
                print(most, {k: round(v, 4) for k, v in row.items()}, flush=True)
