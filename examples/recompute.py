"""Recompute the figures of a run from its test predictions, with polars and scikit-learn only.

verfedgnn evaluate RUN --predictions predictions.parquet
python examples/recompute.py predictions.parquet

Customers are `known` or `new`, as in the verdict. It leaves out those `unjudged`, who have no training rating
at the party and were not withheld.
"""

import sys

import polars as pl
from sklearn.metrics import root_mean_squared_error

cases = pl.read_parquet(sys.argv[1])
parties = cases["party"].unique(maintain_order=True).to_list()
for customers in ("known", "new"):
    for party in [*parties, "all"]:
        judged = cases.filter(pl.col("customers") == customers)
        if party != "all":
            judged = judged.filter(pl.col("party") == party)
        if "predicted" in judged.columns and len(judged):
            rmse = root_mean_squared_error(judged["rating"], judged["predicted"])
            print(customers, party, "rmse", rmse, f"({judged['user'].n_unique()} customers)")
        lists = judged.filter("liked").group_by("party", "user").agg((pl.col("place") > 0).any().alias("hit"))
        if len(lists):
            print(
                customers, party, "hitrate@20", lists["hit"].mean(), f"({lists['user'].n_unique()} customers)"
            )
