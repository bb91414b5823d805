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
POOLED = (
    "catalogue, which helps where tastes are shared, and is no bound. Where platforms differ, a party's own\n"
    "models fit its items better. It also has one mixture for all customers, and the federation a separate one\n"
    "for those who are new at a party. So a share above 100 % does not mean that joining beats pooling.",
    "catalogue, and each party mixes it with its own pipeline, separately for new customers, as the gate of a\n"
    "federation does. A share above 100 % does not mean that joining beats pooling: first values differ, and so\n"
    "does what is chosen on small validation parts.",
)
"""What is said about the pooled pipeline of version 1 and of version 2."""
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
    twice = [key for key, n in Counter((r["data"], r["seed"]) for r in records).items() if n > 1]
    if twice:
        raise RunError(f"{PROOF} has records of {twice[0]} twice; delete the older file")
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
    mean, half = f"{statistics.mean(values):+.{digits}f}", half_width(values)
    return mean if half is None else f"{mean} ± {half:.{digits}f}"


def half_width(values: Sequence[float]) -> float | None:
    """Return the half width of the 95 % t-interval of the mean; None for fewer than three values."""
    if len(values) < 3:
        return None
    return float(stats.t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / len(values) ** 0.5


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


def all_data_rows(groups: dict[str, list[Record]]) -> list[list[str]]:
    """Return the rows of all data sets: the mean of their gains, and where the gain of one training on new data lies."""
    mean, new = ["all data", "", "", "", ""], ["one training on new data", "", "", "", ""]
    for _, metric, customers in QUESTIONS:
        each = [found for records in groups.values() if (found := gains(records, metric, customers))]
        unit = " %" * (metric == "rmse")
        mean.append(over_seeds([statistics.mean(found) for found in each]) + unit if each else "–")
        new.append(expected(each, unit))
    return [[*row, *[""] * 4] for row in (mean, new)]


def expected(groups: Sequence[Sequence[float]], unit: str = "") -> str:
    """Return the 95 % prediction interval of the gain of one training on a new data set, given the gains of others by seed.

    It is a t-interval over data sets. Their means vary by the data and by the mean of their seeds; one seed varies more.
    In brackets are the smallest and the largest gain of one training.
    """
    if len(groups) < 3:
        return "–"
    means = [statistics.mean(group) for group in groups]
    seeds = [statistics.variance(group) * (1 - 1 / len(group)) for group in groups if len(group) > 1]
    variance = statistics.variance(means) * (1 + 1 / len(means)) + (statistics.mean(seeds) if seeds else 0.0)
    middle, half = statistics.mean(means), stats.t.ppf(0.975, len(means) - 1) * variance**0.5
    ends = middle - half, middle + half, min(map(min, groups)), max(map(max, groups))
    return "{:+.1f} to {:+.1f}{unit} (seen {:+.1f} to {:+.1f}{unit})".format(*ends, unit=unit)


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
            cells_of_row = [
                best["-alone"],
                *map(shown, ("pipeline-alone", "best-gated", "pipeline")),
                best[""],
            ]
            figures_of_row = [float(text.split()[0]) for text in cells_of_row]
            top = (min if stars else max)(figures_of_row)
            way = test["pipeline"] - test["pipeline-alone"]
            share = (test["best-gated"] - test["pipeline-alone"]) / way if way else 0.0
            worth = abs(way) > 0.005 * test["pipeline-alone"] and (way < 0) == stars
            rows.append(
                [
                    TITLES[name],
                    title,
                    *(
                        f"**{text}**" if figure == top else text
                        for text, figure in zip(cells_of_row, figures_of_row, strict=True)
                    ),
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


def better_than_federated(cells: dict[str, list[Record]]) -> str:
    """Return which methods order newcomers' lists better than the federation, by HitRate@20, and on which data."""
    hits = {name: figures(cells[name], "test", "newcomers", "hitrate@20") for name in TITLES if name in cells}
    found = []
    for method in CROSS:
        where = [name for name, hit in hits.items() if hit.get(method, 0) > hit.get("best-gated", 1)]
        found += [f"{METHODS[method].title} ({', '.join(where)})"] * bool(where)
    return "; ".join(found) or "none"


def page(records: list[Record], cells: dict[str, list[Record]]) -> str:
    """Return results/README.md."""
    groups = by_data(records)
    compared, newcomers = compared_rows(cells), newcomer_rows(cells)
    there = {record["method"] for group in cells.values() for record in group}
    seeds = {name: len({cell["seed"] for cell in group}) for name, group in cells.items()}
    counted = ", ".join(f"{TITLES[name]} {seeds[name]}" for name in TITLES if name in seeds)
    header = ["data", "seeds", "parties", "users", "ratings", *(title for title, _, _ in QUESTIONS)]
    header += ["words of the parties", "MB a party", "CPU seconds", "what leaks"]
    simple = ["data", "question", "best simple, alone", "pipeline, alone", "federated"]
    simple += ["pipeline, pooled", "best simple, pooled", "share of pooling"]
    cross = ["data", *(METHODS[method].title for method in CROSS)]
    most = max((len(group) for group in groups.values()), default=0)
    repeated = max((len({cell["seed"] for cell in group}) for group in cells.values()), default=0)
    names = [name for name in TITLES if name in cells]
    left = [TITLES[name] for name in groups if name not in cells]
    left += [METHODS[method].title for method in SIMPLE if method not in there]
    return "\n".join(
        [
            "# What joining is worth",
            "",
            "One page that decides. Preset `best` with its defaults, on data sets that are public.",
            "All figures are test figures, and means over as many seeds as a table says.",
            "",
            "![What joining gains, with 95 % intervals over seeds](gains.svg)",
            "",
            "## What customers see",
            "Without the others → with them. *Lists*: of 100 customers, how many find something they like among",
            "the first 20; higher is better. *Stars*: error of predicted stars; lower is better. By date where",
            "there are dates, else at random. *New* customers have no rating at the party that judges them.",
            "Without means the party's own models, mixed by the same rule. In brackets is the gain, stars in per cent,",
            "with a 95 % t-interval over seeds: parts, withheld users and first values. Seeds share their data, so the",
            "interval says how a repetition varies, not other customers. Those intervals are in every report.",
            "",
            markdown(
                header, [*(gain_row(name, group) for name, group in groups.items()), *all_data_rows(groups)]
            ),
            "*All data*: the mean gain of the data sets, each of equal weight, with an interval over data sets.",
            "*One training on new data*: where its gain lies, with 95 %, if your data are drawn as these are (a t-interval",
            "over data sets, with the spread of seeds), and the smallest and largest gain of a training here. Several rows",
            "are one catalogue that was cut: they gain most, and count as data sets of their own in both intervals.",
            "Where an interval includes 0, expect no gain before you have measured it. The defaults were chosen with these",
            "data at hand, mostly on their validation parts, so other data may gain a little less.",
            "The words count every party, question and seed ([what they mean](../docs/model.md#does-joining-pay)).",
            "MB: all trainings of a night, up and down. CPU seconds: all parties on one core, the verdict and the",
            "training on all ratings included. *Numbers*: most that a party released about one user, in all rounds.",
            "Fake accounts find items better than by taste ([Attacks](attacks.md)). Preset `private` has ε = 4",
            "for a rating ([Budgets](privacy.md)).",
            "",
            "```sh",
            f"verfedgnn bench {' '.join(groups)} --seeds {most} --out results/proof/best.json",
            "```",
            "",
            "## Against simple methods, alone and pooled",
            "The same split, customers and figures. The *pipeline* is preset best without a federation: means, EASE,",
            "factors, raters and lists, mixed on the validation part. *Pooled*, it treats all ratings as one",
            POOLED[
                all(
                    c.get("version", 1) > 1
                    for group in cells.values()
                    for c in group
                    if c["method"] == "pipeline"
                )
            ],
            "Simple methods (popularity, means, ItemKNN, EASE, iALS, biased MF, SVD++, I-AutoRec; pooled also LightGCN",
            "and EMCDR) try nine options each on the validation part; means try 30, popularity none. The one that is",
            "best for the question *on the validation part* is shown. The best figure of a row is bold. *Share of",
            "pooling*: what the federation realises of the way from the pipeline alone to the pooled one, where pooling",
            "gains more than 0.5 %.",
            "",
            f"Seeds: {counted or 'none'}. A figure of one seed has no interval: read small differences as none.",
            "",
            markdown(simple, compared) if compared else "Not measured yet.\n",
            f"Not compared: {'; '.join(left) or 'none'}.",
            "EASE has the 4,096 items with the most ratings, ItemKNN 8,192: of one party alone, of all pooled.",
            "",
            f"NAME is {' or '.join(names) or 'a data set'}:",
            "",
            "```sh",
            f"verfedgnn compare --data NAME --seeds {repeated} --out results/proof/NAME {SPLIT} \\",
            f"  --methods {','.join(m for m in METHODS if m.removesuffix('-alone') in (*SIMPLE, 'pipeline', 'best-gated'))}",
            "```",
            "",
            "## Newcomers, against cross-domain methods",
            "HitRate@20 of 100 / NDCG@20 of the same withheld users and seeds. All but popularity and the federation have",
            "pooled data; EMCDR hands over users' vectors. Pooled iALS is CMF: parties share users, with equal weights.",
            f"Higher HitRate@20 than the federation: {better_than_federated(cells)}.",
            "",
            markdown(cross, newcomers) if newcomers else "Not measured yet.\n",
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


def draw(records: list[Record], path: Path) -> None:
    """Draw the gain of each data set with its interval over seeds: of lists and of stars, for new and for known customers."""
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "verfedgnn"
    groups = by_data(records)
    figure, both = plt.subplots(1, 2, sharey=True, figsize=(9, 0.5 * len(groups) + 1))
    for axes, metric, unit in zip(
        both, ("hitrate@20", "rmse"), ("lists, of 100 customers", "stars, %"), strict=True
    ):
        for step, (customers, colour) in enumerate((("newcomers", "#e07a1f"), ("known", "#2a6f97"))):
            label = "new customers" if customers == "newcomers" else "known customers"
            for row, group in enumerate(groups.values()):
                found = gains(group, metric, customers)
                if found:
                    error = half_width(found) or 0.0
                    place = row + 0.2 * step - 0.1
                    axes.errorbar(
                        statistics.mean(found), place, xerr=error, fmt="o", color=colour, label=label
                    )
                    label = "_"
        axes.axvline(0, color="black", linewidth=0.8)
        axes.set_xlabel(f"gain in {unit}")
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    both[0].set_yticks(range(len(groups)), [TITLES[name] for name in groups])
    both[0].invert_yaxis()
    both[0].legend(frameon=False)
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    records, cells = read_proof()
    (ROOT / "results" / "README.md").write_text(page(records, cells))
    draw(records, ROOT / "results" / "gains.svg")


if __name__ == "__main__":
    main()
