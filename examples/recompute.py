"""Recompute the figures of a run from its test predictions, with polars and scikit-learn only.

verfedgnn evaluate RUN --predictions predictions.parquet
python examples/recompute.py predictions.parquet
"""

import sys

import polars as pl
from sklearn.metrics import root_mean_squared_error

cases = pl.read_parquet(sys.argv[1])
for customers in ("known", "new"):
    judged = cases.filter(pl.col("customers") == customers)
    if "predicted" in judged.columns and len(judged):
        print(customers, "rmse", root_mean_squared_error(judged["rating"], judged["predicted"]))
    lists = judged.filter("liked").group_by("party", "user").agg((pl.col("place") > 0).any().alias("hit"))
    print(customers, "hitrate@20", lists["hit"].mean())
