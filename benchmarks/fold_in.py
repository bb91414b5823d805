"""Measure fold-in: users and items that were not in training, served from their own ratings. Writes
results/fold-in.md.

    VERFEDGNN_DATA=... .venv/bin/python benchmarks/fold_in.py [--only ml-100k]

Three parties by genre, preset best. A tenth of the users is kept out of training, and in another
training a tenth of the items. Their training ratings (all, or a few) are folded into the model of the
others, and their test ratings judge. The same test ratings also judge means, and the model that was
trained with everybody and everything. Finished seeds are kept in results/fold-in/ and not run again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import torch

import verfedgnn as vf
from verfedgnn.core.list_metrics import list_quality
from verfedgnn.core.rating_scale import upper_quarter
from verfedgnn.data import TEST, TRAIN
from verfedgnn.runs.prepared_data import split_ratings
from verfedgnn.serving.fold_in import UserRatings, fold_in
from verfedgnn.serving.user_prior import fit_user_prior
from verfedgnn.upkeep.item_prior import fit_item_prior

RESULTS = Path(__file__).resolve().parent.parent / "results"
DATA = {"ml-100k": ((0, 1, 2), 300), "ml-1m": ((0,), 200)}
"""Seeds and rounds."""
EARLIER = {
    "ml-1m": ["", "The figures of ml-1m are of an earlier version: preset `best` had no second model, and an item counted",
              "in the prior of new items by the root of its number of ratings, not by that number."]
}  # fmt: skip
"""What data sets whose records are older than the others say about them."""
SHOWN = (3, 10, 30, None)
FIRST = (0, 1, 2, 3, 5, 10, 20, None)
"""Numbers of a new item's ratings that are shown, the first ones by time."""
ITEM_WAYS = ("party's mean", "item mean", "user and item means", "folded in", "trained with everything")
LIST_WAYS = ("left out", "folded in", "trained with everything")
WAYS = ("average user", "item means", "user and item means", "folded in", "trained with everybody")

Own = list[tuple[np.ndarray, np.ndarray]]


def study(data: str, seed: int, epochs: int) -> dict[str, dict[str, dict[str, float]]]:
    """Return the figures of users and of items that were kept out, by number of ratings shown and by method."""
    table = vf.read_ratings(Path(os.environ["VERFEDGNN_DATA"]) / data)
    parties = vf.split_items(table, parties=3, by="genre")
    config = vf.Config.preset("best", seed=seed, epochs=epochs)
    parts = [split_ratings(party, config.split, seed) for party in parties]
    with ProcessPoolExecutor(3, initializer=torch.set_num_threads, initargs=(1,)) as processes:
        everybody = processes.submit(vf.train, parties, config, parts=parts)
        without_users = processes.submit(train_without_users, parties, parts, config)
        without_items = processes.submit(train_without_items, parties, parts, config)
        found = {"users": study_users(parties, parts, *without_users.result(), everybody.result())}
        return found | study_items(parties, parts, *without_items.result(), everybody.result())


def train_without_users(
    parties: list[vf.PartyData], parts: list[np.ndarray], config: vf.Config
) -> tuple[np.ndarray, vf.Run]:
    """Train without a tenth of the users; return which users are left out, and the run."""
    users = parties[0].ratings.n_users
    new = np.random.default_rng(config.seed).permutation(users) < users // 10
    others = [vf.PartyData(party.name, party.ratings.select_users(~new)) for party in parties]
    kept = [part[~new[party.ratings.user]] for party, part in zip(parties, parts, strict=True)]
    return new, vf.train(others, config.with_values({"lists": False}), parts=kept)


def study_users(
    parties: list[vf.PartyData],
    parts: list[np.ndarray],
    new: np.ndarray,
    run: vf.Run,
    everybody: vf.Run,
) -> dict[str, dict[str, float]]:
    """Return the test RMSE of newcomers."""
    seed = run.config.seed
    others = run.parties
    kept = run.parts
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


def choose_new(party: vf.PartyData, seed: int, p: int) -> np.ndarray:
    """Return which items of the party number `p` are new: a tenth of them."""
    items = party.ratings.n_items
    return np.random.default_rng([seed, p]).permutation(items) < items // 10


def train_without_items(
    parties: list[vf.PartyData], parts: list[np.ndarray], config: vf.Config
) -> tuple[list[np.ndarray], vf.Run]:
    """Train without a tenth of each party's items; return which items are left out, by party, and the run."""
    new = [choose_new(party, config.seed, p) for p, party in enumerate(parties)]
    others = [
        vf.PartyData(party.name, party.ratings.select_items(~own))
        for party, own in zip(parties, new, strict=True)
    ]
    kept = [part[~own[party.ratings.item]] for party, part, own in zip(parties, parts, new, strict=True)]
    return new, vf.train(others, config, parts=kept)


def study_items(
    parties: list[vf.PartyData],
    parts: list[np.ndarray],
    new: list[np.ndarray],
    run: vf.Run,
    everything: vf.Run,
) -> dict[str, dict[str, dict[str, float]]]:
    """Return the test RMSE of new items, and NDCG@20 of lists from all items and from the new ones only."""
    others = run.parties
    kept = run.parts
    assert run.lists is not None
    assert everything.lists is not None
    found: dict[str, dict[str, dict[str, float]]] = {"items": {}, "lists": {}, "new lists": {}}
    for most in FIRST:
        errors: dict[str, list[float]] = {way: [] for way in ITEM_WAYS}
        quality: dict[str, dict[str, list[float]]] = {
            which: {way: [] for way in LIST_WAYS} for which in ("lists", "new lists")
        }
        for p, (party, part) in enumerate(zip(parties, parts, strict=True)):
            table = party.ratings
            own = others[p].ratings
            train = kept[p] == TRAIN
            centre = float(own.rating[train].mean())
            means = item_means(own, kept[p])
            gaps = np.bincount(own.user[train], (own.rating - means[own.item])[train], own.n_users)
            lean = gaps / (np.bincount(own.user[train], minlength=own.n_users) + 5)
            prior = fit_item_prior(run.models[p], own, kept[p], ranks=False)
            list_prior = fit_item_prior(run.lists.models[p], own, kept[p], ranks=True)
            vectors = []
            for item in np.flatnonzero(new[p]):
                rows = np.flatnonzero((table.item == item) & (part == TRAIN))
                rows = rows[np.argsort(table.time[rows], kind="stable")][:most]
                users, ratings = table.user[rows].astype(np.int64), table.rating[rows]
                test = (table.item == item) & (part == TEST)
                judges = table.user[test].astype(np.int64)
                predicted = (
                    np.full(len(judges), centre),
                    np.full(len(judges), centre + (ratings - centre).sum() / (len(rows) + 5)),
                    centre + (ratings - centre - lean[users]).sum() / (len(rows) + 5) + lean[judges],
                    prior.users[judges] @ prior.estimate(users, ratings),
                    (everything.models[p].users[judges] @ everything.models[p].items[item]).numpy(),
                )
                for way, guess in zip(ITEM_WAYS, predicted, strict=True):
                    errors[way] += ((guess.clip(*table.scale) - table.rating[test]) ** 2).tolist()
                exposure = measure_exposure(table.time, rows, most)
                vectors.append(list_prior.estimate(users, ratings, exposure=exposure))
            score = run.lists.models[p].score(torch.arange(table.n_users))
            folded = torch.full((table.n_users, table.n_items), -torch.inf)
            folded[:, ~new[p]] = score
            left_out = folded.clone()
            folded[:, new[p]] = run.lists.models[p].users @ torch.from_numpy(np.stack(vectors)).T
            trained = everything.lists.models[p].score(torch.arange(table.n_users))
            for way, scores in zip(LIST_WAYS, (left_out, folded, trained), strict=True):
                every = np.ones(table.n_items, bool)
                quality["lists"][way] += judge_lists(table, part, scores, every)
                if way != "left out":
                    quality["new lists"][way] += judge_lists(table, part, scores, new[p])
        shown = "all" if most is None else str(most)
        found["items"][shown] = {way: math.sqrt(statistics.fmean(e)) for way, e in errors.items()}
        for which, ways in quality.items():
            found[which][shown] = {way: statistics.fmean(each) for way, each in ways.items() if each}
    return found


def measure_exposure(time: np.ndarray, rows: np.ndarray, most: int | None) -> float | None:
    """Return the time from the first shown rating to the last one (or to the end) over that of the whole table."""
    if not len(rows):
        return None
    end = time.max() if most is None else time[rows].max()
    return float((end - time[rows].min()) / (time.max() - time.min()))


def judge_lists(table: vf.Ratings, part: np.ndarray, scores: torch.Tensor, which: np.ndarray) -> list[float]:
    """Return NDCG@20 of each user who likes one of the items `which` in the test part, in lists of these items."""
    shape = (table.n_users, table.n_items)
    wanted = np.zeros(shape, bool)
    liked = (part == TEST) & (table.rating >= upper_quarter(table.scale))
    wanted[table.user[liked], table.item[liked]] = True
    hidden = np.zeros(shape, bool)
    hidden[table.user[part == TRAIN], table.item[part == TRAIN]] = True
    masked = scores.masked_fill(torch.from_numpy(hidden), -torch.inf)[:, which]
    relevant = torch.from_numpy(wanted[:, which])
    judged = relevant.any(1)
    ndcg: list[float] = list_quality(masked[judged], relevant[judged], 20)[1].tolist()
    return ndcg


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
        "# Folding in: users and items that were not in training",
        "",
        "A tenth of the users, and in another training a tenth of the items, were kept out. They are served",
        "from their own training ratings. Three parties by genre, preset `best`, GCN. *Shown* is the number of",
        "their training ratings that were folded in. *Trained with everybody* and *trained with everything*",
        "know all of them. Means are shrunk by five ratings. `benchmarks/fold_in.py` wrote this page.",
    ]
    for data, (_, epochs) in DATA.items():
        kept = [json.loads(path.read_text()) for path in sorted((RESULTS / "fold-in").glob(f"{data}-*.json"))]
        if not kept:
            continue
        seeds = f"means of seeds 0-{len(kept) - 1}" if len(kept) > 1 else "seed 0"
        note = f"{seeds}, at most {epochs} rounds"
        lines += [
            *EARLIER.get(data, []),
            *["", f"## {data}: new users", f"Test RMSE, lower is better ({note}).", ""],
            *_table(kept, "users", "folded in"),
            *["", f"## {data}: new items", "The first ratings of an item by time are shown. Test RMSE, lower is better",
              f"({note}).", ""],
            *_table(kept, "items", "folded in"),
            *["", f"## {data}: lists with new items", "NDCG@20 of users who like an item in the test part, higher is better.",
              "Lists are made from the whole catalogue of a party.", ""],
            *_table(kept, "lists", "folded in"),
            *["", "The same for lists of new items only, and for users who like one of them:", ""],
            *_table(kept, "new lists", "folded in"),
        ]  # fmt: skip
    return "\n".join([*lines, *_user_features()]) + "\n"


def _user_features() -> list[str]:
    """Return the section about customers without ratings, from the records in results/user-features."""
    lines = [
        *["", "## Customers without any rating, by their features"],
        "A tenth of the users was kept out of training, and none of their ratings is shown. Each party has",
        "their gender, age and occupation (`verfedgnn serve --user-features`). *Without model* is item means",
        "for ratings and popularity for lists. *Average user* is a newcomer without features. *Shuffled",
        "features* are those of other customers: they tell nothing. Means of seeds 0-2, 200 rounds on ml-100k",
        "and 60 on ml-1m; `benchmarks/user_features.py` wrote this section.",
        "",
        "| data | figure | without model | average user | features | shuffled features |",
        "|---|---|---|---|---|---|",
    ]
    for data in DATA:
        paths = sorted((RESULTS / "user-features").glob(f"{data}-*.json"))
        kept = [json.loads(path.read_text()) for path in paths]
        for name, title in (("rmse", "RMSE, lower is better"), ("ndcg@20", "NDCG@20, higher is better")):
            means = [statistics.fmean(one[way][name] for one in kept) for way in (kept[0] if kept else ())]
            cells = [
                f"**{value:.4f}**" if place == 2 else f"{value:.4f}" for place, value in enumerate(means)
            ]
            if kept:
                lines.append(f"| {data} | {title} | {' | '.join(cells)} |")
    return lines


def _table(kept: list[dict[str, dict[str, dict[str, float]]]], which: str, bold: str) -> list[str]:
    """Return the means over seeds as a table: one row per number of shown ratings, one column per method."""
    ways = list(next(iter(kept[0][which].values())))
    lines = ["| shown | " + " | ".join(ways) + " |", "|---|" + "---|" * len(ways)]
    for shown in kept[0][which]:
        values = {way: statistics.fmean(one[which][shown][way] for one in kept) for way in ways}
        cells = [f"**{value:.4f}**" if way == bold else f"{value:.4f}" for way, value in values.items()]
        lines.append(f"| {shown} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=DATA)
    given = parser.parse_args()
    torch.set_num_threads(1)
    (RESULTS / "fold-in").mkdir(exist_ok=True)
    for data, (seeds, epochs) in DATA.items():
        for seed in seeds if given.only in (None, data) else ():
            path = RESULTS / "fold-in" / f"{data}-{seed}.json"
            if not path.exists():
                path.write_text(json.dumps(study(data, seed, epochs), indent=1) + "\n")
            (RESULTS / "fold-in.md").write_text(page())


if __name__ == "__main__":
    main()
