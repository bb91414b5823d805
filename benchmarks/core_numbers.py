"""Measure the accuracy of preset paper on ML-1M and BookCrossing: three GNNs, three seeds, ten parties.
Writes results/core.md.

    VERFEDGNN_DATA=... .venv/bin/python benchmarks/core_numbers.py [--jobs 1] [--device cpu] [--only ml-1m/gcn/0 ...]

Every run is the command that its row names; finished ones are kept in results/core/ and not run again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch

from verfedgnn.config import Config
from verfedgnn.data import PartyData, read_ratings
from verfedgnn.research.baselines import Where, method
from verfedgnn.research.paper.published import TABLE2
from verfedgnn.runs.prepared_data import prepare
from verfedgnn.runs.run_evaluation import evaluate

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"
CPU = torch.device("cpu")
MODELS = ("gcn", "gat", "ggnn")
SEEDS = (0, 1, 2)
PAPER = {data: {model: rows["verfedgnn", model] for model in MODELS} for data, rows in TABLE2.items()}
"""Table 2 of the paper, VerFedGNN: mean and standard deviation over five repetitions."""
FILES = {"ml-1m": "ratings.dat*", "book-crossing": "BX-Book-Ratings.csv*"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument(
        "--only", nargs="*", default=[f"{d}/{m}/{s}" for d in PAPER for m in MODELS for s in SEEDS]
    )
    parser.add_argument("--table", action="store_true", help="only write the table from what is there")
    options = parser.parse_args()
    if not options.table:
        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(lambda name: run(name, options.device, options.threads), options.only))
        for data in PAPER:
            biases(data)
    write_table()


def biases(data: str) -> None:
    """Compute the baseline that a model must beat: user and item means on pooled data with the same split."""
    ratings = read_ratings(data)
    pool = [PartyData(data, ratings)]
    rmse = []
    for seed in SEEDS:
        config = Config(seed=seed)
        models = method("bias").train(pool, config, Where(CPU)).models
        rmse.append(evaluate(prepare(pool, config, CPU), models)["test"]["rmse"])
    (RESULTS / "core").mkdir(parents=True, exist_ok=True)
    (RESULTS / "core" / f"{data}-biases.json").write_text(json.dumps({"test_rmse": rmse}) + "\n")


def run(name: str, device: str, threads: int) -> None:
    """Run one training, unless there is a result for the same configuration."""
    data, model, seed = name.split("/")
    path = RESULTS / "core" / f"{data}-{model}-{seed}.json"
    fingerprint = Config.preset("paper", model=model, seed=int(seed)).fingerprint()
    if path.exists() and json.loads(path.read_text())["config"] == fingerprint:
        return
    words = f"train --data {data} --preset paper --model {model} --parties 10 --seed {seed}"
    extra = [
        *(["--device", device] if device != "cpu" else []),
        *(["--threads", str(threads)] if threads else []),
    ]
    out = subprocess.run(
        [
            sys.executable,
            "-m",
            "verfedgnn",
            *words.split(),
            *extra,
            "--json",
            "--out",
            str(run_folder(name)),
            "--overwrite",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if out.returncode:
        print(f"{name}: {out.stderr.strip().splitlines()[-1]}", flush=True)
        return
    metrics = json.loads(out.stdout.splitlines()[-1])
    history = [json.loads(line) for line in (run_folder(name) / "history.jsonl").read_text().splitlines()]
    kept = (
        "test",
        "valid",
        "rounds",
        "best_round",
        "seconds",
        "bytes",
        "privacy",
        "config",
        "seed",
        "environment",
    )
    result = {key: metrics[key] for key in kept} | {
        "command": " ".join(["verfedgnn", words, *extra]),
        "data_sha256": checksum(data),
        "curve": [[entry["round"], round(entry["valid_rmse"], 5)] for entry in history],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{name}: test RMSE {metrics['test']['rmse']:.4f} in {metrics['seconds']:.0f} s", flush=True)


def run_folder(name: str) -> Path:
    return ROOT / "runs" / "core" / name.replace("/", "-")


def checksum(data: str) -> str:
    """Return the SHA-256 of the ratings file."""
    (path,) = (Path(os.environ["VERFEDGNN_DATA"]) / data).glob(FILES[data])
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_table() -> None:
    read = {path.stem: json.loads(path.read_text()) for path in sorted((RESULTS / "core").glob("*.json"))}
    found = {name: result for name, result in read.items() if "command" in result}
    lines = [
        "# Preset paper, ten parties",
        "",
        "Test RMSE (lower is better), mean ± standard deviation of seeds 0-2; the paper's values are over",
        "five repetitions. The model was selected on the validation part. BookCrossing has explicit ratings",
        "of the 6,000 users and then the 3,000 items with most ratings. `benchmarks/core_numbers.py` wrote",
        "this page; `core/` has each run's results, curve, command and data checksum.",
        "",
        "| data | model | paper | ours | seeds 0, 1, 2 | best round of | seconds | bytes a party and round |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for data, models in PAPER.items():
        if f"{data}-biases" in read:
            rmse = read[f"{data}-biases"]["test_rmse"]
            each = ", ".join(f"{x:.4f}" for x in rmse)
            lines.append(
                f"| {data} | user and item biases, pooled | | {statistics.mean(rmse):.4f} | {each} | | | |"
            )
        for model, (mean, std) in models.items():
            rows = [found[f"{data}-{model}-{s}"] for s in SEEDS if f"{data}-{model}-{s}" in found]
            if not rows:
                continue
            rmse = [row["test"]["rmse"] for row in rows]
            spread = f" ± {statistics.stdev(rmse):.4f}" if len(rmse) > 1 else ""
            devices = sorted({row["environment"]["device"] for row in rows})
            lines.append(
                f"| {data} | {model} | {mean:.4f} ± {std:.4f} | **{statistics.mean(rmse):.4f}**{spread} "
                f"| {', '.join(f'{x:.4f}' for x in rmse)} "
                f"| {', '.join(str(row['best_round']) for row in rows)} of {rows[0]['rounds']} "
                f"| {statistics.mean(r['seconds'] for r in rows):.0f} ({', '.join(devices)}) "
                f"| {rows[0]['bytes']['per_party_per_round']:,} |"
            )
    lines += ["", "![validation RMSE by round](core.png)", "", "Commands:", ""]
    lines += [f"- `{row['command']}` (configuration {row['config']})" for row in found.values()]
    (RESULTS / "core.md").write_text("\n".join(lines) + "\n")
    plot(found)


def plot(found: dict[str, dict[str, object]]) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.6))
    for axis, data in zip(axes, PAPER, strict=True):
        for model, colour in zip(MODELS, ("#1b6ca8", "#d1603d", "#3a7d44"), strict=True):
            for seed in SEEDS:
                result = found.get(f"{data}-{model}-{seed}")
                if result:
                    x, y = zip(*result["curve"], strict=True)  # type: ignore[call-overload]
                    axis.plot(
                        x, y, color=colour, alpha=0.8, lw=1.2, label=model.upper() if seed == 0 else None
                    )
            axis.axhline(PAPER[data][model][0], color=colour, lw=0.8, ls=":")
        axis.set(title=f"{data}, preset paper", xlabel="round", ylabel="validation RMSE")
        if axis.get_legend_handles_labels()[0]:
            axis.legend(title="dotted: paper (test)", fontsize=8, title_fontsize=8)
    low = {"ml-1m": (0.895, 0.96), "book-crossing": (1.55, 1.85)}
    for axis, data in zip(axes, PAPER, strict=True):
        axis.set_ylim(*low[data])
    figure.tight_layout()
    figure.savefig(RESULTS / "core.png", dpi=130)


if __name__ == "__main__":
    main()
