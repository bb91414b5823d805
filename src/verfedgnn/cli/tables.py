"""Result tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text

from verfedgnn.reports.phrases import describe_about, format_metric, format_size, total_bytes

if TYPE_CHECKING:
    from verfedgnn.config import Config
    from verfedgnn.runs.run import Run

_STYLES = {
    "yes": "bold green",
    "likely better": "green",
    "likely worse": "red",
    "no": "bold red",
    "mixed": "yellow",
}
"""Style of each word of a verdict; others have none."""


def make_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], title: str = "", note: str = "", **look: Any
) -> Table:
    """Return a table of plain texts, whatever they contain; long ones are folded rather than cut."""
    columns = [Column(name, overflow="fold") for name in header]
    table = Table(*columns, title=escape(title) or None, caption=escape(note) or None, **look)
    table.title_justify = table.caption_justify = "left"
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def run_table(metrics: dict[str, Any]) -> Table:
    """Return a table of a run's accuracy, cost and protection."""
    test, lists, final = metrics["test"], metrics.get("lists"), metrics.get("final")
    rows = {"lists": _quality_of_lists(metrics), "rounds": _rounds(metrics)}
    if test["rmse"] is not None:
        rmse, mae, valid = map(format_metric, (test["rmse"], test["mae"], metrics["valid"]["rmse"]))
        rows = {"test RMSE": f"{rmse}   MAE {mae}   (valid RMSE {valid})"} | rows
    if lists:
        rows["rounds of lists"] = _rounds(lists)
    if final:
        rounds = [part["rounds"] for part in (final, final.get("lists")) if part]
        rows["rounds on all ratings"] = " + ".join(map(str, rounds))
    cost = total_bytes(metrics)
    up, down, usual = map(format_size, (cost["up"], cost["down"], cost["per_party_per_round"]))
    rows["bytes"] = f"{up} up, {down} down; {usual} per party and round"
    for privacy, of in ((metrics["privacy"], ""), (lists["privacy"] if lists else {}, " of lists")):
        for name in ("gradients", "persons", "neighbourhoods"):
            if name in privacy and rows.get(name) != _guarantee(privacy[name]):
                rows[name + of] = _guarantee(privacy[name])
    return make_table(["", ""], rows.items(), "Federation", show_header=False)


def _quality_of_lists(metrics: dict[str, Any]) -> str:
    """Return the quality of lists beside that of the most popular items; NDCG comes first."""
    labels = {"ndcg": "NDCG", "recall": "Recall", "hitrate": "HitRate"}
    texts = []
    names = [name for name in metrics["test"] if "@" in name]
    for name in sorted(names, key=lambda name: "ndcg" not in name):
        kind, _, top = name.partition("@")
        value, popular = (format_metric(metrics[part][name]) for part in ("test", "popularity"))
        texts.append(f"{labels[kind]}@{top} {value} (popularity {popular})")
    return "   ".join(texts)


def _rounds(part: dict[str, Any]) -> str:
    return f"{part['rounds']:,} in {part['seconds']:.1f} s; best round: {part['best_round']:,}"


def _guarantee(part: dict[str, Any]) -> str:
    mechanism = part.get("mechanism", "none")
    return part["guarantee"] if mechanism == "none" else f"{mechanism}: {part['guarantee']}"


def party_table(metrics: dict[str, Any]) -> Table:
    """Return the report's table of the metrics of each party."""
    from verfedgnn.reports.run_report import accuracy_table

    table = accuracy_table(metrics)
    return make_table(table.header, ([cell.strip("*") for cell in row] for row in table.rows), table.title)


def gate_table(metrics: dict[str, Any]) -> Table | None:
    """Return a table of the weights that each party chose for its mixture; None without gates."""
    from verfedgnn.reports.lift_report import GATE_HEADER, GATE_NOTE, gate_rows

    rows = gate_rows(metrics)
    return make_table(GATE_HEADER, rows, "What each party serves (weights)", GATE_NOTE) if rows else None


def run_texts(run: Run, *, details: bool = False) -> list[RenderableType | None]:
    """Return what a training prints: the verdict, or the table of a run without one; with `details`, all tables."""
    metrics = run.metrics
    if "lift" not in metrics:
        return [run_table(metrics)]
    tables = [run_table(metrics), gate_table(metrics)] if details else []
    return [*verdict_texts(metrics, run.judged.config, details=details), *tables]


def verdict_texts(metrics: dict[str, Any], config: Config, *, details: bool = False) -> list[RenderableType]:
    """Return the answer to "does joining pay?" on half a screen: a line for each party, cost, what others learn, what is served.

    With `details`, sentences follow: each figure with its interval, where the gain comes from, and what to do.
    """
    from verfedgnn.evaluation.verdict import headline, list_points, shared_word, verdict_table

    lift = metrics["lift"]
    header, rows, notes = verdict_table(lift)
    table = Table(*header, box=None, pad_edge=False, show_edge=False)
    for row in rows:
        table.add_row(escape(row[0]), Text(row[1], _STYLES.get(row[1], "")), *row[2:])
    about = Table.grid(padding=(0, 2), pad_edge=False)
    for what, text in describe_about(metrics, config).items():
        about.add_row(Text(what.split()[0].lower(), "bold"), Text(text))
    verdict = Text(headline(lift), _STYLES.get(shared_word(lift), ""))
    points = [Text(""), *(Text(f"- {point}") for point in list_points(lift))] if details else []
    return [verdict, "", table, *(Text(note, "dim") for note in notes), "", about, *points]
