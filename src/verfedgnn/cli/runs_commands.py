"""`verfedgnn evaluate`, `lift`, `report`, `runs`, `diff`, `promote` and `forget`: what can be done with finished runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType

import verfedgnn as vf
from verfedgnn.cli.next_step import fresh_path, show_next, show_run_findings
from verfedgnn.cli.output import STANDARD, Output
from verfedgnn.cli.shared_options import Count, Folder, Threads, use_threads
from verfedgnn.cli.signals import Halt
from verfedgnn.cli.tables import gate_table, make_table, party_table, run_table, verdict_texts
from verfedgnn.core.errors import ConfigError, NotPromoted, RunError
from verfedgnn.reports.round_progress import RoundProgress

METRICS = {"rmse": "RMSE, lower is better", "ndcg@20": "NDCG@20, higher is better"}
SHOWN_NAMES = 3
"""Number of names of parties that a cell shows."""


def evaluate(
    run: Path,
    top: Count = 20,
    predictions: Annotated[Path | None, typer.Option(metavar="FILE")] = None,
    output: Output = STANDARD,
) -> None:
    """Evaluate a run on its test ratings: RMSE, MAE and metrics of lists, per party and overall.

    Args:
        top: K of Recall@K, NDCG@K and HitRate@K.
        predictions: Also write each test rating with its predictions, as Parquet, to recompute the figures.
    """
    from verfedgnn.core.files import writing
    from verfedgnn.evaluation.lift import write_predictions

    loaded = vf.Run.load(run, added=False)
    with output.busy("evaluating"):
        figures = loaded.metrics | loaded.evaluate(top)
        if predictions is not None:
            with writing(predictions.parent):
                write_predictions(loaded, predictions, top)
    lift = verdict_texts(figures, loaded.judged.config, details=True) if "lift" in figures else []
    output.result(figures, *lift, run_table(figures), party_table(figures), gate_table(figures))
    show_run_findings(output, loaded, run)


def lift(run: Path, partners: bool = False, threads: Threads = 1, output: Output = STANDARD) -> None:
    """Show what joining gains each party of a run, in lists and ratings, for known and for new customers.

    Args:
        partners: Also train without each party in turn, to see which partner is worth it.
    """
    from verfedgnn.core.files import writing
    from verfedgnn.evaluation.verdict import PARTNERS_HEADER, partner_rows
    from verfedgnn.runs.run import write_json
    from verfedgnn.training.train import compare_partners

    use_threads(threads)

    folder = run.resolve()  # a link may be switched meanwhile
    loaded = vf.Run.load(folder, added=False)
    figures = vf.lift(loaded)
    if partners:
        with RoundProgress(hidden=output.quiet) as progress, Halt(quiet=output.quiet) as halt:
            figures["partners"] = compare_partners(loaded, watch=progress.round, stop=halt.asked)
        loaded.metrics["lift"] = figures
        with writing(run):
            write_json(folder / "metrics.json", loaded.metrics)
    rows = partner_rows(figures.get("partners", []))
    table = make_table(PARTNERS_HEADER, rows, box=None) if "partners" in figures else None
    output.result(figures, *verdict_texts(loaded.metrics, loaded.judged.config, details=True), table)
    show_run_findings(output, loaded, run)


def report(run: Path, out: Folder = None, output: Output = STANDARD) -> None:
    """Write a report of a run as one HTML page.

    It contains the verdict, accuracy, lift, overlap, learning curves, traffic, who sees what, privacy guarantees and configuration.
    It names the parties, but no user and no item.

    Args:
        out: Folder for the report; RUN/report by default.
    """
    from verfedgnn.core.files import check_writable
    from verfedgnn.reports.run_report import run_document
    from verfedgnn.runs.run_folder import REPORT, check_outside

    loaded = vf.Run.load(run, added=False)
    if out is not None:
        check_outside(out)
    folder = run / REPORT if out is None else out
    check_writable(folder)
    with output.busy("writing the report"):
        document = run_document(loaded, run.resolve().name, run)
        page = document.write(folder / "report.html")
    output.result({"page": page}, f"written: {page}")
    show_next(output, [], ["serve", str(run)])


def runs(folder: Annotated[Path, typer.Argument()] = Path("runs"), output: Output = STANDARD) -> None:
    """List runs, oldest first: preset, parties, accuracy, bytes and privacy budget spent.

    Args:
        folder: Folder that contains run folders.
    """
    from verfedgnn.reports.phrases import format_metric, format_size
    from verfedgnn.runs.run_folder import list_runs

    listed = list_runs(folder)
    rows = [
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
        for run in listed
    ]
    table = make_table([*rows[0]], [[*row.values()] for row in rows]) if rows else f"no runs in {folder}"
    output.result([asdict(run) for run in listed], table)
    places = [str(folder / run.folder) for run in listed]
    finished = [place for place, run in zip(places, listed, strict=True) if run.finished]
    if not listed:
        sentence = f"There are no runs in {folder}; a training with --out writes one."
        command = ["train", "--data", "synthetic", "--out", str(fresh_path(folder / "first"))]
    elif not listed[-1].finished:
        sentence = "The newest run is not finished; it resumes from its last checkpoint."
        command = ["train", "--resume", places[-1]]
    elif finished[1:]:
        sentence = (
            f"{len(finished)} runs are finished; the two newest can be compared on the same test ratings."
        )
        command = ["diff", *finished[-2:]]
    else:
        sentence, command = "One run is finished.", ["report", finished[-1]]
    show_next(output, [sentence], command)


def _shorten(names: list[str]) -> str:
    more = len(names) - SHOWN_NAMES
    shown = [*names[:SHOWN_NAMES], *([f"{more} more"] if more > 0 else [])]
    return ", ".join(shown) or "-"


def diff(before: Path, after: Path, output: Output = STANDARD) -> None:
    """Compare two runs: accuracy on the test ratings of both, data and settings.

    Args:
        before: Earlier run folder.
        after: Later run folder.
    """
    from verfedgnn.evaluation.run_difference import difference

    runs = [vf.Run.load(folder, added=False) for folder in (before, after)]
    with output.busy("comparing"):
        compared = difference(*runs)
    settings = [[str(value) for value in row.values()] for row in compared["configuration"]]
    output.result(
        compared,
        *_figure_tables(compared["figures"], "Test ratings of both runs"),
        _data_table(compared["data"]),
        "",
        make_table(["setting", "before", "after"], settings, "Settings that differ")
        if settings
        else "Both runs have the same settings.",
    )
    better = {metric: table["overall"]["better"] for metric, table in compared["figures"].items()}
    chosen = before if "no" in better.values() and "yes" not in better.values() else after
    words = {"yes": "better", "no": "worse"}
    judged = (f"{name.upper()} {words.get(word, 'not clearly different')}" for name, word in better.items())
    show_next(
        output, [f"The later run on the same test ratings: {', '.join(judged)}."], ["serve", str(chosen)]
    )


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
    challenger: Path,
    over: Annotated[Path, typer.Option(metavar="RUN")],
    link: Annotated[Path | None, typer.Option(metavar="LINK")] = None,
    tolerance: Annotated[float, typer.Option(min=0)] = 0.0,
    max_lost: Annotated[float, typer.Option(min=0, max=100)] = 10.0,
    output: Output = STANDARD,
) -> None:
    """Promote a run over the one that is served, unless it is worse beyond its interval on ratings that neither was trained on.

    It must not be worse than the best run that was promoted before, either, so that tolerated losses do not add up.
    The exit code is 0 if the challenger is promoted and 5 if the champion is kept.

    Args:
        challenger: Run folder of tonight.
        over: Run folder that is served now, or the link to it.
        link: Symbolic link that `serve` follows; it is switched to the challenger if it is promoted.
        tolerance: Loss, in per cent of RMSE and NDCG@20, that is accepted, also against the best run so far.
        max_lost: Largest share of a party's users, items or ratings, in per cent, that may be gone.
    """
    from verfedgnn.core.files import lock_folder, switch_link
    from verfedgnn.data.ratings import format_count
    from verfedgnn.evaluation.run_difference import judge_challenger, write_best
    from verfedgnn.runs.forget_record import ForgottenUsers, read_forgotten_users
    from verfedgnn.runs.nights import read_best
    from verfedgnn.runs.run_folder import FORGOTTEN

    served = over.resolve()
    if challenger.resolve() == served:
        raise RunError(
            f"{challenger} and {over} are the same run, so there is nothing to compare; give another run"
        )

    def check_link() -> None:
        if link is not None and link.exists() and link.resolve() != served:
            raise RunError(
                f"{link} leads to {link.resolve().name}, but {challenger} would be compared with {over}; pass --over {link}"
            )

    def check_forgotten() -> None:
        gone = read_forgotten_users(served).find(run.parties[0].ratings.user_ids)
        if gone.any():
            count = format_count(int(gone.sum()), "user")
            raise RunError(f"{challenger} has {count} forgotten in {over}; forget them in {challenger}, too")

    check_link()
    champion, run = (vf.Run.load(folder, added=False) for folder in (served, challenger))
    check_forgotten()
    best = read_best(served)
    others = {path: vf.Run.load(path, added=False) for path in set(best.values()) - {served}}
    compared = {metric: others.get(path, champion) for metric, path in best.items()}
    with output.busy("comparing"):
        judgement = judge_challenger(champion, run, best=compared, tolerance=tolerance, max_lost=max_lost)
    text = f"kept: {over}"
    if judgement["promoted"]:
        text = f"promoted: {challenger}"
        with lock_folder(served), lock_folder(challenger):  # nobody is forgotten there meanwhile
            check_link()  # nor has another run been promoted over this one
            check_forgotten()
            # trainings after this run leave out whom the runs before it have forgotten
            own = ForgottenUsers.read(challenger / FORGOTTEN)
            own.add([read_forgotten_users(served)]).write(challenger / FORGOTTEN)
            write_best(challenger, best | dict.fromkeys(judgement["best_in"], challenger))
            if link is not None:
                switch_link(link, challenger)
                text += f"; {link} leads to it"
    tables = [
        *_figure_tables(judgement["figures"]["new"], "Test ratings that came since"),
        *_figure_tables(judgement["figures"]["shared"], "Test ratings of both runs"),
    ]
    about = {"challenger": str(challenger), "champion": str(over), **judgement}
    output.result(about, *tables, text)
    if not judgement["promoted"]:
        raise NotPromoted(f"{challenger} was not promoted: {'; '.join(judgement['reasons'])}")


def forget(
    run: Path,
    user: list[str] | None = None,
    user_file: Path | None = None,
    output: Output = STANDARD,
) -> None:
    """Remove users and their ratings from a run folder, and repair its model without them.

    A record, forget.json, says what was done and what remains, with a keyed hash instead of the id. If the command is interrupted, the
    same command finishes it. Remove them from your own data, too: the next training reads it again.

    Args:
        user: Id of the user, as in the data. Repeatable.
        user_file: Text file with one id of a user per line.
    """
    from verfedgnn.upkeep.forget import forget as forget_run

    record = forget_run(run, [*(user or []), *_read_ids(user_file)])
    if record is None:
        raise ConfigError("nothing to forget; give --user ID, or a file of ids with --user-file")
    again = sum(record["items_estimated_again"].values())
    output.result(
        record, f"removed {sum(record['ratings'].values()):,} ratings; estimated {again:,} items again"
    )
    for text in record["remains"]:
        output.remark(f"remains: {text}")


def _read_ids(file: Path | None) -> list[str]:
    if file is None:
        return []
    try:
        return [line.strip() for line in file.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read ({error}); give a text file with one id per line") from None
