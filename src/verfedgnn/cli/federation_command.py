"""`verfedgnn federation`: who belongs to a federation and what they agreed on, before anything is trained."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from verfedgnn.cli.completion import among
from verfedgnn.cli.output import Output
from verfedgnn.cli.shared_options import TRAINING, AsJson, Model, Preset, Quiet, Settings
from verfedgnn.cli.train_command import parse_gnn
from verfedgnn.core.errors import ConfigError
from verfedgnn.federation.key_files import PARTY_KEY

if TYPE_CHECKING:
    from verfedgnn.federation.agreement import Agreement

app = typer.Typer(
    name="federation",
    help="Set up a federation across organisations: its members, their certificates, and what they agree on.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)

Folder = Annotated[Path, typer.Argument(help="The coordinator's folder, as `init` made it.")]


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="The folder to create; it stays with the coordinator.")],
    address: Annotated[str, typer.Option(help="host:port at which parties reach the coordinator.")],
    name: Annotated[
        str | None, typer.Option(help="What the federation is called; unset: as the folder.")
    ] = None,
    preset: Preset = None,
    model: Model = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of everything random.", rich_help_panel=TRAINING)
    ] = None,
    set_: Settings = None,
    config: Annotated[
        Path | None, typer.Option(help="A TOML file of settings.", rich_help_panel=TRAINING)
    ] = None,
    alignment: Annotated[
        str,
        typer.Option(
            help="How common users are found: keyed, ecdh or none.",
            autocompletion=among(("keyed", "ecdh", "none")),
        ),
    ] = "keyed",
    min_parties: Annotated[
        int, typer.Option(help="Parties a round needs; 0: more than half, at least two.")
    ] = 0,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Begin a federation, at the coordinator: its authority, the coordinator's key, and federation.toml."""
    from verfedgnn.config import build_config, parse_settings
    from verfedgnn.federation import roster

    overrides: dict[str, Any] = parse_settings(set_ or [])
    if seed is not None:
        overrides["seed"] = seed
    base = preset or "paper"
    built = build_config(preset=base, model=parse_gnn(model), file=config, overrides=overrides)
    rules = {"address": address, "alignment": alignment, "min_parties": min_parties}
    called = name or folder.resolve().name
    agreement, note = roster.begin(
        folder, built, preset=base, file=config, overrides=overrides, name=called, **rules
    )
    output = Output(quiet=quiet, as_json=as_json)
    masking = "on" if agreement.config.masking else "off"
    output.result(roster.summary(agreement), f"federation {called} at {address}; masking is {masking}{note}")
    output.remark(
        f"{folder} holds the keys of the authority and the coordinator: keep it, and keep it secret"
    )
    output.remark(
        "next: each party runs `verfedgnn federation join-request NAME` and sends you its .csr; "
        f"admit it with `verfedgnn federation approve {folder} NAME.csr`"
    )


@app.command("join-request")
def join_request(
    name: Annotated[str, typer.Argument(help="What the party is called.")],
    out: Annotated[Path | None, typer.Option(help="The folder to create; unset: NAME.")] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Ask to join, at a party: make its key, which stays here, and a request to send to the coordinator."""
    from verfedgnn.federation import roster

    folder = out or Path(name)
    sent, fingerprint = roster.ask(name, folder)
    output, key = Output(quiet=quiet, as_json=as_json), folder / PARTY_KEY
    made = {"name": name, "key": key, "request": sent, "fingerprint": fingerprint}
    output.result(
        made,
        f"{key} is the private key of {name}: it never leaves this machine",
        f"fingerprint of its public key: {fingerprint}",
    )
    output.remark(
        f"next: send {sent} to whoever runs the coordinator, read the fingerprint out to them on the telephone, "
        f"and put the federation.toml they send back into {folder}"
    )


@app.command()
def approve(
    folder: Folder,
    requests: Annotated[
        list[Path], typer.Argument(help="The .csr files that parties sent.", metavar="REQUEST.csr")
    ],
    replace: Annotated[
        bool, typer.Option("--replace", help="New certificates for parties that are members already.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask: the fingerprints have been compared.")
    ] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Admit parties, at the coordinator: sign their requests and put them on the roster."""
    from verfedgnn.federation import roster

    output = Output(quiet=quiet, as_json=as_json)
    lines: list[str] = []

    def confirm(fingerprints: dict[str, str]) -> None:
        lines.extend(f"{name}: fingerprint of its public key: {text}" for name, text in fingerprints.items())
        if not yes:
            for line in lines:
                typer.echo(line, err=True)
            _confirm("Did each party read out just this fingerprint on the telephone?")

    changed = roster.admit(folder, requests, replace=replace, confirm=confirm)
    _changed(folder, changed, output, *lines)


@app.command()
def revoke(
    folder: Folder,
    name: Annotated[str, typer.Argument(help="The party to take off the roster.")],
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Take a party off the roster, at the coordinator: its certificate is no longer accepted."""
    from verfedgnn.federation import roster

    changed = roster.remove(folder, name)
    _changed(folder, changed, Output(quiet=quiet, as_json=as_json), f"{name} is no longer a member")


@app.command()
def renew(folder: Folder, quiet: Quiet = False, as_json: AsJson = False) -> None:
    """Give the coordinator a new key and certificate; repeated after an interruption, it completes the change."""
    from verfedgnn.federation import roster
    from verfedgnn.federation.certificates import day

    changed = roster.renew(folder)
    until = f"the coordinator has a new key, with a certificate until {day(changed.coordinator.expires)}"
    _changed(folder, changed, Output(quiet=quiet, as_json=as_json), until)


@app.command()
def show(
    path: Annotated[
        Path, typer.Argument(help="federation.toml, or the folder that holds it.", metavar="FILE_OR_FOLDER")
    ],
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Say what a federation agreed on and who belongs to it."""
    from verfedgnn.cli.agreement_tables import agreement_table, member_table
    from verfedgnn.federation import roster
    from verfedgnn.federation.agreement import load_agreement

    agreement, output = load_agreement(path, dates=False), Output(quiet=quiet, as_json=as_json)
    output.result(roster.summary(agreement), agreement_table(agreement), member_table(agreement))
    output.remark(
        "next: compare the fingerprint of the agreement with the other organisations' on the telephone; "
        "it must be the same everywhere"
    )


def _confirm(question: str) -> None:
    if not _terminal():
        raise ConfigError(
            "nothing was changed: nobody is at a terminal to confirm; give --yes once the fingerprints are compared"
        )
    if not typer.confirm(question, err=True):
        raise ConfigError("nothing was changed; ask the party for its request by a way you trust")


def _terminal() -> bool:
    return sys.stdin.isatty()


def _changed(folder: Path, agreement: Agreement, output: Output, *lines: str) -> None:
    from verfedgnn.federation import roster
    from verfedgnn.federation.agreement import FILE
    from verfedgnn.federation.certificates import short

    size = (
        f"{len(agreement.parties)} on the roster; fingerprint of the agreement: {short(agreement.digest())}"
    )
    output.result(roster.summary(agreement), *lines, size)
    output.remark(
        f"next: send {folder / FILE} to every party, compare the fingerprint with them, and start the coordinator anew if it runs"
    )
