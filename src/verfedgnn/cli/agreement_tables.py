"""Show the agreement of a federation and its members as tables."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from rich.markup import escape
from rich.table import Table

from verfedgnn.federation.agreement import Agreement
from verfedgnn.federation.certificates import day, short
from verfedgnn.federation.roster import changed_settings


def agreement_table(agreement: Agreement) -> Table:
    """What was agreed on, for people."""
    table = Table(title=f"Federation {escape(agreement.name)}", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column()
    table.add_row("address", escape(agreement.address))
    table.add_row("alignment", agreement.alignment)
    table.add_row("quorum", f"{agreement.quorum} of {len(agreement.parties)}")
    table.add_row("configuration", agreement.config.fingerprint())
    table.add_row("agreement", short(agreement.digest()))
    differing = changed_settings(agreement.config)
    settings = "".join(
        f"\n{path} = {'unset' if value is None else json.dumps(value)}" for path, value in differing.items()
    )
    table.add_row(
        "settings", escape(f"preset {agreement.config.base}{', but' if differing else ''}{settings}")
    )
    return table


def member_table(agreement: Agreement) -> Table:
    """Who belongs to it, for people."""
    table = Table(title="Members", title_justify="left")
    table.add_column("name", overflow="fold")
    table.add_column("fingerprint of the certificate", no_wrap=True)
    table.add_column("valid until", no_wrap=True)
    for member in (agreement.coordinator, *agreement.parties):
        expired = member.expires <= datetime.now(UTC)
        until = day(member.expires) + (" (expired)" if expired else "")
        table.add_row(member.name, short(member.fingerprint), until, style="red" if expired else "")
    return table
