"""Documents about a lift: the verdict on top, charts, and every table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verfedgnn.core.option_names import worded
from verfedgnn.evaluation.bootstrap import FEWEST_USERS
from verfedgnn.evaluation.lift_points import list_points
from verfedgnn.evaluation.verdict import deciding_figures, headline, verdict, warn_of_one_split
from verfedgnn.evaluation.verdict_words import WHAT, halves
from verfedgnn.reports.document import (
    Banner,
    Document,
    Heading,
    Paragraph,
    Picture,
    Points,
    Table,
    picture,
)
from verfedgnn.reports.lift_view import (
    MEASURES,
    PAYS_TONES,
    SEED_NOTE,
    SHORT_HEADER,
    SHORT_NOTE,
    SIMPLE,
    band,
    band_label,
    group_tables,
    party_lines,
    readable_tables,
    seed_table,
    short_rows,
)
from verfedgnn.reports.phrases import format_metric
from verfedgnn.reports.svg_charts import WAYS, Interval, draw_intervals, draw_lines

MOST_PARTIES = 30
"""Largest number of parties in a chart, and in tables of groups of customers; tables by party have all of them."""
_AXIS = "% gained by joining, with its 95 % interval"


def lift_document(lift: Mapping[str, Any], name: str) -> Document:
    """Build the page of a lift."""
    document = Document(f"Does joining pay? {name}")
    add_verdict(document, lift)
    add_lift(document, lift)
    return document


def lift_html(lift: Mapping[str, Any]) -> str:
    """Return the verdict, the gains by party and those of groups of customers as HTML for a notebook."""
    document = Document("Lift")
    add_verdict(document, lift)
    for part in halves(lift):
        document.add(_party_chart(part), _newcomer_chart(part))
    add_groups(document, lift)
    return document.fragment()


def add_groups(document: Document, lift: Mapping[str, Any]) -> None:
    """Add the gains of customers by their activity and by the number of other parties that know them."""
    for table in readable_tables(lift):
        if table.label != "party":
            rows = [table.cells(name, row) for name, row in table.rows]
            document.add(
                Paragraph(f"**{table.title}.** {table.note}".strip()),
                Table(table.header, rows, table.title, PAYS_TONES),
            )


def add_verdict(document: Document, lift: Mapping[str, Any] | None) -> None:
    """Add the verdict in words and colour, a line for each party, and all parties together; or say that there is no verdict."""
    if lift is None:
        judge = worded(
            "Train with preset `best` and `--lift`.", "Call `recommender.lift()` or `vf.lift(run)`."
        )
        text = f"This run has no models of the parties alone to compare with. {judge}"
        document.add(Banner("unclear", "Whether joining pays was not judged.", text))
        return
    provisional = warn_of_one_split(lift)
    texts = [deciding_figures(lift), provisional and f"**{provisional}**"]
    document.add(
        Banner(PAYS_TONES[verdict(lift)], headline(lift), " ".join(text for text in texts if text)),
        Points(party_lines(lift)),
        Table(SHORT_HEADER, short_rows(lift), "The lift of all parties together", PAYS_TONES),
        Paragraph(SHORT_NOTE),
        *_seeds(lift),
        Points(list_points(lift)),
    )


def _seeds(lift: Mapping[str, Any]) -> list[Paragraph | Table]:
    """Return the gains by seed, if the lift is over several."""
    found = seed_table(lift)
    if found is None:
        return []
    return [Paragraph(f"**Gains by seed.** {SEED_NOTE}"), Table(*found, "Gains by seed", PAYS_TONES)]


def add_lift(document: Document, lift: Mapping[str, Any]) -> None:
    """Add the charts and the tables of a lift."""
    for part in halves(lift):
        document.add(Heading(f"What joining gains: {WHAT[part['metric']]}"), *_charts(part))
        _add_other_metrics(document, part)
    document.add(Heading("Lift in detail"))
    for table in [*readable_tables(lift), *group_tables(lift, MOST_PARTIES)]:
        rows = [table.cells(name, row) for name, row in table.rows]
        if table.overall is not None:
            rows.append(table.cells("**all**", table.overall))
        document.add(
            Paragraph(f"**{table.title}.** {table.note}".strip()),
            Table(table.header, rows, table.title, PAYS_TONES),
        )


def _add_other_metrics(document: Document, part: Mapping[str, Any]) -> None:
    """Add Recall@20 and HitRate@20 of lists by party, for known customers and for newcomers."""
    if "recall@20" not in part["overall"]:
        return
    ways = [way for way in WAYS if way in part["overall"]]
    tables = {"known customers": part}
    if "newcomers" in part:
        tables["newcomers"] = part["newcomers"]
    rows = [
        [name, who, label, *(format_metric(row[metric][way]) for way in ways)]
        for who, table in tables.items()
        for metric, label in (("recall@20", "Recall@20"), ("hitrate@20", "HitRate@20"))
        for name, row in [*((row["name"], row) for row in table["parties"]), ("**all**", table["overall"])]
    ]
    header = ["party", "for", "metric", *(SIMPLE[part["metric"]] if way == "simple" else way for way in ways)]
    title = "Other metrics of lists"
    note = "Higher is better. Recall@20: the share of liked items that are in the list. HitRate@20: the share of customers with one or more."
    document.add(Paragraph(f"**{title}.** {note}"), Table(header, rows, title))


def _charts(part: Mapping[str, Any]) -> list[Picture | None]:
    """Return the charts of ratings or of lists: gains by party, for newcomers and by overlap, and accuracy by activity."""
    what = WHAT[part["metric"]]
    new = part.get("newcomers", {})
    elsewhere = [(f"{band(row)} ratings elsewhere", row) for row in new.get("by_other_ratings", [])]
    by_ratings = f"Gain in {what} for newcomers, by their training ratings at other parties"
    return [
        _party_chart(part),
        _newcomer_chart(part),
        _activity_chart(part, what, SIMPLE[part["metric"]]),
        _overlap_chart(
            part, "overlap", f"Gain in {what} by the number of other parties that know the customer"
        ),
        _group_chart(f"{_kind(part)}-newcomers-ratings", by_ratings, elsewhere),
        _overlap_chart(
            new,
            "newcomers-overlap",
            f"Gain in {what} for newcomers, by the number of other parties that know them",
        ),
    ]


def _newcomer_chart(part: Mapping[str, Any]) -> Picture | None:
    if "newcomers" not in part:
        return None
    title = f"Gain in {WHAT[part['metric']]} for customers new to a party, over the best that it has without joining"
    new = _intervals(_party_rows(part["newcomers"]))
    return picture(f"{_kind(part)}-newcomers", title, draw_intervals(title, new, _AXIS))


def _overlap_chart(table: Mapping[str, Any], name: str, title: str) -> Picture | None:
    rows = [(_count_others(row["other_parties"]), row) for row in table.get("by_other_parties", [])]
    return _group_chart(f"{_kind(table)}-{name}", title, rows) if rows else None


def _group_chart(name: str, title: str, rows: list[tuple[str, Mapping[str, Any]]]) -> Picture | None:
    """Return the gains of groups of customers; None for fewer than two with enough users."""
    intervals = _intervals(rows)
    return picture(name, title, draw_intervals(title, intervals, _AXIS)) if len(intervals) > 1 else None


def _party_chart(part: Mapping[str, Any]) -> Picture | None:
    title = f"Gain in {WHAT[part['metric']]} by party, over the best that it has without joining"
    return picture(_kind(part), title, draw_intervals(title, _intervals(_party_rows(part)), _AXIS))


def _party_rows(part: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the parties with the most customers, and all parties together."""
    rows = part["parties"]
    fewest = sorted((row["users"] for row in rows), reverse=True)[:MOST_PARTIES][-1:]
    shown = [(row["name"], row) for row in rows if row["users"] >= fewest[0]][:MOST_PARTIES]
    return [*shown, ("all parties", part["overall"])]


def _activity_chart(part: Mapping[str, Any], what: str, simple: str) -> Picture | None:
    rows = [row for row in part.get("by_own_ratings", []) if row["users"] >= FEWEST_USERS]
    if not rows:
        return None
    names = {way: simple if way == "simple" else way for way in WAYS if way in rows[0]}
    places = list(range(len(rows)))
    title = f"Accuracy of {what} by a customer's training ratings at the party"
    svg = draw_lines(
        title,
        {name: (places, [float(row[way]) for row in rows]) for way, name in names.items()},
        "training ratings at the party",
        MEASURES[part["metric"]],
        colours={name: WAYS[way] for way, name in names.items()},
        names=[band_label(row) for row in rows],
    )
    return picture(f"{_kind(part)}-activity", title, svg)


def _intervals(rows: list[tuple[str, Mapping[str, Any]]]) -> list[Interval]:
    """Return the gains in per cent of the rows with enough users."""
    return [
        Interval(
            name, row["gain"]["percent"], row["gain"]["low_percent"], row["gain"]["high_percent"], row["pays"]
        )
        for name, row in rows
        if row["gain"] is not None and row["users"] >= FEWEST_USERS
    ]


def _kind(part: Mapping[str, Any]) -> str:
    return "lift-ratings" if part["metric"] == "rmse" else "lift-lists"


def _count_others(number: int) -> str:
    return {0: "no other party", 1: "1 other party"}.get(number, f"{number} other parties")
