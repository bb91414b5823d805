"""Fill the tables of results/rounds.md, lift.md and attacks.md between their markers, and the shipped audit record, from the records.

    .venv/bin/python benchmarks/result_tables.py

The text around them is written by hand, and `tests/docs/test_result_claims.py` compares its numbers with the records.
"""

from __future__ import annotations

import json
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from decision_page import TITLES, by_data, one_commit, read_proof
from verfedgnn.core.errors import RunError
from verfedgnn.evaluation.verdict import WORDS, judged_tables
from verfedgnn_research.bench import LIFT_HEADER, lift_rows
from verfedgnn_research.experiments.result_tables import markdown, mean_std
from verfedgnn_research.paper.paper_page import MARKED

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
AUDIT = ROOT / "src" / "verfedgnn" / "privacy" / "audit_record.json"
KINDS = ("ratings", "lists")
SPLIT = "--set split.kind=rating --set 'split.fractions=[0.6,0.2,0.2]' --set final=false"
ATTACKED = {"ml-100k": "ML-100K, ten", "ciao-any": "Ciao, four", "douban": "Douban, two"}
ATTACKERS = (
    ("party, fakes", "one party with fake accounts", "sums without its own part; one account an item"),
    ("party, insider", "one party with an insider", "the same sums; the target's item vectors"),
    ("colluders, fakes", "all parties but one, with fake accounts", "the target's releases"),
    ("colluders, insider", "all parties but one, with an insider", "the same; the target's item vectors"),
    ("public tables", "anyone with the final public tables", "half of an item's users from elsewhere"),
)
VARIANTS = (
    ("ml-100k", "noise 0", "no noise, H = 64"),
    ("ml-100k", "default", "the default: noise 0.1, H = 64"),
    ("ml-100k-one-model", "one model", "no noise, no second model"),
    ("douban", "noise 0", "no noise, H = 16"),
    ("douban", "default", "the default: noise 0.25, H = 16"),
    ("douban", "H 64", "noise 0.25, H = 64"),
    ("douban-one-model", "one model", "noise 0.25, no second model"),
)
Record = dict[str, Any]


def read(name: str) -> Any:
    """Return the records of a file in results/."""
    return json.loads((RESULTS / name).read_text("utf-8"))


def mean_test(records: Sequence[Record], part: str) -> str:
    """Return the mean over seeds of the served RMSE, or of NDCG@20 of lists."""
    return (
        f"{statistics.mean(r[part]['test']['rmse' if part == 'ratings' else 'ndcg@20'] for r in records):.4f}"
    )


def rounds() -> str:
    """Return accuracy and cost of preset best, and the command."""
    records, rows = read("rounds/best.json"), []
    for name, group in by_data(records).items():
        counts = (statistics.mean(r[part]["rounds"] for r in group) for part in KINDS)
        megabytes = statistics.mean(sum(r[part]["bytes_per_party"] for part in KINDS) / 1e6 for r in group)
        row = [*(mean_test(group, part) for part in KINDS), " + ".join(f"{count:.0f}" for count in counts)]
        row += [f"{megabytes:.0f}", f"{statistics.mean(r['cpu_seconds'] for r in group):.0f}"]
        rows.append([TITLES[name], group[0]["parties"], len(group), *row])
    header = ["data", "parties", "seeds", "RMSE", "NDCG@20", "rounds, ratings + lists", "MB", "CPU seconds"]
    command = f"`verfedgnn bench {' '.join(by_data(records))} --seeds {max(row[2] for row in rows)} {SPLIT}`"
    return f"{markdown(header, rows)}\n{command}, commit {one_commit('bench', records)}.\n"


def list_sizes() -> str:
    """Return the best validation NDCG@20 of federated lists in 22 rounds, by D."""
    best: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in read("rounds/list-sizes.json")["records"]:
        name, _, size = record["task"].split(":")
        best[name][size].append(max(record["curve"][:22]))
    sizes, rows, titles = ("8", "16", "32", "64"), [], {"bx": "BookCrossing, whole, ten parties"} | TITLES
    for name in (name for name in titles if name in best):
        means = (f"{statistics.mean(best[name][size]):.4f}" if best[name][size] else "" for size in sizes)
        rows.append([titles[name], max(map(len, best[name].values())), *means])
    return markdown(["data", "seeds", *sizes], rows)


def lift() -> str:
    """Return what joining gains each data set by seed, how often each word was said, and how many twins were left out."""
    records = sorted(read_proof()[0], key=lambda record: (list(TITLES).index(record["data"]), record["seed"]))
    rows = [[TITLES[name], *row] for name, *row in lift_rows(records)]
    judged = (table for record in records for _, table in judged_tables(record["lift"]))
    words = Counter(row["pays"] for table in judged for row in table["parties"])
    counted, twins = ", ".join(f"{words[word]} {word}" for word in WORDS if words[word]), []
    for name, group in by_data(records).items():
        found = [re.match(r"[\d,]+", record["lift"].get("twins") or "0") for record in group]
        left = [int(each[0].replace(",", "")) for each in found if each]
        twins += [f"{TITLES[name]}: {min(left):,} to {max(left):,}"] * any(left)
    command = f"`verfedgnn bench {' '.join(by_data(records))} --seeds {len({r['seed'] for r in records})}`"
    return (
        f"{markdown(LIFT_HEADER, rows)}\n{words.total()} words: {counted}.\n\n"
        f"Test and validation ratings left out as twins, by seed: {'; '.join(twins) or 'none'}.\n\n"
        f"{command}, commit {one_commit('bench', records)}.\n"
    )


def attacked(case: str, kind: str, variant: str = "default") -> list[Record]:
    """Return the figures of each seed of an attacked training, none if it was not attacked; raise if an attack failed."""
    found = list(read(f"attacks/{case}.json").get(variant, {}).get(kind, {}).values())
    if any("failed" in figures for figures in found):
        raise RunError(f"results/attacks/{case}.json has a failed attack of {variant}, {kind}")
    return found


def reached(found: Sequence[Record], attacker: str, figure: str = "held", digits: int = 2) -> str:
    """Return the mean of a figure over seeds with its deviation, or a dash."""
    return mean_std((each.get(attacker, {}).get(figure) for each in found), digits)


def attacks() -> str:
    """Return what each attacker reaches against default trainings, and on users whom no third party hides."""
    rows = []
    for case, title in ATTACKED.items():
        found = [attacked(case, kind) for kind in KINDS]
        for attacker, *about in (each for each in ATTACKERS if each[0] in found[0][0]):
            figures = [reached(each, attacker, figure) for figure in ("held", "alone") for each in found]
            rows.append([title, *about, *figures])
    files = {"ciao-any", *(case for case, *_ in VARIANTS)}
    header = ["data, parties", "attacker", "sees", *KINDS, *(f"{kind}, two parties only" for kind in KINDS)]
    made = one_commit("attack", [read(f"attacks/{name}.json") for name in files])
    return f"{markdown(header, rows)}\nCommit {made}.\n"


def variants() -> str:
    """Return what noise and the second model change for one party that attacks."""
    rows = []
    for case, variant, title in VARIANTS:
        both = [attacked(case, kind, variant) for kind in KINDS]
        row = [reached(found, f"party, {who}") for who in ("fakes", "insider") for found in both]
        row.append(reached(both[0], "one rating", "shift", 1))
        rows.append([ATTACKED[case.removesuffix("-one-model")], title, *row])
    header = [f"{who}, {kind}" for who in ("fakes", "insider") for kind in KINDS]
    return markdown(["data, parties", "training", *header, "shift, ratings"], rows)


def noise() -> str:
    """Return what noise costs accuracy, on the seeds that are trained with and without it."""
    rows = []
    for name, plain in by_data(read("rounds/noise.json")).items():
        seeds = sorted(record["seed"] for record in plain)
        noised = [each for each in by_data(read("rounds/best.json"))[name] if each["seed"] in seeds]
        one_commit("bench", [*plain, *noised])
        row = [", ".join(map(str, seeds))]
        row += [mean_test(records, part) for part in KINDS for records in (plain, noised)]
        rows.append([TITLES[name], *row])
    return markdown(["data", "seeds", "RMSE, no noise", "default", "NDCG@20, no noise", "default"], rows)


def one_rating() -> str:
    """Return how well someone who knows all else tells one rating, and a party who is elsewhere."""
    rows = []
    for case, title in ATTACKED.items():
        row = [
            reached(attacked(case, kind), "one rating", name) for kind in KINDS for name in ("all", "shift")
        ]
        told = [each["overlap"] for each in attacked(case, "ratings") if each["overlap"]["guess"]]
        best = [max(value for name, value in each.items() if name != "guess") for each in told]
        rows.append([title, *row, mean_std(best, 2), mean_std((each["guess"] for each in told), 2)])
    header = [f"{kind}, {name}" for kind in KINDS for name in ("AUC", "shift")]
    return markdown(["data, parties", *header, "who is elsewhere, AUC", "guess"], rows)


def both_trainings() -> str:
    """Return what a party learns that sees the judged training and the one on all ratings."""
    rows = []
    for case, title in ATTACKED.items():
        for kind in KINDS:
            found = attacked(case, kind)
            figures = (reached(found, "party, both trainings", name) for name in ("taste", "within", "held"))
            rows.append([title, kind, *figures])
    return markdown(["data, parties", "training", "first", "second", "what it adds"], rows)


PAGES: dict[str, tuple[Callable[[], str], ...]] = {
    "rounds.md": (rounds, list_sizes),
    "lift.md": (lift,),
    "attacks.md": (attacks, variants, noise, one_rating, both_trainings),
}


def fill(name: str) -> str:
    """Return a page of results/ with its tables made again."""
    made = {table.__name__.replace("_", "-"): table() for table in PAGES[name]}
    return MARKED.sub(
        lambda match: f"{match[1]}\n{made[match[2]]}\n{match[3]}", (RESULTS / name).read_text("utf-8")
    )


def audit_record() -> str:
    """Return the record that runs quote, with what attackers reach against default trainings."""
    records, figures = json.loads(AUDIT.read_text("utf-8")), {}
    names = {"party, fakes": "fake accounts", "party, insider": "insider", "public tables": "public tables"}
    for case in ATTACKED:
        for kind in KINDS:
            for attacker, name in names.items():
                held = statistics.mean(each[attacker]["held"] for each in attacked(case, kind))
                figures[f"{name}, {case}, {kind}"] = round(held, 2)
    for case in ("ciao-any", "douban"):
        told = [each["overlap"] for each in attacked(case, "ratings")]
        best = (max(value for name, value in each.items() if name != "guess") for each in told)
        figures[f"who is elsewhere, {case}"] = round(statistics.mean(best), 2)
    commit = one_commit("attack", [read(f"attacks/{case}.json") for case in ATTACKED])
    records["best"] |= {"figures": figures, "commit": commit}
    return json.dumps(records, indent=1) + "\n"


if __name__ == "__main__":
    for page in PAGES:
        (RESULTS / page).write_text(fill(page), "utf-8")
    AUDIT.write_text(audit_record(), "utf-8")
