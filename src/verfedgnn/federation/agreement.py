"""What all sides of a federation agree on: one file, `federation.toml`, the same everywhere and without a secret in it."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
import tomllib
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import AfterValidator, Field, ValidationError, ValidationInfo, field_validator, model_validator

from verfedgnn.config import Config, explain_invalid
from verfedgnn.config.sections import Section
from verfedgnn.core.errors import ConfigError
from verfedgnn.core.files import write_bytes
from verfedgnn.federation import certificates
from verfedgnn.federation.certificates import COORDINATOR, check_name, day

FILE = "federation.toml"

Alignment = Literal["keyed", "ecdh", "none"]
Name = Annotated[str, AfterValidator(check_name)]

_HOST = re.compile(
    r"(?!.{254})[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*"
)
_HEADER = """\
# What the organisations of this federation agree on: who takes part, by which certificate each is known, and how they train.
# Every side holds the same file. There is no secret in it, so it may be sent by mail; whoever receives it compares the
# fingerprint that `verfedgnn federation show` prints with the sender's, on the telephone.

"""


class Timeouts(Section):
    """How long the sides wait for each other, in seconds."""

    reply: float = Field(120, gt=0)
    """Time a party has for one trip of a round before the others go on without it."""
    hello: float = Field(5, gt=0)
    """Time between two attempts of a party to join."""
    idle: float = Field(300, gt=0)
    """Silence from the coordinator after which a party joins again."""
    link: float = Field(20, gt=0)
    """Time without acknowledgement from the network after which a connection counts as cut."""
    finish: float = Field(60, gt=0)
    """Time the coordinator waits at the end for parties that were away, so that they get the result."""


class Member(Section):
    """A party or the coordinator, known by its certificate."""

    name: Name
    """What the member is called, in its certificate too."""
    certificate: str
    """Its certificate in PEM; whoever holds the key of another one is somebody else."""

    @field_validator("certificate")
    @classmethod
    def _own(cls, pem: str, info: ValidationInfo) -> str:
        name = info.data.get("name")
        if name is None:  # its own error comes first
            return pem
        found = certificates.certificate_name(pem, name)
        if found != name:
            raise ValueError(
                f"the certificate of {name} is for {found[:80]!a}; each member needs the certificate of its own name"
            )
        return certificates.plain_pem(pem, name)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the certificate, 64 hex digits."""
        return certificates.fingerprint(self.certificate)

    @property
    def expires(self) -> datetime:
        """Until when the certificate is valid."""
        return certificates.read_certificate(self.certificate, self.name).not_valid_after_utc


class Agreement(Section):
    """Everything the sides must hold in common before the first message. Certificates are signed by `authority`, and pinned."""

    name: Name
    """What the federation is called."""
    address: str
    """host:port at which the coordinator is reached; an IPv6 host stands in brackets."""
    alignment: Alignment = "keyed"
    """How common users are found: keyed (pseudonyms, one common key), ecdh (set intersection without one) or none (as given)."""
    min_parties: int = Field(0, ge=0)
    """Parties a round needs; 0: more than half of them, and at least two."""
    max_message: int = Field(1 << 30, ge=1)
    """Bytes a message may have."""
    timeouts: Timeouts = Timeouts()
    """How long the sides wait for each other."""
    authority: str
    """The certificate, in PEM, of the authority that signs the others."""
    config: Config
    """How they train."""
    coordinator: Member
    """Who the parties connect to; its name is 'server'."""
    parties: tuple[Member, ...] = ()
    """Who takes part. Their order fixes the order in which numbers are added."""

    @field_validator("address")
    @classmethod
    def _reachable(cls, address: str) -> str:
        _endpoint(address)
        return address

    @field_validator("authority")
    @classmethod
    def _plain(cls, pem: str) -> str:
        return certificates.plain_pem(pem, "the authority")

    @model_validator(mode="after")
    def _consistent(self) -> Agreement:
        if self.coordinator.name != COORDINATOR:
            raise ValueError(f"the coordinator must be named '{COORDINATOR}', not '{self.coordinator.name}'")
        seen: dict[str, str] = {}
        keys: dict[str, str] = {}
        for member in (self.coordinator, *self.parties):
            if member.name.lower() in seen:
                other = seen[member.name.lower()]
                why = (
                    "that name is kept for the coordinator"
                    if other == COORDINATOR
                    else f"there is '{other}' already"
                )
                raise ValueError(
                    f"no party can be named '{member.name}': {why}; each needs a name of its own"
                )
            if not certificates.issued_by(member.certificate, self.authority):
                raise ValueError(
                    f"the certificate of {member.name} is not signed by this federation's authority; "
                    "get federation.toml anew from the coordinator"
                )
            key = certificates.certificate_key(member.certificate)
            if key in keys:
                raise ValueError(f"{keys[key]} and {member.name} have the same key; each must make its own")
            seen[member.name.lower()], keys[key] = member.name, member.name
        return self

    @property
    def host(self) -> str:
        """The coordinator's host, without brackets."""
        return _endpoint(self.address)[0]

    @property
    def port(self) -> int:
        """The coordinator's port."""
        return _endpoint(self.address)[1]

    @property
    def quorum(self) -> int:
        """Parties a round needs, never more than there are."""
        count = len(self.parties)
        return min(count, self.min_parties or max(2, count // 2 + 1))

    def digest(self) -> str:
        """SHA-256 over what decides who computes what with whom: 64 hex digits, to be compared between organisations."""
        roster = [(party.name, party.fingerprint) for party in self.parties]
        parts = (
            self.name,
            self.alignment,
            self.quorum,
            self.config.fingerprint(),
            roster,
            self.coordinator.fingerprint,
        )
        return hashlib.sha256(json.dumps(parts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    def fingerprint(self) -> str:
        """The first sixteen digits of `digest`, enough to notice that two sides hold different files by mistake."""
        return self.digest()[:16]

    def member(self, name: str) -> Member:
        """The party or coordinator of that name."""
        for member in (self.coordinator, *self.parties):
            if member.name == name:
                return member
        names = ", ".join(party.name for party in self.parties) or "none yet"
        raise ConfigError(f"there is no party {name[:80]!a} in federation {self.name}; there are: {names}")

    def check_dates(self) -> None:
        """Refuse certificates that are no longer valid, or not yet."""
        authority = certificates.read_certificate(self.authority, "the authority")
        remedies = {"the authority": "begin a new federation with `verfedgnn federation init`"}
        remedies[COORDINATOR] = "make a new one with `verfedgnn federation renew`"
        dated = [("the authority", authority)]
        for member in (self.coordinator, *self.parties):
            dated.append((member.name, certificates.read_certificate(member.certificate, member.name)))
        now = datetime.now(UTC)
        for name, certificate in dated:
            if certificate.not_valid_after_utc <= now:
                remedy = remedies.get(
                    name, f"approve {name}'s request again with `verfedgnn federation approve --replace`"
                )
                raise ConfigError(
                    f"the certificate of {name} was valid until {day(certificate.not_valid_after_utc)}; {remedy}"
                )
            if certificate.not_valid_before_utc > now:
                start = day(certificate.not_valid_before_utc)
                raise ConfigError(
                    f"the certificate of {name} is valid only from {start} on; set this machine's clock right"
                )

    def with_values(self, **changes: Any) -> Agreement:
        """A copy with other values of fields, checked like the original."""
        return build_agreement({name: getattr(self, name) for name in type(self).model_fields} | changes)


def build_agreement(values: Mapping[str, Any]) -> Agreement:
    """An agreement from its fields, or one line that says what is wrong with them."""
    try:
        return Agreement.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "value_error":  # our own words, which name the place themselves
            raise ConfigError(first["msg"].removeprefix("Value error, ")) from None
        raise ConfigError(explain_invalid(error)) from None


def load_agreement(path: Path, *, dates: bool = True) -> Agreement:
    """The agreement in a file, or in the folder that holds it; expired certificates pass only without `dates`."""
    file = path / FILE if path.is_dir() else path
    try:
        tree = tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(
            f"cannot read the agreement {file}: {reason}; give the {FILE} the coordinator sent, or its folder"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not valid TOML: {error}; get it anew from the coordinator") from None
    try:
        agreement = build_agreement(tree)
        if dates:
            agreement.check_dates()
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from None
    return agreement


def save_agreement(path: Path, agreement: Agreement) -> None:
    """Write the agreement as a file that is whole or as it was before."""
    tree = agreement.model_dump(mode="json")
    tree["config"] = tomllib.loads(agreement.config.to_toml())  # with its word for null, which TOML lacks
    try:
        write_bytes(path, (_HEADER + tomli_w.dumps(tree, multiline_strings=True)).encode())
    except OSError as error:
        raise ConfigError(
            f"cannot write {path}: {error.strerror or error}; make room or choose another folder"
        ) from None


def _endpoint(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    literal = host.startswith("[") and host.endswith("]")
    fits = _ipv6(host[1:-1]) if literal else _HOST.fullmatch(host) is not None
    if not fits or not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 1 << 16:
        raise ValueError(
            f"address {address[:80]!a} is not host:port; for example train.example.org:7443 or [2001:db8::1]:7443"
        )
    return (host[1:-1] if literal else host), int(port)


def _ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True
