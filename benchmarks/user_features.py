"""Measure features of customers: people without any rating, served from what a party knows of them. Writes
a section of results/fold-in.md.

    VERFEDGNN_DATA=... .venv/bin/python benchmarks/user_features.py [--data ml-1m] [--seed 0] [--runs FOLDER]

Three parties by genre, preset best with fewer rounds. A tenth of the users is kept out of training, and
none of their ratings is shown. Gender, age and occupation are their features, which every party has.
Results are kept in results/user-features/ and not computed again; `--runs` keeps the trainings.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

import verfedgnn as vf
from fold_in import RESULTS, item_means, judge_lists, page
from verfedgnn.core.rating_scale import upper_quarter
from verfedgnn.data import TEST, TRAIN, VALID
from verfedgnn.data.item_table import ItemTable
from verfedgnn.runs.prepared_data import split_ratings
from verfedgnn.serving.catalogue import FEDERATED, Catalogue
from verfedgnn.serving.user_profile import ServedUser, profile_user

ROUNDS = {"ml-100k": 200, "ml-1m": 60}
SEEDS = (0, 1, 2)
SIMPLE = "without model"
"""Item means for ratings, popularity for lists."""


def read_customers(data: str) -> ItemTable:
    """Return gender, age and occupation of all users; ages are groups."""
    folder = Path(os.environ["VERFEDGNN_DATA"]) / data
    if data == "ml-1m":
        rows = [line.split("::") for line in (folder / "users.dat").read_text("latin-1").splitlines()]
        columns = [(row[0], row[1], f"from {row[2]}", f"job {row[3]}") for row in rows]
    else:
        rows = [line.split("|") for line in (folder / "u.user").read_text("latin-1").splitlines()]
        columns = [(row[0], row[2], f"from {int(row[1]) // 8 * 8}", row[3]) for row in rows]
    ids, gender, age, occupation = (list(column) for column in zip(*columns, strict=True))
    return ItemTable(np.array(ids), pa.table({"gender": gender, "age": age, "occupation": occupation}))


def shuffle(customers: ItemTable) -> ItemTable:
    """Return the same features, each customer's given to another one."""
    order = np.random.default_rng(0).permutation(len(customers.ids))
    return ItemTable(customers.ids, customers.columns.take(pa.array(order)))


def study(data: str, seed: int, runs: Path | None) -> dict[str, dict[str, float]]:
    """Return the test RMSE and NDCG@20 of new users, by method."""
    table = vf.read_ratings(Path(os.environ["VERFEDGNN_DATA"]) / data)
    parties = vf.split_items(table, parties=3, by="genre")
    config = vf.Config.preset("best", seed=seed, epochs=ROUNDS[data])
    parts = [split_ratings(party, config.split, seed) for party in parties]
    new = np.random.default_rng(seed).permutation(table.n_users) < table.n_users // 10
    place = None if runs is None else runs / f"{data}-{seed}"
    if place is not None and (place / "metrics.json").is_file():
        run = vf.Run.load(place)
    else:
        others = [vf.PartyData(party.name, party.ratings.select_users(~new)) for party in parties]
        kept = [part[~new[party.ratings.user]] for party, part in zip(parties, parts, strict=True)]
        run = vf.train(others, config, parts=kept)
        if place is not None:
            run.save(place)
    customers = read_customers(data)
    found = {SIMPLE: judge(parties, parts, new, *simple_scores(run, int(new.sum())))}
    for way, features in (
        ("average user", None),
        ("features", customers),
        ("shuffled features", shuffle(customers)),
    ):
        tables = {} if features is None else dict.fromkeys((party.name for party in run.parties), features)
        catalogue = Catalogue(run, "run", features=tables)
        found[way] = judge(parties, parts, new, *served_scores(catalogue, table.user_ids[new]))
    return found


def simple_scores(run: vf.Run, users: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return item means and the number of likes, for each party and each of the new users alike."""
    means = [item_means(party.ratings, part) for party, part in zip(run.parties, run.parts, strict=True)]
    likes = []
    for party, part in zip(run.parties, run.parts, strict=True):
        liked = (part == TRAIN) & (party.ratings.rating >= upper_quarter(party.ratings.scale))
        likes.append(np.bincount(party.ratings.item[liked], minlength=party.ratings.n_items))
    return [np.tile(row, (users, 1)) for row in means], [np.tile(row, (users, 1)) for row in likes]


def served_scores(catalogue: Catalogue, ids: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the predicted ratings and the scores of lists of new users, at each party."""
    every = range(len(catalogue.parties))
    ratings: list[list[np.ndarray]] = [[] for _ in every]
    lists: list[list[np.ndarray]] = [[] for _ in every]
    for user in ids:
        features = catalogue.find_user_features(str(user), every)
        profile = profile_user(catalogue, FEDERATED, ServedUser(None, (), features), every)
        for p in every:
            vector = profile[p].rating_vector
            assert vector is not None
            ratings[p].append(catalogue.rating_models[FEDERATED][p].items.numpy() @ vector)
            lists[p].append((catalogue.rankers[FEDERATED][p].model.items @ profile[p].vector).numpy())
    return [np.stack(own) for own in ratings], [np.stack(own) for own in lists]


def judge(
    parties: list[vf.PartyData],
    parts: list[np.ndarray],
    new: np.ndarray,
    ratings: list[np.ndarray],
    lists: list[np.ndarray],
) -> dict[str, float]:
    """Return the RMSE of the new users' test ratings, and NDCG@20 of those who like an item in the test part."""
    errors: list[float] = []
    quality: list[float] = []
    for p, (party, part) in enumerate(zip(parties, parts, strict=True)):
        own = party.ratings.select_users(new)
        kept = part[new[party.ratings.user]]
        test = kept == TEST
        predicted = ratings[p][own.user[test], own.item[test]].clip(*own.scale)
        errors += np.square(predicted - own.rating[test]).tolist()
        unseen = np.where(kept == TRAIN, VALID, kept)  # nothing of these users is known, so nothing is hidden
        every = np.ones(own.n_items, bool)
        quality += judge_lists(own, unseen, torch.from_numpy(lists[p].astype(np.float32)), every)
    return {"rmse": math.sqrt(statistics.fmean(errors)), "ndcg@20": statistics.fmean(quality)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", choices=ROUNDS)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--runs", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    (RESULTS / "user-features").mkdir(exist_ok=True)
    for data in ROUNDS if given.data is None else [given.data]:
        for seed in SEEDS if given.seed is None else [given.seed]:
            path = RESULTS / "user-features" / f"{data}-{seed}.json"
            if not path.exists():
                path.write_text(json.dumps(study(data, seed, given.runs), indent=1) + "\n")
    (RESULTS / "fold-in.md").write_text(page())


if __name__ == "__main__":
    main()
