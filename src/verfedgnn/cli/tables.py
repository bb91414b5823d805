"""Result tables for the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from verfedgnn.reports.phrases import format_metric, format_size, total_bytes

if TYPE_CHECKING:
    from verfedgnn.reports.lift_view import LiftTable


def run_table(metrics: dict[str, Any]) -> Table:
    """Return a table of a run's accuracy, cost and protection."""
    privacy = metrics["privacy"]
    lists = metrics.get("lists")
    table = Table(title="Federation", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column()
    test = metrics["test"]
    if test["rmse"] is not None:
        valid = format_metric(metrics["valid"]["rmse"])
        table.add_row(
            "test RMSE",
            f"{format_metric(test['rmse'])}   MAE {format_metric(test['mae'])}   (valid RMSE {valid})",
        )
    table.add_row("lists", _quality_of_lists(metrics))
    table.add_row("rounds", _rounds(metrics))
    if lists is not None:
        table.add_row("rounds of lists", _rounds(lists))
    table.add_row("bytes", _traffic(metrics))
    table.add_row("gradients", _guarantee(privacy["gradients"]))
    if "persons" in privacy:
        table.add_row("persons", privacy["persons"]["guarantee"])
    table.add_row("neighbourhoods", _guarantee(privacy["neighbourhoods"]))
    if lists is not None:
        for name in ("gradients", "neighbourhoods"):
            guarantee = _guarantee(lists["privacy"][name])
            if guarantee != _guarantee(privacy[name]):
                table.add_row(f"{name} of lists", guarantee)
    return table


def _quality_of_lists(metrics: dict[str, Any]) -> str:
    """Return the quality of lists beside that of the most popular items; NDCG comes first."""
    popular = metrics["popularity"]
    names = sorted((name for name in metrics["test"] if "@" in name), key=lambda name: "ndcg" not in name)
    labels = {"ndcg": "NDCG", "recall": "Recall", "hitrate": "HitRate"}
    texts = []
    for name in names:
        kind, _, top = name.partition("@")
        value = format_metric(metrics["test"][name])
        texts.append(f"{labels[kind]}@{top} {value} (popularity {format_metric(popular[name])})")
    return "   ".join(texts)


def _rounds(part: dict[str, Any]) -> str:
    return f"{part['rounds']:,} in {part['seconds']:.1f} s; best round: {part['best_round']:,}"


def _traffic(metrics: dict[str, Any]) -> str:
    """Return the bytes of all trainings, and those of each if there are two."""
    cost = total_bytes(metrics)
    text = f"{format_size(cost['up'])} up, {format_size(cost['down'])} down; "
    if "lists" in metrics:
        own, lists = (
            sum(part["bytes"][way] for way in ("up", "down")) for part in (metrics, metrics["lists"])
        )
        text += f"ratings {format_size(own)}, lists {format_size(lists)}; "
    return f"{text}{format_size(cost['per_party_per_round'])} per party and round"


def _guarantee(part: dict[str, Any]) -> str:
    return part["guarantee"] if part["mechanism"] == "none" else f"{part['mechanism']}: {part['guarantee']}"


def party_table(metrics: dict[str, Any]) -> Table:
    """Return a table of the metrics of each party."""
    names = list(metrics["test"])
    table = Table("party", "items", "ratings", *names, title="Test ratings", title_justify="left")
    for party in metrics["parties"]:
        figures = [format_metric(party["test"][name]) for name in names]
        table.add_row(escape(party["name"]), f"{party['items']:,}", f"{party['ratings']:,}", *figures)
    table.add_section()
    table.add_row("overall", "", "", *(format_metric(metrics["test"][name]) for name in names), style="bold")
    return table


def gate_table(metrics: dict[str, Any]) -> Table | None:
    """Return a table of the weights that each party chose for its mixture; None without gates."""
    from verfedgnn.reports.lift_view import GATE_HEADER, GATE_NOTE, gate_rows

    rows = gate_rows(metrics)
    if not rows:
        return None
    table = Table(
        *GATE_HEADER, title="What each party serves (weights)", title_justify="left", caption_justify="left"
    )
    table.caption = GATE_NOTE
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    return table


def lift_texts(lift: dict[str, Any], folder: Path | None) -> list[RenderableType]:
    """Return the answer to "does joining pay?": all parties together, a line for each party, points, then the tables."""
    from verfedgnn.evaluation.lift_points import list_points
    from verfedgnn.evaluation.verdict import (
        deciding_figures,
        headline,
        party_verdicts,
        verdict,
        warn_of_one_split,
    )
    from verfedgnn.reports.lift_view import SEED_NOTE, readable_tables, seed_table

    lines = Table.grid(padding=(0, 2), pad_edge=False)
    for party in party_verdicts(lift):
        for_whom = f".\nFor whom: {party.for_whom}" if party.for_whom else ""
        lines.add_row(Text(party.name, "bold"), _paint(party.pays), Text(party.text + for_whom))
    texts: list[RenderableType] = [Text(headline(lift), _style(verdict(lift))), Text(deciding_figures(lift))]
    provisional = warn_of_one_split(lift, folder)
    texts += [Text(provisional, "bold")] if provisional else []
    texts += ["", lines, ""]
    points = Table.grid(padding=(0, 1), pad_edge=False)
    for point in list_points(lift):
        points.add_row("-", Text(point))
    texts += [points, ""]
    seeds = seed_table(lift)
    if seeds is not None:
        header, rows = seeds
        by_seed = Table(*header, title="Gains by seed", title_justify="left", caption_justify="left")
        by_seed.caption = SEED_NOTE
        for row in rows:
            by_seed.add_row(*(escape(cell) for cell in row[:-1]), _paint(row[-1]))
        texts += [by_seed, ""]
    for table in readable_tables(lift):
        texts += [_lift_table(table), ""]
    return texts


def _paint(pays: str) -> Text:
    """Return a verdict in its colour."""
    return Text(pays, _style(pays))


def _style(pays: str) -> str:
    styles = {
        "yes": "bold green",
        "likely better": "green",
        "likely worse": "red",
        "no": "bold red",
        "mixed": "yellow",
    }
    return styles.get(pays, "")


def _lift_table(found: LiftTable) -> Table:
    table = Table(*found.header, title=found.title, title_justify="left", caption_justify="left")
    table.caption = found.note or None
    for name, row in found.rows:
        *cells, pays = found.cells(escape(name), row)
        table.add_row(*cells, _paint(pays))
    if found.overall is not None:
        table.add_section()
        *cells, pays = found.cells("overall", found.overall)
        table.add_row(*cells, _paint(pays), style="bold")
    return table
