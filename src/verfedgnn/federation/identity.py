"""A member of the roster, identified by its private key: what it signs, what it checks, and the code it must run."""

from __future__ import annotations

from pathlib import Path

from verfedgnn import plugins
from verfedgnn.core.errors import ConfigError, ProtocolError
from verfedgnn.federation.agreement import FILE, Agreement, Member, load_agreement
from verfedgnn.federation.certificates import (
    COORDINATOR,
    exchange_secret,
    key_pem,
    read_key,
    same_key,
    sign,
    verify,
)
from verfedgnn.federation.key_files import COORDINATOR_KEY, PARTY_KEY
from verfedgnn.plugins import origin


class MemberIdentity:
    """A party or the coordinator, recognised by its private key."""

    def __init__(self, agreement: Agreement, key_file: Path) -> None:
        self.agreement = agreement
        self.key_file = key_file
        self._key = read_key(key_file)
        self.member = self._find_member()
        self._digest = agreement.digest()
        _check_code(agreement, "the coordinator" if self.is_coordinator else self.name)

    @property
    def name(self) -> str:
        """Name of the member in the roster."""
        return self.member.name

    @property
    def is_coordinator(self) -> bool:
        """Whether the key is the coordinator's."""
        return self.name == COORDINATOR

    @property
    def index(self) -> int:
        """Position of the party in the roster."""
        return [party.name for party in self.agreement.parties].index(self.name)

    def key_pem(self) -> bytes:
        """Return the private key in PEM, from memory: the file may have been exchanged since it was checked."""
        return key_pem(self._key)

    def sign(self, purpose: str, key: str) -> str:
        """Return this member's signature, in hex, of a public key for one purpose in this federation."""
        return sign(self._key, _statement(self._digest, purpose, self.name, key)).hex()

    def check(self, purpose: str, party: int, key: str, signature: str) -> None:
        """Raise `ProtocolError` unless the party at that position signed `key` for that purpose."""
        check_key(self.agreement, purpose, party, key, signature)

    def shared_secret(self, peer: str) -> bytes:
        """Return the ECDH secret of this member's key and another party's, which only these two can compute."""
        for party in self.agreement.parties:
            if party.name == peer != self.name:
                return exchange_secret(self._key, party.certificate)
        raise ConfigError(f"'{peer}' is no other party of federation {self.agreement.name}")

    def _find_member(self) -> Member:
        for member in (self.agreement.coordinator, *self.agreement.parties):
            if same_key(self._key, member.certificate):
                return member
        raise ConfigError(
            f"the key {self.key_file} belongs to nobody in federation {self.agreement.name}; "
            f"ask the coordinator to approve its request, then use the new {FILE}"
        )


def load_party(federation: Path, key_file: Path | None = None) -> MemberIdentity:
    """Return the party whose key is `key_file`, by default the key beside the federation file."""
    folder = federation if federation.is_dir() else federation.parent
    identity = MemberIdentity(load_agreement(federation), key_file or folder / PARTY_KEY)
    if identity.is_coordinator:
        raise ConfigError(
            "this is the coordinator's key; create a party's key with `verfedgnn federation join-request`"
        )
    if identity.agreement.problem is not None:
        raise ConfigError(identity.agreement.problem)
    return identity


def load_coordinator(folder: Path) -> MemberIdentity:
    """Return the coordinator whose agreement and key are in `folder`; the roster must have two parties or more."""
    agreement = load_agreement(folder / FILE)
    key_file = folder / COORDINATOR_KEY
    if not key_file.is_file():
        raise ConfigError(
            f"{folder} holds no {COORDINATOR_KEY}; pass the folder that `verfedgnn federation init` created"
        )
    identity = MemberIdentity(agreement, key_file)
    if not identity.is_coordinator:
        raise ConfigError(
            f"{key_file} is not the coordinator's key in {FILE}; create a new one with `verfedgnn federation renew`"
        )
    if len(agreement.parties) < 2:
        raise ConfigError(
            "the roster has fewer than two parties; approve their requests with `verfedgnn federation approve`"
        )
    if agreement.problem is not None:
        raise ConfigError(agreement.problem)
    return identity


def check_key(agreement: Agreement, purpose: str, party: int, key: str, signature: str) -> None:
    """Raise `ProtocolError` unless the party at that position of the roster signed `key` for that purpose."""
    if not party < len(agreement.parties):
        raise ProtocolError("a key of a party that is not in the roster")
    member = agreement.parties[party]
    if not is_signed(agreement.digest(), member, purpose, key, signature):
        raise ProtocolError(
            f"the coordinator presents a key as {member.name}'s, but {member.name} did not sign it for this federation and alignment"
        )


def is_signed(agreement: str, member: Member, purpose: str, text: str, signature: str) -> bool:
    """Return whether a member signed `text` for one purpose, under the agreement with that SHA-256."""
    try:
        return verify(
            member.certificate,
            bytes.fromhex(signature),
            _statement(agreement, purpose, member.name, text),
        )
    except ValueError:
        return False


def _check_code(agreement: Agreement, name: str) -> None:
    """Raise `ConfigError` unless the GNN's code is the agreed one: weights of equal shape would add up to nonsense."""
    model = agreement.config.model
    if model.gnn in plugins.GNNS:
        return
    here = plugins.identify_gnn(model.gnn, model.form)
    if here is None:
        raise ConfigError(
            f"{name}: GNN '{model.gnn}' is not defined in a file, so its code cannot be compared; {plugins.REMEDY}"
        )
    if model.code is None:
        raise ConfigError(
            f"federation {agreement.name} did not agree on the code of GNN '{model.gnn}'; "
            f"create it again with `verfedgnn federation init`; {name} has {origin.format_code(here)}"
        )
    if origin.extract_digest(here) != origin.extract_digest(model.code):
        raise ConfigError(
            f"{name} has other code of GNN '{model.gnn}' than federation {agreement.name} agreed on: "
            f"{origin.format_code(here)} here, {origin.format_code(model.code)} agreed; get the agreed version from the others, "
            "install it or pass it with --plugin, or create a federation with yours"
        )


def _statement(agreement: str, purpose: str, name: str, key: str) -> bytes:
    return "\n".join(("verfedgnn 1", purpose, agreement, name, key)).encode()
