"""The tables of `verfedgnn compare`: methods side by side on one data set."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from verfedgnn.data.read_options import DEFAULT_OPTIONS, ReadOptions
from verfedgnn_research.baselines import method, methods
from verfedgnn_research.experiments.result_tables import (
    comma_separated,
    declarations,
    in_order,
    markdown,
    mean_std,
)
from verfedgnn_research.experiments.training_cell import Cell, Record

HEADER = (
    "method",
    "model",
    "RMSE",
    "MAE",
    "NDCG@20",
    "bytes a party and round",
    "bytes in all",
    "seconds",
    "protects",
)


def comparison_cells(
    data: Sequence[str],
    methods: Iterable[str],
    gnns: Sequence[str],
    seeds: int,
    parties: int | None,
    settings: Mapping[str, Any],
    reading: ReadOptions = DEFAULT_OPTIONS,
    by: str | None = None,
) -> list[Cell]:
    """Return one cell for every method, every GNN it supports and every seed."""
    cells = []
    for name in methods:
        for gnn in method(name).gnns(gnns):
            chosen = tuple(settings.items())
            cells += [
                Cell(tuple(data), name, gnn, seed, parties, chosen, reading=reading, by=by)
                for seed in range(seeds)
            ]
    return cells


def comparison_rows(records: Mapping[Cell, Record]) -> list[list[Any]]:
    """Return a row per method and GNN: means and deviations over seeds as text, bytes and seconds as
    numbers.
    """
    groups: dict[tuple[str, str], list[Record]] = {}
    for cell, record in records.items():
        groups.setdefault((cell.method, cell.gnn), []).append(record)
    places = list(methods())
    rows = []
    for name, gnn in sorted(groups, key=lambda group: places.index(group[0])):
        group = groups[name, gnn]
        chosen = method(name)
        judged = [mean_std(r["test"][figure] for r in group) for figure in ("rmse", "mae", "ndcg@20")]
        spent = [
            round(statistics.mean(r["bytes"]["per_party_per_round"] for r in group)),
            round(statistics.mean(r["bytes"]["up"] + r["bytes"]["down"] for r in group)),
            round(statistics.mean(r["seconds"] for r in group)),
        ]
        rows.append(
            [chosen.title, gnn.upper() if chosen.by_gnn else "", *judged, *spent, chosen.declares.protects]
        )
    return rows


def diagnose_comparison(records: Mapping[Cell, Record]) -> list[str]:
    """Return sentences on a comparison: the best methods, what joining realises of pooling, and what is worse than means."""
    groups: dict[str, list[Record]] = {}
    for cell, record in records.items():
        groups.setdefault(cell.method, []).append(record["test"])
    sentences = []
    means: dict[str, dict[str, float]] = {}
    for figure, wording, sign in (("rmse", "the lowest RMSE", 1), ("ndcg@20", "the highest NDCG@20", -1)):
        known = {name: [test[figure] for test in tests] for name, tests in groups.items()}
        means[figure] = found = {
            name: statistics.mean(values) for name, values in known.items() if None not in values
        }
        if found:
            best = min(found, key=lambda name: sign * found[name])
            sentences.append(f"{method(best).title} has {wording} ({found[best]:.4f}).")
    shares = pooled_shares(means)
    if shares:
        said = " and ".join(f"{share:.0%} in {name}" for name, share in shares.items())
        sentences.append(f"Of what pooling all ratings would gain, preset best realises {said}.")
    errors = means["rmse"]
    if "bias" in errors:
        worse = [each.name for each in in_order(errors) if errors[each.name] > errors["bias"]]
        if worse:
            named = ", ".join(f"{method(name).title} {errors[name]:.4f}" for name in worse)
            sentences.append(f"No better than the means ({errors['bias']:.4f}): {named}.")
        if any(method(name).preset == "paper" for name in worse):
            sentences.append("Methods with the paper's settings are not tuned to these data.")
    return sentences


def pooled_shares(means: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return, by figure, which share of the gain of pooling the federation has, where pooling gains more than half a percent."""
    shares = {}
    for figure, label, sign in (("rmse", "RMSE", -1), ("ndcg@20", "NDCG@20", 1)):
        found = means[figure]
        if {"pipeline", "pipeline-alone", "best-gated"} <= found.keys():
            gain = found["pipeline"] - found["pipeline-alone"]
            if sign * gain > 0.005 * found["pipeline-alone"]:
                shares[label] = (found["best-gated"] - found["pipeline-alone"]) / gain
    return shares


def comparison_page(records: Mapping[Cell, Record], command: str) -> str:
    """Return the whole comparison as Markdown."""
    first = next(iter(records.values()))
    seeds = sorted({record["seed"] for record in records.values()})
    commits = sorted({str(record["commit"]) for record in records.values()})
    devices = sorted({record["environment"]["device"] for record in records.values()})
    methods = in_order(cell.method for cell in records)
    rows = [
        [f"{value:,}" if isinstance(value, int) else value for value in row]
        for row in comparison_rows(records)
    ]
    return "\n".join(
        [
            f"# Comparison on {', '.join(first['data'])}",
            "",
            f"Mean ± standard deviation over seeds {', '.join(map(str, seeds))}; the model of the best validation error, "
            f"judged on the test part; {first['parties']} parties. NDCG@20 ranks each party's own catalogue, so it does not "
            "compare between cuts into parties. Bytes: RoundStart and RoundReply of the ledger; "
            "central methods hand over every rating once. Seconds: training, the data being read.",
            "",
            markdown(HEADER, rows),
            "Settings:",
            "",
            *(f"- {each.title}: {each.settings}" for each in methods),
            "",
            "What the methods declare (the paper's Table 1):",
            "",
            markdown(*declarations(methods)),
            f"Made by `{command}`; data {first['data_sha256'][:16]}, commit {', '.join(commits)}, on {', '.join(devices)}. The "
            "records, with the hash of each configuration, are in `cells.jsonl`.",
            "",
        ]
    )


def comparison_csv(records: Mapping[Cell, Record]) -> str:
    """Return the same rows as CSV."""
    return comma_separated(HEADER, comparison_rows(records))
