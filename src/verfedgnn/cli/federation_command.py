"""`verfedgnn federation`: set up the members and the agreement of a federation before training."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.table import Table
from rich.text import Text

from verfedgnn.cli.command_app import CommandApp
from verfedgnn.cli.next_step import command_text, show_next
from verfedgnn.cli.output import STANDARD, Output
from verfedgnn.cli.shared_options import Count, FederationFile, Folder, Settings
from verfedgnn.cli.tables import make_table
from verfedgnn.core.errors import ConfigError
from verfedgnn.reports.console import error_console

app = CommandApp(
    name="federation",
    help="Set up a federation across organisations: its members, their certificates and their agreement.",
)


@app.command()
def init(
    folder: Path,
    address: Annotated[str, typer.Option(metavar="HOST:PORT")],
    name: str | None = None,
    preset: str | None = None,
    model: str | None = None,
    seed: int | None = None,
    set_: Settings = None,
    config: Path | None = None,
    alignment: Literal["keyed", "ecdh", "none"] = "keyed",
    ids: str = "",
    min_parties: int = 0,
    ratings_per_user: Count = 30,
    output: Output = STANDARD,
) -> None:
    """Create a federation, at the coordinator: its authority, the coordinator's key and federation.toml.

    Args:
        folder: The folder to create. It stays with the coordinator.
        address: Address at which parties reach the coordinator.
        name: Name of the federation. Default: the name of the folder.
        alignment: How users are aligned: keyed, ecdh or none.
        ids: How all spell user ids: number (0016 and 16.0 become 16), lower, mail, or lower+number.
        min_parties: Number of parties a round needs; 0 means more than half, or as many as the exchange needs.
        ratings_per_user: Ratings a user that you expect of all parties together. From 40 on, three or more parties
            train a second model, and messages are ten times as long.
    Training:
        seed: Seed of all random numbers.
        config: A TOML file of settings.
    """
    from verfedgnn.config import parse_settings
    from verfedgnn.federation import roster
    from verfedgnn.federation.agreement import summarise_agreement

    overrides: dict[str, Any] = parse_settings(set_ or []) | ({} if seed is None else {"seed": seed})
    agreement = roster.create_federation(
        folder,
        preset=preset or "best",
        model=model,
        config_file=config,
        overrides=overrides,
        name=name or folder.resolve().name,
        address=address,
        alignment=alignment,
        ids=ids,
        min_parties=min_parties,
        ratings_per_user=ratings_per_user,
    )
    chosen = agreement.config
    masking = "on" if chosen.masking else f"off, for {chosen.gradients.mechanism} gradients"
    created = f"federation {agreement.name} at {address}; masking is {masking}"
    output.result(summarise_agreement(agreement), created)
    approval = command_text(["federation", "approve", str(folder), "NAME.csr"])
    sentences = [
        f"{folder} holds the keys of the authority and the coordinator: back it up and keep it secret.",
        f"Each party sends you a .csr file; admit it with `{approval}`.",
    ]
    show_next(output, sentences, ["federation", "join-request", "NAME"], "at each party")


@app.command("join-request")
def join_request(name: str, out: Folder = None, output: Output = STANDARD) -> None:
    """Request to join, at a party: create a key, which stays here, and a request to send to the coordinator.

    Args:
        name: Name of the party.
        out: The folder to create. Default: NAME.
    """
    from verfedgnn.federation import roster

    folder = out or Path(name)
    key, request, fingerprint = roster.request_membership(name, folder)
    output.result(
        {"name": name, "key": key, "request": request, "fingerprint": fingerprint},
        f"{key} is the private key of {name}; it must not leave this machine",
        f"fingerprint of its public key: {fingerprint}",
    )
    sentences = [
        f"Send {request} to the coordinator and read out the fingerprint by phone.",
        f"Put the federation.toml that you receive into {folder}.",
    ]
    command = ["party", "--federation", str(folder), "--ratings", "FILE"]
    show_next(output, sentences, command, "once it is there")


@app.command()
def approve(
    folder: Path,
    requests: Annotated[list[Path] | None, typer.Argument(metavar="REQUEST.csr")] = None,
    replace: bool = False,
    remove: str | None = None,
    renew: bool = False,
    yes: bool = False,
    output: Output = STANDARD,
) -> None:
    """Change the members, at the coordinator: admit parties by their requests, remove some, or renew the coordinator's own key.

    If it is interrupted, run it again.

    Args:
        folder: The coordinator's folder, created by `init`.
        requests: The .csr files that parties sent.
        replace: Renew the certificates of parties that are already members.
        remove: Remove this party; its certificate is no longer accepted.
        renew: Create a new key and certificate for the coordinator itself.
        yes: Skip the prompt; the fingerprints have been compared.
    """
    from verfedgnn.federation import roster
    from verfedgnn.federation.agreement import FILE, summarise_agreement
    from verfedgnn.federation.certificates import short_fingerprint

    if [bool(requests), bool(remove), renew].count(True) != 1:
        raise ConfigError("give the requests of parties, --remove NAME or --renew, one at a time")
    lines: list[str] = []

    def confirm(fingerprints: dict[str, str]) -> None:
        for name, text in fingerprints.items():
            lines.append(f"{name}: fingerprint of its public key: {text}")
        if not yes:
            typer.echo("\n".join(lines), err=True)
            _confirm("Did each party read out this fingerprint by phone?")

    if requests:
        changed = roster.admit_parties(folder, requests, replace=replace, confirm=confirm)
    elif renew:
        changed = roster.renew_coordinator(folder)
        until = changed.coordinator.parsed.end.date()
        lines.append(f"the coordinator has a new key; its certificate expires on {until}")
    else:
        changed = roster.remove_party(folder, str(remove))
        lines.append(f"{remove} is no longer a member")
    about = summarise_agreement(changed)
    members = len(changed.parties)
    fingerprint = short_fingerprint(about["digest"])
    size = f"{members} parties on the roster; fingerprint of the agreement: {fingerprint}"
    output.result(about, *lines, size, f"a round needs {changed.quorum} of {members} parties")
    if changed.problem is not None:
        output.remark(f"decide first: {changed.problem}", style="bold")
    compare = f"Send {folder / FILE} to every party and compare the fingerprint with them"
    sentences = [f"{compare}; restart the coordinator if it is running."]
    if members < 2:
        sentences.append("A training needs two parties or more.")
        show_next(output, sentences, ["federation", "approve", str(folder), "NAME.csr"])
    else:
        sentences += [about["two_parties"]] if about["two_parties"] else []
        show_next(output, sentences, ["coordinator", str(folder)])


@app.command()
def accept(folder: Path, yes: bool = False, output: Output = STANDARD) -> None:
    """Accept a changed agreement, at a party: fetch it from the running coordinator, show what it changes, and store it.

    Args:
        folder: Your folder, with federation.toml and key.pem.
        yes: Skip the prompt; the fingerprint has been compared.
    """
    from verfedgnn.federation import roster
    from verfedgnn.federation.agreement import FILE, compare_agreements, summarise_agreement
    from verfedgnn.federation.certificates import short_fingerprint

    identity = roster.load_party(folder)
    data, offered = roster.fetch_agreement(identity)
    changes = compare_agreements(identity.agreement, offered)
    fingerprint = short_fingerprint(offered.digest())
    if changes and not yes:
        same = " (as before: it covers neither address nor timeouts)" * (
            offered.digest() == identity.agreement.digest()
        )
        shown = "\n".join([*changes, f"fingerprint of the agreement: {fingerprint}{same}"])
        error_console().print(shown, markup=False, soft_wrap=True)
        _confirm("Did the other organisations read out the same fingerprint by phone?")
    roster.accept_agreement(identity, folder / FILE, data, offered)
    about = summarise_agreement(offered) | {"changes": changes}
    output.result(about, *(changes or ["the coordinator offers the agreement that you have"]))
    sentence = (
        "The next training runs under it, once all have accepted and the coordinator was started again."
    )
    party = ["party", "--federation", str(folder), "--ratings", "FILE", "--out", "NEW_RUN"]
    show_next(output, [sentence] if changes else [], party)


@app.command()
def show(
    path: Annotated[Path, typer.Argument(metavar="FILE_OR_FOLDER")],
    assessment: Path | None = None,
    output: Output = STANDARD,
) -> None:
    """Show the agreement and the members of a federation.

    Args:
        path: federation.toml, or the folder that holds it.
        assessment: Write one page for a security or data-protection officer, in Markdown.
    """
    from verfedgnn.federation import COORDINATOR_KEY
    from verfedgnn.federation.agreement import load_agreement, summarise_agreement
    from verfedgnn.federation.certificates import short_fingerprint, write_file

    agreement = load_agreement(path, dates=False)
    if assessment is not None:
        from verfedgnn.federation.assessment import assess

        write_file(assessment, assess(agreement).encode())
    about = summarise_agreement(agreement)
    settings = [f"preset {about['preset']}{', with' if about['settings'] else ''}"]
    for name, value in about["settings"].items():
        settings.append(f"{name} = {'unset' if value is None else json.dumps(value)}")
    facts = Table(show_header=False, title=Text(f"Federation {agreement.name}"), title_justify="left")
    for label, text in {
        "address": agreement.address,
        "alignment": agreement.alignment + (f", ids spelled as {agreement.ids}" if agreement.ids else ""),
        "quorum": f"{agreement.quorum} of {len(agreement.parties)}",
        "configuration": about["configuration"],
        "agreement": short_fingerprint(about["digest"]),
        "trainings": ", then ".join(about["trainings"]),
        "settings": "\n".join(settings),
        "two parties": about["two_parties"],
    }.items():
        if text is not None:
            facts.add_row(Text(label, "bold"), Text(text))
    members = make_table(["name", "fingerprint of the certificate", "expires"], [], "Members")
    for member in agreement.members:
        expired = member.parsed.end <= datetime.now(UTC)
        until = f"{member.parsed.end.date()}{' (expired)' * expired}"
        cells = member.name, short_fingerprint(member.parsed.fingerprint), until
        members.add_row(*cells, style="red" if expired else "")
    output.result(about, facts, members)
    folder = path if path.is_dir() else path.parent
    sentence = "Compare the fingerprint of the agreement by phone; it must be the same at all organisations."
    party = ["party", "--federation", str(folder), "--ratings", "FILE"]
    coordinates = (folder / COORDINATOR_KEY).is_file()
    show_next(output, [sentence], ["coordinator", str(folder)] if coordinates else party)


@app.command()
def verify(
    transcripts: Annotated[list[Path], typer.Argument(metavar="TRANSCRIPT...")],
    federation: FederationFile,
    output: Output = STANDARD,
) -> None:
    """Check transcripts of members: each is unchanged and signed, and all parties received the same.

    Exits with code 1 if a transcript was changed or two of them differ, and shows the first difference.

    Args:
        transcripts: Transcripts of members, or the run folders that hold them.
    """
    from verfedgnn.federation.agreement import load_agreement
    from verfedgnn.federation.transcript import check_transcript, compare_transcripts, summarise_comparison

    agreement = load_agreement(federation, dates=False)
    checked = [check_transcript(path, agreement) for path in transcripts]
    summary = summarise_comparison(checked, compare_transcripts(checked, agreement))
    header = ["member", "entries", "signed", "last round", "restarts", "finished", "chain and signatures"]
    table = make_table(header, [], "Transcripts")
    for one in summary["transcripts"]:
        numbers = (f"{one[name]:,}" for name in ("entries", "signed", "rounds", "restarts"))
        problem = Text(one["problem"] or "unchanged", "red" if one["problem"] else "")
        table.add_row(one["member"], *numbers, "yes" if one["finished"] else "no", problem)
    output.result(summary, table, summary["verdict"])
    for remark in summary["remarks"]:
        output.remark(remark)
    if not summary["agree"]:
        raise typer.Exit(1)
    show_next(output, [], ["federation", "show", str(federation)])


def _confirm(question: str) -> None:
    if not _has_terminal():
        problem = "aborted, nothing changed: there is no terminal to confirm at"
        raise ConfigError(f"{problem}; compare the fingerprints, then pass --yes")
    if not typer.confirm(question, err=True):
        raise ConfigError("aborted, nothing changed; ask the party for its request over a channel you trust")


def _has_terminal() -> bool:
    return sys.stdin.isatty()
