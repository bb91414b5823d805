"""Measure ratings that are newer than a run: three ways to serve users who have rated more since. Writes results/newer-ratings.md.

    verfedgnn train --data ml-100k --by genre --parties 3 --out RUN
    .venv/bin/python benchmarks/newer_ratings.py RUN

Each party serves its own items from its own ratings. The validation part is newer than the run, and the test part judges.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

import verfedgnn as vf
from verfedgnn.data import TEST, VALID
from verfedgnn.serving.catalogue import FEDERATED, Catalogue
from verfedgnn.serving.user_profile import ServedUser, profile_user, rated_by

PAGE = Path(__file__).resolve().parent.parent / "results" / "newer-ratings.md"
WAYS = ("as trained", "all ratings folded in", "trained vector, moved")


def study(run: vf.Run, number: int) -> list[float]:
    """Return the test RMSE at one party for each way."""
    party, part = run.parties[number], run.parts[number]
    table = party.ratings
    catalogue = Catalogue(run, "run", party.name, newer={party.name: table.take(part == VALID)})
    vectors = catalogue.rating_models[FEDERATED][0].items.numpy()
    errors: dict[str, list[float]] = {way: [] for way in WAYS}
    test = table.take(part == TEST)
    for user in np.unique(test.user):
        newer = catalogue.find_newer_ratings(str(table.user_ids[user]))
        now = ServedUser(int(user), newer)
        ways = (ServedUser(int(user)), ServedUser(None, rated_by(catalogue, now, [0])), now)
        asked = test.user == user
        for way, served in zip(WAYS, ways, strict=True):
            profile = profile_user(catalogue, FEDERATED, served if newer else ways[0], [0])[0]
            predicted = (vectors[test.item[asked]] @ profile.rating_vector).clip(*table.scale)
            errors[way] += ((predicted - test.rating[asked]) ** 2).tolist()
    return [float(np.sqrt(np.mean(values))) for values in errors.values()]


def main() -> None:
    """Measure the run of the command line and write the page."""
    torch.set_num_threads(1)
    run = vf.Run.load(sys.argv[1])
    lines = [
        "# Ratings that are newer than the run",
        "",
        "Test RMSE (lower is better) at each party, which serves its own items from its own ratings. The",
        "validation part plays the ratings that came after the training. MovieLens-100K, three parties by",
        "genre, preset `best`, seed 0. *Moved* is what `serve --ratings` does with users who were in",
        "training. `benchmarks/newer_ratings.py` wrote this page.",
        "",
        f"| party | {' | '.join(WAYS)} |",
        "|---|---|---|---|",
    ]
    for number, party in enumerate(run.parties):
        figures = study(run, number)
        lines.append(f"| {party.name} | " + " | ".join(f"{value:.4f}" for value in figures) + " |")
    PAGE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
