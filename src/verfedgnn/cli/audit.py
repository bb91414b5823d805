"""`verfedgnn audit`: what each participant could learn from a run, as a page for a security review."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from verfedgnn.attacks.audit import THIS, Audit
from verfedgnn.cli.show import RoundProgress
from verfedgnn.reports.audit import ATTACKERS, audit_document, strongest


def audit(
    run: Annotated[Path, typer.Argument(help="A run folder that holds all parties, as `train --out` writes it.")],
    rounds: Annotated[int, typer.Option(help="Rounds that attackers listen to.", min=1)] = 300,
    victims: Annotated[int, typer.Option(help="Users that are attacked, at most.", min=1)] = 500,
    compare: Annotated[bool, typer.Option(help="Train and attack safer variants, too, to say what they cost.")] = True,
    threads: Annotated[int, typer.Option(help="Processor threads; 0: all.", min=0)] = 0,
    quiet: Annotated[bool, typer.Option(help="No progress.")] = False,
) -> None:
    """Attack a run as every participant could, and write a report: who sees what, what is guaranteed, what leaks, what helps.

    The training is run again and listened to, once for every attack and variant. Findings are kept as they come, so an audit
    that was stopped goes on where it was.
    """
    if threads:
        torch.set_num_threads(threads)
    work = Audit(run, rounds=rounds, victims=victims, compare=compare)
    with RoundProgress(hidden=quiet, unit="steps") as progress:
        for done, step in enumerate(work.steps):
            progress.step("audit", done, len(work.steps), f"{step.variant}: {step.part}")
            if not work.known(step):
                work.take(step)
        progress.step("audit", len(work.steps), len(work.steps), "")
    page, text = audit_document(work).write(run / "audit", "audit")
    console = Console(highlight=False, soft_wrap=True)
    for reached in strongest(work.found[THIS]):
        verdict = "[bold red]more than a guess[/]" if reached.learnt else "no more than a guess"
        name = ATTACKERS[reached.attacker].title
        console.print(f"{name}: {reached.figure} {reached.found:.2f} against {reached.guess:.2f}, {verdict}")
    console.print(f"written: {page} and {text.name}", markup=False)
