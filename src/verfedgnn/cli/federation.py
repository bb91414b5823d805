"""`verfedgnn federation`: who belongs to a federation and what they agreed on, before anything is trained."""

from __future__ import annotations

import json
import sys
import tomllib
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from verfedgnn.cli.train import parse_gnn
from verfedgnn.config import Config, build_config, fields, parse_settings, presets, read_preset
from verfedgnn.errors import ConfigError
from verfedgnn.federation.agreement import FILE, Agreement, Member, build_agreement, load_agreement, save_agreement
from verfedgnn.federation.certificates import (
    COORDINATOR,
    CertificateError,
    Key,
    certificate_key,
    day,
    issue,
    key_fingerprint,
    key_pem,
    new_authority,
    new_key,
    read_key,
    read_request,
    request,
    short,
    write_secret,
)
from verfedgnn.runtime.checkpoint import write_bytes

AUTHORITY_KEY, AUTHORITY, COORDINATOR_KEY, PARTY_KEY = "authority.key", "authority.pem", "coordinator.key", "key.pem"
"""Files beside federation.toml: the first three at the coordinator, the last at a party."""

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
    name: Annotated[str | None, typer.Option(help="What the federation is called; unset: as the folder.")] = None,
    preset: Annotated[str, typer.Option(help=f"Where to start from: {', '.join(presets())}.")] = "paper",
    model: Annotated[str | None, typer.Option(help="gcn, gat, ggnn or a plug-in's.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="One setting, key=value; `verfedgnn train --help` lists them.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file of settings.")] = None,
    alignment: Annotated[str, typer.Option(help="How common users are found: keyed, ecdh or none.")] = "keyed",
    min_parties: Annotated[int, typer.Option(help="Parties a round needs; 0: more than half, at least two.")] = 0,
) -> None:
    """Begin a federation, at the coordinator: its authority, the coordinator's key, and federation.toml."""
    overrides: dict[str, Any] = parse_settings(set_ or [])
    if seed is not None:
        overrides["seed"] = seed
    built = build_config(preset=preset, model=parse_gnn(model), file=config, overrides=overrides)
    chosen, note = _masked(built, preset, config, overrides)
    called = name or folder.resolve().name
    try:
        authority_key, authority = new_authority(called)
    except CertificateError as error:
        raise ConfigError(f"{error}; name the federation with --name") from None
    key, coordinator = _coordinator(authority_key, authority)
    values = {"name": called, "address": address, "alignment": alignment, "min_parties": min_parties, "config": chosen}
    agreement = build_agreement(values | {"authority": authority, "coordinator": coordinator})
    _new_folder(folder)
    write_secret(folder / AUTHORITY_KEY, key_pem(authority_key))
    write_secret(folder / COORDINATOR_KEY, key_pem(key))
    _write(folder / AUTHORITY, authority)
    save_agreement(folder / FILE, agreement)
    typer.echo(f"federation {called} at {address}; masking is {'on' if chosen.masking else 'off'}{note}")
    typer.echo(f"{folder} holds the keys of the authority and the coordinator: keep it, and keep it secret")
    _next(
        "each party runs `verfedgnn federation join-request NAME` and sends you its .csr; "
        f"admit it with `verfedgnn federation approve {folder} NAME.csr`"
    )


@app.command("join-request")
def join_request(
    name: Annotated[str, typer.Argument(help="What the party is called.")],
    out: Annotated[Path | None, typer.Option(help="The folder to create; unset: NAME.")] = None,
) -> None:
    """Ask to join, at a party: make its key, which stays here, and a request to send to the coordinator."""
    if name.lower() == COORDINATOR:
        raise ConfigError(f"'{name}' is kept for the coordinator; choose another name")
    key = new_key()
    csr = request(key, name)
    folder = out or Path(name)
    _new_folder(folder)
    write_secret(folder / PARTY_KEY, key_pem(key))
    sent = folder / f"{name}.csr"
    _write(sent, csr)
    typer.echo(f"{folder / PARTY_KEY} is the private key of {name}: it never leaves this machine")
    typer.echo(f"fingerprint of its public key: {short(key_fingerprint(key))}")
    _next(
        f"send {sent} to whoever runs the coordinator, read the fingerprint out to them on the telephone, "
        f"and put the {FILE} they send back into {folder}"
    )


@app.command()
def approve(
    folder: Folder,
    requests: Annotated[list[Path], typer.Argument(help="The .csr files that parties sent.", metavar="REQUEST.csr")],
    replace: Annotated[bool, typer.Option("--replace", help="New certificates for parties that are members already.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask: the fingerprints have been compared.")] = False,
) -> None:
    """Admit parties, at the coordinator: sign their requests and put them on the roster."""
    agreement = load_agreement(folder, dates=False)
    authority_key = read_key(folder / AUTHORITY_KEY)
    members = {party.name: party for party in agreement.parties}
    signed: dict[str, Member] = {}
    lines = []
    for path in requests:
        csr = _read(path)
        try:
            asked = read_request(csr)
            member = Member(name=asked.name, certificate=issue(authority_key, agreement.authority, csr))
        except CertificateError as error:
            raise ConfigError(f"{path}: {error}") from None
        if asked.name in signed:
            raise ConfigError(f"{path}: there is another request for {asked.name}; give the one whose fingerprint you compared")
        if replace and asked.name not in members:
            raise ConfigError(f"{path}: {asked.name} is no member whose certificate could be replaced; leave out --replace")
        if asked.name in members and not replace:
            raise ConfigError(f"{path}: {asked.name} is a member already; give it a new certificate with --replace")
        signed[asked.name] = member
        lines.append(f"{asked.name}: fingerprint of its public key: {short(key_fingerprint(asked.key))}")
    changed = agreement.with_values(parties=list((members | signed).values()))
    typer.echo("\n".join(lines))
    if not yes:
        _confirm("Did each party read out just this fingerprint on the telephone?")
    save_agreement(folder / FILE, changed)
    _changed(folder, changed)


@app.command()
def revoke(folder: Folder, name: Annotated[str, typer.Argument(help="The party to take off the roster.")]) -> None:
    """Take a party off the roster, at the coordinator: its certificate is no longer accepted."""
    agreement = load_agreement(folder, dates=False)
    if agreement.member(name) is agreement.coordinator:
        raise ConfigError(
            f"'{COORDINATOR}' is the coordinator itself; give it a new key with `verfedgnn federation renew {folder}`"
        )
    changed = agreement.with_values(parties=[party for party in agreement.parties if party.name != name])
    save_agreement(folder / FILE, changed)
    typer.echo(f"{name} is no longer a member")
    _changed(folder, changed)


@app.command()
def renew(folder: Folder) -> None:
    """Give the coordinator a new key and certificate; repeated after an interruption, it completes the change."""
    agreement = load_agreement(folder, dates=False)
    key, coordinator = _coordinator(read_key(folder / AUTHORITY_KEY), agreement.authority)
    changed = agreement.with_values(coordinator=coordinator)
    part = folder / f".{COORDINATOR_KEY}.part"
    try:
        part.unlink(missing_ok=True)
        write_secret(part, key_pem(key))
        part.replace(folder / COORDINATOR_KEY)
    except OSError as error:
        raise ConfigError(
            f"cannot replace {folder / COORDINATOR_KEY}: {error.strerror or error}; mend it and run this again"
        ) from None
    save_agreement(folder / FILE, changed)
    typer.echo(f"the coordinator has a new key, with a certificate until {day(coordinator.expires)}")
    _changed(folder, changed)


@app.command()
def show(
    path: Annotated[Path, typer.Argument(help="federation.toml, or the folder that holds it.", metavar="FILE_OR_FOLDER")],
    as_json: Annotated[bool, typer.Option("--json", help="Print it on one line.")] = False,
) -> None:
    """Say what a federation agreed on and who belongs to it."""
    agreement = load_agreement(path, dates=False)
    if as_json:
        typer.echo(json.dumps(_summary(agreement)))
        return
    console = Console()
    console.print(_agreement_table(agreement))
    console.print(_member_table(agreement))
    _next(
        "compare the fingerprint of the agreement with the other organisations' on the telephone; it must be the same everywhere"
    )


def _masked(config: Config, preset: str, file: Path | None, overrides: dict[str, Any]) -> tuple[Config, str]:
    """Across organisations masking is on unless somebody decided about it; where it cannot be, say why."""
    decided = set(read_preset(preset)) | set(overrides) | set(tomllib.loads(file.read_text("utf-8")) if file else ())
    if "masking" in decided:
        return config, ""
    if config.gradients.mechanism not in ("ternary", "skellam"):
        return config, f": it needs ternary or Skellam gradients, and these are {config.gradients.mechanism}"
    return config.with_values({"masking": True}), ""


def _coordinator(authority_key: Key, authority: str) -> tuple[Key, Member]:
    key = new_key()
    return key, Member(name=COORDINATOR, certificate=issue(authority_key, authority, request(key, COORDINATOR), server=True))


def _new_folder(folder: Path) -> None:
    """An empty folder that only its owner may enter."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ConfigError(f"{folder} exists already and is left as it is; choose another folder")
        folder.chmod(0o700)
    except OSError as error:
        raise ConfigError(f"cannot create {folder}: {error.strerror or error}; choose another folder") from None


def _write(path: Path, text: str) -> None:
    try:
        write_bytes(path, text.encode())
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}; make room or choose another folder") from None


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8", "replace")
    except OSError as error:
        raise ConfigError(f"cannot read the request {path}: {error.strerror or error}") from None


def _confirm(question: str) -> None:
    if not _terminal():
        raise ConfigError(
            "nothing was changed: nobody is at a terminal to confirm; give --yes once the fingerprints are compared"
        )
    if not typer.confirm(question):
        raise ConfigError("nothing was changed; ask the party for its request by a way you trust")


def _terminal() -> bool:
    return sys.stdin.isatty()


def _changed(folder: Path, agreement: Agreement) -> None:
    typer.echo(f"{len(agreement.parties)} on the roster; fingerprint of the agreement: {short(agreement.digest())}")
    _next(f"send {folder / FILE} to every party, compare the fingerprint with them, and start the coordinator anew if it runs")


def _next(text: str) -> None:
    typer.echo(f"next: {text}")


def _differing(config: Config) -> dict[str, Any]:
    """The settings that are not as in the preset this configuration started from, by path."""
    base = build_config(preset=config.base) if config.base in presets() else Config(base=config.base)
    trees = config.model_dump(mode="json"), base.model_dump(mode="json")
    pairs = {path: [reduce(lambda tree, key: tree[key], path.split("."), tree) for tree in trees] for path in fields()}
    return {path: own for path, (own, preset) in pairs.items() if own != preset}


def _summary(agreement: Agreement) -> dict[str, Any]:
    members = (agreement.coordinator, *agreement.parties)
    return {
        "name": agreement.name,
        "address": agreement.address,
        "alignment": agreement.alignment,
        "quorum": agreement.quorum,
        "configuration": agreement.config.fingerprint(),
        "fingerprint": agreement.fingerprint(),
        "digest": agreement.digest(),
        "preset": agreement.config.base,
        "settings": _differing(agreement.config),
        "members": [
            {
                "name": m.name,
                "certificate": m.fingerprint,
                "key": certificate_key(m.certificate),
                "expires": m.expires.isoformat(),
            }
            for m in members
        ],
    }


def _agreement_table(agreement: Agreement) -> Table:
    table = Table(title=f"Federation {escape(agreement.name)}", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column()
    table.add_row("address", escape(agreement.address))
    table.add_row("alignment", agreement.alignment)
    table.add_row("quorum", f"{agreement.quorum} of {len(agreement.parties)}")
    table.add_row("configuration", agreement.config.fingerprint())
    table.add_row("agreement", short(agreement.digest()))
    differing = _differing(agreement.config)
    settings = "".join(f"\n{path} = {'unset' if value is None else json.dumps(value)}" for path, value in differing.items())
    table.add_row("settings", escape(f"preset {agreement.config.base}{', but' if differing else ''}{settings}"))
    return table


def _member_table(agreement: Agreement) -> Table:
    table = Table(title="Members", title_justify="left")
    table.add_column("name", overflow="fold")
    table.add_column("fingerprint of the certificate", no_wrap=True)
    table.add_column("valid until", no_wrap=True)
    for member in (agreement.coordinator, *agreement.parties):
        expired = member.expires <= datetime.now(UTC)
        until = day(member.expires) + (" (expired)" if expired else "")
        table.add_row(member.name, short(member.fingerprint), until, style="red" if expired else "")
    return table
