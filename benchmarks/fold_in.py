"""Measure fold-in: users who were not in training, served from their own ratings. Writes
results/fold-in.md.

    VERFEDGNN_DATA=... .venv/bin/python benchmarks/fold_in.py [--only ml-100k]

Three parties by genre, preset best. A tenth of the users is kept out of training. Their training ratings
(all, or a few drawn at random) are folded into the model of the others, and their test ratings judge; the
same test ratings also judge item means, user and item means, and the model that was trained with everybody.
Finished ones are kept in results/fold-in/ and not run again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
from pathlib import Path

import numpy as np
import torch

import verfedgnn as vf
from verfedgnn.data import TEST, TRAIN
from verfedgnn.runs.prepared_data import split_ratings
from verfedgnn.serving.fold_in import UserRatings, fold_in
from verfedgnn.serving.user_prior import fit_user_prior

RESULTS = Path(__file__).resolve().parent.parent / "results"
DATA = {"ml-100k": ((0, 1, 2), True), "ml-1m": ((0,), False)}
"""Seeds, and whether each party also trains alone and mixes (the gate of preset best)."""
SHOWN = (3, 10, 30, None)
WAYS = ("average user", "item means", "user and item means", "folded in", "trained with everybody")

Own = list[tuple[np.ndarray, np.ndarray]]


def study(data: str, seed: int, gate: bool) -> dict[str, dict[str, float]]:
    """Return the test RMSE of newcomers by number of ratings shown and by method."""
    table = vf.read_ratings(Path(os.environ["VERFEDGNN_DATA"]) / data)
    parties = vf.split_items(table, parties=3, by="genre")
    config = vf.Config.preset("best", seed=seed, gate=gate)
    parts = [split_ratings(party, config.split, seed) for party in parties]
    new = np.random.default_rng(seed).permutation(table.n_users) < table.n_users // 10
    everybody = vf.train(parties, config, parts=parts)
    others = [vf.PartyData(party.name, party.ratings.select_users(~new)) for party in parties]
    kept = [part[~new[party.ratings.user]] for party, part in zip(parties, parts, strict=True)]
    run = vf.train(others, config, parts=kept)
    places = fit_user_prior(
        run.models, [(party.ratings, part) for party, part in zip(others, kept, strict=True)]
    )
    means = [item_means(party.ratings, part) for party, part in zip(others, kept, strict=True)]
    found = {}
    for most in SHOWN:
        errors: dict[str, list[float]] = {way: [] for way in WAYS}
        for user in np.flatnonzero(new):
            known = some(
                [of_user(p.ratings, part, user, TRAIN) for p, part in zip(parties, parts, strict=True)],
                most,
                [seed, user],
            )
            z = fold_in(
                places, [UserRatings(p, *own) for p, own in enumerate(known) if len(own[0])], ranks=False
            ).z
            gaps = np.concatenate([ratings - means[p][items] for p, (items, ratings) in enumerate(known)])
            lean = gaps.sum() / (len(gaps) + 5)
            for p, (party, part) in enumerate(zip(parties, parts, strict=True)):
                items, ratings = of_user(party.ratings, part, user, TEST)
                predicted = (
                    places[p].level[items],
                    means[p][items],
                    means[p][items] + lean,
                    (run.models[p].items[items] @ places[p].make_vector(z)).numpy(),
                    (everybody.models[p].items[items] @ everybody.models[p].users[user]).numpy(),
                )
                for way, guess in zip(WAYS, predicted, strict=True):
                    errors[way] += ((guess - ratings) ** 2).tolist()
        found["all" if most is None else str(most)] = {
            way: math.sqrt(statistics.fmean(e)) for way, e in errors.items()
        }
    return found


def of_user(table: vf.Ratings, part: np.ndarray, user: int, which: int) -> tuple[np.ndarray, np.ndarray]:
    mine = (table.user == user) & (part == which)
    return table.item[mine].astype(np.int64), table.rating[mine]


def some(known: Own, most: int | None, seed: list[int]) -> Own:
    """Choose at most `most` of a user's ratings at random over all parties."""
    if most is None:
        return known
    owner = np.repeat(np.arange(len(known)), [len(items) for items, _ in known])
    chosen = np.zeros(len(owner), bool)
    chosen[np.random.default_rng(seed).permutation(len(owner))[:most]] = True
    return [
        (items[chosen[owner == p]], ratings[chosen[owner == p]]) for p, (items, ratings) in enumerate(known)
    ]


def item_means(table: vf.Ratings, part: np.ndarray) -> np.ndarray:
    """Return means of training ratings, shrunk towards the party's mean by five ratings."""
    train = part == TRAIN
    centre = table.rating[train].mean()
    sums = np.bincount(table.item[train], weights=table.rating[train] - centre, minlength=table.n_items)
    return centre + sums / (np.bincount(table.item[train], minlength=table.n_items) + 5)


def page() -> str:
    """Return the records in results/fold-in as a page."""
    lines = [
        "# Folding in: users who were not in training",
        "",
        "Test RMSE (lower is better) of a tenth of the users, who were kept out of training and are served",
        "from their own training ratings. Three parties by genre, preset `best`, GCN. The column *shown* is",
        "the number of their training ratings that were folded in. *Trained with everybody* knows all of",
        "them. Means are shrunk by five ratings, and user means are over the shown ratings of all parties.",
        "`benchmarks/fold_in.py` wrote this page.",
    ]
    for data, (_, gate) in DATA.items():
        kept = [json.loads(path.read_text()) for path in sorted((RESULTS / "fold-in").glob(f"{data}-*.json"))]
        if not kept:
            continue
        seeds = f"means of seeds 0-{len(kept) - 1}" if len(kept) > 1 else "seed 0"
        lines += ["", f"## {data} ({seeds}{'' if gate else ', gate off'})", "| shown | " + " | ".join(WAYS) + " |",
                  "|---|" + "---|" * len(WAYS)]  # fmt: skip
        for shown in kept[0]:
            values = [statistics.fmean(one[shown][way] for one in kept) for way in WAYS]
            best = WAYS.index("folded in")
            lines.append(
                f"| {shown} | "
                + " | ".join(f"**{v:.4f}**" if i == best else f"{v:.4f}" for i, v in enumerate(values))
                + " |"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=DATA)
    given = parser.parse_args()
    torch.set_num_threads(1)
    (RESULTS / "fold-in").mkdir(exist_ok=True)
    for data, (seeds, gate) in DATA.items():
        for seed in seeds if given.only in (None, data) else ():
            path = RESULTS / "fold-in" / f"{data}-{seed}.json"
            if not path.exists():
                path.write_text(json.dumps(study(data, seed, gate), indent=1) + "\n")
            (RESULTS / "fold-in.md").write_text(page())


if __name__ == "__main__":
    main()
