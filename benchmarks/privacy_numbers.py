"""Measure the accuracy of preset private by budget: epsilon 1 to 20 for single ratings over whole
trainings. Writes results/privacy.md.

    VERFEDGNN_DATA=... .venv/bin/python benchmarks/privacy_numbers.py [--jobs 2]

Finished trainings are kept in results/privacy/ and not run again.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from verfedgnn import Config
from verfedgnn.privacy.rating_dp import fit_budget
from verfedgnn.research.experiments.result_tables import markdown, mean_std
from verfedgnn.research.experiments.training_cell import Cell
from verfedgnn.research.experiments.training_queue import run_cells

RESULTS = Path(__file__).resolve().parent.parent / "results"
DATA = {"ml-1m": "ML-1M", "ml-100k": "ML-100K", "book-crossing": "BookCrossing"}
BUDGETS = (1.0, 2.0, 4.0, 8.0, 20.0)
DELTA = 1e-6
SEEDS = range(5)
HOME_SEEDS = range(3)
AT_HOME = 4.0
"""Budget for which the mixtures that parties serve are measured, too."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=0)
    options = parser.parse_args()
    noise = {
        e: fit_budget(Config.preset("private"), wanted=e, delta=DELTA).gradients.noise_multiplier
        for e in BUDGETS
    }
    cells = {
        (data, budget): [
            Cell((data,), "private", "gcn", seed, 10, (("gradients.noise_multiplier", noise[budget]),))
            for seed in SEEDS
        ]
        for data in DATA
        for budget in BUDGETS
    }
    gated = (("gradients.noise_multiplier", noise[AT_HOME]), ("training.gate", True))
    home = {data: [Cell((data,), "private", "gcn", seed, 10, gated) for seed in HOME_SEEDS] for data in DATA}
    bias = {data: [Cell((data,), "bias", "gcn", seed, 10) for seed in SEEDS] for data in DATA}
    wanted = [cell for row in (*home.values(), *cells.values(), *bias.values()) for cell in row]
    records = run_cells(
        wanted, RESULTS / "privacy", jobs=options.jobs, watch=lambda r: print(f"\r{r.done}/{r.total}", end="")
    )
    found = {key: [records[cell]["test"]["rmse"] for cell in row] for key, row in cells.items()}
    means = {data: [records[cell]["test"]["rmse"] for cell in row] for data, row in bias.items()}
    served = {data: [records[cell]["test"]["rmse"] for cell in row] for data, row in home.items()}
    rows = [
        [DATA[data], *(mean_std(found[data, budget]) for budget in BUDGETS), mean_std(means[data])]
        for data in DATA
    ]
    header = [
        "data",
        *(f"ε = {budget:g} (z = {noise[budget]:g})" for budget in BUDGETS),
        "user and item means, unprotected",
    ]
    first = next(iter(records.values()))
    commits = ", ".join(sorted({str(r["commit"]) for r in records.values()}))
    text = [
        "# Differential privacy of single ratings",
        "",
        "Test RMSE (lower is better) of preset `private` with ten parties and without its gate, mean ± standard deviation over",
        "seeds 0-4. The guarantee ε at δ = 1e-6 covers the presence of one rating of one user at one party,",
        "over the whole training of 40 rounds ([Privacy](../docs/privacy.md)). z is the noise multiplier.",
        "",
        markdown(header, rows),
        "This is the model that all parties have in common. With the gate, which preset `private` has by default, a party",
        "re-estimates its items and mixes the model with its own means and its own model. That happens at home and costs no",
        f"budget. With ε = {AT_HOME:g} and seeds 0-2, the parties serve:",
        "",
        markdown(
            ["data", "common model", "served"],
            [[DATA[d], mean_std(found[d, AT_HOME][: len(HOME_SEEDS)]), mean_std(served[d])] for d in DATA],
        ),
        "![RMSE by epsilon](privacy.png)",
        "",
        "Made by `benchmarks/privacy_numbers.py`; one training is",
        "`verfedgnn train --preset private --epsilon E --parties 10 --seed S --data D`.",
        f"Commit {commits}, {first['environment']['device']}, torch {first['environment']['torch']}; the records are in",
        "`privacy/cells.jsonl`.",
        "",
    ]
    (RESULTS / "privacy.md").write_text("\n".join(text))
    figure, axes = plt.subplots(1, len(DATA), figsize=(11, 3.4), layout="constrained")
    for axis, data in zip(axes, DATA, strict=True):
        rmse = [found[data, budget] for budget in BUDGETS]
        axis.errorbar(
            BUDGETS,
            [statistics.mean(r) for r in rmse],
            [statistics.stdev(r) for r in rmse],
            fmt="o-",
            capsize=3,
        )
        axis.axhline(
            statistics.mean(means[data]), color="#888888", ls=":", label="user and item means, unprotected"
        )
        axis.set_xscale("log")
        axis.set_xticks(BUDGETS, [f"{budget:g}" for budget in BUDGETS])
        axis.minorticks_off()
        axis.set(title=DATA[data], xlabel="ε of a rating over the training", ylabel="test RMSE")
        axis.legend(frameon=False, fontsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(RESULTS / "privacy.png", dpi=130)


if __name__ == "__main__":
    main()
