"""`verfedgnn attack`: attack a run as a participant or an outsider."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from verfedgnn.cli.next_step import show_next
from verfedgnn.cli.output import STANDARD, Output
from verfedgnn.cli.shared_options import Threads, WholeRun, use_threads
from verfedgnn.core.errors import ConfigError
from verfedgnn.reports.round_progress import RoundProgress

if TYPE_CHECKING:
    from verfedgnn.runs.run import Run

Watch = Callable[[str, int, int], None]


def attack(
    run: WholeRun,
    who: Annotated[
        str,
        typer.Option(
            "--as",
            help="The attacker: party:NAME (or its number, from 0), coordinator, or outsider (with the final model).",
        ),
    ] = "outsider",
    target: Annotated[
        str | None,
        typer.Option(help="With --as party: the party whose users are attacked. Default: the next party."),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            help="With --as party: run only attacks with this text in their names, such as insider."
        ),
    ] = "",
    rounds: Annotated[int, typer.Option(help="Number of rounds to record.", min=1)] = 300,
    victims: Annotated[int, typer.Option(help="Largest number of users to attack.", min=1)] = 500,
    lists: Annotated[
        bool, typer.Option("--lists", help="With --as party: attack the training of lists.")
    ] = False,
    threads: Threads = 1,
    output: Output = STANDARD,
) -> None:
    """Attack a run and compare what was found with what anyone could guess.

    A run folder holds no messages. For a party or the coordinator, the training is repeated with the same
    settings and data and its messages are recorded.
    """
    from verfedgnn.core.files import check_writable, make_folder, writing
    from verfedgnn.runs.run import Run, write_json

    use_threads(threads)
    path = run / "attacks" / f"{'party' if who.startswith('party') else who}.json"
    loaded = Run.load(run, added=False).judged
    check_writable(path.parent)
    names = [party.name for party in loaded.parties]
    if len(names) < 2:
        raise ConfigError(
            "an attack needs the parties of a whole federation, but this run holds one; choose a run of `verfedgnn train`"
        )
    with RoundProgress(hidden=output.quiet) as progress:

        def listen(stage: str, done: int, total: int) -> None:
            progress.step(stage, done, total)

        if who == "outsider":
            found, table = _outsider(loaded)
        elif who == "coordinator":
            progress.line(f"recording {rounds:,} rounds")
            found, table = _coordinator(loaded, rounds, listen)
        else:
            attacker = _place(who.removeprefix("party:"), names)
            victim = (attacker + 1) % len(names) if target is None else _place(target, names)
            if victim == attacker:
                raise ConfigError(
                    "a party already knows its own users' items; choose another party as --target"
                )
            progress.line(f"{names[attacker]} attacks {names[victim]} and records {rounds:,} rounds")
            found, table = _party(loaded, attacker, victim, rounds, victims, method, lists, listen)
    with writing(path.parent):
        make_folder(path.parent)
        write_json(path, found)
    output.result({"file": path, "found": found}, table, f"written: {path}")
    sentence = "What is not above the guess is not learnt. An audit runs all attacks, also on safer variants of the run."
    show_next(output, [sentence], ["audit", str(run)])


def _place(name: str, names: list[str]) -> int:
    if name in names:
        return names.index(name)
    if name.isdecimal() and int(name) < len(names):
        return int(name)
    raise ConfigError(
        f"this run has no party '{name}'; choose from: {', '.join(names)} (--as party:NAME), coordinator, outsider"
    )


def _outsider(run: Run) -> tuple[dict[str, Any], Table]:
    import torch

    from verfedgnn_research.attacks.membership_inference import membership

    models = [(m.users, m.items) for m in run.models]
    told = membership(run.prepared(), models, torch.Generator().manual_seed(run.config.seed))
    table = Table(
        "which ratings",
        "AUC",
        "advantage",
        title="Membership: ratings told apart from test ratings by their prediction error",
        title_justify="left",
    )
    for name, part in (("training", told.trained), ("validation (control)", told.control)):
        table.add_row(
            name,
            f"{part.auc:.3f} ± {part.auc_error:.3f}",
            f"{part.advantage:.3f} ± {part.advantage_error:.3f}",
        )
    table.caption = "AUC 0.5 is a coin toss. Advantage: true positive rate minus false positive rate at the best threshold."
    return {"training": told.trained.to_dict(), "validation": told.control.to_dict()}, table


def _coordinator(run: Run, rounds: int, watch: Watch) -> tuple[dict[str, Any], Table]:
    from verfedgnn_research.attacks.coordinator_attack import attack_gradients

    found = attack_gradients(
        run.parties, run.config, rounds=rounds, seed=run.config.seed, watch=partial(watch, "recording")
    )
    table = Table(
        "rounds", "AUC", "AUC of the guess", "correlation with the number of ratings", title_justify="left"
    )
    table.title = "Who has a rating at which party, from user gradients"
    for number, row in found["rounds"].items():
        table.add_row(
            number, *(f"{row[key]:.3f}" if key in row else "-" for key in ("any", "guess", "degree"))
        )
    table.caption = "guess: by a user's number of ratings at all parties together"
    return found, table


def _party(
    run: Run, attacker: int, target: int, rounds: int, victims: int, method: str, lists: bool, watch: Watch
) -> tuple[dict[str, Any], Table]:
    from verfedgnn_research.attacks.item_attack import attack_items

    config = run.config
    if lists and not config.trains_lists:
        raise ConfigError("this run trains no lists; leave out --lists")
    config = config.for_lists() if lists else config.with_values({"lists": False})
    found = attack_items(
        run.parties,
        config,
        rounds=min(rounds, config.training.epochs),
        parts=run.parts,
        attacker=attacker,
        target=target,
        victims=victims,
        method=method,
        watch=partial(watch, "recording"),
    )
    table = Table(
        "attack", "AUC", "guess", "same item", "against held-out", "two parties", title_justify="left"
    )
    table.title = (
        f"Which items users have at {escape(run.parties[target].name)}, from the releases of all rounds"
    )
    for name, row in found.items():
        figures = [row.get(key) for key in ("all", "guess", "within", "held", "alone")]
        table.add_row(name, *("-" if value is None else f"{value:.3f}" for value in figures))
    table.caption = (
        "guess: by popularity. against held-out: 0.5 if only tastes show. two parties: of users at no third party. "
        "colluders: all other parties together. insider: knows item vectors."
    )
    return found, table
