"""Show which items the gain on sports and clothes comes from: if from undetected twins, then from items like one of the partner's.

    VERFEDGNN_DATA=... .venv/bin/python benchmarks/twin_gain.py        # needs polars

It trains seed 0 of preset best, exports the test cases of known customers, and counts the hits among the first 20 together and alone: by the item's
number of raters, and by the largest share of raters that it has in common with an item of the partner (Jaccard).
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import polars as pl
from scipy.sparse import csr_array

from verfedgnn.config import Config
from verfedgnn.training.train import train
from verfedgnn_research.experiments.training_cell import read_case

RATERS = (2, 5, 20)
ALIKE = (0.1, 0.3)


def main() -> None:
    parties = read_case("sport-cloth", 0)
    rated = [
        csr_array((np.ones(len(r)), (r.user, r.item)), shape=(r.n_users, r.n_items))
        for r in (party.ratings for party in parties)
    ]
    raters = [matrix.sum(0) for matrix in rated]
    common = (rated[0].T @ rated[1]).tocoo()
    jaccard = common.data / (raters[0][common.row] + raters[1][common.col] - common.data)
    alike = [np.zeros(len(count)) for count in raters]
    for most, items in zip(alike, (common.row, common.col), strict=True):
        np.maximum.at(most, items, jaccard)
    items = pl.concat(
        pl.DataFrame(
            {"party": p.name, "item": p.ratings.item_ids.astype(str), "raters": count, "alike": most}
        )
        for p, count, most in zip(parties, raters, alike, strict=True)
    )
    with tempfile.TemporaryDirectory() as folder:
        run, cases = Path(folder) / "run", Path(folder) / "cases.parquet"
        train(parties, Config.preset("best", seed=0).with_values({"final": False}), out=run)
        command = ["evaluate", str(run), "--predictions", str(cases), "--quiet"]
        subprocess.run([sys.executable, "-m", "verfedgnn", *command], check=True)
        table = (
            pl.read_parquet(cases).filter(pl.col("customers") == "known").join(items, on=["party", "item"])
        )
    hit = {name: pl.col(column).is_between(1, 20).sum() for name, column in
           (("together", "place"), ("alone", "place_alone"))}  # fmt: skip
    for column, breaks in (("raters", RATERS), ("alike", ALIKE)):
        kept = table if column == "raters" else table.filter(pl.col("raters") > RATERS[1])
        group = pl.col(column).cut(list(breaks)).alias(column)
        print(kept.group_by(group).agg(cases=pl.len(), **hit).sort(column))


if __name__ == "__main__":
    main()
