"""Tables of a federation's agreement, members and transcripts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from verfedgnn.federation.agreement import Agreement, changed_settings, describe_two_parties, list_stages
from verfedgnn.federation.certificates import format_day, short_fingerprint

if TYPE_CHECKING:  # it loads NumPy, which a table of the agreement does not need
    from verfedgnn.federation.transcript_check import CheckedTranscript


def agreement_table(agreement: Agreement) -> Table:
    """Return a table of the agreement."""
    table = Table(title=f"Federation {escape(agreement.name)}", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column()
    table.add_row("address", escape(agreement.address))
    table.add_row("alignment", agreement.alignment)
    table.add_row("quorum", f"{agreement.quorum} of {len(agreement.parties)}")
    table.add_row("configuration", agreement.config.fingerprint())
    table.add_row("agreement", short_fingerprint(agreement.digest()))
    table.add_row("trainings", ", then ".join(stage.name for stage in list_stages(agreement)))
    differing = changed_settings(agreement.config)
    settings = "".join(
        f"\n{path} = {'unset' if value is None else json.dumps(value)}" for path, value in differing.items()
    )
    table.add_row(
        "settings", escape(f"preset {agreement.config.base}{', with' if differing else ''}{settings}")
    )
    limits = describe_two_parties(agreement)
    if limits is not None:
        table.add_row("two parties", limits)
    return table


def member_table(agreement: Agreement) -> Table:
    """Return a table of the members and their certificates."""
    table = Table(title="Members", title_justify="left")
    table.add_column("name", overflow="fold")
    table.add_column("fingerprint of the certificate", no_wrap=True)
    table.add_column("expires", no_wrap=True)
    for member in (agreement.coordinator, *agreement.parties):
        expired = member.expires <= datetime.now(UTC)
        until = format_day(member.expires) + (" (expired)" if expired else "")
        table.add_row(
            member.name, short_fingerprint(member.fingerprint), until, style="red" if expired else ""
        )
    return table


def transcript_table(transcripts: Sequence[CheckedTranscript]) -> Table:
    """Return a table of checked transcripts."""
    table = Table(title="Transcripts", title_justify="left")
    table.add_column("member", overflow="fold")
    for heading in ("entries", "signed", "last round", "restarts"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("finished")
    table.add_column("chain and signatures", overflow="fold")
    for one in transcripts:
        numbers = (len(one.entries), one.signed, one.rounds, one.restarts)
        table.add_row(
            one.name,
            *(f"{number:,}" for number in numbers),
            "yes" if one.is_finished else "no",
            one.problem or "unchanged",
            style="red" if one.problem else "",
        )
    return table
