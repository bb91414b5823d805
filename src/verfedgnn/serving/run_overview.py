"""The overview of a run on the web page: parties, accuracy alone and federated, learning curve, bytes and privacy card."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from verfedgnn.data import TEST, PartyData
from verfedgnn.data.ids import StrArray
from verfedgnn.reports.phrases import format_size
from verfedgnn.reports.privacy_card import list_assumptions, list_guarantees
from verfedgnn.reports.run_report import sum_traffic
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.runs.run import Run
from verfedgnn.runs.run_evaluation import evaluate
from verfedgnn.serving.catalogue import ALONE, Catalogue

MOST_VALUES = 60
"""Maximum number of values of an item column that the page offers as a filter."""


def describe_run(catalogue: Catalogue) -> dict[str, Any]:
    """Return everything the page shows about the run itself."""
    run = catalogue.run
    metrics = run.metrics
    judged = "ndcg@20" if catalogue.ranks else "rmse"
    alone = _measure_alone(run, judged) if run.alone is not None else {}
    figures = {party["name"]: party for party in metrics["parties"]}
    lift = {party["name"]: party for party in metrics.get("lift", {}).get("parties", [])}
    parties: list[dict[str, Any]] = []
    for p, party in zip(catalogue.chosen, catalogue.parties, strict=True):
        pays = lift.get(party.name, {})
        parties.append(
            {
                "name": party.name,
                "items": party.table.n_items,
                "ratings": len(party.table),
                "scale": party.table.scale,
                "federated": figures.get(party.name, {}).get("test", {}).get(judged),
                "alone": alone.get(p, pays.get("alone")),
                "share": figures.get(party.name, {}).get("gate"),
                "pays": pays.get("pays"),
                "gain": pays.get("gain"),
                "examples": _choose_examples(catalogue, len(parties)),
                "columns": _list_values(party.table.columns),
            }
        )
    cost = metrics["bytes"]
    return {
        "name": catalogue.name,
        "preset": run.config.base,
        "model": run.config.model.gnn,
        "users": len(run.parties[0].ratings.known_users),
        "judged": judged,
        "ranks": catalogue.ranks,
        "alone": ALONE in catalogue.rankers,
        "parties": parties,
        "history": [
            {"round": e["round"], "error": e[f"valid_{judged}"], "bytes": e["bytes"]} for e in run.history
        ],
        "rounds": metrics["rounds"],
        "best_round": metrics["best_round"],
        "seconds": metrics["seconds"],
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
            "guarantees": list_guarantees(metrics["privacy"]),
            "assumptions": list_assumptions(metrics["privacy"]),
        },
    }


def _measure_alone(run: Run, judged: str) -> dict[int, float | None]:
    """Return the test metric of the model that each party trained alone."""
    alone = run.alone or []
    if judged != "rmse":
        figures = evaluate(run.prepared(), alone, 20, ranks=True)
        return {p: party["test"][judged] for p, party in enumerate(figures["parties"])}
    return {p: _measure_rmse(run.parties[p], run.parts[p], model) for p, model in enumerate(alone)}


def _measure_rmse(party: PartyData, part: NDArray[np.int8], model: PartyModel) -> float | None:
    table, test = party.ratings, part == TEST
    if not test.any():
        return None
    predicted = model.predict_rows(torch.from_numpy(table.user[test]), torch.from_numpy(table.item[test]))
    return math.sqrt(float((predicted - torch.from_numpy(table.rating[test])).square().mean()))


def _choose_examples(catalogue: Catalogue, party: int) -> list[dict[str, Any]]:
    """Choose one user with few, one with a typical number of, and one with many ratings at the party."""
    table = catalogue.parties[party].table
    counts: NDArray[np.int64] = np.bincount(table.user, minlength=table.n_users)
    order = np.argsort(counts, kind="stable")
    order = order[counts[order] >= min(5, int(counts.max()))]
    places = {"few ratings": 0.1, "a typical user": 0.5, "many ratings": 0.95}
    chosen = {name: int(order[int(place * (len(order) - 1))]) for name, place in places.items()}
    return [
        {"label": name, "user": str(table.user_ids[row]), "ratings": int(counts[row])}
        for name, row in chosen.items()
    ]


def _list_values(columns: Mapping[str, StrArray]) -> dict[str, list[str]]:
    found = {name: [str(value) for value in np.unique(values) if value] for name, values in columns.items()}
    return {name: values for name, values in found.items() if 1 < len(values) <= MOST_VALUES}
