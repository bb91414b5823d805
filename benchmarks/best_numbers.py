"""Measure the accuracy of preset best: models, exchanges, ablations, ranking. Writes results/best.md and
its pictures.

    VERFEDGNN_DATA=... .venv/bin/python benchmarks/best_numbers.py [--only accuracy] [--slice 0/2] [--device cpu] [--threads 1]

Every run is the command that its row names (paths aside); finished ones are kept in results/best/ and not run
again. `--table` writes the page from what is there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"
SEEDS = (0, 1, 2)
COLOURS = {"gcn": "#2a6fb0", "gat": "#e07b39", "ggnn": "#5aa469"}


@dataclass(frozen=True)
class Row:
    """A row of a table: the command and its seeds."""

    group: str
    label: str
    words: str
    seeds: tuple[int, ...] = SEEDS

    def path(self, seed: int) -> Path:
        """Return the file with the result of one seed."""
        plain = "".join(c if c.isalnum() else "-" for c in self.label).strip("-").lower()
        return RESULTS / "best" / f"{self.group}-{plain}-{seed}.json"


def _rows() -> list[Row]:
    shared = "--preset best --set gate=false"
    rows = []
    for data in ("ml-1m", "book-crossing"):
        for model in ("gcn", "gat", "ggnn"):
            words = f"--data {data} {shared} --model {model}"
            rows.append(Row("accuracy", f"{data} {model}", words))
            if data == "ml-1m" or model == "gcn":
                rows.append(
                    Row("accuracy", f"{data} {model}, no exchange", f"{words} --set exchange.mode=off")
                )
    for model in ("gcn", "ggnn"):
        words = f"--data ml-1m {shared} --model {model} --set fractions=[0.85,0.05,0.1]"
        rows.append(Row("accuracy", f"ml-1m 90/10 {model}", words))

    def one(group: str, label: str, *settings: str) -> None:
        words = " ".join(
            [f"--data ml-1m {shared} --model gcn", *(f"--set {setting}" for setting in settings)]
        )
        rows.append(Row(group, label, words, (0,)))

    one("exchange", "masked, every 5th round (preset)")
    one("exchange", "masked, every round", "exchange.every=1")
    one("exchange", "masked, every 20th round", "exchange.every=20")
    one("exchange", "masked, 32 bits", "exchange.bits=32")
    one("exchange", "masked, no backward exchange", "exchange.backward=false")
    one("exchange", "masked, every round, no backward", "exchange.every=1", "exchange.backward=false")
    for noise in (0.05, 0.2, 1.0):
        one(
            "exchange",
            f"noised {noise:g}",
            "exchange.mode=noised",
            f"exchange.noise={noise:g}",
            "exchange.row_clip=0.5",
        )
    one("exchange", "projected N/5", "exchange.mode=projected", "exchange.reconstruction=scaled")
    one(
        "exchange",
        "projected N/2",
        "exchange.mode=projected",
        "exchange.reconstruction=scaled",
        "exchange.ratio=2",
    )
    one("exchange", "none", "exchange.mode=off")
    one("ablation", "preset best")
    one("ablation", "no biases", "model.biases=false")
    one("ablation", "no rescale", "rescale_by_ratings=false", "rescale_users=1", "rescale_weights=1")
    one("ablation", "batches of 20,000", "training.batch=20000", "epochs=26", "evaluate_every=31")
    one("ablation", "batches of 100,000", "training.batch=100000", "epochs=133", "evaluate_every=14")
    one("ablation", "no messages (factorisation)", "model.threshold=100", "exchange.mode=off")
    one("ablation", "messages of liked items only", "model.threshold=unset")
    one(
        "ablation",
        "paper's propagation, with biases",
        "model.form=propagation",
        "model.layers=2",
        "exchange.backward=false",
        "model.threshold=unset",
    )
    one("ablation", "no average", "training.average=0")
    one("ablation", "no l2 per row", "l2_row=0")
    one("ablation", "no l2 per rating", "l2_rating=0")
    one("ablation", "D = 16", "model.dim=16")
    one("ablation", "D = 64", "model.dim=64")
    one("ablation", "own user embedding per party", "model.residual=true", "l2_residual=0.5")
    one(
        "ablation",
        "gradients unprotected",
        "gradients.mechanism=none",
        "gradients.clip=unset",
        "masking=false",
        "exchange.mode=exact",
    )
    for r in (2, 5, 10, 20, 50):
        one("ablation", f"r = {r}", f"gradients.r={r}")
    words = "--data ml-1m --preset ranking --model gcn"
    rows.append(Row("ranking", "ml-1m gcn", words))
    rows.append(Row("ranking", "ml-1m gcn, no exchange", f"{words} --set exchange.mode=off", (0,)))
    rows.append(Row("ranking", "ml-1m gcn, own messages too", f"{words} --set own_messages=true", (0,)))
    return rows


ROWS = _rows()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", default=[], help="groups: accuracy, exchange, ablation, ranking")
    parser.add_argument("--slice", default="0/1", help="this process's share, such as 1/4")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--table", action="store_true", help="only write the page from what is there")
    options = parser.parse_args()
    if not options.table:
        first, count = map(int, options.slice.split("/"))
        jobs = [
            (row, seed) for row in ROWS for seed in row.seeds if not options.only or row.group in options.only
        ]
        for row, seed in [job for job in jobs if not job[0].path(job[1]).exists()][first::count]:
            run(row, seed, options.device, options.threads)
    write_page()


def run(row: Row, seed: int, device: str, threads: int) -> None:
    """Run one training and keep its result."""
    words = f"train {row.words} --parties 10 --seed {seed}"
    extra = f"--threads {threads} --device {device} --json --quiet --out runs/best/{row.path(seed).stem} --overwrite"
    out = subprocess.run(
        [sys.executable, "-m", "verfedgnn", *words.split(), *extra.split()],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    if out.returncode:
        print(f"{row.label}: {out.stderr.strip().splitlines()[-1]}", flush=True)
        return
    metrics = json.loads(out.stdout.splitlines()[-1])
    history = [
        json.loads(line)
        for line in (ROOT / f"runs/best/{row.path(seed).stem}/history.jsonl").read_text().splitlines()
    ]
    kept = ("test", "valid", "rounds", "best_round", "seconds", "bytes", "privacy", "config", "environment")
    curve = [
        [e["round"], round(next(v for k, v in e.items() if k.startswith("valid_")), 5), e["bytes"]]
        for e in history
    ]
    result = {key: metrics[key] for key in kept} | {"command": f"verfedgnn {words}", "curve": curve}
    row.path(seed).parent.mkdir(parents=True, exist_ok=True)
    row.path(seed).write_text(json.dumps(result) + "\n")
    print(f"{row.group}/{row.label}/{seed}: {metrics['test']} in {metrics['seconds']:.0f} s", flush=True)


def found(row: Row) -> list[dict[str, Any]]:
    return [json.loads(row.path(seed).read_text()) for seed in row.seeds if row.path(seed).exists()]


def cell(values: list[float]) -> str:
    return f"{statistics.mean(values):.4f}" + (
        f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    )


def table(group: str, key: str) -> list[str]:
    """Return mean and spread of a group, each row with its command."""
    lines = [
        f"| | test {key} | validation | seeds | round kept of | MB a party, in all | seconds | command |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in (row for row in ROWS if row.group == group):
        runs = found(row)
        if not runs:
            continue
        test = [r["test"][key.lower()] for r in runs]
        valid = [
            r["valid"]["rmse"] if key == "RMSE" else max(value for _, value, _ in r["curve"]) for r in runs
        ]
        size = statistics.mean((r["bytes"]["up"] + r["bytes"]["down"]) / 10 / 1e6 for r in runs)
        lines.append(
            f"| {row.label} | **{cell(test)}** | {cell(valid)} | {', '.join(f'{x:.4f}' for x in test)} "
            f"| {', '.join(str(r['best_round']) for r in runs)} of {runs[0]['rounds']} | {size:,.0f} "
            f"| {statistics.mean(r['seconds'] for r in runs):.0f} | `train {row.words}` |"
        )
    return lines


def write_page() -> None:
    page = (ROOT / "benchmarks" / "best.page.md").read_text()
    for group, key in (
        ("accuracy", "RMSE"),
        ("exchange", "RMSE"),
        ("ablation", "RMSE"),
        ("ranking", "NDCG@20"),
    ):
        page = page.replace(f"<!-- {group} -->", "\n".join(table(group, key)))
    for name, lines in (("lift", lift_table()), ("control", control_table()), ("lightgcn", lightgcn_table())):
        page = page.replace(f"<!-- {name} -->", "\n".join(lines))
    (RESULTS / "best.md").write_text(page)
    draw()


def lift_table() -> list[str]:
    """Return RMSE alone and federated: every party of the cases with few parties, the average of
    the others.
    """
    lines = [
        "| case | party | means | alone | federated | gain | pays | gate | command |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for path in sorted((RESULTS / "best").glob("lift-*.json")):
        result = json.loads(path.read_text())
        case = path.stem.removeprefix("lift-").rsplit("-", 1)
        rows = result["lift"]["parties"]
        gates = [f"{gate:.2f}" for gate in result["gates"]]
        if len(rows) > 3:
            pays = ", ".join(sorted({row["pays"] for row in rows}))
            gates = [f"{min(result['gates']):.2f} to {max(result['gates']):.2f}"]
            rows = [result["lift"]["overall"] | {"name": f"all {len(rows)} (each: {pays})"}]
        for row, gate in zip(rows, gates, strict=True):
            gain = f"{row['gain']['rmse']:+.4f} ({row['gain']['low']:+.4f} to {row['gain']['high']:+.4f})"
            figures = " | ".join(f"{row[way]:.4f}" for way in ("biases", "alone", "federated"))
            lines.append(
                f"| {case[0]}, seed {case[1]} | {row['name']} | {figures} | {gain} "
                f"| **{row['pays']}** | {gate} | `{result['command']}` |"
            )
    return lines


def control_table() -> list[str]:
    lines = ["| case | party | alone | two alone, mixed by the gate | federated |", "|---|---|---|---|---|"]
    for path in sorted((RESULTS / "best").glob("lift-*.json")):
        result = json.loads(path.read_text())
        for row, control in zip(result["lift"]["parties"], result["control"] or [], strict=False):
            mixed = control["two alone, mixed"]
            lines.append(
                f"| {path.stem} | {row['name']} | {control['alone']:.4f} | {mixed:.4f} | {row['federated']:.4f} |"
            )
    return lines


def lightgcn_table() -> list[str]:
    lines = ["| pooled | NDCG@20 | Recall@20 | seeds (NDCG@20) |", "|---|---|---|---|"]
    runs = [json.loads(line) for line in (RESULTS / "best" / "lightgcn.jsonl").read_text().splitlines()]
    for name in ("popularity", "popularity of liked", "lightgcn"):
        ndcg, recall = ([run[name]["test"][key] for run in runs] for key in ("ndcg@20", "recall@20"))
        lines.append(f"| {name} | {cell(ndcg)} | {cell(recall)} | {', '.join(f'{x:.4f}' for x in ndcg)} |")
    return lines


def draw() -> None:
    """Draw validation RMSE against rounds and against bytes on ML-1M, next to preset paper."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for row in (
        row
        for row in ROWS
        if row.group == "accuracy" and row.label in ("ml-1m gcn", "ml-1m gat", "ml-1m ggnn")
    ):
        colour = COLOURS[row.label.split()[1]]
        for number, result in enumerate(found(row)):
            rounds, errors, sizes = zip(*result["curve"], strict=True)
            name = f"best, {row.label.split()[1].upper()}" if number == 0 else None
            left.plot(rounds, errors, color=colour, linewidth=1, label=name)
            right.plot([size / 10 / 1e6 for size in sizes], errors, color=colour, linewidth=1)
    old = json.loads((RESULTS / "core" / "ml-1m-gcn-0.json").read_text())
    rounds, errors = zip(*old["curve"], strict=True)
    a_round = old["bytes"]["per_party_per_round"] / 1e6
    left.plot(rounds, errors, color="#9e9e9e", linewidth=1, label="paper's settings, GCN")
    right.plot([a_round * number for number in rounds], errors, color="#9e9e9e", linewidth=1)
    left.set(xlabel="round (= release)", ylabel="validation RMSE, ML-1M", xscale="log", ylim=(0.84, 0.98))
    right.set(xlabel="MB sent and received by a party", xscale="log")
    for axes in (left, right):
        axes.axhline(0.9094, color="#444444", linewidth=0.8, linestyle=":")
        axes.spines[["top", "right"]].set_visible(False)
    left.text(left.get_xlim()[0] * 1.2, 0.9105, "user and item means, pooled", fontsize=8)
    left.legend(frameon=False, fontsize=8)
    figure.savefig(RESULTS / "best.png", dpi=120)


if __name__ == "__main__":
    main()
