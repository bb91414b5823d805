"""`verfedgnn promote`: let a new run replace the one that is served, unless it is worse."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from verfedgnn.cli.completion import complete_run_folders
from verfedgnn.cli.diff_command import show_tables
from verfedgnn.cli.output import Output
from verfedgnn.cli.shared_options import AsJson, Quiet
from verfedgnn.core.errors import NotPromoted, RunError


def promote(
    challenger: Annotated[
        Path, typer.Argument(help="Run folder of tonight.", autocompletion=complete_run_folders)
    ],
    over: Annotated[
        Path,
        typer.Option(
            help="Run folder that is served now, or the link to it.", autocompletion=complete_run_folders
        ),
    ],
    link: Annotated[
        Path | None,
        typer.Option(
            help="Symbolic link that `serve` follows; it is switched to the challenger if it is promoted."
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
    textfile: Annotated[
        Path | None,
        typer.Option(help="File of metrics for Prometheus (node_exporter): result, accuracy and drift."),
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Promote a run over the one that is served, unless it is worse beyond its interval on ratings that neither was trained on.

    It must not be worse than the best run that was promoted before, either, so that tolerated losses do not add up.
    The exit code is 0 if the challenger is promoted and 5 if the champion is kept.
    """
    from verfedgnn.core.files import switch_link
    from verfedgnn.data.ratings import format_count
    from verfedgnn.evaluation.promotion import judge_challenger, read_best, write_best
    from verfedgnn.reports.difference_view import figure_tables
    from verfedgnn.reports.night_metrics import write_textfile
    from verfedgnn.runs.forget_record import is_federated, read_forgotten_users
    from verfedgnn.runs.run import Run

    output = Output(quiet=quiet, as_json=as_json)
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
    gone = read_forgotten_users(over).find(run.parties[0].ratings.user_ids, federated=is_federated(over))
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
    if textfile is not None:
        write_textfile(textfile, found)
    if found["promoted"]:
        write_best(challenger, best | dict.fromkeys(found["best_in"], challenger))
        if link is not None:
            switch_link(link, challenger)
    found = {"challenger": str(challenger), "champion": str(over), **found}
    tables = [
        *figure_tables(found["figures"]["new"], "Test ratings that came since"),
        *figure_tables(found["figures"]["shared"], "Test ratings of both runs"),
    ]
    switched = "" if link is None else f"; {link} leads to it"
    text = f"promoted: {challenger}{switched}" if found["promoted"] else f"kept: {over}"
    output.result(found, *show_tables(tables), text)
    if not found["promoted"]:
        raise NotPromoted(f"{challenger} was not promoted: {'; '.join(found['reasons'])}")
