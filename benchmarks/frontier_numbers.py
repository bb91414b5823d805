"""Measure the second model over an item's raters (`model.raters`). Writes results/frontier/*.json and the tables of results/frontier.md.

    VERFEDGNN_DATA=... .venv/bin/python benchmarks/frontier_numbers.py run ml-1m --model ggnn --seed 0 [--late] [--set model.raters=64] [--device cuda]
    .venv/bin/python benchmarks/frontier_numbers.py page

Every run is preset best with the settings that its row names, ten parties or those that the data set has. The gate is off unless
`--gate` is given, as in results/best.md; lists are not trained.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch

from pays_numbers import read_case
from verfedgnn.config import Config, parse_settings
from verfedgnn.training.train import train

RESULTS = Path(__file__).resolve().parent.parent / "results"
START, END = "<!-- measured -->", "<!-- end -->"


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Train once and return the record."""
    torch.set_num_threads(1)
    values: dict[str, Any] = {"seed": options.seed, "gate": options.gate, "lists": False}
    if options.late:
        values["fractions"] = [0.85, 0.05, 0.1]
    given = parse_settings(options.set)
    config = Config.preset("best", model=options.model).with_values(values | given)
    run = train(read_case(options.data, options.seed), config, device=options.device)
    kept = ("test", "valid", "rounds", "best_round", "seconds", "bytes", "config", "environment")
    words = [options.model, *("gate" for _ in [0] if options.gate), *options.set]
    return {
        "data": f"{options.data} 85/5/10" if options.late else options.data,
        "settings": " ".join(words),
        "seed": options.seed,
        "parties": len(run.parties),
        **{name: run.metrics.get(name) for name in kept},
        "curve": [[line["round"], round(line["valid_rmse"], 5)] for line in run.history],
    }


def table() -> list[str]:
    """Return one row for each data set and setting, with means over seeds."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for path in sorted((RESULTS / "frontier").glob("run-*.json")):
        record = json.loads(path.read_text())
        groups.setdefault((record["data"], record["settings"]), []).append(record)
    lines = [
        "| data | settings | test RMSE | validation | seeds | round kept of | MB a party, in all | seconds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (data, settings), runs in sorted(groups.items()):
        test = [run["test"]["rmse"] for run in runs]
        size = statistics.mean((r["bytes"]["up"] + r["bytes"]["down"]) / r["parties"] / 1e6 for r in runs)
        spread = f" ± {statistics.stdev(test):.4f}" if len(test) > 1 else ""
        lines.append(
            f"| {data} | {settings} | **{statistics.mean(test):.4f}{spread}** "
            f"| {statistics.mean(r['valid']['rmse'] for r in runs):.4f} | {', '.join(f'{x:.4f}' for x in test)} "
            f"| {', '.join(str(r['best_round']) for r in runs)} of {runs[0]['rounds']} | {size:,.0f} "
            f"| {statistics.mean(r['seconds'] for r in runs):.0f} |"
        )
    return lines


def main() -> None:
    """Run one training, or write the tables of the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("run", "page"))
    parser.add_argument("data", nargs="?", default="ml-1m")
    parser.add_argument("--model", default="gcn")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--late", action="store_true", help="split 85/5/10 instead of 60/20/20")
    parser.add_argument("--gate", action="store_true", help="let every party mix its models")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=RESULTS / "frontier")
    options = parser.parse_args()
    if options.what == "page":
        page = RESULTS / "frontier.md"
        head, rest = page.read_text().split(START)
        tail = rest.split(END)[1]
        page.write_text("\n".join([f"{head}{START}", *table(), f"{END}{tail}"]))
        return
    record = measure(options)
    plain = "".join(c if c.isalnum() else "-" for c in f"{record['data']} {record['settings']}")
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"run-{plain}-{options.seed}.json").write_text(json.dumps(record) + "\n")
    print(record["data"], record["settings"], options.seed, record["test"], record["seconds"], flush=True)


if __name__ == "__main__":
    main()
