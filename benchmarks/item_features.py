"""Measure item features: items without any rating in training, served from their features. Writes
results/item-features.md.

    VERFEDGNN_DATA=... .venv/bin/python benchmarks/item_features.py --data ml-1m [--seed 0] [--epochs 300]

Three parties by genre (BookCrossing: at random), preset best with fewer rounds. A tenth of each party's
items is kept out of training. Their test ratings judge predictions that use only their features: genres,
year and title of films; author, publisher, year and title of books. Results are kept in
results/item-features/ and not computed again.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import math
import os
import re
import statistics
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

import verfedgnn as vf
from fold_in import choose_new, judge_lists, train_without_items
from verfedgnn.data import TEST, TRAIN
from verfedgnn.data.ids import find_positions
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.runs.prepared_data import split_ratings
from verfedgnn.upkeep.feature_encoder import fit_encoder
from verfedgnn.upkeep.item_features import fit_feature_prior
from verfedgnn.upkeep.item_prior import absorb_item_scores, fit_item_prior

RESULTS = Path(__file__).resolve().parent.parent / "results"
DATA = ("ml-100k", "ml-1m", "book-crossing")
WAYS = ("party's mean", "user's mean", "alone", "alone, features", "federated", "federated, features")
LIST_WAYS = ("by chance", "alone", "alone, features", "federated", "federated, features")


def read_features(data: str) -> tuple[np.ndarray, pa.Table]:
    """Return the ids of all items and their features."""
    folder = Path(os.environ["VERFEDGNN_DATA"]) / data
    if data == "ml-100k":
        names = [line.split("|")[0] for line in (folder / "u.genre").read_text().splitlines() if line]
        rows = [line.split("|") for line in (folder / "u.item").read_text("latin-1").splitlines()]
        marks = ["|".join(n for n, mark in zip(names, row[5:], strict=False) if mark == "1") for row in rows]
        return _films([row[0] for row in rows], [row[1] for row in rows], marks)
    if data == "ml-1m":
        rows = [line.split("::") for line in (folder / "movies.dat").read_text("latin-1").splitlines()]
        return _films(*(list(column) for column in zip(*rows, strict=True)))
    text = io.StringIO(gzip.decompress((folder / "BX-Books.csv.gz").read_bytes()).decode("latin-1"))
    books = [row for row in csv.reader(text, delimiter=";", escapechar="\\") if len(row) >= 5][1:]
    years = [int(row[3]) if row[3].isdigit() and 1900 < int(row[3]) < 2010 else None for row in books]
    columns = {
        "author": [row[2].replace("|", " ") for row in books],
        "publisher": [row[4].replace("|", " ") for row in books],
        "year": pa.array(years, pa.int64()),
        "title": [row[1].replace("|", " ") for row in books],
    }
    return np.array([row[0] for row in books]), pa.table(columns)


def _films(ids: list[str], titles: list[str], genres: list[str]) -> tuple[np.ndarray, pa.Table]:
    years = [re.search(r"\((\d{4})\)", title) for title in titles]
    year = pa.array([int(found[1]) if found else None for found in years], pa.int64())
    plain = [re.sub(r"\(\d{4}\)", "", title) for title in titles]
    return np.array(ids), pa.table({"genre": genres, "year": year, "title": plain})


def study(data: str, seed: int, epochs: int) -> dict[str, dict[str, float]]:
    """Return test RMSE, NDCG@20 of lists of new items, and the explained share, by method."""
    table = vf.read_ratings(Path(os.environ["VERFEDGNN_DATA"]) / data)
    parties = vf.split_items(table, parties=3, by=None if data == "book-crossing" else "genre", seed=seed)
    known = np.zeros(table.n_users, bool)  # users with a rating of an item that is not new
    for p, party in enumerate(parties):
        known[party.ratings.user[~choose_new(party, seed, p)[party.ratings.item]]] = True
    parties = [vf.PartyData(party.name, party.ratings.select_users(known)) for party in parties]
    config = vf.Config.preset("best", seed=seed, epochs=epochs)
    parts = [split_ratings(party, config.split, seed) for party in parties]
    new, run = train_without_items(parties, parts, config)
    others = run.parties
    kept = run.parts
    assert run.alone is not None
    assert run.lists is not None
    assert run.lists.alone is not None
    ids, features = read_features(data)
    errors: dict[str, list[float]] = {way: [] for way in WAYS}
    ndcg: dict[str, list[float]] = {way: [] for way in LIST_WAYS}
    explained: dict[str, list[float]] = {}
    for p, (party, part) in enumerate(zip(parties, parts, strict=True)):
        whole = party.ratings
        own = others[p].ratings
        rows = find_positions(whole.item_ids, ids)
        mine = features.take(pa.array(np.where(rows < 0, None, rows).tolist(), pa.int64()))
        encoder = fit_encoder(mine.take(np.flatnonzero(~new[p])))
        encoded = encoder.encode({n: mine[n].to_pylist() for n in mine.column_names}, whole.n_items)
        train = kept[p] == TRAIN
        centre = float(own.rating[train].mean())
        counts = np.bincount(own.item[train], minlength=own.n_items)
        sums = np.bincount(own.item[train], own.rating[train] - centre, own.n_items)
        gaps = own.rating[train] - centre - (sums / (counts + 5))[own.item[train]]
        lean = np.bincount(own.user[train], gaps, own.n_users)
        lean /= np.bincount(own.user[train], minlength=own.n_users) + 5
        test = (part == TEST) & new[p][whole.item]
        judges, places, truth = whole.user[test], whole.item[test], whole.rating[test]
        guesses = {"party's mean": np.full(len(truth), centre), "user's mean": centre + lean[judges]}
        scores = {
            "by chance": torch.rand(
                whole.n_users, whole.n_items, generator=torch.Generator().manual_seed(seed)
            )
        }
        models: dict[str, tuple[PartyModel, PartyModel]] = {
            "alone": (run.alone[p], run.lists.alone[p]),
            "federated": (run.models[p], run.lists.models[p]),
        }
        for name, pair in models.items():
            for ranks, model in zip((False, True), pair, strict=True):
                prior = fit_item_prior(model, own, kept[p], ranks=ranks)
                users = model.users.double().numpy()
                fitted = fit_feature_prior(
                    prior.items, absorb_item_scores(model), encoded[~new[p]], counts, users
                )
                explained.setdefault(f"{name}, {'lists' if ranks else 'ratings'}", []).append(
                    fitted.explained
                )
                plain = np.tile(prior.items.mean, (whole.n_items, 1))
                better = np.stack([fitted.describe(vector).mean for vector in encoded])
                for way, vectors in ((name, plain), (f"{name}, features", better)):
                    if ranks:
                        scores[way] = torch.from_numpy((users @ vectors.T).astype(np.float32))
                    else:
                        guesses[way] = (users[judges] * vectors[places]).sum(1)
        for way, guess in guesses.items():
            errors[way] += np.square(guess.clip(*whole.scale) - truth).tolist()
        for way, found in scores.items():
            ndcg[way] += judge_lists(whole, part, found, new[p])
    return {
        "rmse": {way: math.sqrt(statistics.fmean(found)) for way, found in errors.items()},
        "ndcg": {way: statistics.fmean(found) for way, found in ndcg.items()},
        "explained": {way: statistics.fmean(found) for way, found in explained.items()},
    }


def page() -> str:
    """Return the records in results/item-features as a page."""
    lines = [
        "# Items without ratings: what their features are worth",
        "",
        "A tenth of each party's items was kept out of training entirely. Test RMSE of their ratings (lower is",
        "better), and NDCG@20 of lists that consist of them (higher is better; users who like one of them in",
        "the test part). *Alone* and *federated* know nothing of an item and give it the average vector.",
        "Popularity cannot order such items: none has a rating. `benchmarks/item_features.py` wrote this page.",
        "",
        "Measured before the average vector counted items by their number of ratings ([Folding in](fold-in.md)",
        "has new figures without features), and before preset `best` got its second model.",
    ]
    for data in DATA:
        kept = [
            json.loads(path.read_text())
            for path in sorted((RESULTS / "item-features").glob(f"{data}-*.json"))
        ]
        if not kept:
            continue
        seeds = "one seed" if len(kept) == 1 else f"means of {len(kept)} seeds"
        lines += ["", f"## {data} ({seeds})", "| prediction | RMSE | NDCG@20 |", "|---|---|---|"]
        for way in dict.fromkeys([*WAYS[:2], "by chance", *WAYS[2:]]):
            cells = [
                f"{statistics.fmean(one[which][way] for one in kept):.4f}" if way in kept[0][which] else ""
                for which in ("rmse", "ndcg")
            ]
            lines.append(f"| {way} | {' | '.join(cells)} |")
        shares = [
            f"{way} {100 * statistics.fmean(one['explained'][way] for one in kept):.0f} %"
            for way in kept[0]["explained"]
        ]
        lines += [
            "",
            "Share of the differences between items, as users see them, that features explain:",
            f"{'; '.join(shares)}.",
        ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", choices=DATA, default="ml-100k")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=300)
    given = parser.parse_args()
    torch.set_num_threads(1)
    folder = RESULTS / "item-features"
    folder.mkdir(exist_ok=True)
    path = folder / f"{given.data}-{given.seed}.json"
    if not path.exists():
        path.write_text(json.dumps(study(given.data, given.seed, given.epochs), indent=1) + "\n")
    (RESULTS / "item-features.md").write_text(page())


if __name__ == "__main__":
    main()
