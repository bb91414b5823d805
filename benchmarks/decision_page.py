"""Write results/README.md, the page that decides, and its picture, from the records in results/proof/.

    .venv/bin/python benchmarks/decision_page.py

`verfedgnn bench --out results/proof/best.json` and `verfedgnn compare --out results/proof/NAME` make the records.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from verfedgnn.evaluation.verdict import judged_tables
from verfedgnn_research.baselines import METHODS
from verfedgnn_research.experiments.comparison import pooled_shares
from verfedgnn_research.experiments.result_tables import markdown

ROOT = Path(__file__).resolve().parents[1]
PROOF = ROOT / "results" / "proof"
TITLES = {
    "amazon": "Amazon, books and movies",
    "ciao-any": "Ciao, four categories",
    "douban": "Douban, books and music",
    "sport-cloth": "Amazon, sports and clothes",
    "genre": "ML-1M by genre",
    "ml-1m": "ML-1M, cut at random",
    "ml-100k": "ML-100K, cut at random",
}
"""Data sets in the order of the page: real platforms first."""
SIMPLE = ("popularity", "bias", "itemknn", "ease", "ials", "biased-mf")
QUESTIONS = (
    ("lists, new customers", "hitrate@20", "newcomers"),
    ("lists, known customers", "hitrate@20", "known"),
    ("stars, new customers", "rmse", "newcomers"),
    ("stars, known customers", "rmse", "known"),
)
Record = dict[str, Any]


def read_proof() -> tuple[list[Record], dict[str, list[Record]]]:
    """Return the records of bench, and those of compare by data set."""
    records = json.loads((PROOF / "best.json").read_text())
    cells = {
        path.parent.name: [json.loads(line) for line in path.read_text().splitlines()]
        for path in sorted(PROOF.glob("*/cells.jsonl"))
    }
    return records, cells


def by_data(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Return the records of each data set, in the order of the page."""
    found = defaultdict(list)
    for record in records:
        found[record["data"]].append(record)
    return {name: found[name] for name in TITLES if name in found}


def tables(record: Record, metric: str, customers: str) -> list[Record]:
    """Return the table of a verdict that has this metric for these customers, in a list; none if it was not judged."""
    new = customers == "newcomers"
    return [
        table
        for named, table in judged_tables(record["lift"])
        if table["metric"] == metric and ("new" in named) == new and table["overall"].get("gain")
    ]


def gain_row(name: str, records: list[Record]) -> list[str]:
    """Return the row of a data set: what customers find without and with the others."""
    first = records[0]
    row = [TITLES[name], str(first["parties"]), f"{first['users']:,}", f"{first['all_ratings']:,}"]
    for _, metric, customers in QUESTIONS:
        found = [table["overall"] for record in records for table in tables(record, metric, customers)]
        if not found:
            row.append("–")
            continue
        scale, digits = (100, 1) if metric != "rmse" else (1, 4)
        before = statistics.mean(scale * each[each["reference"]] for each in found)
        after = statistics.mean(scale * each["federated"] for each in found)
        row.append(f"{before:.{digits}f} → {after:.{digits}f}")
    words = Counter(
        row["pays"]
        for record in records
        for _, table in judged_tables(record["lift"])
        for row in table["parties"]
    )
    row.append(", ".join(f"{count} {word}" for word, count in words.most_common()))
    megabytes = statistics.mean(sum(traffic(record)) / record["parties"] / 1e6 for record in records)
    row += [f"{megabytes:.0f}", f"{statistics.mean(record['cpu_seconds'] for record in records):.0f}"]
    return row


def traffic(record: Record) -> list[float]:
    """Return the bytes of all parties in each training of a run: judged and on all ratings, ratings and lists."""
    judged = [
        record[part]["bytes_per_party"] * record["parties"] for part in ("ratings", "lists") if part in record
    ]
    final = record["final"] or {}
    return judged + [
        part["bytes"]["up"] + part["bytes"]["down"] for part in (final, final.get("lists") or {}) if part
    ]


def compared_rows(cells: dict[str, list[Record]]) -> list[list[str]]:
    """Return, for each data set and figure, simple methods, the pipeline alone, the federation and the pipeline pooled."""
    rows = []
    for name in TITLES:
        means: dict[str, dict[str, float]] = {"rmse": {}, "ndcg@20": {}}
        groups = defaultdict(list)
        for record in cells.get(name, []):
            groups[record["method"]].append(record)
        for figure, found in means.items():
            for method, group in groups.items():
                values = [record["test"][figure] for record in group if record["test"][figure] is not None]
                if values:
                    found[method] = statistics.mean(values)
        shares = pooled_shares(means)
        for figure, label in (("rmse", "RMSE"), ("ndcg@20", "NDCG@20")):
            found = means[figure]
            if "pipeline" not in found:
                continue
            best = {
                suffix: (min if figure == "rmse" else max)(
                    (found[method + suffix], METHODS[method].title)
                    for method in SIMPLE
                    if method + suffix in found
                )
                for suffix in ("-alone", "")
            }
            seeds = len({record["seed"] for record in groups["pipeline"]})
            own, federated, pooled = (found[m] for m in ("pipeline-alone", "best-gated", "pipeline"))
            share = f"{shares[label]:.0%}" if label in shares else "–"
            rows.append(
                [
                    TITLES[name],
                    str(seeds),
                    label,
                    *(f"{value:.4f} ({title})" for value, title in [best["-alone"]]),
                    f"{own:.4f}",
                    f"**{federated:.4f}**",
                    f"{pooled:.4f}",
                    *(f"{value:.4f} ({title})" for value, title in [best[""]]),
                    share,
                ]
            )
    return rows


def page(records: list[Record], cells: dict[str, list[Record]]) -> str:
    """Return results/README.md."""
    groups = by_data(records)
    commits = sorted({str(r["commit"]) for group in [records, *cells.values()] for r in group})
    seeds = ", ".join(f"{TITLES[name]} {len(group)}" for name, group in groups.items())
    header = ["data", "parties", "users", "ratings", *(title for title, _, _ in QUESTIONS)]
    header += ["words of the parties", "MB a party", "CPU seconds"]
    simple = ["data", "seeds", "figure", "best simple, alone", "pipeline, alone", "federated"]
    simple += ["pipeline, pooled", "best simple, pooled", "share of pooling"]
    return "\n".join(
        [
            "# What joining is worth",
            "",
            "One page that decides. Preset `best` with its defaults, on data sets that are public.",
            "All figures are test figures, and means over seeds.",
            "",
            "![What joining gains of what pooling would gain](gains.svg)",
            "",
            "## What customers see",
            "Without the others → with them. *Lists*: of 100 customers, how many find something they like among",
            "the first 20; higher is better. *Stars*: error of predicted stars; lower is better. By date where",
            "there are dates, else at random. *New* customers have no rating at the party that judges them.",
            "Without means the party's own models, mixed by the same rule.",
            "",
            markdown(header, [gain_row(name, group) for name, group in groups.items()]),
            "The words count every party, question and seed ([what they mean](../docs/model.md#does-joining-pay)).",
            "MB: all trainings of a night, up and down. CPU seconds: all parties on one core, the verdict and the",
            f"training on all ratings included. Seeds: {seeds}.",
            "",
            "What leaks: no ε; fake accounts find items better than by taste ([Attacks](attacks.md)). Preset",
            "`private` has ε = 4 for a rating ([Budgets](privacy.md)).",
            "",
            "```sh",
            f"VERFEDGNN_DATA=... verfedgnn bench {' '.join(groups)} --seeds 3 --out results/proof/best.json",
            "```",
            "",
            "## Against simple methods, alone and pooled",
            "60/20/20 at random. The *pipeline* is preset best without a federation: means, EASE, factors, raters",
            "and lists, mixed on the validation part. *Pooled*, it is a bound that no federation may reach. Simple",
            "methods (popularity, means, ItemKNN, EASE, iALS, biased MF) are tuned on the validation part. The one",
            "with the best test figure is shown, which favours it. *Share of pooling*: what the federation realises",
            "of the way from the pipeline alone to the pooled one, where that is more than 0.5 %.",
            "",
            markdown(simple, compared_rows(cells)),
            "EASE has the 4,096 items with the most ratings, ItemKNN 8,192: of one party alone, of all pooled.",
            "",
            "```sh",
            "verfedgnn compare --data NAME --seeds 3 --out results/proof/NAME \\",
            "  --methods popularity,bias,itemknn,itemknn-alone,ease,ease-alone,ials,ials-alone,biased-mf,pipeline,pipeline-alone,best-gated",
            "```",
            "",
            "## Behind this page",
            "[Rounds](rounds.md), [joining](lift.md), [all ratings](life.md), [attacks](attacks.md),",
            "[budgets](privacy.md), [persons](persons.md), [forgetting](forget.md), [federation](federation.md),",
            "[scale](scale.md), [serving](serving.md), [newcomers](fold-in.md), and",
            "[the paper](../docs/paper.md).",
            "",
            f"Made by `benchmarks/decision_page.py` from records of commit {', '.join(commits)}.",
            "",
        ]
    )


def draw(cells: dict[str, list[Record]], path: Path) -> None:
    """Draw, for each data set and figure, the share of pooling's gain that the federation realises."""
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "verfedgnn"
    rows = [row for row in compared_rows(cells) if row[-1] != "–"]
    figure, axes = plt.subplots(figsize=(7, 0.4 * len(rows) + 1))
    labels = [f"{row[0]}: {row[2]}" for row in rows]
    shares = [float(row[-1].rstrip("%")) for row in rows]
    axes.barh(labels, shares, color=["#2a6f97" if row[2] == "RMSE" else "#e07a1f" for row in rows])
    axes.axvline(100, color="black", linewidth=0.8)
    axes.invert_yaxis()
    axes.set_xlabel("of the gain of pooling all ratings, realised by the federation (%)")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})


def main() -> None:
    records, cells = read_proof()
    (ROOT / "results" / "README.md").write_text(page(records, cells))
    draw(cells, ROOT / "results" / "gains.svg")


if __name__ == "__main__":
    main()
