"""The report of a run: accuracy, learning curve, lift, traffic, privacy guarantees, largest errors and configuration."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from verfedgnn.core.version import installed_version
from verfedgnn.evaluation.lift_plots import band, lift_figure
from verfedgnn.reports.document import Code, Document, Heading, Paragraph, Picture, Table
from verfedgnn.reports.drawing import make_figure, render_svg
from verfedgnn.reports.phrases import format_metric, format_size
from verfedgnn.reports.privacy_card import add_guarantees
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.runs.prepared_data import Prepared
from verfedgnn.runs.run import Run

LARGEST_ERRORS = 15
"""Number of test ratings listed as predicted worst."""


def run_document(run: Run, name: str) -> Document:
    """Build the report of a run."""
    metrics = run.metrics
    document = Document(f"Run {name}")
    document.add(Paragraph(_describe_data(run)))
    _add_accuracy(document, metrics)
    _add_curve(document, run)
    _add_lift(document, metrics.get("lift"))
    _add_traffic(document, run)
    add_guarantees(document, metrics["privacy"])
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


def _describe_data(run: Run) -> str:
    names = ", ".join(party.name for party in run.parties)
    parties = f"{len(run.parties)} parties ({names})" if len(run.parties) > 1 else f"Party {names}"
    users = run.parties[0].ratings.n_users
    ratings = sum(len(party.ratings) for party in run.parties)
    return (
        f"{parties} with {users:,} users and {ratings:,} ratings. Preset `{run.config.base}`, "
        f"{run.config.model.gnn.upper()}, seed {run.config.seed}."
    )


def _add_accuracy(document: Document, metrics: dict[str, Any]) -> None:
    traffic = metrics["bytes"]
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
    document.add(
        Heading("Accuracy"),
        Table(["party", "items", "ratings", *names], rows),
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
    )


def _add_curve(document: Document, run: Run) -> None:
    name = next((key for key in (run.history[0] if run.history else {}) if key.startswith("valid_")), None)
    figure = make_figure(10, 3.6) if name else None
    if figure is None or name is None:
        return
    left, right = figure.subplots(1, 2, sharey=True)
    values = [entry[name] for entry in run.history]
    metric = name.removeprefix("valid_").upper()
    left.plot([entry["round"] for entry in run.history], values, color="#2a6fb0")
    left.axvline(run.metrics["best_round"], color="#9e9e9e", linewidth=0.8, linestyle="--")
    left.set(xlabel="round (dashed: kept)", ylabel=f"validation {metric}")
    right.plot([entry["bytes"] / 1e6 for entry in run.history], values, color="#2a6fb0")
    right.set(xlabel="total traffic in MB")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    document.add(
        Picture("curve", f"{metric} on the validation part by round and by traffic", render_svg(figure))
    )


def _add_lift(document: Document, lift: dict[str, Any] | None) -> None:
    if lift is None:
        return
    ways = ("biases", "alone", "federated", "pooled")

    def make_row(name: str, part: dict[str, Any]) -> list[str]:
        gain = part.get("gain")
        text = f"{gain['rmse']:+.4f} ({gain['low']:+.4f} to {gain['high']:+.4f})" if gain else "–"
        return [name, *(format_metric(part[way]) for way in ways), text, part.get("pays", "–")]

    header = [*ways, "gain (95 % interval)", "pays"]
    by_party = [
        *(make_row(party["name"], party) for party in lift["parties"]),
        make_row("**all**", lift["overall"]),
    ]
    by_ratings = [make_row(band(part), part) for part in lift.get("by_own_ratings", [])]
    figure = lift_figure(lift)
    document.add(
        Heading("Does joining pay?"),
        Paragraph(
            "Test RMSE, lower is better: with user and item means only (`biases`), trained `alone`, `federated`, and with "
            "all data in one place (`pooled`). The gain is how much lower the federated RMSE is than the better of "
            "`biases` and `alone`. Joining pays if the whole interval is above 0; with few users the answer is `cannot tell`."
        ),
        Table(["party", *header], by_party),
        Table(["user's own ratings", *header], by_ratings),
        Picture("lift", "Test RMSE by a user's own ratings, and gain by party", render_svg(figure))
        if figure
        else None,
    )


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
