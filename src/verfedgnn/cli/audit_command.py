"""`verfedgnn audit`: a report on what each participant could learn from a run, for a security review."""

from __future__ import annotations

from typing import Annotated

import typer

from verfedgnn.cli.output import Output
from verfedgnn.cli.shared_options import AsJson, Quiet, Threads, WholeRun, use_threads
from verfedgnn.cli.tables import RoundProgress


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
            help="Attack all users and items instead of a sample of at most 1,000 users and 500 items a party.",
        ),
    ] = False,
    threads: Threads = 0,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Attack a run as every participant could, and report who sees what, what is guaranteed, what leaks
    and what helps.

    Large data are sampled, and the report says so. The training is repeated and recorded for every attack and variant. Findings are saved at once; run the
    same command again to resume an interrupted audit.
    """
    from rich.text import Text

    from verfedgnn.core.files import check_writable
    from verfedgnn.research.attacks.audit import THIS, Audit
    from verfedgnn.research.attacks.audit_report import ATTACKERS, audit_document, strongest

    use_threads(threads)
    output = Output(quiet=quiet, as_json=as_json)
    work = Audit(run, rounds=rounds, victims=victims, compare=compare, thorough=thorough)
    check_writable(run / "audit")
    if work.is_sampled:
        output.remark(work.describe_sample())
    efforts = [work.effort(step) for step in work.steps]
    total = sum(efforts)
    done = 0.0
    with RoundProgress(hidden=quiet, unit="%") as progress:
        for step, effort in zip(work.steps, efforts, strict=True):

            def show(
                share: float,
                done: float = done,
                effort: float = effort,
                note: str = f"{step.variant}: {step.part}",
            ) -> None:
                progress.step("audit", 100 * (done + share * effort) / total, 100, note)

            show(0)
            if not work.known(step):
                work.take(step, show)
            done += effort
        progress.step("audit", 100, 100)
    page, text = audit_document(work).write(run / "audit", "audit")
    reached = strongest(work.found[THIS])
    lines = []
    for each in reached:
        verdict = ("more than a guess", "bold red") if each.learnt else ("no more than a guess", "")
        compared = f"{each.figure} {each.found:.2f} against {each.guess:.2f}, "
        lines.append(Text.assemble(f"{ATTACKERS[each.attacker].title}: {compared}", verdict))
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
        {"page": page, "markdown": text, "strongest": figures}, *lines, f"written: {page} and {text.name}"
    )
