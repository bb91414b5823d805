"""`verfedgnn runs`, `diff`, `promote` and `forget`: list runs, compare two, let one replace another, remove users and items."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType

from verfedgnn.cli.next_step import fresh_path, show_next
from verfedgnn.cli.output import STANDARD, Output
from verfedgnn.cli.shared_options import RunFolder
from verfedgnn.cli.tables import make_table
from verfedgnn.core.errors import ConfigError, NotPromoted, RunError

if TYPE_CHECKING:
    from verfedgnn.runs.run_folder import RunSummary

METRICS = {"rmse": "RMSE, lower is better", "ndcg@20": "NDCG@20, higher is better"}
SHOWN_NAMES = 3
"""Number of names of parties that a cell shows."""


def runs(
    folder: Annotated[Path, typer.Argument(help="Folder that contains run folders.")] = Path("runs"),
    output: Output = STANDARD,
) -> None:
    """List runs, oldest first: preset, parties, accuracy, bytes and privacy budget spent."""
    from verfedgnn.reports.phrases import format_metric, format_size
    from verfedgnn.runs.run_folder import list_runs

    found = list_runs(folder)
    columns = [
        {
            "run": run.folder,
            "date (UTC)": run.date[:16].replace("T", " "),
            "preset": run.preset or "-",
            "parties": _shorten(run.parties),
            "ratings": "-" if run.ratings is None else f"{run.ratings:,} of {run.users:,} users",
            "RMSE": format_metric(run.rmse) if run.finished else "not finished",
            "NDCG@20": format_metric(run.ndcg),
            "bytes": "-" if run.bytes is None else format_size(run.bytes),
            "epsilon": "-" if run.epsilon is None else f"{run.epsilon:.3g}",
        }
        for run in found
    ]
    output.result(
        [asdict(run) for run in found],
        make_table([*columns[0]], [[*row.values()] for row in columns]) if found else f"no runs in {folder}",
    )
    _show_next(output, folder, found)


def _show_next(output: Output, folder: Path, found: list[RunSummary]) -> None:
    """Suggest to resume the newest run, to compare the two newest, or to report the only one."""
    places = [str(folder / run.folder) for run in found]
    finished = [place for place, run in zip(places, found, strict=True) if run.finished]
    if not found:
        sentence = f"There are no runs in {folder}; a training with --out writes one."
        command = ["train", "--data", "synthetic", "--out", str(fresh_path(folder / "first"))]
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
    return ", ".join(shown) or "-"


def diff(
    before: Annotated[Path, typer.Argument(help="Earlier run folder.")],
    after: Annotated[Path, typer.Argument(help="Later run folder.")],
    output: Output = STANDARD,
) -> None:
    """Compare two runs: accuracy on the test ratings of both, data and settings."""
    from verfedgnn.evaluation.run_difference import difference
    from verfedgnn.runs.run import Run

    runs = [Run.load(folder, added=False) for folder in (before, after)]
    with output.busy("comparing"):
        found = difference(*runs)
    settings = [[str(value) for value in row.values()] for row in found["configuration"]]
    output.result(
        found,
        *_figure_tables(found["figures"], "Test ratings of both runs"),
        _data_table(found["data"]),
        "",
        make_table(["setting", "before", "after"], settings, "Settings that differ")
        if settings
        else "Both runs have the same settings.",
    )
    better = {metric: table["overall"]["better"] for metric, table in found["figures"].items()}
    chosen = before if "no" in better.values() and "yes" not in better.values() else after
    words = {"yes": "better", "no": "worse"}
    judged = ", ".join(
        f"{metric.upper()} {words.get(word, 'not clearly different')}" for metric, word in better.items()
    )
    show_next(output, [f"The later run on the same test ratings: {judged}."], ["serve", str(chosen)])


def _figure_tables(figures: Mapping[str, Any], cases: str) -> list[RenderableType]:
    """Return one table a metric: both runs, the gain with its interval and the verdict."""
    from verfedgnn.evaluation.chance import format_gain
    from verfedgnn.reports.phrases import format_metric

    header = ["party", "cases", "users", "before", "after", "gain", "better"]
    note = "gain: of the later run, with its 95 % interval, by a paired bootstrap over users."
    tables: list[RenderableType] = []
    for metric, part in figures.items():
        rows = []
        for row in [*part["parties"], {"name": "overall", **part["overall"]}]:
            values = map(format_metric, (row["before"], row["after"]))
            counts = f"{row['cases']:,}", f"{row['users']:,}"
            rows.append([row["name"], *counts, *values, format_gain(row), row["better"]])
        tables += [make_table(header, rows, f"{cases}: {METRICS[metric]}", note), ""]
    return tables


def _data_table(data: Mapping[str, Any]) -> RenderableType:
    """Return the ratings, users and items of each party that came and went."""
    counts = ["before", "after", "added", "removed", "changed"]
    rows = [
        [
            party["name"],
            what,
            *(f"{party[what][count]:,}" if count in party[what] else "-" for count in counts),
        ]
        for party in data["parties"]
        for what in ("ratings", "users", "items")
    ]
    changed = {what: data[f"parties_{what}"] for what in ("added", "removed")}
    notes = [f"Parties {what}: {', '.join(names)}." for what, names in changed.items() if names]
    return make_table(["party", "", *counts], rows, "Data", " ".join(notes))


def promote(
    challenger: Annotated[Path, typer.Argument(help="Run folder of tonight.")],
    over: Annotated[
        Path,
        typer.Option(metavar="RUN", help="Run folder that is served now, or the link to it."),
    ],
    link: Annotated[
        Path | None,
        typer.Option(
            metavar="LINK",
            help="Symbolic link that `serve` follows; it is switched to the challenger if it is promoted.",
        ),
    ] = None,
    tolerance: Annotated[
        float,
        typer.Option(
            help="Loss, in per cent of RMSE and NDCG@20, that is accepted, also against the best run so far.",
            min=0,
        ),
    ] = 0.0,
    max_lost: Annotated[
        float,
        typer.Option(
            help="Largest share of a party's users, items or ratings, in per cent, that may be gone.",
            min=0,
            max=100,
        ),
    ] = 10.0,
    output: Output = STANDARD,
) -> None:
    """Promote a run over the one that is served, unless it is worse beyond its interval on ratings that neither was trained on.

    It must not be worse than the best run that was promoted before, either, so that tolerated losses do not add up.
    The exit code is 0 if the challenger is promoted and 5 if the champion is kept.
    """
    from verfedgnn.core.files import switch_link
    from verfedgnn.data.ratings import format_count
    from verfedgnn.evaluation.promotion import judge_challenger, read_best, write_best
    from verfedgnn.runs.forget_record import read_forgotten_users
    from verfedgnn.runs.run import Run

    if challenger.resolve() == over.resolve():
        raise RunError(
            f"{challenger} and {over} are the same run, so there is nothing to compare; give another run"
        )
    if link is not None and link.exists() and link.resolve() != over.resolve():
        raise RunError(
            f"{link} leads to {link.resolve().name}, but {challenger} would be compared with {over}; pass --over {link}"
        )
    champion = Run.load(over, added=False)
    run = Run.load(challenger, added=False)
    gone = read_forgotten_users(over).find(run.parties[0].ratings.user_ids)
    if gone.any():
        count = format_count(int(gone.sum()), "user")
        raise RunError(f"{challenger} has {count} forgotten in {over}; forget them in {challenger}, too")
    best = read_best(over.resolve())
    others = {path: Run.load(path, added=False) for path in set(best.values()) - {over.resolve()}}
    with output.busy("comparing"):
        found = judge_challenger(
            champion,
            run,
            best={metric: others.get(path, champion) for metric, path in best.items()},
            tolerance=tolerance,
            max_lost=max_lost,
        )
    if found["promoted"]:
        write_best(challenger, best | dict.fromkeys(found["best_in"], challenger))
        if link is not None:
            switch_link(link, challenger)
    found = {"challenger": str(challenger), "champion": str(over), **found}
    tables = [
        *_figure_tables(found["figures"]["new"], "Test ratings that came since"),
        *_figure_tables(found["figures"]["shared"], "Test ratings of both runs"),
    ]
    switched = "" if link is None else f"; {link} leads to it"
    text = f"promoted: {challenger}{switched}" if found["promoted"] else f"kept: {over}"
    output.result(found, *tables, text)
    if not found["promoted"]:
        raise NotPromoted(f"{challenger} was not promoted: {'; '.join(found['reasons'])}")


def forget(
    run: RunFolder,
    user: Annotated[
        list[str] | None, typer.Option(help="Id of the user, as in the data. Repeatable.")
    ] = None,
    user_file: Annotated[Path | None, typer.Option(help="Text file with one id of a user per line.")] = None,
    item: Annotated[
        list[str] | None, typer.Option(help="Id of the item, as in the data. Repeatable.")
    ] = None,
    item_file: Annotated[Path | None, typer.Option(help="Text file with one id of an item per line.")] = None,
    party: Annotated[
        str | None, typer.Option(help="Party that offers the items; needed if several could be meant.")
    ] = None,
    output: Output = STANDARD,
) -> None:
    """Remove users or items and their ratings from a run folder, and repair its model without them.

    A record, forget.json, says what was done and what remains, with a keyed hash instead of the id. If the command is interrupted, the
    same command finishes it. Remove them from your own data, too: the next training reads it again.
    """
    from verfedgnn.upkeep.forget import finish_forgetting, forget_items, forget_users

    users = [*(user or []), *_read_ids(user_file)]
    items = [*(item or []), *_read_ids(item_file)]
    if users and items:
        raise ConfigError("give users or items, not both; run the command once for each")
    record: dict[str, Any] | None
    if items:
        record = forget_items(run, items, party)
    else:
        record = forget_users(run, users) if users else finish_forgetting(run)
    if record is None:
        raise ConfigError("nothing to forget; give --user ID, --item ID, or a file of ids")
    ratings = sum(record["ratings"].values())
    again = sum(record["items_estimated_again"].values())
    repaired = (
        f"estimated {again:,} items again" if record["users"] else f"removed {len(record['items']):,} items"
    )
    output.result(record, f"removed {ratings:,} ratings; {repaired}")
    for text in record["remains"]:
        output.remark(f"remains: {text}")


def _read_ids(file: Path | None) -> list[str]:
    if file is None:
        return []
    try:
        return [line.strip() for line in file.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read ({error}); give a text file with one id per line") from None
