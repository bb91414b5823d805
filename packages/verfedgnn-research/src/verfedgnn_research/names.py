"""Names that help shows. Nothing here loads torch, because help must not wait for it."""

from __future__ import annotations

METHODS = (
    "popularity",
    "popularity-alone",
    "bias",
    "bias-alone",
    "itemknn",
    "itemknn-alone",
    "ease",
    "ease-alone",
    "ials",
    "ials-alone",
    "lightgcn",
    "emcdr",
    "svd++",
    "svd++-alone",
    "autorec",
    "autorec-alone",
    "pipeline",
    "pipeline-alone",
    "mf",
    "biased-mf",
    "biased-mf-alone",
    "central",
    "alone",
    "fedpergnn",
    "fedsage",
    "fedsage+",
    "verfedgnn",
    "best",
    "best-gated",
    "private",
)
EXPERIMENTS = (
    "table1",
    "table2",
    "table3",
    "table4",
    "table5",
    "table6",
    "table7",
    "figure2",
    "figure3",
    "figure4",
    "figure5",
)
"""Names of methods and experiments. A test compares them with the modules that define them."""
CASES = ("amazon", "ciao-all", "ciao-any", "douban", "genre", "sport-cloth")
"""Data sets of `bench` and `compare` that are divided among parties in a fixed way: two shops, categories of Ciao with the users of
all or of any, books and music, the genres of ML-1M, and two shops without ratings."""
