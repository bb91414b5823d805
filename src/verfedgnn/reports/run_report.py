"""The report of a run: the verdict, what it cost and what others learn; everything else is folded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from verfedgnn.core.installed import installed_version
from verfedgnn.privacy.visibility import HEADER, who_sees_what
from verfedgnn.reports.document import (
    Block,
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
from verfedgnn.reports.svg_charts import POINT_COLOUR, Bars, draw_bars, draw_lines
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
                f"**Others learn:** {describe_learnt(judged.config)}",
                f"**Served:** {describe_served(metrics)}.",
            ]
        )
    )
    if "lift" in metrics:
        add_lift(document, metrics["lift"])
    mixtures = gate_rows(metrics)
    versions = ", ".join(f"{name} {version}" for name, version in metrics["environment"].items())
    folds = [
        Fold.of("Accuracy on the test part", *_accuracy(metrics)),
        Fold.of("Customers that the parties share", *_overlap(run)),
        Fold("What each party mixes", [Paragraph(GATE_NOTE), Table(GATE_HEADER, mixtures)] * bool(mixtures)),
        Fold.of("Training and traffic", *training_curves(judged), *_traffic(run)),
        _protection(run),
        Fold.of(
            "Configuration",
            Code(judged.config.to_toml()),
            Paragraph(
                f"verfedgnn {installed_version()}, {versions}. Configuration `{judged.config.fingerprint()}`, "
                f"public parameters `{metrics['public']}`."
            ),
        ),
    ]
    document.add(*(fold for fold in folds if fold.blocks))
    if "after" in metrics:
        _add_drift(document, metrics["after"])
    return document


def run_html(run: Run) -> str:
    """Return the verdict, the accuracy of each party and the learning curves as HTML for a notebook. Nothing is trained."""
    document = Document("Run")
    document.add(Paragraph(describe_data(run.judged)))
    add_verdict(document, run.metrics.get("lift"))
    document.add(accuracy_table(run.metrics), *training_curves(run.judged))
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
    compared = {"**all**": metrics["test"], "own means": metrics["means"]}
    if metrics["means"]["rmse"] is None:
        del compared["own means"]
    compared["the most popular items"] = metrics["popularity"]
    rows = [
        [party["name"], f"{party['items']:,}", f"{party['ratings']:,}", *_figures(party["test"], names)]
        for party in metrics["parties"]
    ]
    rows += [[name, "", "", *_figures(found, names)] for name, found in compared.items()]
    return Table(["party", "items", "ratings", *names], rows, "Accuracy on the test part")


def _figures(found: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    return [format_metric(found.get(name)) for name in names]


def _accuracy(metrics: Mapping[str, Any]) -> list[Block | None]:
    warning = warn_of_lists(metrics)
    kept = [f"round {metrics['best_round']:,} of {metrics['rounds']:,} for ratings"]
    if "lists" in metrics:
        kept.append(f"round {metrics['lists']['best_round']:,} of {metrics['lists']['rounds']:,} for lists")
    note = Paragraph(
        "Neither training nor the choice of a model has seen the test part. Lower is better for RMSE and MAE, higher for all "
        f"other metrics. Kept, as best on the validation part: {' and '.join(kept)}."
    )
    return [accuracy_table(metrics), Paragraph(f"**Warning:** {warning}") if warning else None, note]


def training_curves(run: Run) -> list[Picture | None]:
    """Return charts of the validation metric by round, for ratings and for lists."""
    return [_draw_curve(run, "curve"), None if run.lists is None else _draw_curve(run.lists, "curve-lists")]


def _draw_curve(run: Run, file: str) -> Picture | None:
    name = next((key for entry in run.history[:1] for key in entry if key.startswith("valid_")), None)
    if name is None:
        return None
    metric = name.removeprefix("valid_").upper()
    rounds, values = ([entry[key] for entry in run.history] for key in ("round", name))
    kept = run.metrics["best_round"]
    title = f"{metric} on the validation part by round"
    label, marks = f"validation {metric}", {f"round {kept:,} is kept": kept}
    svg = draw_lines(title, {metric: (rounds, values)}, "round", label, {metric: POINT_COLOUR}, marks=marks)
    return picture(file, title, svg)


def _overlap(run: Run) -> list[Block | None]:
    """Return how many customers each party shares with others, and a chart of customers by their number of parties."""
    if len(run.parties) < 2:
        return []
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
    return [
        picture("overlap", title, draw_bars(title, bars, {"customers": POINT_COLOUR})),
        Table(["party", "customers", "also elsewhere", "share"], rows, "Customers that a party shares"),
    ]


def _protection(run: Run) -> Fold:
    metrics = run.metrics
    fold = Fold("Who sees what, and what is guaranteed")
    fold.add(
        Paragraph("`verfedgnn audit` attacks the run as each of them could."),
        Table(HEADER, who_sees_what(run.config, len(metrics["parties"])), "Who sees what"),
    )
    add_guarantees(fold, metrics["privacy"])
    if "lists" in metrics:
        add_guarantees(fold, metrics["lists"]["privacy"], "Privacy guarantees of the lists' training")
    if "final" in metrics and metrics["final"]["rounds"]:
        title = "Privacy guarantees of the training on all ratings"
        add_guarantees(fold, metrics["final"]["privacy"], title)
    return fold


def add_guarantees(document: Fold, privacy: Mapping[str, Any], title: str = "Privacy guarantees") -> None:
    """Add the guarantees, their assumptions, and the privacy events from which they are computed."""
    rows = []
    for name in ("gradients", "neighbourhoods", "validation"):
        part = privacy[name]
        times, neighbours = f"{part.get('releases', 0):,}", part.get("neighbouring", "–")
        rows.append([name, part["mechanism"], times, part["guarantee"], neighbours])
    persons = privacy.get("persons")
    if persons:
        together = "everything together"
        rows.append([together, "composed", "–", persons["guarantee"], persons["neighbouring"]])
    document.add(
        Heading(title),
        Table(["release", "mechanism", "times", "guarantee", "neighbouring inputs"], rows, title),
        Points(
            [
                f"Masks: {privacy['masking']}.",
                f"Randomness: {privacy['randomness']}.",
                "All guarantees assume that the participants follow the protocol and that each party adds the noise it promised.",
            ]
        ),
    )
    if privacy.get("sent"):
        fields = [list(row.values()) for row in privacy["sent"]]
        document.add(
            Paragraph("Every field of a message that leaves a party, and how it is protected."),
            Table(["message", "field", "mechanism"], fields, f"{title}: fields sent"),
        )
    if privacy.get("events"):
        events = [_describe_event(**event) for event in privacy["events"]]
        document.add(
            Paragraph(
                "The releases as events for a privacy accountant (`dp-accounting`). Composed, they give the figures above."
            ),
            Table(["release", "times", "event", "parameters"], events, f"{title}: events"),
        )


def _describe_event(what: str, count: int, event: str | None, **parameters: float) -> list[str]:
    shown = ", ".join(f"{name} {value:.4g}" for name, value in parameters.items())
    return [what, f"{count:,}", event or "none: not differential privacy", shown]


def _add_drift(document: Document, before: Mapping[str, Any]) -> None:
    """Add the drift of every party since the run before."""
    rows = []
    for name, drift in before["drift"].items():
        shares = (drift[what] for what in ("rating_distance", "unknown_users", "unknown_items"))
        rows.append([name, *("-" if share is None else f"{100 * share:.1f} %" for share in shares)])
    header = ["party", "ratings with another value", "new users", "new items"]
    document.add(
        Heading("Since the run before"),
        Paragraph(
            f"The run before has the public parameters `{before['public'][:16]}`. `verfedgnn diff EARLIER LATER` compares two runs."
        ),
        Table(header, rows, "Drift of the parties' data"),
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


def _traffic(run: Run) -> list[Block | None]:
    """Return the bytes of all trainings by kind of message and direction, largest first."""
    runs = [run] if run.final_of is None else [run, run.final_of]
    ledger = reduce(
        Ledger.joined, (each.ledger for one in runs for each in (one, one.lists) if each is not None)
    )
    sizes: Counter[tuple[str, str]] = Counter()
    counts: Counter[tuple[str, str]] = Counter()
    for (kind, way, _), amount in ledger.bytes.items():
        sizes[kind, way] += amount
    for (kind, way, _), count in ledger.messages.items():
        counts[kind, way] += count
    directions = {"up": "to the coordinator", "down": "to parties"}
    total = sum(sizes.values()) or 1
    rows, bars = [], []
    for sort, amount in sizes.most_common():
        name, direction, size = MESSAGES.get(sort[0], sort[0]), directions[sort[1]], format_size(amount)
        rows.append([name, direction, f"{counts[sort]:,}", size, f"{amount / total:.1%}"])
        if amount:
            bars.append(Bars(f"{name} {direction}", [amount], size))
    title = "Bytes by message and direction, all trainings"
    return [
        picture("bytes", title, draw_bars(title, bars, {"bytes": POINT_COLOUR})),
        Table(["message", "direction", "messages", "size", "share"], rows, title),
    ]
