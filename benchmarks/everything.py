"""What training on all ratings is worth: judged and served models on the ratings of the next period.

    VERFEDGNN_DATA=FOLDER python benchmarks/everything.py ml-1m ciao-any --out results/life.json

The newest tenth of each party's ratings is kept back. A default training on the others gives both models: the judged one, which has
not seen its own test part, and the served one, which has seen everything. Both predict what was kept back, for customers with a
rating before it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from verfedgnn.config import Config
from verfedgnn.core.list_metrics import rank_each
from verfedgnn.core.pairs import Pairs
from verfedgnn.core.rating_scale import upper_quarter
from verfedgnn.data import PartyData, Ratings
from verfedgnn.runs.run import Run
from verfedgnn.training.train import train
from verfedgnn_research.bench import commit, read_case

NEWEST = 0.1


def keep_back(table: Ratings) -> np.ndarray:
    """Return which ratings are among the newest tenth of a party."""
    assert table.time is not None, f"{table.name} has no times"
    return np.asarray(table.time > np.quantile(table.time, 1 - NEWEST))


def measure(run: Run, later: list[Pairs]) -> dict[str, float]:
    """Return RMSE, NDCG@20 and HitRate@20 of a run's models on the ratings of the next period."""
    squares, ndcg, hits = [], [], []
    for party, model, lists, pairs in zip(run.parties, run.models, run.ranker.models, later, strict=True):
        table = party.ratings
        known = pairs.take(torch.from_numpy(np.isin(pairs.user.numpy(), table.user)))
        squares.append((model.predict(known).clamp(*table.scale) - known.rating).square().numpy())
        liked = known.take(known.rating >= upper_quarter(table.scale))
        seen = Pairs(*(torch.from_numpy(column) for column in (table.user, table.item, table.rating)))
        ranks = rank_each(lists.score, table.n_users, table.n_items, [seen], liked)
        ndcg.append(ranks.ndcg.numpy())
        hits.append(ranks.hit.numpy())
    return {
        "rmse": float(np.sqrt(np.concatenate(squares).mean())),
        "ndcg@20": float(np.concatenate(ndcg).mean()),
        "hitrate@20": float(np.concatenate(hits).mean()),
        "ratings": int(sum(map(len, squares))),
    }


def main() -> None:
    """Measure the data sets that are named, and write a record for each seed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", nargs="+")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    records: list[dict[str, Any]] = []
    for name in options.data:
        for seed in range(options.seeds):
            parties = read_case(name, seed, 10)
            newest = [keep_back(party.ratings) for party in parties]
            stays = np.zeros(parties[0].ratings.n_users, bool)
            for party, new in zip(parties, newest, strict=True):
                stays[party.ratings.user[~new]] = True
            place = np.cumsum(stays) - 1
            later, before = [], []
            for party, new in zip(parties, newest, strict=True):
                table = party.ratings
                kept = new & stays[table.user]
                columns = (place[table.user[kept]], table.item[kept], table.rating[kept])
                later.append(Pairs(*(torch.from_numpy(column) for column in columns)))
                before.append(PartyData(party.name, table.take(~new).select_users(stays)))
            run = train(before, Config.preset("best", seed=seed))
            figures = {"judged": measure(run.judged, later), "served": measure(run, later)}
            records.append(
                {"data": name, "seed": seed, "commit": commit(), "split": run.metrics["split"]} | figures
            )
            print(records[-1], flush=True)
            options.out.write_text(json.dumps(records, indent=1) + "\n")


if __name__ == "__main__":
    main()
