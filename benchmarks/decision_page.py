"""Write results/README.md, the page that decides, and its picture, from the records in results/proof/.

    .venv/bin/python benchmarks/decision_page.py

`verfedgnn bench` and, for each data set, `verfedgnn compare` make the records; the page has both commands.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from scipy import stats

from verfedgnn.config import Config
from verfedgnn.core.errors import RunError
from verfedgnn.evaluation.verdict import judged_tables
from verfedgnn_research.baselines import METHODS
from verfedgnn_research.experiments.result_tables import markdown

ROOT = Path(__file__).resolve().parents[1]
PROOF = ROOT / "results" / "proof"
TITLES = {
    "amazon": "Amazon, books and movies",
    "ciao-any": "Ciao, users of any category",
    "ciao-all": "Ciao, users of all categories",
    "douban": "Douban, books and music",
    "sport-cloth": "Amazon, sports and clothes",
    "genre": "ML-1M by genre",
    "ml-1m": "ML-1M, cut at random",
    "ml-100k": "ML-100K, cut at random",
    "book-crossing": "BookCrossing, cut at random",
}
"""Data sets in the order of the page: real platforms first."""
SIMPLE = (
    "popularity",
    "bias",
    "itemknn",
    "ease",
    "ials",
    "biased-mf",
    "svd++",
    "autorec",
    "lightgcn",
    "emcdr",
)
CROSS = ("popularity-alone", "best-gated", "emcdr", "itemknn", "ease", "ials", "lightgcn", "pipeline")
"""Methods of the table of newcomers."""
SPLIT = "--set split.kind=auto --set 'split.fractions=[0.8,0.1,0.1]'"
"""The split of the verdict, for `verfedgnn compare`."""
QUESTIONS = (
    ("lists, new customers", "hitrate@20", "newcomers"),
    ("lists, known customers", "hitrate@20", "known"),
    ("stars, new customers", "rmse", "newcomers"),
    ("stars, known customers", "rmse", "known"),
)
Record = dict[str, Any]


def read_proof() -> tuple[list[Record], dict[str, list[Record]]]:
    """Return the records of bench, and those of compare by data set; raise if records of one table are of several commits."""
    records = [
        record for path in sorted(PROOF.glob("best*.json")) for record in json.loads(path.read_text("utf-8"))
    ]
    cells = {
        path.parent.name: [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        for path in sorted(PROOF.glob("*/cells.jsonl"))
    }
    one_commit("bench", records)
    one_commit("compare", [record for group in cells.values() for record in group])
    return records, cells


def one_commit(command: str, records: Sequence[Record]) -> str:
    """Return the commit of all records; raise if there are several, or one that is unknown or has changed files."""
    commits = sorted({str(record["commit"]) for record in records})
    if len(commits) > 1 or any(commit == "None" or commit.endswith("+") for commit in commits):
        raise RunError(
            f"records of `verfedgnn {command}` are of commits {', '.join(commits)}; measure all of them at one clean commit"
        )
    return commits[0] if commits else "–"


def over_seeds(values: Sequence[float], digits: int = 1) -> str:
    """Return the mean with the half width of its 95 % t-interval; without the latter for fewer than three seeds."""
    mean = f"{statistics.mean(values):+.{digits}f}"
    if len(values) < 3:
        return mean
    half = stats.t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    return f"{mean} ± {half:.{digits}f}"


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


def gains(records: Iterable[Record], metric: str, customers: str) -> list[float]:
    """Return the gain of each seed, stars in per cent and lists in customers of 100."""
    found = [table["overall"]["gain"] for record in records for table in tables(record, metric, customers)]
    return [gain["percent"] if metric == "rmse" else 100 * gain["value"] for gain in found]


def all_data_row(groups: dict[str, list[Record]]) -> list[str]:
    """Return the row of all data sets: the mean of their gains, with an interval over data sets."""
    row = ["all data", "", "", "", ""]
    for _, metric, customers in QUESTIONS:
        each = [gains(records, metric, customers) for records in groups.values()]
        means = [statistics.mean(found) for found in each if found]
        row.append(over_seeds(means) + " %" * (metric == "rmse") if means else "–")
    return [*row, *[""] * 4]


def gain_row(name: str, records: list[Record]) -> list[str]:
    """Return the row of a data set: what customers find without and with the others."""
    first = records[0]
    row = [TITLES[name], str(len(records)), str(first["parties"]), f"{first['users']:,}"]
    row.append(f"{first['all_ratings']:,}")
    for _, metric, customers in QUESTIONS:
        found = [table["overall"] for record in records for table in tables(record, metric, customers)]
        if not found:
            row.append("–")
            continue
        scale, digits = (100, 1) if metric != "rmse" else (1, 4)
        before = statistics.mean(scale * each[each["reference"]] for each in found)
        after = statistics.mean(scale * each["federated"] for each in found)
        gained = over_seeds(gains(records, metric, customers)) + " %" * (metric == "rmse")
        row.append(f"{before:.{digits}f} → {after:.{digits}f} ({gained})")
    words = Counter(
        row["pays"]
        for record in records
        for _, table in judged_tables(record["lift"])
        for row in table["parties"]
    )
    row.append(", ".join(f"{count} {word}" for word, count in words.most_common()))
    megabytes = statistics.mean(sum(traffic(record)) / record["parties"] / 1e6 for record in records)
    row += [f"{megabytes:.0f}", f"{statistics.mean(record['cpu_seconds'] for record in records):.0f}"]
    sums = "noised sums, no ε" if first["parties"] == 2 else "masked sums, no ε"
    row.append(f"{sums}; {max(map(numbers_per_user, records)):,} numbers")
    return row


def numbers_per_user(record: Record) -> int:
    """Return how many numbers about each user a party released (docs/model.md): two and one in first rounds, then gradients."""
    shape = record["users"], record["all_ratings"], record["parties"]
    sizes = Config.preset("best").for_data(*shape).model
    lists = Config.preset("best").for_lists().for_data(*shape).model.dim
    stars = sizes.dim + 1 + (3 * sizes.raters + 1 if sizes.raters else 0)
    final = record["final"] or {}
    rounds = [record.get("ratings"), record.get("lists"), final, final.get("lists")]
    found = [part["rounds"] if part else 0 for part in rounds]
    if "rmse" not in {table["metric"] for _, table in judged_tables(record["lift"])}:
        found = [0, found[0], 0, found[2]]  # the only training is of lists
    return sum(
        first + (count - 1) * size
        for count, first, size in zip(found, (2, 1) * 2, (stars, lists) * 2, strict=True)
        if count
    )


def traffic(record: Record) -> list[float]:
    """Return the bytes of all parties in each training of a run: judged and on all ratings, ratings and lists."""
    judged = [
        record[part]["bytes_per_party"] * record["parties"] for part in ("ratings", "lists") if part in record
    ]
    final = record["final"] or {}
    return judged + [
        part["bytes"]["up"] + part["bytes"]["down"] for part in (final, final.get("lists") or {}) if part
    ]


def figures(cells: Sequence[Record], part: str, customers: str, metric: str) -> dict[str, float]:
    """Return the mean over seeds of a figure by method, of those seeds that all methods have."""
    found: dict[str, dict[int, float]] = defaultdict(dict)
    for record in cells:
        value = record["customers"][part][customers].get(metric)
        if value is not None:
            found[record["method"]][record["seed"]] = value
    seeds = set.intersection(*map(set, found.values())) if found else set()
    return {method: statistics.mean(each[seed] for seed in seeds) for method, each in found.items() if seeds}


def compared_rows(cells: dict[str, list[Record]]) -> list[list[str]]:
    """Return, for each data set and question, simple methods, the pipeline alone, the federation and the pipeline pooled."""
    rows = []
    for name in TITLES:
        for title, metric, customers in QUESTIONS:
            test, valid = (
                figures(cells.get(name, []), part, customers, metric) for part in ("test", "valid")
            )
            if not {"pipeline", "pipeline-alone", "best-gated"} <= test.keys():
                continue
            stars = metric == "rmse"

            def shown(method: str, test: dict[str, float] = test, stars: bool = stars) -> str:
                return f"{test[method]:.4f}" if stars else f"{100 * test[method]:.1f}"

            best = {}
            for suffix in ("-alone", ""):
                known = [method + suffix for method in SIMPLE if method + suffix in valid]
                chosen = (min if stars else max)(known, key=valid.__getitem__)
                best[suffix] = f"{shown(chosen)} ({METHODS[chosen].title.removesuffix(', alone')})"
            way = test["pipeline"] - test["pipeline-alone"]
            share = (test["best-gated"] - test["pipeline-alone"]) / way if way else 0.0
            worth = abs(way) > 0.005 * test["pipeline-alone"] and (way < 0) == stars
            rows.append(
                [
                    TITLES[name],
                    title,
                    best["-alone"],
                    shown("pipeline-alone"),
                    f"**{shown('best-gated')}**",
                    shown("pipeline"),
                    best[""],
                    f"{share:.0%}" if worth else "–",
                ]
            )
    return rows


def newcomer_rows(cells: dict[str, list[Record]]) -> list[list[str]]:
    """Return HitRate@20 and NDCG@20 of newcomers' lists for each data set and method."""
    rows = []
    for name in TITLES:
        hit, ndcg = (
            figures(cells.get(name, []), "test", "newcomers", metric) for metric in ("hitrate@20", "ndcg@20")
        )
        if "best-gated" in hit:
            both = (f"{100 * hit[m]:.1f} / {ndcg[m]:.3f}" if m in hit else "–" for m in CROSS)
            rows.append([TITLES[name], *both])
    return rows


def page(records: list[Record], cells: dict[str, list[Record]]) -> str:
    """Return results/README.md."""
    groups = by_data(records)
    compared, newcomers = compared_rows(cells), newcomer_rows(cells)
    there = {record["method"] for group in cells.values() for record in group}
    missing = [METHODS[method].title for method in SIMPLE if method not in there]
    seeds = {name: len({cell["seed"] for cell in group}) for name, group in cells.items()}
    counted = ", ".join(f"{TITLES[name]} {seeds[name]}" for name in TITLES if name in seeds)
    header = ["data", "seeds", "parties", "users", "ratings", *(title for title, _, _ in QUESTIONS)]
    header += ["words of the parties", "MB a party", "CPU seconds", "what leaks"]
    simple = ["data", "question", "best simple, alone", "pipeline, alone", "federated"]
    simple += ["pipeline, pooled", "best simple, pooled", "share of pooling"]
    cross = ["data", *(METHODS[method].title for method in CROSS)]
    return "\n".join(
        [
            "# What joining is worth",
            "",
            "One page that decides. Preset `best` with its defaults, on data sets that are public.",
            "All figures are test figures, and means over seeds.",
            "",
            *(["![What joining gains of what pooling would gain](gains.svg)", ""] if compared else []),
            "## What customers see",
            "Without the others → with them. *Lists*: of 100 customers, how many find something they like among",
            "the first 20; higher is better. *Stars*: error of predicted stars; lower is better. By date where",
            "there are dates, else at random. *New* customers have no rating at the party that judges them.",
            "Without means the party's own models, mixed by the same rule. In brackets is the gain, stars in per cent,",
            "with a 95 % t-interval over seeds: parts, withheld users and first values. Seeds share their data, so the",
            "interval says how a repetition varies, not other customers. Those intervals are in every report.",
            "",
            markdown(
                header, [*(gain_row(name, group) for name, group in groups.items()), all_data_row(groups)]
            ),
            "*All data*: the mean gain of the data sets, each of equal weight, with an interval over data sets.",
            "The words count every party, question and seed ([what they mean](../docs/model.md#does-joining-pay)).",
            "MB: all trainings of a night, up and down. CPU seconds: all parties on one core, the verdict and the",
            "training on all ratings included. *Numbers*: most that a party released about one user, in all rounds.",
            "Fake accounts find items better than by taste ([Attacks](attacks.md)). Preset `private` has ε = 4",
            "for a rating ([Budgets](privacy.md)).",
            "",
            "```sh",
            f"verfedgnn bench {' '.join(groups)} --seeds 5 --jobs 16 --out results/proof/best.json",
            "```",
            "",
            "## Against simple methods, alone and pooled",
            "The same split, customers and figures. The *pipeline* is preset best without a federation: means, EASE,",
            "factors, raters and lists, mixed on the validation part. *Pooled*, it treats all ratings as one",
            "catalogue, which helps where tastes are shared, and is no bound: where platforms differ, a party's own",
            "models fit its items better. Simple methods (popularity, means, ItemKNN, EASE, iALS, biased MF, SVD++,",
            "I-AutoRec; pooled also LightGCN and EMCDR) try nine options each on the validation part; means try 30, popularity none. The one",
            "that is best for the question *on the validation part* is shown. *Share of pooling*: what the federation",
            "realises of the way from the pipeline alone to the pooled one, where that is more than 0.5 %.",
            "",
            markdown(simple, compared) if compared else "Not measured yet.\n",
            f"Not measured yet: {', '.join(missing) or 'none'}.",
            "EASE has the 4,096 items with the most ratings, ItemKNN 8,192: of one party alone, of all pooled.",
            "",
            "```sh",
            f"verfedgnn compare --data NAME --seeds 5 --jobs 16 --out results/proof/NAME {SPLIT} \\",
            f"  --methods {','.join(m for m in METHODS if m.removesuffix('-alone') in (*SIMPLE, 'pipeline', 'best-gated'))}",
            "```",
            "",
            "## Newcomers, against cross-domain methods",
            "HitRate@20 of 100 / NDCG@20 of the same withheld users. All but popularity and the federation have pooled",
            "data; EMCDR hands over users' vectors. Pooled iALS is CMF: parties share users, with equal weights.",
            "",
            markdown(cross, newcomers) if newcomers else "Not measured yet.\n",
            f"Seeds of both tables: {counted or 'none'}.",
            "",
            "## Behind this page",
            "[Rounds](rounds.md), [joining](lift.md), [all ratings](life.md), [attacks](attacks.md),",
            "[budgets](privacy.md), [persons](persons.md), [forgetting](forget.md), [federation](federation.md),",
            "[thirty nights](soak.md), [scale](scale.md), [serving](serving.md), [newcomers](fold-in.md), and",
            "[the paper](../docs/paper.md).",
            "",
            f"Made by `benchmarks/decision_page.py`: bench at commit {one_commit('bench', records)}, compare at commit "
            f"{one_commit('compare', [cell for group in cells.values() for cell in group])}.",
            "",
        ]
    )


def draw(cells: dict[str, list[Record]], path: Path) -> None:
    """Draw, for each data set and figure, the share of pooling's gain that the federation realises."""
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "verfedgnn"
    rows = [row for row in compared_rows(cells) if row[-1] != "–"]
    figure, axes = plt.subplots(figsize=(7, 0.4 * len(rows) + 1))
    labels = [f"{row[0]}: {row[1]}" for row in rows]
    shares = [float(row[-1].rstrip("%")) for row in rows]
    axes.barh(labels, shares, color=["#2a6f97" if "stars" in row[1] else "#e07a1f" for row in rows])
    axes.axvline(100, color="black", linewidth=0.8)
    axes.invert_yaxis()
    axes.set_xlabel("of the gain of pooling all ratings, realised by the federation (%)")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})


def main() -> None:
    records, cells = read_proof()
    (ROOT / "results" / "README.md").write_text(page(records, cells))
    if compared_rows(cells):
        draw(cells, ROOT / "results" / "gains.svg")


if __name__ == "__main__":
    main()
