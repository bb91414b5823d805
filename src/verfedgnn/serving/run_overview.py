"""The overview of a run on the web page: parties, accuracy, lift, learning curve, bytes and privacy card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verfedgnn.core.metrics import measure_errors
from verfedgnn.data.ids import StrArray
from verfedgnn.evaluation.gain_text import format_gain
from verfedgnn.evaluation.lift import simple_model
from verfedgnn.evaluation.lift_points import list_points
from verfedgnn.evaluation.verdict import (
    deciding_figures,
    headline,
    narrow_lift,
    party_verdicts,
    verdict,
    warn_of_one_split,
)
from verfedgnn.evaluation.verdict_words import judged_tables
from verfedgnn.privacy.visibility import HEADER, who_sees_what
from verfedgnn.reports.lift_view import COMPARE_NOTE, PAYS_TONES, WORDS_NOTE, readable_tables
from verfedgnn.reports.phrases import format_size, total_bytes, warn_of_lists
from verfedgnn.reports.privacy_card import list_all_guarantees, list_assumptions
from verfedgnn.reports.run_report import sum_traffic
from verfedgnn.runs.run import Run
from verfedgnn.runs.run_evaluation import judge_lists
from verfedgnn.serving.catalogue import ALONE, IMAGE, Catalogue

NDCG = "ndcg@20"
MAX_JUDGED = 1 << 31
"""Largest number of scores, users times items, for which the lists of a party alone are judged when the page is opened."""
NEW_HERE = "new here, known elsewhere"
MOST_VALUES = 60
"""Maximum number of values of an item column that the page offers as a filter."""


def describe_run(catalogue: Catalogue, allowed: Sequence[int]) -> dict[str, Any]:
    """Return everything the page shows about the run itself; what is about all parties only if all are allowed."""
    run = catalogue.run
    metrics = run.metrics
    lift = metrics.get("lift")
    figures = {party["name"]: party for party in metrics["parties"]}
    whole_run = len(allowed) == len(catalogue.parties) == len(metrics["parties"])
    whole = lift if whole_run else None
    served = [catalogue.parties[p].name for p in allowed]
    alone = _measure_alone(catalogue)
    parties: list[dict[str, Any]] = []
    for number in allowed:
        party = catalogue.parties[number]
        figure = figures.get(party.name, {})
        parties.append(
            {
                "name": party.name,
                "items": party.table.n_items,
                "ratings": len(party.table),
                "scale": party.table.scale,
                "liked_from": party.liked_from,
                "images": IMAGE in party.table.columns,
                "figures": _collect_figures(figure, alone[number], predicts=catalogue.predicts),
                "verdict": None if lift is None else _describe_verdict(narrow_lift(lift, party.name)),
                "points": [] if lift is None else _plain_points(narrow_lift(lift, party.name)),
                "groups": [] if lift is None else _list_groups(narrow_lift(lift, party.name)),
                "weights": {"ratings": figure.get("gate"), "lists": figure.get("list_gate")},
                "lift": None if lift is None else _pick_rows(lift, party.name),
                "titles": party.table.titles is not None,
                "examples": _choose_examples(catalogue, [number], allowed),
                "columns": _list_values(party.table.columns),
            }
        )
    cost = total_bytes(metrics)
    return {
        "name": catalogue.name,
        "preset": run.config.base,
        "model": run.config.model.gnn,
        "users": len(run.parties[0].ratings.known_users),
        "examples": _choose_examples(catalogue, allowed, allowed),
        "ranks": catalogue.ranks,
        "predicts": catalogue.predicts,
        "alone": ALONE in catalogue.rankers,
        "warning": warn_of_lists(
            metrics | {"parties": [figures[name] for name in served if name in figures]}
        ),
        "verdict": None if whole is None else _describe_verdict(whole),
        "points": [] if whole is None else _plain_points(whole),
        "groups": [] if whole is None else _list_groups(whole),
        "lift_notes": [WORDS_NOTE, COMPARE_NOTE],
        "judged_by_lift": lift is not None,
        "test": {name: metrics["test"].get(name) for name in ("rmse", NDCG)} if whole_run else None,
        "newer": _count_newer(catalogue, allowed),
        "lift": None if whole is None else _pick_rows(whole, None),
        "parties": parties,
        "curves": [_describe_curve(each) for each in ([run] if run.lists is None else [run, run.lists])],
        "rounds": metrics["rounds"],
        "bytes": {
            "up": format_size(cost["up"]),
            "down": format_size(cost["down"]),
            "per_party_per_round": format_size(cost["per_party_per_round"]),
        },
        "messages": [
            {"kind": kind, "way": way, "messages": count, "bytes": amount, "size": format_size(amount)}
            for kind, way, count, amount in sum_traffic(run)
        ],
        "privacy": {
            "visibility": {"columns": HEADER, "rows": who_sees_what(run.config, len(metrics["parties"]))},
            "guarantees": list_all_guarantees(metrics),
            "assumptions": list_assumptions(metrics["privacy"]),
        },
    }


def _describe_verdict(lift: Mapping[str, Any]) -> dict[str, Any]:
    """Return the verdict as terminal and reports show it: its tone, the headline, the figures that decide, and for whom."""
    return {
        "tone": PAYS_TONES[verdict(lift)],
        "headline": headline(lift),
        "figures": deciding_figures(lift),
        "for_whom": [
            f"{party.name if len(lift['parties']) > 1 else 'For whom'}: {party.for_whom}."
            for party in party_verdicts(lift)
            if party.for_whom
        ],
        "provisional": (warn_of_one_split(lift) or "").replace("`", ""),
    }


def _list_groups(lift: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the tables of groups of customers, as the report shows them."""
    return [
        {
            "title": table.title,
            "columns": table.header,
            "rows": [table.cells(name, row) for name, row in table.rows],
            "tones": [PAYS_TONES[row["pays"]] for _, row in table.rows],
            "note": table.note,
        }
        for table in readable_tables(lift)
        if table.label != "party"
    ]


def _describe_curve(run: Run) -> dict[str, Any]:
    """Return the validations of one training, of ratings or of lists."""
    metric = NDCG if run.config.training.ranks else "rmse"
    return {
        "metric": metric,
        "points": [{"round": entry["round"], "value": entry[f"valid_{metric}"]} for entry in run.history],
        "rounds": run.metrics["rounds"],
        "best_round": run.metrics["best_round"],
        "seconds": run.metrics["seconds"],
    }


def _count_newer(catalogue: Catalogue, allowed: Sequence[int]) -> dict[str, int]:
    """Return how many ratings are newer than the run, of how many users, and how many were left out."""
    newer = [found for found in catalogue.newer if found.party in allowed]
    users = {str(user) for found in newer for user in found.user_ids}
    unknown = sum(catalogue.users.find(user) is None for user in users)
    return {
        "ratings": sum(found.count for found in newer),
        "users": len(users),
        "unknown_users": unknown,
        "left_out": sum(found.left_out for found in newer),
    }


def _pick_rows(lift: Mapping[str, Any], party: str | None) -> list[dict[str, Any]]:
    """Return the lift rows of one party, or of all parties together: ratings and lists, known customers and newcomers."""
    rows = []
    for customers, table in judged_tables(lift):
        named = {row["name"]: row for row in table["parties"]} | {None: table["overall"]}
        if party in named:
            row = named[party]
            gain = row["gain"] or {}
            rows.append(
                {name: row[name] for name in ("users", "simple", "alone", "federated", "pays") if name in row}
                | {
                    "gain": [gain[name] for name in ("low_percent", "percent", "high_percent")]
                    if gain
                    else None
                }
                | {"metric": table["metric"], "customers": customers, "gain_text": format_gain(row)}
                | {"tone": PAYS_TONES[row["pays"]]}
            )
    return rows


def _collect_figures(
    row: Mapping[str, Any], alone: Mapping[str, float | None], *, predicts: bool
) -> list[dict[str, Any]]:
    """Return a party's test figures by metric: simple (means, or popularity for lists), alone and federated."""
    test = row.get("test", {})
    popularity = row.get("popularity", {}).get(NDCG)
    lists = {"metric": NDCG, "simple": popularity, "alone": alone.get(NDCG), "federated": test.get(NDCG)}
    if not predicts:
        return [lists]
    return [
        {
            "metric": "rmse",
            "simple": alone.get("means"),
            "alone": alone.get("rmse"),
            "federated": test.get("rmse"),
        },
        lists,
    ]


def _measure_alone(catalogue: Catalogue) -> list[dict[str, float | None]]:
    """Return the test figures of what each served party would have alone: its means and, where it has one, its own model."""
    run = catalogue.run
    ranker = run.ranker
    prepared = run.prepared()
    found: list[dict[str, float | None]] = []
    for p in catalogue.chosen:
        figures: dict[str, float | None] = {}
        table = run.parties[p].ratings
        models = {}
        if catalogue.predicts:
            models = {"means": simple_model(prepared[p], ranks=False)} | (
                {} if run.alone is None else {"rmse": run.alone[p]}
            )
        for name, model in models.items():
            figures[name] = measure_errors(model.users, model.items, prepared[p].test, table.scale).rmse
        if ranker.alone is not None and table.n_users * table.n_items <= MAX_JUDGED:
            figures[NDCG] = judge_lists(prepared[p], ranker.alone[p].score).means(20)[NDCG]
        found.append(figures)
    return found


def _choose_examples(
    catalogue: Catalogue, here: Sequence[int], allowed: Sequence[int]
) -> list[dict[str, Any]]:
    """Choose users with few, with a typical number of, and with many ratings at these parties, and the one with the most ratings only elsewhere."""
    table = catalogue.parties[here[0]].table
    counts: NDArray[np.int64] = np.zeros(table.n_users, np.int64)
    elsewhere = np.zeros_like(counts)
    for p in allowed:
        found = counts if p in here else elsewhere
        found += np.bincount(catalogue.parties[p].table.user, minlength=table.n_users)
    if len(allowed) == len(
        catalogue.parties
    ):  # the page names all users of the run, also those of parties it does not serve
        for p in set(range(len(catalogue.run.parties))) - set(catalogue.chosen):
            elsewhere += np.bincount(catalogue.run.parties[p].ratings.user, minlength=table.n_users)
    order = np.argsort(counts, kind="stable")
    order = order[counts[order] >= min(5, int(counts.max()))]
    places = {"few ratings": 0.1, "a typical user": 0.5, "many ratings": 0.95}
    chosen = {name: int(order[int(place * (len(order) - 1))]) for name, place in places.items()}
    only_elsewhere = np.where(counts == 0, elsewhere, 0)
    if only_elsewhere.any():
        chosen[NEW_HERE] = int(only_elsewhere.argmax())
    return [
        {"label": name, "user": str(table.user_ids[row]), "ratings": int(counts[row])}
        for name, row in chosen.items()
    ]


def _list_values(columns: Mapping[str, StrArray]) -> dict[str, list[str]]:
    found = {
        name: [str(value) for value in np.unique(values) if value]
        for name, values in columns.items()
        if name != IMAGE
    }
    return {name: values for name, values in found.items() if 1 < len(values) <= MOST_VALUES}


def _plain_points(lift: Mapping[str, Any]) -> list[str]:
    """Return the points of a lift without the marks of code, which the page shows as they are."""
    return [point.replace("`", "") for point in list_points(lift)]
