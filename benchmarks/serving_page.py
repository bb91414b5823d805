"""The page of `benchmarks/serving.py`: results/serving.json as Markdown."""

from __future__ import annotations

from typing import Any

import numpy as np


def page(kept: dict[str, Any]) -> str:
    """Render results/serving.json as Markdown."""
    lines = [
        "# Cost of serving",
        "",
        f"`benchmarks/serving.py` on {kept['machine']}.",
        f"The newest rows are of verfedgnn {kept['version']}. Rows of latency name their version. They were not",
        "measured on the same day, nor on a machine that was equally busy: *others* and the load average say how busy it was.",
        "Versions up to dev642 had a shortcut past FastAPI for the plain request, which saved 0.3 s of CPU per 1,000 requests.",
        "",
    ]
    lines += [
        "Latency is measured under open-loop load on the loopback interface; server and load generator share the cores.",
        "*Others* is the CPU use of all other processes, in cores. The load average is that of the last minute and includes the",
        "measurement itself. Server CPU is for 1,000 answered requests; it falls under load, because batches",
        "grow. A request is given up if all 256 connections are busy.",
    ]
    names = [
        "requests/s sent",
        "p50, ms",
        "p90",
        "p99",
        "maximum",
        "given up",
        "server CPU s per 1,000",
        "others",
    ]
    names += ["load average", "version"]
    for title, rows in kept["load"].items():
        lines += ["", f"## {title}", f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
        for r in sorted(rows, key=lambda row: row["asked"]):
            late = " | ".join(
                f"{r[name]:.1f}" if r[name] < 50_000 else "–" for name in ("p50", "p90", "p99", "max")
            )
            given_up, rest = (
                f"{r['failed']:.0f} of {r['requests']:.0f}",
                f"{r['others']:.2f} | {r['load']:.1f} | {r['version']}",
            )
            lines.append(f"| {r['asked']:.0f} | {late} | {given_up} | {r['cpu_per_1000']:.2f} | {rest} |")
    if "keys" in kept:
        lines += [
            "",
            "## The cost of API keys",
            "",
            "`--keys` runs two servers and loads them alternately: 64 connections, each of which sends the next request when the last",
            "one is answered. One server has a hundred API keys with rights, parties and rate limits, and writes an access log; the",
            "other one has none of these. Figures are medians over the repeats.",
            "",
            "| items | repeats | CPU s per 1,000, with keys | without | ratio | range of the ratio | load average |",
            "|---|---|---|---|---|---|---|",
        ]
        for items, rows in kept["keys"].items():
            ratios = [row["with_cpu"] / row["without_cpu"] for row in rows]
            middle = {key: float(np.median([row[key] for row in rows])) for key in rows[0]}
            lines.append(
                f"| {items} | {len(rows)} | {middle['with_cpu']:.3f} | {middle['without_cpu']:.3f} | {np.median(ratios):.2f} | "
                f"{min(ratios):.2f} to {max(ratios):.2f} | {middle['load']:.1f} |"
            )
    return "\n".join(lines) + "\n"
