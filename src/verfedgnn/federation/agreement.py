"""The agreement of a federation: one file, `federation.toml`, the same for all members and without a secret in it.

It names the members with their certificates, the rules, and the configuration. The trainings follow from it: one of ratings and,
if the configuration asks for it, one of lists after it.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tomli_w
from pydantic import AfterValidator, Field, ValidationError, ValidationInfo, field_validator, model_validator

from verfedgnn.config import Config, build_config, presets
from verfedgnn.config.rules import active_count, fewest_parties_in_sum, too_few
from verfedgnn.config.sections import Section
from verfedgnn.config.tree import explain_invalid
from verfedgnn.core.connection_table import is_address
from verfedgnn.core.errors import ConfigError
from verfedgnn.federation.certificates import COORDINATOR, Certificate, check_name, write_file
from verfedgnn.runs.run_folder import FINAL, LISTS

if TYPE_CHECKING:
    from verfedgnn.protocol.user_alignment import AlignmentRules

FILE = "federation.toml"
BEFORE = ".before"
"""Suffix of the file with the agreement before the present one."""
MARK = "federation.txt"
"""File in a run folder that names its agreement and, at a party, its alignment."""

Alignment = Literal["keyed", "ecdh", "none"]
Name = Annotated[str, AfterValidator(check_name)]

_HOST = re.compile(r"(?!.{254})(\w([\w-]*\w)?\.)*\w([\w-]*\w)?", re.ASCII)
_HEADER = """\
# The agreement of this federation: its members, their certificates, and the settings of the training.
# All members hold the same file. It contains no secret, so it can be sent by mail. On receipt, compare the fingerprint
# that `verfedgnn federation show` prints with the sender's by phone.

"""


class Timeouts(Section):
    """Waiting times of the members, in seconds."""

    reply: float = Field(120, gt=0)
    """Time a party has to answer one step of a round before the others continue without it."""
    hello: float = Field(5, gt=0)
    """Time between two attempts of a party to join."""
    idle: float = Field(300, gt=0)
    """Time without a message from the coordinator after which a party joins again."""
    link: float = Field(20, gt=0)
    """Time without an acknowledgement from the network after which a connection counts as lost."""
    finish: float = Field(60, gt=0)
    """Time the coordinator waits after training for absent parties to fetch the result."""
    absent: float = Field(0, ge=0)
    """Time a training waits for parties without which no round can start, before it ends with its best model; 0 waits on."""


class Member(Section):
    """A party or the coordinator, identified by its certificate."""

    name: Name
    """Name of the member, also in its certificate."""
    certificate: str
    """Certificate of the member in PEM; only the holder of its key is accepted as this member."""

    @field_validator("certificate")
    @classmethod
    def _check_certificate(cls, pem: str, info: ValidationInfo) -> str:
        if "name" not in info.data:  # the name is invalid, and that error is reported instead
            return pem
        certificate = Certificate(pem, info.data["name"])
        if certificate.name != certificate.whose:
            other = f"the certificate of {certificate.whose} is for {certificate.name[:80]!a}"
            raise ValueError(f"{other}; each member needs a certificate for its own name")
        return certificate.pem

    @cached_property
    def parsed(self) -> Certificate:
        """The certificate, read."""
        return Certificate(self.certificate, self.name)


class Agreement(Section):
    """Everything the members must agree on before the first message. `authority` signs the certificates, which are pinned."""

    name: Name
    """Name of the federation."""
    address: str
    """Address of the coordinator as host:port; an IPv6 host is written in brackets."""
    alignment: Alignment = "keyed"
    """How users are aligned: keyed (under a shared key), ecdh (under keys of two parties) or none (as given)."""
    ids: str = Field("", pattern=r"^((mail|lower|number)(\+(mail|lower|number))*)?$")
    """How every party spells its user ids before they are aligned, such as number or lower+number; "" as they are written."""
    min_parties: int = Field(0, ge=0)
    """Number of parties a round needs; 0 means more than half, at least two, and all where every sum must include all."""
    max_users: int = Field(20_000_000, ge=1)
    """Number of users a party may align. It bounds what a party can learn by inventing ids, and the memory it can occupy."""
    max_rounds: int = Field(10_000, ge=1)
    """Number of rounds a training may have. Where a round uses a batch, it follows from what the coordinator says of all ratings."""
    min_users: int = Field(100, ge=1)
    """Number of users the federation must have. A sum over few users shows what single users contribute."""
    min_overlap: float = Field(0.02, ge=0, le=1)
    """Share of each party's users that some other party must have. It catches a wrong export before training."""
    timeouts: Timeouts = Timeouts()
    """Waiting times of the members."""
    authority: Annotated[str, AfterValidator(lambda pem: Certificate(pem, "the authority").pem)]
    """Certificate in PEM of the authority, which signs the other certificates."""
    ratings_per_user: int = Field(30, ge=1)
    """Ratings a user that the members expect of all parties together. The sizes of a solved model follow from it."""
    config: Config
    """Configuration of the training."""
    coordinator: Member
    """The coordinator, to which the parties connect; its name is 'server'."""
    parties: tuple[Member, ...] = ()
    """The parties. Their order fixes the order in which numbers are added."""

    @model_validator(mode="after")
    def _check_members(self) -> Agreement:
        _parse_address(self.address)
        if self.coordinator.name != COORDINATOR:
            raise ValueError(f"the coordinator must be named '{COORDINATOR}', not '{self.coordinator.name}'")
        authority = Certificate(self.authority, "the authority")
        for member in self.members:
            if not member.parsed.issued_by(authority):
                unsigned = f"the certificate of {member.name} is not signed by this federation's authority"
                raise ValueError(f"{unsigned}; get federation.toml from the coordinator again")
        for other, member in combinations(self.members, 2):
            if other.name.lower() == member.name.lower():
                reserved = "that name is reserved for the coordinator"
                why = reserved if other is self.coordinator else f"'{other.name}' is already a party"
                raise ValueError(f"no party can be named '{member.name}': {why}; choose another name")
            if other.parsed.key_fingerprint == member.parsed.key_fingerprint:
                raise ValueError(
                    f"{other.name} and {member.name} have the same key; each must create its own"
                )
        return self

    @property
    def members(self) -> tuple[Member, ...]:
        """The coordinator and the parties."""
        return (self.coordinator, *self.parties)

    @property
    def sized_config(self) -> Config:
        """The configuration with the sizes that these members and their ratings need, where none are set."""
        return self.config.for_data(1, self.ratings_per_user, len(self.parties))

    @property
    def endpoint(self) -> tuple[str, int]:
        """Host of the coordinator, without brackets, and its port."""
        return _parse_address(self.address)

    @property
    def quorum(self) -> int:
        """Number of parties a round needs; by default more than half, at least two, and as many as every sum must include."""
        count = len(self.parties)
        fewest = max(2, count // 2 + 1, fewest_parties_in_sum(self.config, count))
        return min(count, self.min_parties or fewest)

    @property
    def problem(self) -> str | None:
        """Why these parties cannot train under this agreement, and what to decide; None if they can."""
        count = len(self.parties)  # with fewer than two, more are expected
        active = min(active_count(self.config, count), self.quorum)
        return None if count < 2 else too_few(self.config, active, count)

    @property
    def alignment_rules(self) -> AlignmentRules:
        """The rules by which users are aligned."""
        from verfedgnn.protocol.user_alignment import AlignmentRules

        assert self.alignment != "none"
        return AlignmentRules(
            self.alignment, self.digest(), self.config.users, self.max_users, self.min_users, self.min_overlap
        )

    def digest(self) -> str:
        """Return the SHA-256 of the members, the rules and the configuration, for organisations to compare.

        The address and the timeouts are not covered.
        """
        limits = (self.max_users, self.max_rounds, self.min_users, self.min_overlap, self.quorum)
        rules = (*limits, self.config.digest())
        roster = [(party.name, party.parsed.fingerprint) for party in self.parties]
        parts = (self.name, self.alignment, self.ids, *rules, roster, self.coordinator.parsed.fingerprint)
        return hashlib.sha256(json.dumps(parts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    def member(self, name: str) -> Member:
        """Return the party or coordinator called `name`; raise `ConfigError` if there is none."""
        for member in self.members:
            if member.name == name:
                return member
        names = ", ".join(party.name for party in self.parties) or "none yet"
        where = f"in federation {self.name}; its parties are: {names}"
        raise ConfigError(f"there is no party {name[:80]!a} {where}")

    def check_dates(self) -> None:
        """Raise `ConfigError` if a certificate has expired or is not valid yet."""
        remedies = {
            "the authority": "create a new federation with `verfedgnn federation init`",
            COORDINATOR: "create a new one with `verfedgnn federation approve FOLDER --renew`",
        }
        now = datetime.now(UTC)
        authority = Certificate(self.authority, "the authority")
        for certificate in (authority, *(member.parsed for member in self.members)):
            name, about = certificate.whose, f"the certificate of {certificate.whose}"
            if certificate.end <= now:
                again = f"approve {name}'s request again with `verfedgnn federation approve --replace`"
                raise ConfigError(f"{about} expired on {certificate.end.date()}; {remedies.get(name, again)}")
            if certificate.start > now:
                early = f"is not valid before {certificate.start.date()}; correct this machine's clock"
                raise ConfigError(f"{about} {early}")

    def with_values(self, **changes: Any) -> Agreement:
        """Return a copy with other values of fields, checked like the original."""
        return build_agreement({name: getattr(self, name) for name in type(self).model_fields} | changes)


def build_agreement(values: Mapping[str, Any]) -> Agreement:
    """Return an agreement from its fields; raise `ConfigError` if one of them is invalid."""
    try:
        return Agreement.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "value_error":  # raised by this package, with the place in its text
            raise ConfigError(first["msg"].removeprefix("Value error, ")) from None
        raise ConfigError(explain_invalid(error)) from None


def load_agreement(path: Path, *, dates: bool = True) -> Agreement:
    """Read the agreement from a file or from its folder; expired certificates are accepted only without `dates`."""
    file = path / FILE if path.is_dir() else path
    try:
        return read_agreement(file.read_bytes(), str(file), dates=dates)
    except OSError as error:
        remedy = f"pass the {FILE} from the coordinator, or its folder"
        raise ConfigError(f"cannot read the agreement {file}: {error.strerror or error}; {remedy}") from None


def read_agreement(data: bytes, place: str, *, dates: bool = True) -> Agreement:
    """Read the agreement in the bytes of a file; `place` names it in errors."""
    try:
        agreement = build_agreement(tomllib.loads(data.decode("utf-8")))
        if dates:
            agreement.check_dates()
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{place} is not valid TOML: {error}; get it from the coordinator again") from None
    return agreement


def save_agreement(path: Path, agreement: Agreement) -> None:
    """Write the agreement; an interruption leaves the previous file intact. That is kept beside it, for runs begun under it."""
    tree = agreement.model_dump(mode="json")
    tree["config"] = tomllib.loads(agreement.config.to_toml())  # writes null, which TOML lacks, as "unset"
    replace_agreement(path, _HEADER + tomli_w.dumps(tree, multiline_strings=True))


def replace_agreement(path: Path, text: str) -> None:
    """Write a federation.toml, and keep the one before it."""
    data = text.encode()
    if path.is_file() and (before := path.read_bytes()) != data:
        write_file(path.with_suffix(BEFORE), before)
    write_file(path, data)


def find_agreement(path: Path, run: Path | None) -> Agreement:
    """Return the agreement in a file or its folder, or the one before it if the folder `run` was begun under that.

    Raise `ConfigError` if the coordinator has another key since: whoever has the old one could pretend to be the coordinator.
    """
    file = path / FILE if path.is_dir() else path
    agreement, before = load_agreement(file), file.with_suffix(BEFORE)
    if run is None or not before.is_file() or not (run / MARK).is_file():
        return agreement
    begun = (run / MARK).read_text("utf-8").split()[0]
    if begun == agreement.digest() or (earlier := load_agreement(before)).digest() != begun:
        return agreement
    keys = [each.coordinator.parsed.key_fingerprint for each in (earlier, agreement)]
    if keys[0] != keys[1]:
        replaced = f"the coordinator has another key since the run in {run} was begun"
        raise ConfigError(f"{replaced}, and somebody else may have the old one; choose another --out")
    return earlier


# -- trainings ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stage:
    """One training of a federation: a complete exchange from Hello to Finished, with its own configuration and files."""

    name: Literal["ratings", "lists", "final", "final lists"]
    config: Config
    place: str = ""
    """Folder of this training in a run folder; empty for the first one, before which users are aligned."""
    continues: int | None = None
    """Number of the judged training that this one continues on all ratings; None if it is judged itself."""

    @property
    def first(self) -> bool:
        """Whether it is the first training."""
        return not self.place

    def folder(self, run: Path) -> Path:
        """Return the folder of this training in a run folder."""
        return run / self.place


def list_stages(agreement: Agreement) -> list[Stage]:
    """Return the trainings that the members agreed on, in their order."""
    config = agreement.sized_config
    stages = [Stage("lists" if config.ranks else "ratings", config)]
    if config.federates_lists:
        stages.append(Stage("lists", config.for_lists(), LISTS))
    if config.trains_final and config.model.solved:
        final = config.for_final()
        stages.append(Stage("final lists" if config.ranks else "final", final, FINAL, continues=0))
        if config.federates_lists:
            stages.append(Stage("final lists", final.for_lists(), f"{FINAL}/{LISTS}", continues=1))
    return stages


# -- summaries ---------------------------------------------------------------------------------------------------------------


def summarise_agreement(agreement: Agreement) -> dict[str, Any]:
    """Return the agreement, the settings that differ from its preset, and its members as JSON values."""
    config = agreement.config
    preset = build_config(preset=config.base) if config.base in presets() else Config(base=config.base)
    base = preset.values()
    return {
        **agreement.model_dump(include={"name", "address", "alignment", "ids"}),
        "quorum": agreement.quorum,
        "configuration": config.fingerprint(),
        "fingerprint": agreement.digest()[:16],
        "digest": agreement.digest(),
        "preset": config.base,
        "settings": {path: value for path, value in config.values().items() if base.get(path, ...) != value},
        "trainings": [stage.name for stage in list_stages(agreement)],
        "two_parties": describe_two_parties(agreement),
        "members": [
            {
                "name": member.name,
                "certificate": member.parsed.fingerprint,
                "key": member.parsed.key_fingerprint,
                "expires": member.parsed.end.isoformat(),
            }
            for member in agreement.members
        ],
    }


def compare_agreements(before: Agreement, after: Agreement) -> list[str]:
    """Return what a changed agreement changes: members, rules and settings, a sentence for each."""
    changes = []
    old, new = ({member.name: member.parsed for member in each.members} for each in (before, after))
    for name in dict.fromkeys([*old, *new]):
        if name not in old or name not in new:
            changes.append(f"{name} {'joins' if name in new else 'leaves'}")
        elif old[name].key_fingerprint != new[name].key_fingerprint:
            changes.append(f"{name} has a new key")
        elif old[name].fingerprint != new[name].fingerprint:
            changes.append(f"{name} has a new certificate for the same key")
    apart = {"authority", "config", "coordinator", "parties", "min_parties", "timeouts"}
    rules, others = (
        {"a round needs": each.quorum}
        | each.model_dump(mode="json", exclude=apart)
        | {f"timeouts.{name}": seconds for name, seconds in each.timeouts}
        | each.config.values()
        for each in (before, after)
    )
    if old.keys() == new.keys() and [*old] != [*new]:
        changes.append(f"the order of the parties: {', '.join([*new][1:])}")
    changes += [
        f"{name}: {rules.get(name)} before, {others.get(name)} now"
        for name in dict.fromkeys([*rules, *others])
        if rules.get(name) != others.get(name)
    ]
    return changes


def describe_two_parties(agreement: Agreement) -> str | None:
    """Return what two parties can and cannot hide from each other; None for any other number of parties."""
    from verfedgnn.privacy import visibility  # loads torch, which a change of the roster does not need

    return visibility.describe_two_parties(agreement.config) if len(agreement.parties) == 2 else None


def _parse_address(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    name = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    fits = _HOST.fullmatch(name) if name == host else ":" in name and is_address(name)
    if not fits or not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 1 << 16:
        example = "for example train.example.org:7443 or [2001:db8::1]:7443"
        raise ValueError(f"address {address[:80]!a} is not host:port; {example}")
    return name, int(port)
