"""The report of a run: the verdict, what it cost and what others learn; everything else is folded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import reduce
from typing import Any

import numpy as np

from verfedgnn.core.installed import installed_version
from verfedgnn.privacy.visibility import HEADER, who_sees_what
from verfedgnn.reports.document import (
    Code,
    Document,
    Fold,
    Heading,
    Paragraph,
    Picture,
    Points,
    Table,
    picture,
)
from verfedgnn.reports.lift_report import GATE_HEADER, GATE_NOTE, add_lift, add_verdict, gate_rows
from verfedgnn.reports.phrases import (
    describe_cost,
    describe_learnt,
    describe_served,
    format_metric,
    format_size,
    warn_of_lists,
)
from verfedgnn.reports.privacy_card import add_guarantees
from verfedgnn.reports.svg_charts import POINT_COLOUR, WAYS, Bars, draw_bars, draw_lines
from verfedgnn.runs.ledger import Ledger
from verfedgnn.runs.run import Run


def run_document(run: Run, name: str) -> Document:
    """Build the report of a run. It names no user and no item."""
    metrics, judged = run.metrics, run.judged
    document = Document(f"Run {name}")
    add_verdict(document, metrics.get("lift"))
    document.add(
        Points(
            [
                f"**Data:** {describe_data(judged)}",
                f"**Cost:** {describe_cost(metrics)}.",
                f"**Others learn:** {describe_learnt(run.judged.config)}",
                f"**Served:** {describe_served(metrics)}.",
            ]
        )
    )
    if "lift" in metrics:
        add_lift(document, metrics["lift"])
    accuracy = Fold("Accuracy on the test part")
    _add_accuracy(accuracy, metrics)
    overlap = Fold("Customers that the parties share")
    _add_overlap(overlap, run)
    mixtures = Fold("What each party mixes")
    rows = gate_rows(metrics)
    if rows:
        mixtures.add(Paragraph(GATE_NOTE), Table(GATE_HEADER, rows))
    training = Fold("Training and traffic")
    training.add(*training_curves(judged))
    _add_traffic(training, run)
    protection = Fold("Who sees what, and what is guaranteed")
    protection.add(
        Paragraph("`verfedgnn audit` attacks the run as each of them could."),
        Table(HEADER, who_sees_what(run.config, len(metrics["parties"])), "Who sees what"),
    )
    add_guarantees(protection, metrics["privacy"])
    if "lists" in metrics:
        add_guarantees(protection, metrics["lists"]["privacy"], "Privacy guarantees of the lists' training")
    if "final" in metrics and metrics["final"]["rounds"]:
        add_guarantees(
            protection, metrics["final"]["privacy"], "Privacy guarantees of the training on all ratings"
        )
    folds = [accuracy, overlap, mixtures, training, protection]
    settings = Fold("Configuration")
    versions = ", ".join(f"{name} {version}" for name, version in metrics["environment"].items())
    settings.add(
        Code(judged.config.to_toml()),
        Paragraph(
            f"verfedgnn {installed_version()}, {versions}. Configuration `{judged.config.fingerprint()}`, "
            f"public parameters `{metrics['public']}`."
        ),
    )
    document.add(*(fold for fold in [*folds, settings] if fold.blocks))
    _add_drift(document, metrics.get("after"))
    return document


def run_html(run: Run) -> str:
    """Return the verdict, the accuracy of each party and the learning curves as HTML for a notebook. Nothing is trained."""
    document = Document("Run")
    document.add(Paragraph(describe_data(run.judged)))
    add_verdict(document, run.metrics.get("lift"))
    document.add(accuracy_table(run.metrics), *training_curves(run.judged)[: 1 if run.lists is None else 2])
    return document.fragment()


def describe_data(run: Run) -> str:
    """Return sentences on the parties, users, ratings and model of a run."""
    names = ", ".join(party.name for party in run.parties)
    parties = f"{len(run.parties)} parties ({names})" if len(run.parties) > 1 else f"Party {names}"
    users = run.parties[0].ratings.n_users
    ratings = sum(len(party.ratings) for party in run.parties)
    gnn = f", {run.config.model.gnn.upper()}" if run.config.model.form == "propagation" else ""
    preset = f"Preset `{run.config.base}`{gnn}, seed {run.config.seed}."
    return f"{parties} with {users:,} users and {ratings:,} ratings. {preset}"


def accuracy_table(metrics: Mapping[str, Any]) -> Table:
    """Return the test metrics of each party, of all parties together, of the parties' own means, and of popular items."""
    names = list(metrics["test"])
    rows = [
        [
            party["name"],
            f"{party['items']:,}",
            f"{party['ratings']:,}",
            *(format_metric(party["test"][name]) for name in names),
        ]
        for party in metrics["parties"]
    ]
    rows.append(["**all**", "", "", *(format_metric(metrics["test"][name]) for name in names)])
    means = metrics["means"]
    if means["rmse"] is not None:
        rows.append(["own means", "", "", *(format_metric(means.get(name)) for name in names)])
    popular = metrics["popularity"]
    rows.append(["the most popular items", "", "", *(format_metric(popular.get(name)) for name in names)])
    return Table(["party", "items", "ratings", *names], rows, "Accuracy on the test part")


def _add_accuracy(document: Fold, metrics: dict[str, Any]) -> None:
    warning = warn_of_lists(metrics)
    kept = [f"round {metrics['best_round']:,} of {metrics['rounds']:,} for ratings"]
    if "lists" in metrics:
        kept.append(f"round {metrics['lists']['best_round']:,} of {metrics['lists']['rounds']:,} for lists")
    document.add(
        accuracy_table(metrics),
        Paragraph(f"**Warning:** {warning}") if warning else None,
        Paragraph(
            "Neither training nor the choice of a model has seen the test part. Lower is better for RMSE and MAE, higher for all "
            f"other metrics. Kept, as best on the validation part: {' and '.join(kept)}."
        ),
    )


def training_curves(run: Run) -> list[Picture | None]:
    """Return charts of the validation metric by round, for ratings and for lists, then by traffic."""
    parts = [_draw_curves(run, "curve")]
    if run.lists is not None:
        parts.append(_draw_curves(run.lists, "curve-lists"))
    return [chart for kind in zip(*(part for part in parts if part), strict=True) for chart in kind]


def _draw_curves(run: Run, file: str) -> list[Picture | None]:
    """Return the charts of one training, by round and by traffic."""
    name = next((key for key in (run.history[0] if run.history else {}) if key.startswith("valid_")), None)
    if name is None:
        return []
    metric = name.removeprefix("valid_").upper()
    values = [entry[name] for entry in run.history]
    kept = run.metrics["best_round"]
    charts = {
        file: (
            "round",
            "round",
            [entry["round"] for entry in run.history],
            {f"round {kept:,} is kept": kept},
        ),
        f"{file}-traffic": ("traffic", "total traffic in MB", [e["bytes"] / 1e6 for e in run.history], {}),
    }
    made = []
    for name, (by, label, places, marks) in charts.items():
        title = f"{metric} on the validation part by {by}"
        curves = {metric: (places, values)}
        colours = {metric: WAYS["federated"]}
        svg = draw_lines(title, curves, label, f"validation {metric}", colours, marks=marks)
        made.append(picture(name, title, svg))
    return made


def _add_overlap(document: Fold, run: Run) -> None:
    """Add how many customers each party shares with others, and a chart of customers by their number of parties."""
    if len(run.parties) < 2:
        return
    present = np.zeros((len(run.parties), run.parties[0].ratings.n_users), bool)
    for row, party in zip(present, run.parties, strict=True):
        row[party.ratings.user] = True
    parties = present.sum(0)
    rows = []
    for row, party in zip(present, run.parties, strict=True):
        elsewhere = int((parties[row] > 1).sum())
        users = int(row.sum())
        rows.append([party.name, f"{users:,}", f"{elsewhere:,}", f"{elsewhere / max(1, users):.1%}"])
    counts = np.bincount(parties, minlength=len(run.parties) + 1)[1:]
    total = max(1, int(counts.sum()))
    title = "Customers by the number of parties at which they have ratings"
    bars = [
        Bars("1 party" if place == 1 else f"{place} parties", [count], f"{count:,} ({count / total:.1%})")
        for place, count in enumerate(counts.tolist(), 1)
    ]
    document.add(
        picture("overlap", title, draw_bars(title, bars, {"customers": POINT_COLOUR})),
        Table(["party", "customers", "also elsewhere", "share"], rows, "Customers that a party shares"),
    )


def _add_drift(document: Document, before: Mapping[str, Any] | None) -> None:
    """Add the drift of every party since the run before, if one was named."""
    if before is None:
        return
    rows = [
        [
            name,
            "-" if drift["rating_distance"] is None else f"{100 * drift['rating_distance']:.1f} %",
            f"{100 * drift['unknown_users']:.1f} %",
            f"{100 * drift['unknown_items']:.1f} %",
        ]
        for name, drift in before["drift"].items()
    ]
    document.add(
        Heading("Since the run before"),
        Paragraph(
            f"The run before has the public parameters `{before['public'][:16]}`. `verfedgnn diff EARLIER LATER` compares two runs."
        ),
        Table(
            ["party", "ratings with another value", "new users", "new items"],
            rows,
            "Drift of the parties' data",
        ),
    )


MESSAGES = {
    "Hello": "requests to join",
    "Welcome": "sizes, and full copies of the public parameters for parties that need them",
    "RoundStart": "sums of the last round, and instructions",
    "RoundReply": "protected contributions to a round",
    "Finish": "best round, and its public parameters for parties that rejoined",
    "Finished": "confirmations",
    "Waiting": "lists of missing parties",
    "Refused": "refusals",
}
"""Descriptions of the protocol's messages, by their names in docs/protocol.md."""


def sum_traffic(run: Run) -> list[tuple[str, str, int, int]]:
    """Return the message kind, direction, number of messages and bytes of all trainings' traffic, largest first."""
    runs = [run] if run.final_of is None else [run, run.final_of]
    ledgers = [each.ledger for one in runs for each in (one, one.lists) if each is not None]
    ledger = reduce(Ledger.joined, ledgers)
    totals: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for (kind, way, _), amount in ledger.bytes.items():
        totals[kind, way][0] += amount
    for (kind, way, _), count in ledger.messages.items():
        totals[kind, way][1] += count
    directions = {"up": "to the coordinator", "down": "to parties"}
    rows = [
        (MESSAGES.get(kind, kind), directions[way], count, amount)
        for (kind, way), (amount, count) in totals.items()
    ]
    return sorted(rows, key=lambda row: -row[3])


def _add_traffic(document: Fold, run: Run) -> None:
    traffic = sum_traffic(run)
    total = sum(amount for *_, amount in traffic) or 1
    rows = [
        [kind, way, f"{count:,}", format_size(amount), f"{amount / total:.1%}"]
        for kind, way, count, amount in traffic
    ]
    title = "Bytes by message and direction, all trainings"
    bars = [
        Bars(f"{kind} {way}", [amount], format_size(amount)) for kind, way, _, amount in traffic if amount
    ]
    document.add(
        picture("bytes", title, draw_bars(title, bars, {"bytes": POINT_COLOUR})),
        Table(["message", "direction", "messages", "size", "share"], rows, title),
    )
