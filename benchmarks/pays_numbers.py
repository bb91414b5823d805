"""Measure whether joining pays on every data set at hand, with the default settings. Writes results/lift/CASE-MODEL-SEED.json.

    VERFEDGNN_DATA=... .venv/bin/python benchmarks/pays_numbers.py [--only amazon ciao-any] [--seeds 0 1 2] [--device cuda]
        [--parts ratings lists newcomers]
    .venv/bin/python benchmarks/pays_numbers.py --page      # writes the tables of results/lift.md from the records

Every case is `verfedgnn train ... --preset best --lift` without any other setting. The four product categories of Ciao stand
for four organisations; their files are cut from the published table, without ratings of 0 and repeated pairs.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch

from verfedgnn.config import Config, parse_settings
from verfedgnn.core.list_metrics import rank_each
from verfedgnn.evaluation.judged_party import lift_tables
from verfedgnn.evaluation.lift import judge_models, select_newcomers
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.runs.prepared_data import Prepared
from verfedgnn.runs.run import Run
from verfedgnn.training.simple_models import liked
from verfedgnn.training.train import train
from verfedgnn_research.bench import CIAO, read_case

RESULTS = Path(__file__).resolve().parent.parent / "results"
CASES = ("amazon", "ciao-all", "ciao-any", "genre", "ml-1m", "ml-100k", "book-crossing")
PARTS = ("ratings", "lists", "newcomers")
START, END = "<!-- measured -->", "<!-- end -->"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", default=list(CASES))
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--model", default="gcn")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=PARTS)
    parser.add_argument(
        "--set", action="append", default=[], help="a setting beside the defaults, for trials"
    )
    parser.add_argument("--out", type=Path, default=RESULTS / "lift")
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    if options.page:
        return write_page()
    torch.set_num_threads(1)
    options.out.mkdir(exist_ok=True)
    for case in options.only:
        for seed in options.seeds:
            path = options.out / f"{case}-{options.model}-{seed}.json"
            for part in options.parts:
                config = Config.preset("best", model=options.model, seed=seed)
                config = config.with_values(parse_settings(options.set))
                found = measure(part, case, config, options.device)
                record = json.loads(path.read_text("utf-8")) if path.exists() else {}
                record |= {"case": case, "model": options.model, "seed": seed, part: found}
                path.write_text(json.dumps(record) + "\n")
                print(path.name, part, flush=True)


def measure(part: str, case: str, config: Config, device: str) -> dict[str, Any]:
    """Measure one part: the training of ratings, that of lists, or the training without newcomers of both.

    A default training does the first two one after the other. They do not depend on each other, so they are measured apart.
    """
    parties = read_case(case, config.seed)
    config = config.with_code().for_parties(len(parties))
    if part == "lists":
        config = config.for_lists()
    elif part == "ratings":
        config = config.with_values({"lists": False})
    else:
        config = config.with_values({"split.kind": "newcomers"})
    run = train(parties, config, device=device)
    kept = (
        "users",
        "test",
        "valid",
        "popularity",
        "rounds",
        "best_round",
        "seconds",
        "bytes",
        "public",
        "config",
    )
    found = {name: run.metrics.get(name) for name in (*kept, "environment")}
    names = ("name", "items", "ratings", "test", "popularity", "gate", "list_gate")
    found["parties"] = [{name: row.get(name) for name in names} for row in run.metrics["parties"]]
    judged = judge_models(run)
    if part == "newcomers":
        new = [lift_tables([select_newcomers(party) for party in each]) for each in judged]
        return found | {"lift": new[0], "lists": new[1]}
    if case.startswith("ciao"):
        found["shared"] = judge_shared_users(run)
    return found | {"lift": lift_tables(judged[0])}


def judge_shared_users(run: Run) -> dict[str, dict[str, float]]:
    """Return RMSE or NDCG@20 over the test ratings of users who are at every party, in the catalogue that these users rated.

    These test ratings are the same for `--users any` and `--users all`, since a rating's part depends on its ids and the seed.
    """
    prepared = run.prepared()
    at_every = torch.ones(prepared[0].party.ratings.n_users, dtype=torch.bool)
    for party in prepared:
        present = torch.zeros_like(at_every)
        present[torch.from_numpy(party.party.ratings.user).long()] = True
        at_every &= present
    return {
        party.party.name: judge_shared(party, model, at_every, ranks=run.config.ranks)
        for party, model in zip(prepared, run.models, strict=True)
    }


def judge_shared(
    party: Prepared, model: PartyModel, at_every: torch.Tensor, *, ranks: bool
) -> dict[str, float]:
    table = party.party.ratings
    test = party.test.take(at_every.to(party.test.user.device)[party.test.user.long()])
    if not ranks:
        squared = (model.predict(test).clamp(*table.scale) - test.rating).square()
        return {"ratings": len(test), "rmse": float(squared.mean().sqrt())}
    rated = torch.from_numpy(table.item[at_every.numpy()[table.user]]).long().to(test.user.device)
    outside = torch.ones(table.n_items, dtype=torch.bool, device=test.user.device)
    outside[rated] = False
    ranked = rank_each(
        lambda users: model.score(users).masked_fill(outside, -torch.inf),
        table.n_users,
        table.n_items,
        [party.train, party.valid],
        liked(test, table.scale),
    )
    return {"users": len(ranked.users), "ndcg@20": float(ranked.ndcg.mean())}


# -- the page ------------------------------------------------------------------------------------------------


def write_page() -> None:
    page = RESULTS / "lift.md"
    text = page.read_text("utf-8")
    before, rest = text.split(START)
    _, after = rest.split(END)
    page.write_text(f"{before}{START}\n{tables()}\n{END}{after}", "utf-8")


def tables() -> str:
    records = [json.loads(path.read_text("utf-8")) for path in sorted((RESULTS / "lift").glob("*.json"))]
    parts = []
    for title, half, kind in (
        ("Ratings, customers the party knows: test RMSE, lower is better", "rmse", "known"),
        (
            "Ratings, customers new to the party and known elsewhere: test RMSE, lower is better",
            "rmse",
            "new",
        ),
        ("Lists, customers the party knows: NDCG@20, higher is better", "ndcg@20", "known"),
        (
            "Lists, customers new to the party and known elsewhere: NDCG@20, higher is better",
            "ndcg@20",
            "new",
        ),
    ):
        parts.append(f"### {title}\n\n{table(records, half, kind)}")
    parts.append(
        f"### Newcomers of Ciao, by other parties that know them\n\n{table_by_other_parties(records)}"
    )
    parts.append(
        f"### Ciao with `--users any` and `--users all`, on the same test ratings\n\n{table_of_users(records)}"
    )
    return "\n\n".join(parts)


def select_records(records: list[dict[str, Any]], case: str) -> list[dict[str, Any]]:
    return [r for r in records if r["case"] == case and r["model"] == "gcn"]


def table_by_other_parties(records: list[dict[str, Any]]) -> str:
    lines = [
        "| other parties | customers by seed | ratings: gain over item means | verdict by seed | lists: gain over popularity | verdict by seed |",
        "|---|---|---|---|---|---|",
    ]
    found = [r["newcomers"] for r in select_records(records, "ciao-any")]
    for number in range(1, len(CIAO)):
        cells = []
        for halves in ([each.get("lift") for each in found], [each["lists"] for each in found]):
            rows = [
                next(row for row in half["by_other_parties"] if row["other_parties"] == number)
                for half in halves
                if half is not None
            ]
            cells.append(" ".join(str(row["users"]) for row in rows))
            cells.append(f"{statistics.mean(row['gain']['percent'] for row in rows):+.1f} %")
            cells.append(", ".join(row["pays"] for row in rows))
        lines.append(f"| {number} | {' | '.join(cells[:3] + cells[4:])} |")
    return "\n".join(lines)


def table_of_users(records: list[dict[str, Any]]) -> str:
    lines = [
        "| party | RMSE, all | RMSE, any | NDCG@20, all | NDCG@20, any |",
        "|---|---|---|---|---|",
    ]
    by_case = {case: select_records(records, f"ciao-{case}") for case in ("all", "any")}
    for name in by_case["all"][0]["ratings"]["shared"]:
        cells = [
            statistics.mean(record[part]["shared"][name][metric] for record in by_case[case])
            for part, metric in (("ratings", "rmse"), ("lists", "ndcg@20"))
            for case in ("all", "any")
        ]
        lines.append(f"| {name} | {' | '.join(f'{cell:.4f}' for cell in cells)} |")
    return "\n".join(lines)


def table(records: list[dict[str, Any]], metric: str, kind: str) -> str:
    simple = "means" if metric == "rmse" else "popularity"
    lines = [
        f"| data | party | seeds | {simple} | alone | federated | gain | verdict by seed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for case in CASES:
        part = "newcomers" if kind == "new" else "ratings" if metric == "rmse" else "lists"
        key = "lists" if kind == "new" and metric != "rmse" else "lift"
        cases = [r for r in select_records(records, case) if key in r.get(part, {})]
        if not cases:
            continue
        found = [r[part][key] for r in cases]
        named = ["overall"] + (
            [row["name"] for row in found[0]["parties"]] if len(found[0]["parties"]) <= 5 else []
        )
        for name in named:
            rows = [
                t["overall"] if name == "overall" else next(r for r in t["parties"] if r["name"] == name)
                for t in found
            ]
            by_way = [[row[way] for row in rows] for way in ("simple", "alone", "federated")]
            gain = statistics.mean(row["gain"]["percent"] for row in rows if row["gain"])
            margin = statistics.mean(row["gain"]["margin_percent"] for row in rows if row["gain"])
            verdicts = ", ".join(row["pays"] for row in rows)
            seeds = ", ".join(str(r["seed"]) for r in cases)
            values = " | ".join(f"{statistics.mean(cells):.4f}" for cells in by_way)
            lines.append(
                f"| {case} | {name} | {seeds} | {values} | {gain:+.1f} % ±{margin:.1f} | {verdicts} |"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
