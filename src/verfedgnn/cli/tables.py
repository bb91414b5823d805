"""Result tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from verfedgnn.reports.phrases import (
    describe_cost,
    describe_learnt,
    describe_served,
    format_metric,
    format_size,
    total_bytes,
    trainings_of,
)

if TYPE_CHECKING:
    from verfedgnn.config import Config


def make_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], title: str = "", note: str = "", **look: Any
) -> Table:
    """Return a table of plain texts, whatever they contain."""
    table = Table(*header, title=escape(title) or None, caption=escape(note) or None, **look)
    table.title_justify = table.caption_justify = "left"
    for row in rows:
        table.add_row(*map(escape, row))
    return table


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
    if "final" in metrics:
        rounds = [
            str(metrics["final"][part]["rounds"]) if part else str(metrics["final"]["rounds"])
            for part in ("", "lists")
            if not part or part in metrics["final"]
        ]
        table.add_row("rounds on all ratings", " + ".join(rounds))
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
    """Return the bytes of all trainings, and those of each if there are several."""
    cost = total_bytes(metrics)
    parts = trainings_of(metrics)
    sizes = [
        f"{name} {format_size(part['bytes']['up'] + part['bytes']['down'])}" for name, part in parts.items()
    ]
    text = f"{format_size(cost['up'])} up, {format_size(cost['down'])} down; "
    text += f"{', '.join(sizes)}; " if len(sizes) > 1 else ""
    return f"{text}{format_size(cost['per_party_per_round'])} per party and round"


def _guarantee(part: dict[str, Any]) -> str:
    return part["guarantee"] if part["mechanism"] == "none" else f"{part['mechanism']}: {part['guarantee']}"


def party_table(metrics: dict[str, Any]) -> Table:
    """Return a table of the metrics of each party."""
    names = list(metrics["test"])
    rows = [
        [party["name"], f"{party['items']:,}", f"{party['ratings']:,}"]
        + [format_metric(party["test"][name]) for name in names]
        for party in metrics["parties"]
    ]
    table = make_table(["party", "items", "ratings", *names], rows, "Test ratings")
    table.add_section()
    table.add_row("overall", "", "", *(format_metric(metrics["test"][name]) for name in names), style="bold")
    return table


def gate_table(metrics: dict[str, Any]) -> Table | None:
    """Return a table of the weights that each party chose for its mixture; None without gates."""
    from verfedgnn.reports.lift_report import GATE_HEADER, GATE_NOTE, gate_rows

    rows = gate_rows(metrics)
    return make_table(GATE_HEADER, rows, "What each party serves (weights)", GATE_NOTE) if rows else None


def verdict_texts(metrics: dict[str, Any], config: Config, *, details: bool = False) -> list[RenderableType]:
    """Return the answer to "does joining pay?" on half a screen: a line for each party, cost, what others learn, what is served.

    With `details`, sentences follow: each figure with its interval, where the gain comes from, and what to do.
    """
    from verfedgnn.evaluation.verdict import headline, list_points, party_word, verdict_table

    lift = metrics["lift"]
    header, rows, notes = verdict_table(lift)
    table = Table(*header, box=None, pad_edge=False, show_edge=False)
    for row in rows:
        table.add_row(escape(row[0]), Text(row[1], _style(row[1])), *row[2:])
    about = Table.grid(padding=(0, 2), pad_edge=False)
    for name, text in {
        "cost": describe_cost(metrics),
        "others": describe_learnt(config),
        "served": describe_served(metrics),
    }.items():
        about.add_row(Text(name, "bold"), Text(text))
    verdict = Text(headline(lift), _style(party_word(lift)))
    points: list[RenderableType] = [""] if details else []
    points += [Text(f"- {point}") for point in list_points(lift) if details]
    return [verdict, "", table, *(Text(note, "dim") for note in notes), "", about, *points]


def _style(pays: str) -> str:
    styles = {
        "yes": "bold green",
        "likely better": "green",
        "likely worse": "red",
        "no": "bold red",
        "mixed": "yellow",
    }
    return styles.get(pays, "")
