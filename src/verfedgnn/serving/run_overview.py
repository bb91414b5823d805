"""The overview of a run on the web page: its parties, example users, and whether joining pays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from verfedgnn.evaluation.verdict import headline, list_points, narrow_lift, party_word
from verfedgnn.reports.lift_report import TONES
from verfedgnn.reports.phrases import describe_cost, describe_learnt, describe_served, warn_of_lists
from verfedgnn.serving.catalogue import Catalogue
from verfedgnn.serving.split_test import ALONE

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
    parties = []
    for number in allowed:
        party = catalogue.parties[number]
        row = figures.get(party.name, {})
        columns = {
            name: [str(value) for value in np.unique(values) if value]
            for name, values in party.table.columns.items()
        }
        parties.append(
            {
                "name": party.name,
                "items": party.table.n_items,
                "ratings": len(party.table),
                "scale": party.table.scale,
                "liked_from": party.liked_from,
                "titles": party.table.titles is not None,
                "test": row.get("test"),
                "popularity": row.get("popularity"),
                "examples": _choose_examples(catalogue, [number], allowed),
                "columns": {
                    name: values for name, values in columns.items() if 1 < len(values) <= MOST_VALUES
                },
                "verdict": None if lift is None else _describe_verdict(narrow_lift(lift, party.name)),
            }
        )
    served = [figures[party["name"]] for party in parties if party["name"] in figures]
    about = [
        f"Cost: {describe_cost(metrics)}.",
        f"Others learn: {describe_learnt(run.config)}".replace("`", ""),
        f"Served: {describe_served(metrics)}.",
    ]
    return {
        "name": catalogue.name,
        "users": len(run.parties[0].ratings.known_users),
        "rounds": metrics["rounds"],
        "ranks": catalogue.ranks,
        "predicts": catalogue.predicts,
        "alone": ALONE in catalogue.rankers,
        "examples": _choose_examples(catalogue, allowed, allowed),
        "warning": warn_of_lists(metrics | {"parties": served}),
        "judged_by_lift": lift is not None,
        "verdict": None if lift is None or not whole_run else _describe_verdict(lift),
        "about": about if whole_run else [],
        "parties": parties,
    }


def _describe_verdict(lift: Mapping[str, Any]) -> dict[str, Any]:
    """Return the verdict and what follows it, in the words of terminal and reports."""
    return {
        "tone": TONES[party_word(lift)],
        "headline": headline(lift),
        # the page shows marks of code as they are
        "points": [point.replace("`", "") for point in list_points(lift)],
    }


def _choose_examples(
    catalogue: Catalogue, here: Sequence[int], allowed: Sequence[int]
) -> list[dict[str, Any]]:
    """Choose users with few, with a typical number of, and with many ratings at these parties, and the one with the most ratings only elsewhere."""
    tables = [party.ratings for party in catalogue.run.parties]
    known = [catalogue.chosen[p] for p in allowed]
    if len(allowed) == len(catalogue.parties):
        # the page names all users of the run, also those of parties it does not serve
        known = list(range(len(tables)))
    shown = [catalogue.chosen[p] for p in here]
    counts, elsewhere = (
        sum(
            (np.bincount(tables[p].user, minlength=tables[p].n_users) for p in chosen),
            np.zeros(tables[0].n_users, np.int64),
        )
        for chosen in (shown, set(known) - set(shown))
    )
    order = np.argsort(counts, kind="stable")
    order = order[counts[order] >= min(5, int(counts.max()))]
    places = {"few ratings": 0.1, "a typical user": 0.5, "many ratings": 0.95}
    chosen = {name: int(order[int(place * (len(order) - 1))]) for name, place in places.items()}
    only_elsewhere = np.where(counts == 0, elsewhere, 0)
    if only_elsewhere.any():
        chosen[NEW_HERE] = int(only_elsewhere.argmax())
    return [
        {"label": name, "user": str(catalogue.user_ids[row]), "ratings": int(counts[row])}
        for name, row in chosen.items()
    ]
