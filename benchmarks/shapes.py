"""Train preset best with its defaults on made-up ratings of a known shape, and write results/scale/NAME.json.

    .venv/bin/python benchmarks/shapes.py yelpzip        # or five-platforms, or yelp: two million users

Ratings follow tastes of eight directions; the numbers of ratings of users and items have long tails. All parties are trained in one
process with one thread, with the verdict and the training on all ratings.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

import numpy as np

from verfedgnn.config import Config
from verfedgnn.data import Ratings, split_items
from verfedgnn.training.train import train
from verfedgnn_research.experiments.training_cell import commit

RESULTS = Path(__file__).resolve().parents[1] / "results" / "scale"
SHAPES = {
    "five-platforms": (20_257, 20_000, 500_000, 5),
    "yelpzip": (260_277, 5_044, 608_598, 5),
    "yelp": (1_987_929, 150_346, 6_990_280, 10),
}
"""Users, items, ratings and parties."""


def make_ratings(users: int, items: int, ratings: int, seed: int = 0) -> Ratings:
    """Draw ratings of 1 to 5. Every user has one."""
    rng = np.random.default_rng(seed)
    weights = (1 / np.arange(20, users + 20) ** 0.7, 1 / np.arange(20, items + 20) ** 0.8)
    user, item = (
        np.concatenate([np.arange(n), rng.choice(n, int(1.3 * ratings) - n, p=weight / weight.sum())])
        for n, weight in zip((users, items), weights, strict=True)
    )
    cells = np.unique(rng.permutation(user) * items + item)
    first = np.diff(cells // items, prepend=-1) > 0
    cells = cells[first | (rng.random(len(cells)) < (ratings - users) / (len(cells) - users))]
    user, item = cells // items, cells % items
    left, right = (rng.normal(size=(n, 8)).astype(np.float32) for n in (users, items))
    bias = 0.4 * rng.normal(size=users)[user] + 0.4 * rng.normal(size=items)[item]
    taste = 0.25 * np.einsum("ek,ek->e", left[user], right[item])
    rating = np.clip(np.rint(3.8 + bias + taste + 0.8 * rng.normal(size=len(cells))), 1, 5)
    return Ratings(
        user=user.astype(np.int32),
        item=item.astype(np.int32),
        rating=rating.astype(np.float32),
        user_ids=np.array([f"u{n:07}" for n in range(users)]),
        item_ids=np.array([f"i{n:06}" for n in range(items)]),
        scale=(1, 5),
        name="made up",
    )


def main() -> None:
    name = sys.argv[1]
    users, items, ratings, number = SHAPES[name]
    table = make_ratings(users, items, ratings)
    parties = split_items(table, number)
    began, spent = time.time(), time.process_time()
    run = train(parties, Config.preset("best"), watch=lambda event: print(event, flush=True))
    metrics = run.metrics

    def cost(part: dict) -> dict:
        traffic = sum(part["bytes"][way] for way in ("up", "down"))
        return {"rounds": part["rounds"], "mb_a_party": round(traffic / number / 1e6, 1)}

    trainings = {"ratings": metrics, "lists": metrics.get("lists"), "final": metrics.get("final")}
    trainings["final lists"] = (metrics.get("final") or {}).get("lists")
    record = {
        "shape": {"users": users, "items": items, "ratings": len(table), "parties": number},
        "command": f"python benchmarks/shapes.py {name}",
        "commit": commit(),
        "environment": metrics["environment"],
        "wall_seconds": round(time.time() - began),
        "cpu_seconds": round(time.process_time() - spent),
        "peak_gb_of_all_parties": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2),
        "trainings": {title: cost(part) for title, part in trainings.items() if part},
        "test": metrics["test"],
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record))


if __name__ == "__main__":
    main()
