"""`verfedgnn runs`: list the run folders below a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from verfedgnn.cli.next_step import fresh_path, show_next
from verfedgnn.cli.output import Output
from verfedgnn.cli.shared_options import AsJson, Quiet

if TYPE_CHECKING:
    from verfedgnn.runs.run_list import RunSummary

SHOWN_NAMES = 3
"""Number of names of parties that a cell shows."""


def runs(
    folder: Annotated[Path, typer.Argument(help="Folder that contains run folders.")] = Path("runs"),
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """List runs, oldest first: data, preset, parties, accuracy, bytes, privacy budget spent and the run each started from."""
    from verfedgnn.reports.phrases import format_metric, format_size
    from verfedgnn.runs.run_list import list_runs

    output = Output(quiet=quiet, as_json=as_json)
    found = list_runs(folder)
    table = Table(
        "run",
        "date (UTC)",
        "preset",
        "parties",
        "ratings",
        "RMSE",
        "NDCG@20",
        "bytes",
        "epsilon",
        "started from",
    )
    for run in found:
        name = run.folder + "".join(f" <- {link}" for link in run.links)
        table.add_row(
            escape(name),
            run.date[:16].replace("T", " "),
            escape(run.preset or "-"),
            _shorten(run.parties),
            "-" if run.ratings is None else f"{run.ratings:,} of {run.users:,} users",
            format_metric(run.rmse) if run.finished else "not finished",
            format_metric(run.ndcg),
            "-" if run.bytes is None else format_size(run.bytes),
            "-" if run.epsilon is None else f"{run.epsilon:.3g}",
            escape(run.ancestor or "-"),
        )
    output.result([run.to_dict() for run in found], table if found else f"no runs in {folder}")
    _show_next(output, folder, found)


def _show_next(output: Output, folder: Path, found: list[RunSummary]) -> None:
    """Suggest to resume the newest run, to compare the two newest, or to report the only one."""
    places = [str(folder / run.folder) for run in found]
    finished = [place for place, run in zip(places, found, strict=True) if run.finished]
    if not found:
        sentence = f"There are no runs in {folder}; a training with --out writes one."
        command = ["train", "--data", "synthetic", "--lift", "--out", str(fresh_path(folder / "first"))]
    elif not found[-1].finished:
        sentence = "The newest run is not finished; it resumes from its last checkpoint."
        command = ["train", "--resume", places[-1]]
    elif len(finished) > 1:
        sentence = (
            f"{len(finished)} runs are finished; the two newest can be compared on the same test ratings."
        )
        command = ["diff", *finished[-2:]]
    else:
        sentence = "One run is finished."
        command = ["report", finished[-1]]
    show_next(output, [sentence], command)


def _shorten(names: list[str]) -> str:
    more = len(names) - SHOWN_NAMES
    shown = [*names[:SHOWN_NAMES], *([f"{more} more"] if more > 0 else [])]
    return escape(", ".join(shown)) or "-"
