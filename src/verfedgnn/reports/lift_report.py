"""The verdict and its pictures, in any document: the answer on top, everything else folded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from verfedgnn.core.option_names import worded
from verfedgnn.evaluation import verdict
from verfedgnn.evaluation.chance import ERROR, FEWEST_USERS, format_signed
from verfedgnn.evaluation.lift import WAYS
from verfedgnn.reports.document import Banner, Document, Fold, Paragraph, Picture, Points, Table, Tone
from verfedgnn.reports.svg_charts import Interval, draw_intervals

MOST_PARTIES = 30
TONES: dict[str, Tone] = {
    verdict.YES: "good",
    verdict.LIKELY_BETTER: "likely-good",
    verdict.NO_DIFFERENCE: "same",
    verdict.MIXED: "mixed",
    verdict.UNCLEAR: "unclear",
    verdict.LIKELY_WORSE: "likely-bad",
    verdict.NO: "bad",
}
NOTE = (
    f"{verdict.YES}, {verdict.NO}: clear, also after Holm's correction for the verdicts of one party ({ERROR:.0%}). "
    f"{verdict.LIKELY_BETTER}, {verdict.LIKELY_WORSE}: only the 95 % interval excludes 0. "
    f"{verdict.NO_DIFFERENCE}: the interval lies within ±{verdict.SMALL:g} % of the error, or ±{verdict.SMALL:g} of 100 customers. "
    f"{verdict.UNCLEAR}: anything else, or fewer than {FEWEST_USERS} customers. The gain is over the better of simple (own means, or "
    "the most popular items) and alone (the best mixture of own models)."
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
    document.add(
        Banner(TONES[verdict.shared_word(lift)], verdict.headline(lift), ""),
        _draw(*verdict.judged_tables(lift)[0]),
        Table(header, rows, "The verdict of each party", TONES),
        *map(Paragraph, notes),
        Points(verdict.list_points(lift)),
    )


def add_lift(document: Document, lift: Mapping[str, Any]) -> None:
    """Add, folded, all tables and the charts that do not stand beside the headline."""
    fold = Fold("All figures of the verdict, with intervals", [Paragraph(NOTE)])
    for place, (customers, table) in enumerate(verdict.judged_tables(lift)):
        name = f"{_NAMES[table['metric']].capitalize()} of {customers}"
        fold.add(
            _draw(customers, table) if place else None,
            Table(*_rows(table), name, TONES),
            _groups(table, name),
        )
    if "partners" in lift:
        partners = Table(
            verdict.PARTNERS_HEADER, verdict.partner_rows(lift["partners"]), "Gain without each partner"
        )
        why = "**Which partner is worth it:** each party's gain in federations without one of the others."
        document.add(Paragraph(why), _draw_partners(lift["partners"]), partners)
    document.add(fold)


def _groups(table: Mapping[str, Any], title: str) -> Table | None:
    """Return the gain of each party by its customers' training ratings there, bold where it is clear; None without groups."""
    groups = {
        row["name"]: {band(group): group for group in row["by_own_ratings"]} for row in table["parties"]
    }
    bands = {name: group["from"] for found in groups.values() for name, group in found.items()}
    header = sorted(bands, key=bands.__getitem__)
    rows = [[party, *(_gain_of_group(found.get(name)) for name in header)] for party, found in groups.items()]
    first = f"{'% less error' if table['metric'] == 'rmse' else 'more of 100'}, by items there"
    return Table([first, *header], rows, f"{title} by their items at the party") if header else None


def _gain_of_group(row: Mapping[str, Any] | None) -> str:
    if row is None or row["gain"] is None:
        return "-"
    gain = format_signed(verdict.scale_gain(row)[0])
    return f"**{gain}**" if row["pays"] in (verdict.YES, verdict.NO) else gain


def lift_html(lift: Mapping[str, Any]) -> str:
    """Return the verdict and its charts as HTML for a notebook."""
    document = Document("Lift")
    add_verdict(document, lift)
    add_lift(document, lift)
    return document.fragment()


def _draw(customers: str, table: Mapping[str, Any]) -> Picture:
    rows = table["parties"]
    fewest = sorted((row["users"] for row in rows), reverse=True)[:MOST_PARTIES][-1]
    shown = [row for row in rows if row["users"] >= fewest][:MOST_PARTIES]
    shown += [{**table["overall"], "name": "all parties"}] if len(rows) > 1 else []
    named = [(row["name"], row) for row in shown if verdict.is_judged(row)]
    return _draw_gains("What joining gains", named, table["metric"], customers)


def _draw_gains(
    what: str, named: Sequence[tuple[str, Mapping[str, Any]]], metric: str, customers: str
) -> Picture:
    title = f"{what} in {_NAMES[metric]} of {customers}"
    intervals = [
        Interval(name, *verdict.scale_gain(row), row["pays"], verdict.gain_unit(row)) for name, row in named
    ]
    return Picture(title, draw_intervals(title, intervals, _AXES[metric]))


def _draw_partners(rows: Sequence[Mapping[str, Any]]) -> Picture | None:
    """Draw what each party gains without each partner, for the first figure that could be judged."""
    judged = [row for row in rows if verdict.is_judged(row["without"])]
    if not judged:
        return None
    metric, customers = judged[0]["metric"], judged[0]["customers"]
    named = [
        (f"{row['party']}, without {row['partner']}", row["without"])
        for row in judged
        if (row["metric"], row["customers"]) == (metric, customers)
    ]
    return _draw_gains("What joining gains without each partner", named, metric, customers)


def _rows(table: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of the table of one metric."""
    overall, lists = table["overall"], table["metric"] != "rmse"
    ways, judged = [way for way in WAYS if way in overall], "ndcg@20" in overall

    def cells(row: Mapping[str, Any]) -> list[str]:
        figures = ["-" if row[way] is None else f"{row[way]:.4f}" for way in ways]
        gain, ndcg = "-", "-"
        if row["gain"] is not None:
            value, low, high = map(format_signed, verdict.scale_gain(row))
            gain = f"{value} ({low} to {high})"
            ndcg = ", ".join(
                f"{row['ndcg@20'][way]:.4f}" for way in (row["reference"], "federated") if judged
            )
        return [row["name"], row["pays"], f"{row['users']:,}", *figures, *[ndcg] * judged, gain]

    named = [*table["parties"], *([overall | {"name": "**all**"}] if len(table["parties"]) > 1 else [])]
    header = [f"{way} {'HitRate@20' if lists else 'RMSE'}" for way in ways]
    header += ["NDCG@20 before, after"] * judged + ["gain, of 100" if lists else "gain, %"]
    return ["party", "verdict", "customers", *header], [cells(row) for row in named]


def band(row: Mapping[str, Any]) -> str:
    """Format a range of numbers of ratings, such as `3-5`."""
    low, high = row["from"], row["to"]
    return f"{low}" if low == high else f"{low}+" if high is None else f"{low}-{high}"


def format_weights(weights: Mapping[str, float]) -> str:
    """Format the weights of a gate, largest first, such as `0.6 federated, 0.3 alone, 0.012 means`."""
    used = sorted(((weight, name) for name, weight in weights.items() if weight), reverse=True)
    return ", ".join(f"{weight:.2g} {name}" for weight, name in used) or "-"


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
GATE_NOTE = "Weights of lists multiply scores of different spread: they are no shares."
