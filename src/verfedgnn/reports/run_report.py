"""The report of a run: the verdict, what it cost and what others learn; everything else is folded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from verfedgnn.config import Config
from verfedgnn.core.installed import installed_version
from verfedgnn.evaluation.verdict import join_names
from verfedgnn.privacy.visibility import HEADER, who_sees_what
from verfedgnn.reports.document import Document, Fold, Heading, Paragraph, Picture, Points, Table
from verfedgnn.reports.lift_report import GATE_HEADER, GATE_NOTE, add_lift, add_verdict, gate_rows
from verfedgnn.reports.phrases import (
    describe_about,
    find_record,
    format_metric,
    format_size,
    name_ratings,
    total_bytes,
    warn_of_lists,
)
from verfedgnn.reports.svg_charts import draw_lines
from verfedgnn.runs.run import Run

AUDIT = Path("audit", "headline.json")
"""File in a run folder with the headline of its audit and what it covered."""


def run_document(run: Run, name: str, folder: Path | None = None) -> Document:
    """Build the report of a run, with the headline of the audit in its `folder`. It names no user and no item."""
    metrics, judged = run.metrics, run.judged
    names = join_names([party.name for party in run.parties])
    document = Document(f"Run {name} of {names}" if name != "run" else f"Run of {names}")
    add_verdict(document, metrics.get("lift"))
    about = {
        "Data": describe_data(judged),
        **describe_about(metrics, judged.config),
        "Audit": _describe_audit(judged, folder),
    }
    document.add(Points([f"**{what}:** {text}" for what, text in about.items()]))
    if "lift" in metrics:
        add_lift(document, metrics["lift"])
    mixtures, warned = gate_rows(metrics), warn_of_lists(metrics)
    warning = Paragraph(f"**Warning:** {warned}") if warned else None
    who = "Of all customers who are not withheld; the verdict takes only those with training ratings."
    note = Paragraph(f"{who} Only RMSE and MAE are better when lower.")
    up, down = (format_size(total_bytes(metrics)[way]) for way in ("up", "down"))
    traffic = Paragraph(f"All trainings sent {up} to the coordinator and {down} to parties.")
    folds = [
        Fold("Accuracy on the test part", [accuracy_table(metrics), warning, note, _overlap(run)]),
        Fold("What each party mixes", [Paragraph(GATE_NOTE), Table(GATE_HEADER, mixtures)] * bool(mixtures)),
        Fold("Training and traffic", [training_curves(judged), traffic]),
        _protection(run),
        Fold("Configuration", [Points(_describe_settings(judged))]),
    ]
    document.add(*(fold for fold in folds if fold.blocks))
    return document


def run_html(run: Run) -> str:
    """Return the verdict, the accuracy of each party and the learning curves as HTML for a notebook. Nothing is trained."""
    document = Document("Run")
    document.add(Paragraph(describe_data(run.judged)))
    add_verdict(document, run.metrics.get("lift"))
    document.add(accuracy_table(run.metrics), training_curves(run.judged))
    return document.fragment()


def describe_data(run: Run) -> str:
    """Return sentences on the parties, users, ratings and model of a run."""
    names = ", ".join(party.name for party in run.parties)
    parties = f"{len(run.parties)} parties ({names})" if len(run.parties) > 1 else f"Party {names}"
    users = run.parties[0].ratings.n_users
    ratings = sum(len(party.ratings) for party in run.parties)
    gnn = f", {run.config.model.gnn.upper()}" if run.config.model.form == "propagation" else ""
    preset = f"Preset `{run.config.base}`{gnn}, seed {run.config.seed}."
    return f"{parties} with {users:,} users and {ratings:,} {name_ratings(run.metrics)}. {preset}"


def _describe_audit(run: Run, folder: Path | None) -> str:
    """Return what the audit in the run's folder found and covered, or what the record of its preset covers."""
    try:
        found = json.loads(((folder or Path()) / AUDIT).read_text("utf-8")) if folder else {}
        return f"**{found['headline']}** {found['learnt']} {found['covered']}"
    except (OSError, ValueError, KeyError):
        measured = find_record(run.config).get("data")
        record = f"What others learn was measured on {measured}. " if measured else ""
        return f"{record}`verfedgnn audit` attacks this run (`pip install packages/verfedgnn-research`)."


def accuracy_table(metrics: Mapping[str, Any]) -> Table:
    """Return the test metrics of each party, of all parties together, of the parties' own means, and of popular items."""
    names = [name for name, figure in metrics["test"].items() if figure is not None]
    compared = {"**all**": metrics["test"], "own means": metrics["means"]}
    if metrics["means"]["rmse"] is None:
        del compared["own means"]
    compared["the most popular items"] = metrics["popularity"]
    about = [([p["name"], f"{p['items']:,}", f"{p['ratings']:,}"], p["test"]) for p in metrics["parties"]]
    about += [([name, "", ""], figures) for name, figures in compared.items()]
    rows = [[*cells, *(format_metric(figures.get(name)) for name in names)] for cells, figures in about]
    return Table(["party", "items", name_ratings(metrics), *names], rows, "Accuracy on the test part")


def training_curves(run: Run) -> Picture:
    """Return a chart of the validation metric by round, of ratings and of lists, in per cent of the round that is kept."""
    curves, marks = {}, {}
    for part in (run, run.lists):
        if part is None or not part.history:
            continue
        name = next(key for key in part.history[0] if key.startswith("valid_"))
        metric, kept = name.removeprefix("valid_").upper(), part.metrics["best_round"]
        rounds = [entry["round"] for entry in part.history]
        values = np.array([entry[name] for entry in part.history], np.float64)
        best = values[rounds.index(kept)] or 1.0
        shares = best / np.where(values, values, best) if metric in ("RMSE", "MAE") else values / best
        curves[metric] = rounds, (100 * shares).tolist()
        marks[f"{metric}: round {kept:,} is kept"] = kept
    title = "Validation by round, in per cent of the round that is kept"
    return Picture(title, draw_lines(title, curves, "round", "higher is better", marks))


def _overlap(run: Run) -> Paragraph | None:
    """Return how many customers each party shares with others."""
    present = np.zeros((len(run.parties), run.parties[0].ratings.n_users), bool)
    for row, party in zip(present, run.parties, strict=True):
        row[party.ratings.user] = True
    shared = present & (present.sum(0) > 1)
    texts = [
        f"{party.name} {elsewhere.sum():,} of {users.sum():,}"
        for party, users, elsewhere in zip(run.parties, present, shared, strict=True)
    ]
    return Paragraph(f"Customers who are at other parties, too: {', '.join(texts)}.") if texts[1:] else None


def _describe_settings(run: Run) -> list[str]:
    """Return the settings that differ from the preset, and what identifies the run."""
    preset = Config.preset(run.config.base).values()
    chosen = {
        **run.config.values(),
        **({"lists": preset["lists"]} if run.config.ranks else {}),
    }  # all are lists
    changed = [f"{name}={value}" for name, value in chosen.items() if preset.get(name) != value]
    environment = ", ".join(f"{name} {version}" for name, version in run.metrics["environment"].items())
    return [
        f"Beside preset `{run.config.base}`: {', '.join(changed) or 'none'}.",
        f"verfedgnn {installed_version()}, {environment}.",
        f"Configuration `{run.config.fingerprint()}`, public parameters `{run.metrics['public'][:16]}`.",
    ]


def _protection(run: Run) -> Fold:
    metrics = run.metrics
    seen = who_sees_what(run.config, len(metrics["parties"]))
    fold = Fold("Who sees what, and what is guaranteed", [Table(HEADER, seen, "Who sees what")])
    trainings = {
        "Privacy guarantees": metrics,
        "Privacy guarantees of the lists' training": metrics.get("lists", {}),
        "Privacy guarantees of the training on all ratings": metrics.get("final", {}),
    }
    private = {
        title: part["privacy"]
        for title, part in trainings.items()
        if part.get("rounds") and any(event["event"] for event in part["privacy"].get("events", ()))
    }
    for title, privacy in private.items():
        add_guarantees(fold, privacy, title)
    if not private:
        guarantee = metrics["privacy"]["gradients"]["guarantee"]
        reason = (
            guarantee.partition(": ")[2] if "noise" in run.config.unprotected else "preset private gives one"
        )
        fold.add(Paragraph(f"No release has a guarantee of differential privacy; {reason}."))
    return fold


def add_guarantees(document: Fold, privacy: Mapping[str, Any], title: str = "Privacy guarantees") -> None:
    """Add the guarantees, their assumptions, and the privacy events from which they are computed."""
    rows = []
    for name in ("gradients", "neighbourhoods", "validation"):
        part = privacy[name]
        times, neighbours = f"{part.get('releases', 0):,}", part.get("neighbouring", "–")
        rows.append([name, part["mechanism"], times, part["guarantee"], neighbours])
    if persons := privacy.get("persons"):
        rows.append(["everything together", "composed", "–", persons["guarantee"], persons["neighbouring"]])
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
            Paragraph("The releases as events for `dp-accounting`. Composed, they give the figures above."),
            Table(["release", "times", "event", "parameters"], events, f"{title}: events"),
        )


def _describe_event(what: str, count: int, event: str | None, **parameters: float) -> list[str]:
    shown = ", ".join(f"{name} {value:.4g}" for name, value in parameters.items())
    return [what, f"{count:,}", event or "none: not differential privacy", shown]
