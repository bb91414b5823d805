"""`verfedgnn audit`: a report on what each participant could learn from a run, for a security review."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from verfedgnn.cli.next_step import show_next
from verfedgnn.cli.output import STANDARD, Output
from verfedgnn.cli.shared_options import Threads, WholeRun, use_threads
from verfedgnn.reports.round_progress import RoundProgress

if TYPE_CHECKING:
    from verfedgnn_research.attacks.audit import Audit

PRIVATE = "preset private"
VARIANT_OPTIONS = {
    "masks": ("--set", "masking=true"),
    "no exchange": ("--set", "masking=true", "--set", "exchange=off"),
    "noise": ("--set", "gradients.noise=0.25"),
    "one model": ("--set", "model.raters=0"),
    PRIVATE: ("--preset", "private"),
}
"""Options of `train` for each of the variants of an audit."""


def audit(
    run: WholeRun,
    rounds: Annotated[int, typer.Option(help="Number of rounds that attackers record.", min=1)] = 300,
    victims: Annotated[int, typer.Option(help="Largest number of users to attack.", min=1)] = 500,
    compare: Annotated[
        bool, typer.Option(help="Also train and attack safer variants, to measure their cost.")
    ] = True,
    thorough: Annotated[
        bool,
        typer.Option(
            "--thorough",
            help="Attack all users and items instead of a sample of at most 1,000 users, 200 victims and 300 items a party.",
        ),
    ] = False,
    threads: Threads = 1,
    output: Output = STANDARD,
) -> None:
    """Attack a run as every participant could, and report who sees what, what is guaranteed, what leaks
    and what helps.

    Large data are sampled, and the report says so. The training is repeated and recorded for every attack and variant. Findings are saved at once; run the
    same command again to resume an interrupted audit.
    """
    from rich.table import Table
    from rich.text import Text

    from verfedgnn.core.files import check_writable
    from verfedgnn_research.attacks.audit import THIS, Audit
    from verfedgnn_research.attacks.audit_report import (
        ATTACKERS,
        audit_document,
        strongest,
        summarise_findings,
    )

    use_threads(threads)
    work = Audit(run, rounds=rounds, victims=victims, compare=compare, thorough=thorough)
    check_writable(run / "audit")
    if work.is_sampled:
        output.remark(work.describe_sample())
    with RoundProgress(hidden=output.quiet) as progress:
        for number, step in enumerate(work.steps, 1):
            label = f"step {number} of {len(work.steps)}, {step.variant}: {step.part}"

            if not work.known(step):
                work.take(step, partial(progress.step, label))
    page = audit_document(work).write(run / "audit" / "audit.html")
    reached = strongest(work.found[THIS])
    headline, learnt = summarise_findings(work.found[THIS])
    work.conclude(headline, learnt)
    style = "bold red" if any(each.learnt for each in reached) else "bold green"
    header = ["attacker", "tries to learn", "strongest attack", "guess", "more than a guess"]
    lines = Table(*header, title_justify="left", caption_justify="left")
    lines.caption = "AUC: 0.5 is a coin toss, 1 is certainty. Items are compared with held-out ratings, which tastes fit as well."
    for each in reached:
        attacker = ATTACKERS[each.attacker]
        compared = [f"{each.figure} {each.found:.2f}", f"{each.guess:.2f}"]
        verdict = Text("yes", "bold red") if each.learnt else Text("no")
        lines.add_row(attacker.title, attacker.learns, *compared, verdict)
    figures = [
        {
            "attacker": each.attacker,
            "figure": each.figure,
            "found": each.found,
            "guess": each.guess,
            "learnt": each.learnt,
        }
        for each in reached
    ]
    output.result(
        {"page": page, "strongest": figures},
        Text(headline, style),
        lines,
        f"written: {page}",
    )
    _show_next(output, work, run)


def _show_next(output: Output, work: Audit, folder: Path) -> None:
    """Say what the findings mean, and name the variant in which the fewest attackers learn something."""
    from verfedgnn_research.attacks.audit import THIS
    from verfedgnn_research.attacks.audit_report import strongest, summarise_findings

    def count_learning(variant: str) -> int:
        return sum(each.learnt for each in strongest(work.found[variant]))

    now = count_learning(THIS)
    headline, text = summarise_findings(work.found[THIS])
    sentences = [headline, text]
    if not now:
        show_next(output, sentences, ["serve", str(folder)])
        return
    safer = min((name for name in work.found if name != THIS), key=count_learning, default=THIS)
    if safer == THIS and len(work.variants) == 1:
        sentences.append(
            "Safer variants were not tried; without --no-compare the audit measures what they cost."
        )
        show_next(output, sentences, ["audit", str(folder)])
    elif count_learning(safer) >= now:
        sentences.append("The report of the audit says what helps.")
        show_next(output, sentences, ["report", str(folder)])
    else:
        before = work.found[THIS]["model"]["rmse"]
        after = work.found[safer]["model"]["rmse"]
        cost = (
            ""
            if before is None or after is None
            else f", at an RMSE of {after:.4f} instead of {before:.4f}{' on the sample' if work.is_sampled else ''}"
        )
        left = f"{count_learning(safer) or 'none'} of them {'does' if count_learning(safer) == 1 else 'do'}"
        sentences.append(f"With the variant '{safer}' {left}{cost}.")
        sentences.append(f"Train with {' '.join(VARIANT_OPTIONS[safer])}.")
        show_next(output, sentences, ["report", str(folder)])
