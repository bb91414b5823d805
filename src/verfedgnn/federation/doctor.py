"""Checks of one party before the day of a training: agreement, certificates, connection, clock, software, disk and data.

Nothing leaves the party but a request to the coordinator.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from verfedgnn.core.errors import ConfigError, VerFedGNNError
from verfedgnn.core.installed import installed_version
from verfedgnn.data import PartyData, Ratings
from verfedgnn.data.ids import suspect_spelling
from verfedgnn.data.rating_reader import spell_users
from verfedgnn.data.ratings import format_count
from verfedgnn.federation.party_service import check_kind
from verfedgnn.federation.roster import MemberIdentity, ask_coordinator
from verfedgnn.federation.transport import ABOUT
from verfedgnn.gnn.model import Model
from verfedgnn.runs.forget_record import gather_forgotten

EXPIRY_DAYS = 30
"""Number of days before the end of a certificate at which it is worth a warning."""
MOST_SKEW = 60.0
"""Difference of two clocks, in seconds, that is worth a warning."""
_BASE_BYTES = 470_000_000
"""Memory of a party without data (results/scale.md). The others are those of a rating and of a public parameter."""
_FIRST_MODEL = (84, 128)
_SECOND_MODEL = (231, 48)
_KEPT_BYTES = 4

Outcome = Literal["ok", "warning", "failed"]


class Finding(NamedTuple):
    """The outcome of one check, in words."""

    check: str
    outcome: Outcome
    text: str


def examine(
    identity: MemberIdentity, folder: Path, read_ratings: Callable[[], Ratings] | None
) -> list[Finding]:
    """Return the findings of all checks of a party with that run folder; `read_ratings` reads its ratings, to check them."""
    findings = [*_check_certificates(identity), *_check_connection(identity), _check_software(identity)]
    users = ratings = 0
    if read_ratings is not None:
        try:
            table = spell_users(read_ratings(), identity.agreement.ids)
            forgotten = gather_forgotten(identity.key_file, folder)
            (party,), _, gone = forgotten.leave_out([PartyData(identity.name, table)])
            table = party.ratings
            if gone:
                count = format_count(gone, "forgotten user")
                text = f"`party` leaves out {count}; remove them from your own data, too"
                findings.append(Finding("data", "warning", text))
            users, ratings = table.n_users, len(table)
            what = "likes" if table.likes == ratings else "ratings"
            text = f"{ratings:,} {what} by {users:,} users on {table.n_items:,} items"
            findings.append(Finding("data", "ok", text))
            ids, digits = table.user_ids, np.strings.replace(table.user_ids, ".", "")
            # others such as u0001 are a scheme of their own, which nobody writes in another way
            ids = ids[np.strings.isdecimal(digits) | (np.strings.find(ids, "@") > 0)]
            if not identity.agreement.ids and (doubt := suspect_spelling(ids)):
                findings.append(Finding("ids", "warning", doubt))
            if users < (least := identity.agreement.min_users):
                findings.append(Finding("overlap", "warning", f"fewer users than min_users = {least:,}"))
            check_kind(table, identity.agreement.sized_config)
        except VerFedGNNError as error:
            findings.append(Finding("data", "failed", str(error)))
    return [*findings, *_check_resources(identity, folder, users, ratings)]


def summarise_findings(findings: list[Finding]) -> dict[str, Any]:
    """Return the findings as JSON values."""
    ready = all(finding.outcome != "failed" for finding in findings)
    return {"ready": ready, "checks": [finding._asdict() for finding in findings]}


def _check_certificates(identity: MemberIdentity) -> Iterator[Finding]:
    agreement = identity.agreement
    yield Finding("agreement", "ok", f"{len(agreement.parties)} parties, a round needs {agreement.quorum}")
    now = datetime.now(UTC)
    for member in agreement.members:
        if (member.parsed.end - now).days < EXPIRY_DAYS:
            text = f"that of {member.name} expires on {member.parsed.end.date()}"
            yield Finding("certificates", "warning", text)
    yield Finding("certificates", "ok", f"yours expires on {identity.member.parsed.end.date()}")


def _check_connection(identity: MemberIdentity) -> Iterator[Finding]:
    """Connect to the coordinator, compare its certificate, and compare the clocks."""
    sent = time.time()
    try:
        about = json.loads(ask_coordinator(identity, ABOUT, identity.agreement.digest()))
    except ConfigError as error:
        yield Finding("connection", "failed", str(error))
        return
    received = time.time()
    text = f"{identity.agreement.address} answers after {1000 * (received - sent):,.0f} ms"
    yield Finding("connection", "ok", text)
    if about["agreement"] != identity.agreement.digest():
        text = "the coordinator offers another one; look at it with `verfedgnn federation accept FOLDER`"
        yield Finding("agreement", "warning", text)
    skew = float(about["time"]) - (sent + received) / 2
    text = f"{abs(skew):,.1f} s {'behind' if skew > 0 else 'ahead of'} the coordinator's"
    yield Finding("clock", "warning" if abs(skew) > MOST_SKEW else "ok", text)
    here, there = installed_version(), about["version"]
    text = f"verfedgnn {here} here, {there} there"
    yield Finding("versions", "ok" if there == here else "warning", text)


def _check_software(identity: MemberIdentity) -> Finding:
    needed = {"verfedgnn": ".", "torch": ".", "websockets": ".[federation]"}
    if identity.agreement.alignment == "ecdh":
        needed["openmined-psi"] = ".[psi]"
    versions = []
    for name, extra in needed.items():
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            text = f"{name} is missing; run in a checkout: pip install '{extra}'"
            return Finding("software", "failed", text)
    return Finding("software", "ok", ", ".join(versions))


def _check_resources(identity: MemberIdentity, folder: Path, users: int, ratings: int) -> Iterator[Finding]:
    """Compare the disk and the memory with what this many users need."""
    model = identity.agreement.sized_config.model
    values = Model(model, max(1, users)).size
    place = next(parent for parent in (folder.resolve(), *folder.resolve().parents) if parent.exists())
    needed = 160 * values + 100 * ratings  # two checkpoints beside each other, models, and the stored data
    free = shutil.disk_usage(place).free
    text = f"{free / 1e9:,.1f} GB free, at least {needed / 1e9:,.2f} GB needed"
    yield Finding("disk", "failed" if free < needed else "ok", text)
    second = users * (3 * model.raters + 1) if model.raters else 0
    rating = (_SECOND_MODEL if second else _FIRST_MODEL)[0]
    memory = _BASE_BYTES + rating * ratings + _KEPT_BYTES * values
    memory += _FIRST_MODEL[1] * (values - second) + _SECOND_MODEL[1] * second
    here = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    text = f"about {memory / 1e9:,.1f} GB needed if all users are yours, {here / 1e9:,.1f} GB in this machine"
    remedy = "" if memory <= here else "; use a machine with more memory (docs/scale.md)"
    yield Finding("memory", "warning" if remedy else "ok", text + remedy)
