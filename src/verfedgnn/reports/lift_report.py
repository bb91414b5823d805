"""The verdict and its pictures, in any document: the answer on top, everything else folded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verfedgnn.core.option_names import worded
from verfedgnn.evaluation import verdict
from verfedgnn.evaluation.chance import ERROR, FEWEST_USERS, format_signed
from verfedgnn.evaluation.lift import WAYS
from verfedgnn.reports.document import (
    Banner,
    Document,
    Fold,
    Paragraph,
    Picture,
    Points,
    Table,
    Tone,
    picture,
)
from verfedgnn.reports.svg_charts import Interval, draw_intervals

MOST_PARTIES = 30
"""Largest number of parties in a chart."""
TONES: dict[str, Tone] = {
    verdict.YES: "good",
    verdict.LIKELY_BETTER: "likely-good",
    verdict.NO_DIFFERENCE: "same",
    verdict.MIXED: "mixed",
    verdict.UNCLEAR: "unclear",
    verdict.LIKELY_WORSE: "likely-bad",
    verdict.NO: "bad",
}
"""The tone of each word of a verdict."""
WORDS_NOTE = (
    f"{verdict.YES}, {verdict.NO}: clear, also after a correction for the verdicts of one party (Holm, "
    f"{ERROR:.0%}). {verdict.LIKELY_BETTER}, {verdict.LIKELY_WORSE}: the 95 % interval excludes 0, but this can be "
    f"chance. {verdict.NO_DIFFERENCE}: the whole interval lies within ±{verdict.SMALL:g} % of the error, or "
    f"±{verdict.SMALL:g} of 100 customers. {verdict.UNCLEAR}: anything else, or fewer than {FEWEST_USERS} customers."
)
_WAYS_NOTE = (
    "simple: own means, or the most popular items. means: own models and means shared with the others (preset means). alone: the best mixture of own models. "
    "federated: what joining gives. The gain is over the better of simple and alone. New customers: all their ratings here were "
    "withheld from the training that is judged."
)
_NAMES = {"hitrate@20": "lists", "rmse": "predicted stars"}
_AXES = {"hitrate@20": "more of 100 customers find something they like", "rmse": "% less error"}


def add_verdict(document: Document, lift: Mapping[str, Any] | None) -> None:
    """Add the headline, its picture, a line for each party, and what follows; or say that there is no verdict."""
    if lift is None:
        judge = worded("Train with preset `best`.", "Train with `Config.preset('best')`.")
        document.add(
            Banner("unclear", "Whether joining pays is not judged.", f"This run has no gate. {judge}")
        )
        return
    header, rows, notes = verdict.verdict_table(lift)
    ordered = [[row[0], *row[2:], row[1]] for row in rows]
    document.add(
        Banner(TONES[verdict.party_word(lift)], verdict.headline(lift), ""),
        _draw(*verdict.judged_tables(lift)[0]),
        Table([header[0], *header[2:], header[1]], ordered, "The verdict of each party", TONES),
        *map(Paragraph, notes),
        Points(verdict.list_points(lift)),
    )


def add_lift(document: Document, lift: Mapping[str, Any]) -> None:
    """Add, folded, all tables and the charts that do not stand beside the headline."""
    fold = Fold("All figures of the verdict, with intervals", [Paragraph(f"{WORDS_NOTE} {_WAYS_NOTE}")])
    for place, (customers, table) in enumerate(verdict.judged_tables(lift)):
        name = f"{_NAMES[table['metric']].capitalize()} of {customers}"
        fold.add(_draw(customers, table) if place else None)
        fold.add(Table(*_rows(table), name, TONES))
        groups = [(row["name"], group) for row in table["parties"] for group in row["by_own_ratings"]]
        if groups:
            cells = [[name, band(group), *_cells(group)] for name, group in groups]
            header = ["party", "own ratings", *_header(table["overall"])]
            fold.add(Paragraph("By training ratings at the party:"), Table(header, cells, name, TONES))
    if "partners" in lift:
        partners = verdict.partner_rows(lift["partners"])
        document.add(
            Paragraph(
                "**Which partner is worth it:** each party's gain in federations without one of the others."
            ),
            Table(verdict.PARTNERS_HEADER, partners, "Gain without each partner"),
        )
    document.add(fold)


def lift_html(lift: Mapping[str, Any]) -> str:
    """Return the verdict and its charts as HTML for a notebook."""
    document = Document("Lift")
    add_verdict(document, lift)
    add_lift(document, lift)
    return document.fragment()


def _draw(customers: str, table: Mapping[str, Any]) -> Picture | None:
    metric = table["metric"]
    rows = table["parties"]
    fewest = sorted((row["users"] for row in rows), reverse=True)[:MOST_PARTIES][-1]
    shown = [row for row in rows if row["users"] >= fewest][:MOST_PARTIES]
    shown += [{**table["overall"], "name": "all parties"}] if len(rows) > 1 else []
    intervals = []
    for row in filter(verdict.is_judged, shown):
        gain = row["gain"]["percent"] if metric == "rmse" else 100 * row["gain"]["value"]
        unit = "%" if metric == "rmse" else "of 100"
        intervals.append(Interval(row["name"], gain, *verdict.gain_ends(row), row["pays"], unit))
    title = f"What joining gains in {_NAMES[metric]} of {customers}"
    name = f"lift-{_NAMES[metric].split()[-1]}-{customers.split()[0]}"
    return picture(name, title, draw_intervals(title, intervals, _AXES[metric]))


def _rows(table: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    rows = [[row["name"], *_cells(row)] for row in table["parties"]]
    if len(rows) > 1:
        rows.append(["**all**", *_cells(table["overall"])])
    return ["party", *_header(table["overall"])], rows


def _header(row: Mapping[str, Any]) -> list[str]:
    ways = [way for way in WAYS if way in row]
    metric = "HitRate@20" if "ndcg@20" in row or row["gain"] is None else "RMSE"
    lists = ["NDCG@20 before, after"] if "ndcg@20" in row else []
    return ["customers", *(f"{way} {metric}" for way in ways), *lists, "gain", "verdict"]


def _cells(row: Mapping[str, Any]) -> list[str]:
    ways = ["-" if row[way] is None else f"{row[way]:.4f}" for way in WAYS if way in row]
    if row["gain"] is None:
        return [f"{row['users']:,}", *ways, "-", row["pays"]]
    low, high = map(format_signed, verdict.gain_ends(row))
    if "ndcg@20" not in row:
        gained = f"{format_signed(row['gain']['percent'])} % ({low} to {high})"
        return [f"{row['users']:,}", *ways, gained, row["pays"]]
    figures = row["ndcg@20"]
    lists = f"{figures[row['reference']]:.4f}, {figures['federated']:.4f}"
    gained = f"{format_signed(100 * row['gain']['value'])} of 100 ({low} to {high})"
    return [f"{row['users']:,}", *ways, lists, gained, row["pays"]]


def band(row: Mapping[str, Any]) -> str:
    """Format a range of numbers of ratings, such as `3-5`."""
    low, high = row["from"], row["to"]
    return f"{low}" if low == high else f"{low}+" if high is None else f"{low}-{high}"


def format_weights(weights: Mapping[str, float]) -> str:
    """Format the weights of a gate, largest first, such as `0.60 federated, 0.30 alone, 0.10 means`."""
    used = sorted(((weight, name) for name, weight in weights.items() if abs(weight) >= 0.005), reverse=True)
    return ", ".join(f"{weight:.2f} {name}" for weight, name in used) or "-"


def gate_rows(metrics: Mapping[str, Any]) -> list[list[str]]:
    """Return the party, the kind of prediction and the weights for known and new customers, for parties with a gate."""
    ranks = metrics["test"]["rmse"] is None
    rows = []
    for party in metrics["parties"]:
        for key, what in (("gate", "lists" if ranks else "ratings"), ("list_gate", "lists")):
            gate = party.get(key)
            if gate:
                weights = [format_weights(gate[who]) for who in ("known", "newcomers")]
                rows.append([party["name"], what, *weights])
    return rows


GATE_HEADER = ["party", "of", "customers it knows", "customers new to it"]
GATE_NOTE = (
    "Each party chose these weights on its own validation part. Weights of ratings sum to 1. "
    "Weights of lists multiply scores of different spread, so they are not shares."
)
