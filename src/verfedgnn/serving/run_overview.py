"""What the page shows of a run: its parties, accuracy alone and federated, curve, bytes and privacy card."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from verfedgnn.core.metrics import measure_errors
from verfedgnn.core.pairs import Pairs
from verfedgnn.data import TEST
from verfedgnn.reports.phrases import size
from verfedgnn.reports.privacy_card import assumptions, guarantees
from verfedgnn.reports.run_report import bytes_by_kind
from verfedgnn.runs.run import Run
from verfedgnn.runs.run_evaluation import evaluate
from verfedgnn.serving.catalogue import ALONE, Catalogue

MOST_VALUES = 60
"""A column with more values than this is not offered as a filter on the page."""


def overview(catalogue: Catalogue) -> dict[str, Any]:
    """Everything about the run but its users."""
    run, metrics = catalogue.run, catalogue.run.metrics
    judged = "ndcg@20" if catalogue.ranks else "rmse"
    alone = _alone_figures(run, judged) if run.alone is not None else {}
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
                "examples": _examples(catalogue, len(parties)),
                "columns": _values(party.table.columns),
            }
        )
    cost = metrics["bytes"]
    return {
        "name": catalogue.name,
        "preset": run.config.base,
        "model": run.config.model.gnn,
        "users": run.parties[0].ratings.n_users,
        "judged": judged,
        "ranks": catalogue.ranks,
        "alone": ALONE in catalogue.shelves,
        "parties": parties,
        "history": [
            {"round": e["round"], "error": e[f"valid_{judged}"], "bytes": e["bytes"]} for e in run.history
        ],
        "rounds": metrics["rounds"],
        "best_round": metrics["best_round"],
        "seconds": metrics["seconds"],
        "bytes": {
            "up": size(cost["up"]),
            "down": size(cost["down"]),
            "per_party_per_round": size(cost["per_party_per_round"]),
        },
        "messages": [
            {"kind": kind, "way": way, "messages": count, "bytes": amount, "size": size(amount)}
            for kind, way, count, amount in bytes_by_kind(run)
        ],
        "privacy": {
            "guarantees": guarantees(metrics["privacy"]),
            "assumptions": assumptions(metrics["privacy"]),
        },
    }


def _alone_figures(run: Run, judged: str) -> dict[int, float | None]:
    """Each party's test figure with the model it trained alone."""
    alone = run.alone or []
    if judged != "rmse":
        figures = evaluate(run.prepared(), [(m.users, m.items) for m in alone], 20, ranks=True)
        return {p: party["test"][judged] for p, party in enumerate(figures["parties"])}
    return {p: _rmse(run, p) for p in range(len(alone))}


def _rmse(run: Run, p: int) -> float | None:
    assert run.alone is not None
    table, test = run.parties[p].ratings, run.parts[p] == TEST
    user, item = (torch.from_numpy(rows[test].astype(np.int64)) for rows in (table.user, table.item))
    return measure_errors(
        run.alone[p].users, run.alone[p].items, Pairs(user, item, torch.from_numpy(table.rating[test]))
    ).rmse


def _examples(catalogue: Catalogue, party: int) -> list[dict[str, Any]]:
    """Users with few, typically many and very many ratings at the party."""
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


def _values(columns: Any) -> dict[str, list[str]]:
    found = {name: [str(value) for value in np.unique(values) if value] for name, values in columns.items()}
    return {name: values for name, values in found.items() if 1 < len(values) <= MOST_VALUES}
