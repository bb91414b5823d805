"""The report of a run: verdict, accuracy, lift, gates, learning curve, traffic, privacy guarantees, largest errors and configuration."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from verfedgnn.core.version import installed_version
from verfedgnn.evaluation.lift import quick_lift
from verfedgnn.evaluation.lift_plots import WAYS, band, gains_in_percent
from verfedgnn.evaluation.verdict import WHAT
from verfedgnn.reports.document import Code, Document, Heading, Paragraph, Picture, Table
from verfedgnn.reports.lift_summary import add_verdict
from verfedgnn.reports.lift_view import (
    GATE_HEADER,
    GATE_NOTE,
    MEASURES,
    SIMPLE,
    gate_rows,
    halves,
    readable_tables,
)
from verfedgnn.reports.phrases import format_metric, format_size, warn_of_lists
from verfedgnn.reports.privacy_card import add_guarantees
from verfedgnn.reports.svg_charts import Interval, draw_intervals, draw_lines
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.runs.prepared_data import Prepared
from verfedgnn.runs.run import Run

LARGEST_ERRORS = 15
"""Number of test ratings listed as predicted worst."""


def run_document(run: Run, name: str) -> Document:
    """Build the report of a run."""
    metrics = run.metrics
    document = Document(f"Run {name}")
    lift = metrics.get("lift") or quick_lift(run)
    add_verdict(document, lift)
    document.add(Paragraph(describe_data(run)))
    _add_accuracy(document, metrics)
    _add_lift(document, lift)
    _add_gates(document, metrics)
    document.add(*training_curves(run))
    _add_traffic(document, run)
    add_guarantees(document, metrics["privacy"])
    if "lists" in metrics:
        add_guarantees(document, metrics["lists"]["privacy"], "Privacy guarantees of the lists' training")
    _add_largest_errors(document, run)
    versions = ", ".join(f"{name} {version}" for name, version in metrics["environment"].items())
    document.add(
        Heading("Configuration"),
        Code(run.config.to_toml()),
        Heading("Environment"),
        Paragraph(
            f"verfedgnn {installed_version()}, {versions}. Configuration `{run.config.fingerprint()}`, "
            f"public parameters `{metrics['public']}`."
        ),
    )
    return document


def describe_data(run: Run) -> str:
    """Return sentences on the parties, users, ratings and model of a run."""
    names = ", ".join(party.name for party in run.parties)
    parties = f"{len(run.parties)} parties ({names})" if len(run.parties) > 1 else f"Party {names}"
    users = run.parties[0].ratings.n_users
    ratings = sum(len(party.ratings) for party in run.parties)
    return (
        f"{parties} with {users:,} users and {ratings:,} ratings. Preset `{run.config.base}`, "
        f"{run.config.model.gnn.upper()}, seed {run.config.seed}."
    )


def accuracy_table(metrics: Mapping[str, Any]) -> Table:
    """Return the test metrics of each party, of all parties together, and of the most popular items."""
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
    popular = metrics["popularity"]
    rows.append(["the most popular items", "", "", *(format_metric(popular.get(name)) for name in names)])
    return Table(["party", "items", "ratings", *names], rows)


def _add_accuracy(document: Document, metrics: dict[str, Any]) -> None:
    traffic = metrics["bytes"]
    warning = warn_of_lists(metrics)
    document.add(
        Heading("Accuracy"),
        accuracy_table(metrics),
        Paragraph(f"**Warning:** {warning}") if warning else None,
        Paragraph(
            "Measured on the test part, which was used neither for training nor for model selection. Lower is better for "
            "RMSE and MAE, higher for all other metrics."
        ),
        Paragraph(
            f"Training took {metrics['rounds']:,} rounds and {metrics['seconds']:.0f} s. The model of round "
            f"{metrics['best_round']:,} was kept, because it was best on the validation part. The parties sent "
            f"{format_size(traffic['up'])} and received {format_size(traffic['down'])}, or "
            f"{format_size(traffic['per_party_per_round'])} per party and round."
        ),
        Paragraph(_describe_lists(metrics["lists"])) if "lists" in metrics else None,
    )


def _describe_lists(lists: dict[str, Any]) -> str:
    traffic = lists["bytes"]
    return (
        f"A second model orders lists. Its training took {lists['rounds']:,} rounds and {lists['seconds']:.0f} s, and the "
        f"model of round {lists['best_round']:,} was kept. The parties sent {format_size(traffic['up'])} and received "
        f"{format_size(traffic['down'])} for it."
    )


def training_curves(run: Run) -> list[Picture | None]:
    """Return charts of the validation error by round and by traffic."""
    name = next((key for key in (run.history[0] if run.history else {}) if key.startswith("valid_")), None)
    if name is None:
        return []
    metric = name.removeprefix("valid_").upper()
    values = [entry[name] for entry in run.history]
    colours = {metric: WAYS["federated"]}
    by_round = draw_lines(
        {metric: ([entry["round"] for entry in run.history], values)},
        colours,
        "round (dashed: kept)",
        f"validation {metric}",
        mark=run.metrics["best_round"],
    )
    by_traffic = draw_lines(
        {metric: ([entry["bytes"] / 1e6 for entry in run.history], values)},
        colours,
        "total traffic in MB",
        f"validation {metric}",
    )
    return [
        _picture("curve", f"{metric} on the validation part by round", by_round),
        _picture("curve-traffic", f"{metric} on the validation part by traffic", by_traffic),
    ]


def _add_gates(document: Document, metrics: dict[str, Any]) -> None:
    rows = gate_rows(metrics)
    if rows:
        document.add(Heading("What each party serves"), Paragraph(GATE_NOTE), Table(GATE_HEADER, rows))


def _add_lift(document: Document, lift: dict[str, Any] | None) -> None:
    if lift is None:
        return
    document.add(Heading("Does joining pay?"))
    for table in readable_tables(lift):
        rows = [table.cells(name, row) for name, row in table.rows]
        if table.overall is not None:
            rows.append(table.cells("**all**", table.overall))
        document.add(Paragraph(f"**{table.title}.** {table.note}".strip()), Table(table.header, rows))
    for part in halves(lift):
        _add_other_metrics(document, part)
        _add_lift_pictures(document, part)


def _add_other_metrics(document: Document, part: Mapping[str, Any]) -> None:
    """Add Recall@20 and HitRate@20 of lists, for known customers and for newcomers."""
    if "recall@20" not in part["overall"]:
        return
    ways = [way for way in WAYS if way in part["overall"]]
    tables = {"customers that the parties know": part["overall"]}
    if "newcomers" in part:
        tables["newcomers"] = part["newcomers"]["overall"]
    rows = [
        [who, name, *(format_metric(row[name][way]) for way in ways)]
        for who, row in tables.items()
        for name in ("recall@20", "hitrate@20")
    ]
    header = ["for", "metric", *(SIMPLE[part["metric"]] if way == "simple" else way for way in ways)]
    document.add(Paragraph("**Other metrics of lists.** Higher is better."), Table(header, rows))


def _add_lift_pictures(document: Document, part: Mapping[str, Any]) -> None:
    """Add the charts of ratings or of lists: gain by party, gain for newcomers, and figures by activity."""
    what = WHAT[part["metric"]]
    simple = SIMPLE[part["metric"]]
    kind = "ratings" if part["metric"] == "rmse" else "lists"
    axis = "% gained by joining, with its 95 % interval"
    rows = [row for row in part.get("by_own_ratings", []) if all(row[way] is not None for way in WAYS)]
    places = list(range(len(rows)))
    curves = {simple if way == "simple" else way: (places, [float(row[way]) for row in rows]) for way in WAYS}
    document.add(
        _picture(
            f"lift-{kind}",
            f"Gain in {what} by party, over what it has alone",
            draw_intervals([Interval(*found) for found in gains_in_percent(part)], axis),
        ),
        _picture(
            f"lift-{kind}-newcomers",
            f"Gain in {what} for customers new to a party, over {simple}",
            draw_intervals([Interval(*found) for found in gains_in_percent(part["newcomers"])], axis),
        )
        if "newcomers" in part
        else None,
        _picture(
            f"lift-{kind}-activity",
            f"Accuracy of {what} by a customer's training ratings at the party",
            draw_lines(
                curves,
                {simple if way == "simple" else way: colour for way, colour in WAYS.items()},
                "training ratings at the party",
                MEASURES[part["metric"]],
                names=[band(row) for row in rows],
            ),
        ),
    )


def _picture(name: str, caption: str, svg: str | None) -> Picture | None:
    return None if svg is None else Picture(name, caption, svg)


MESSAGES = {
    "Hello": "requests to join",
    "Welcome": "full copies of the public parameters",
    "RoundStart": "sums of the last round, and instructions",
    "RoundReply": "protected contributions to a round",
    "Finish": "public parameters of the best model",
    "Finished": "confirmations",
    "Waiting": "lists of missing parties",
    "Refused": "refusals",
}
"""Descriptions of the protocol's messages, by their names in docs/protocol.md."""


def sum_traffic(run: Run) -> list[tuple[str, str, int, int]]:
    """Return the message kind, direction, number of messages and bytes of all traffic, largest first."""
    totals: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for (kind, way, _), amount in run.ledger.bytes.items():
        totals[kind, way][0] += amount
    for (kind, way, _), count in run.ledger.messages.items():
        totals[kind, way][1] += count
    directions = {"up": "to the coordinator", "down": "to parties"}
    rows = [
        (MESSAGES.get(kind, kind), directions[way], count, amount)
        for (kind, way), (amount, count) in totals.items()
    ]
    return sorted(rows, key=lambda row: -row[3])


def _add_traffic(document: Document, run: Run) -> None:
    traffic = sum_traffic(run)
    total = sum(amount for *_, amount in traffic) or 1
    rows = [
        [kind, way, f"{count:,}", format_size(amount), f"{amount / total:.1%}"]
        for kind, way, count, amount in traffic
    ]
    document.add(Heading("Traffic"), Table(["message", "direction", "messages", "size", "share"], rows))


def _add_largest_errors(document: Document, run: Run) -> None:
    if run.config.training.ranks:
        return
    found: list[tuple[float, list[str]]] = []
    for prepared, model in zip(run.prepared(), run.models, strict=True):
        found += _find_largest_errors(prepared, model)
    worst = [cells for _, cells in sorted(found, key=lambda pair: -pair[0])[:LARGEST_ERRORS]]
    document.add(
        Heading("Largest errors"),
        Paragraph(
            "The test ratings with the largest errors. This table names users and items, so store the report as "
            "carefully as the ratings."
        ),
        Table(["party", "user", "item", "rating", "predicted"], worst),
    )


def _find_largest_errors(prepared: Prepared, model: PartyModel) -> list[tuple[float, list[str]]]:
    table, test = prepared.party.ratings, prepared.test
    predicted = model.predict(test)
    errors = (predicted - test.rating).abs()
    found = []
    for place in errors.topk(min(LARGEST_ERRORS, len(errors))).indices.tolist():
        user, item = int(test.user[place]), int(test.item[place])
        title = "" if table.titles is None else str(table.titles[item])
        cells = [
            prepared.party.name,
            str(table.user_ids[user]),
            title or str(table.item_ids[item]),
            f"{float(test.rating[place]):g}",
            f"{float(predicted[place]):.2f}",
        ]
        found.append((float(errors[place]), cells))
    return found
