"""The members of a federation: create it, admit and remove parties, and recognise a member by its private key."""

from __future__ import annotations

import ssl
import tomllib
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from http import HTTPStatus
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any

from verfedgnn import plugins
from verfedgnn.config import build_config
from verfedgnn.config.rules import fewest_parties_in_sum
from verfedgnn.config.tree import read_preset
from verfedgnn.core.errors import ConfigError, ProtocolError
from verfedgnn.core.files import make_folder
from verfedgnn.federation import AUTHORITY_KEY, COORDINATOR_KEY, PARTY_KEY
from verfedgnn.federation import certificates as c
from verfedgnn.federation.agreement import (
    FILE,
    Agreement,
    Member,
    build_agreement,
    find_agreement,
    load_agreement,
    read_agreement,
    replace_agreement,
    save_agreement,
)
from verfedgnn.federation.certificates import COORDINATOR, CertificateError
from verfedgnn.federation.event_log import log_warning
from verfedgnn.federation.transport import AGREEMENT, HOLDS

_MOST_ANSWER = 1 << 20

# -- changes of the roster, at the coordinator -------------------------------------------------------------------------------


def create_federation(
    folder: Path,
    *,
    preset: str,
    model: str | None,
    config_file: Path | None,
    overrides: dict[str, Any],
    **rules: Any,
) -> Agreement:
    """Create the authority, the coordinator's key and the agreement in a new folder; return the agreement.

    Masking is on unless it was chosen, or gradients cannot be masked. `rules` are the remaining fields of the agreement: name,
    address, alignment, ids, min_parties, ratings_per_user.
    """
    config = build_config(preset=preset, model=model, file=config_file, overrides=overrides)
    config = config.with_code()
    chosen = {*read_preset(preset), *overrides}
    chosen |= set(tomllib.loads(config_file.read_text("utf-8"))) if config_file is not None else set()
    if "masking" not in chosen and config.gradients.integers:
        config = config.with_values({"masking": True})
    if config.model.gnn not in plugins.GNNS:
        plugins.require_gnn(config.model.gnn)
    try:
        authority_key, authority = c.new_authority(rules["name"])
    except CertificateError as error:
        raise ConfigError(f"{error}; set the name of the federation with --name") from None
    key, coordinator = _new_coordinator(authority_key, authority)
    members = {"authority": authority, "coordinator": coordinator}
    agreement = build_agreement({**rules, "config": config, **members})
    _new_folder(folder)
    c.write_secret(folder / AUTHORITY_KEY, c.key_pem(authority_key))
    c.write_secret(folder / COORDINATOR_KEY, c.key_pem(key))
    save_agreement(folder / FILE, agreement)
    return agreement


def request_membership(name: str, folder: Path) -> tuple[Path, Path, str]:
    """Create a party's key and certificate request in a new folder; return both files and the fingerprint of the key."""
    if name.lower() == COORDINATOR:
        raise ConfigError(f"'{name}' is reserved for the coordinator; choose another name")
    key = c.new_key()
    csr = c.make_request(key, name)
    key_file, request_file = folder / PARTY_KEY, folder / f"{name}.csr"
    _new_folder(folder)
    c.write_secret(key_file, c.key_pem(key))
    c.write_file(request_file, csr.encode())
    return key_file, request_file, c.short_fingerprint(c.key_fingerprint(key))


def admit_parties(
    folder: Path, requests: Sequence[Path], *, replace: bool, confirm: Callable[[dict[str, str]], None]
) -> Agreement:
    """Sign certificate requests and add their parties to the roster.

    `confirm` receives the fingerprint of each party's public key and raises an error if they are not accepted.
    """
    agreement = load_agreement(folder, dates=False)
    authority_key = c.read_key(folder / AUTHORITY_KEY)
    members = {party.name: party for party in agreement.parties}
    signed: dict[str, Member] = {}
    fingerprints: dict[str, str] = {}
    for path in requests:
        try:
            csr = path.read_bytes().decode("utf-8", "replace")
            name, key = c.read_request(csr)
            certificate = c.issue(authority_key, agreement.authority, csr)
        except OSError as error:
            raise ConfigError(f"cannot read the request {path}: {error.strerror or error}") from None
        except CertificateError as error:
            raise ConfigError(f"{path}: {error}") from None
        if name in signed:
            remedy = "pass only the one whose fingerprint you compared"
            raise ConfigError(f"{path}: there is another request for {name}; {remedy}")
        if replace and name not in members:
            raise ConfigError(f"{path}: {name} has no certificate to replace; omit --replace")
        if name in members and not replace:
            raise ConfigError(f"{path}: {name} is already a member; pass --replace to renew its certificate")
        signed[name] = Member(name=name, certificate=certificate)
        fingerprints[name] = c.short_fingerprint(c.key_fingerprint(key))
    changed = agreement.with_values(parties=list((members | signed).values()))
    needed = fewest_parties_in_sum(changed.config, len(changed.parties))
    if 0 < changed.min_parties < needed:
        changed = changed.with_values(min_parties=needed)
    confirm(fingerprints)
    save_agreement(folder / FILE, changed)
    return changed


def remove_party(folder: Path, name: str) -> Agreement:
    """Remove a party from the roster; only the coordinator can, since its copy of the agreement is the one that counts."""
    if (folder / FILE).is_file() and not (folder / COORDINATOR_KEY).is_file():
        rule = "only the coordinator changes the agreement and sends it to all members"
        raise ConfigError(f"{folder} is not the coordinator's folder; {rule}")
    agreement = load_agreement(folder, dates=False)
    if agreement.member(name) is agreement.coordinator:
        remedy = f"renew its key with `verfedgnn federation approve {folder} --renew`"
        raise ConfigError(f"'{COORDINATOR}' is the coordinator; {remedy}")
    parties = [party for party in agreement.parties if party.name != name]
    changed = agreement.with_values(parties=parties, min_parties=min(agreement.min_parties, len(parties)))
    save_agreement(folder / FILE, changed)
    return changed


def renew_coordinator(folder: Path) -> Agreement:
    """Create a new key and certificate for the coordinator."""
    agreement = load_agreement(folder, dates=False)
    key, coordinator = _new_coordinator(c.read_key(folder / AUTHORITY_KEY), agreement.authority)
    changed = agreement.with_values(coordinator=coordinator)
    c.write_file(folder / COORDINATOR_KEY, c.key_pem(key))
    save_agreement(folder / FILE, changed)
    return changed


def _new_coordinator(authority_key: c.Key, authority: str) -> tuple[c.Key, Member]:
    key = c.new_key()
    pem = c.issue(authority_key, authority, c.make_request(key, COORDINATOR), server=True)
    return key, Member(name=COORDINATOR, certificate=pem)


def _new_folder(folder: Path) -> None:
    """Create a folder that only its owner can enter; raise `ConfigError` if it is not empty."""
    try:
        make_folder(folder)
        if any(folder.iterdir()):
            raise ConfigError(f"{folder} already exists and is not empty; choose another folder")
        folder.chmod(0o700)
    except OSError as error:
        problem = f"cannot create {folder}: {error.strerror or error}"
        raise ConfigError(f"{problem}; choose another folder") from None


# -- a member, recognised by its key -----------------------------------------------------------------------------------------


class MemberIdentity:
    """A party or the coordinator, recognised by its private key: what it signs, and what it checks."""

    def __init__(self, agreement: Agreement, key_file: Path) -> None:
        self.agreement = agreement
        self.key_file = key_file
        self._key = c.read_key(key_file)
        owners = {member.parsed.key_fingerprint: member for member in agreement.members}
        member = owners.get(c.key_fingerprint(self._key))
        if member is None:
            nobody = f"the key {key_file} belongs to nobody in federation {agreement.name}"
            remedy = f"ask the coordinator to approve its request, then use the new {FILE}"
            raise ConfigError(f"{nobody}; {remedy}")
        self.member = member
        self.name = member.name
        self.is_coordinator = self.name == COORDINATOR
        self.role = "coordinator" if self.is_coordinator else f"party {self.name}"
        self._digest = agreement.digest()
        _check_code(agreement, "the coordinator" if self.is_coordinator else self.name)

    @property
    def index(self) -> int:
        """Position of the party in the roster."""
        return [party.name for party in self.agreement.parties].index(self.name)

    def tls_context(self) -> ssl.SSLContext:
        """Return a context for mutual TLS with the other members. The file of the key may have been exchanged since it was read."""
        certificate, authority, key = self.member.certificate, self.agreement.authority, c.key_pem(self._key)
        return c.tls_context(
            server=self.is_coordinator, authority=authority, certificate=certificate, key=key
        )

    def sign(self, purpose: str, key: str) -> str:
        """Return this member's signature, in hex, of a public key for one purpose in this federation."""
        return c.sign(self._key, _statement(self._digest, purpose, self.name, key)).hex()

    def check(self, purpose: str, party: int, key: str, signature: str) -> None:
        """Raise `ProtocolError` unless the party at that position signed `key` for that purpose."""
        if not party < len(self.agreement.parties):
            raise ProtocolError("a key of a party that is not in the roster")
        member = self.agreement.parties[party]
        if not is_signed(self._digest, member, purpose, key, signature):
            unsigned = f"but {member.name} did not sign it for this federation and alignment"
            raise ProtocolError(f"the coordinator presents a key as {member.name}'s, {unsigned}")


def load_party(federation: Path, key_file: Path | None = None, run: Path | None = None) -> MemberIdentity:
    """Return the party whose key is `key_file`, by default the key beside the federation file, under the agreement of `run`."""
    folder = federation if federation.is_dir() else federation.parent
    identity = MemberIdentity(find_agreement(federation, run), key_file or folder / PARTY_KEY)
    if identity.is_coordinator:
        remedy = "create a party's key with `verfedgnn federation join-request`"
        raise ConfigError(f"this is the coordinator's key; {remedy}")
    check_ready(identity.agreement)
    return identity


def load_coordinator(folder: Path, run: Path | None = None) -> MemberIdentity:
    """Return the coordinator whose agreement and key are in `folder`, under the agreement of `run`."""
    agreement = find_agreement(folder / FILE, run)
    key_file = folder / COORDINATOR_KEY
    if not key_file.is_file():
        remedy = "pass the folder that `verfedgnn federation init` created"
        raise ConfigError(f"{folder} holds no {COORDINATOR_KEY}; {remedy}")
    identity = MemberIdentity(agreement, key_file)
    if not identity.is_coordinator:
        remedy = f"create a new one with `verfedgnn federation approve {folder} --renew`"
        raise ConfigError(f"{key_file} is not the coordinator's key in {FILE}; {remedy}")
    check_ready(agreement)
    return identity


def ask_coordinator(identity: MemberIdentity, path: str, holds: str = "") -> bytes:
    """Return the coordinator's answer to a party's question; `holds` tells it the digest of an agreement that the party accepted.

    Raise `ConfigError` if it cannot be reached, or is not the agreed one.
    """
    agreement = identity.agreement
    with closing(
        HTTPSConnection(*agreement.endpoint, timeout=10, context=identity.tls_context())
    ) as connection:
        try:
            connection.connect()
            assert isinstance(connection.sock, ssl.SSLSocket)
            pem = ssl.DER_cert_to_PEM_cert(connection.sock.getpeercert(binary_form=True) or b"")
        except OSError as error:
            text = f"cannot reach {agreement.address} ({error.strerror or error})"
            raise ConfigError(f"{text}; ask whether the coordinator is running") from None
        if c.Certificate(pem).fingerprint != agreement.coordinator.parsed.fingerprint:
            raise ConfigError("another certificate than the agreed one; get the current federation.toml")
        try:
            connection.request("GET", path, headers={HOLDS: holds} if holds else {})
            response = connection.getresponse()
            answer = response.read(_MOST_ANSWER)
        except (OSError, HTTPException):
            text = "the coordinator closed the connection: it does not know this party's certificate"
            raise ConfigError(text) from None
    if response.status != HTTPStatus.OK:
        raise ConfigError(answer.decode("utf-8", "replace")[:500])
    return answer


def fetch_agreement(identity: MemberIdentity) -> tuple[bytes, Agreement]:
    """Return the federation.toml that the coordinator offers a party, as bytes and read.

    Raise `ConfigError` unless it is of the same federation and holds the party's key.
    """
    data = ask_coordinator(identity, AGREEMENT)
    offered = read_agreement(data, f"the coordinator's {FILE}")
    if (offered.name, offered.authority) != (identity.agreement.name, identity.agreement.authority):
        raise ConfigError("the coordinator offers the agreement of another federation; ask its operator")
    check_ready(MemberIdentity(offered, identity.key_file).agreement)
    return data, offered


def accept_agreement(identity: MemberIdentity, file: Path, data: bytes, offered: Agreement) -> None:
    """Tell the coordinator, and replace a party's federation.toml by the offered one."""
    ask_coordinator(identity, AGREEMENT, offered.digest())
    replace_agreement(file, data.decode())


def check_ready(agreement: Agreement) -> None:
    """Raise `ConfigError` unless the roster has two parties or more, and these can train under the agreement."""
    if len(agreement.parties) < 2:
        remedy = "approve their requests with `verfedgnn federation approve`"
        raise ConfigError(f"the roster has fewer than two parties; {remedy}")
    if agreement.problem is not None:
        raise ConfigError(agreement.problem)


def is_signed(agreement: str, member: Member, purpose: str, text: str, signature: str) -> bool:
    """Return whether a member signed `text` for one purpose, under the agreement with that SHA-256."""
    with suppress(ValueError):  # the signature is no hex
        return member.parsed.verify(
            bytes.fromhex(signature), _statement(agreement, purpose, member.name, text)
        )
    return False


def _check_code(agreement: Agreement, name: str) -> None:
    """Raise `ConfigError` unless the GNN's code is the agreed one: weights of equal shape would add up to nonsense."""
    model = agreement.config.model
    if model.gnn in plugins.GNNS:
        return
    here = plugins.require_gnn(model.gnn)
    if model.code is None:
        raise ConfigError(
            f"federation {agreement.name} did not agree on the code of GNN '{model.gnn}'; "
            f"create it again with `verfedgnn federation init`; {name} has {plugins.format_code(here)}"
        )
    if plugins.extract_digest(here) != plugins.extract_digest(model.code):
        raise ConfigError(
            f"{name} has other code of GNN '{model.gnn}' than federation {agreement.name} agreed on: "
            f"{plugins.format_code(here)} here, {plugins.format_code(model.code)} agreed; get the agreed version from the others, "
            "install it or pass it with --plugin, or create a federation with yours"
        )


def _statement(agreement: str, purpose: str, name: str, key: str) -> bytes:
    return "\n".join(("verfedgnn 1", purpose, agreement, name, key)).encode()


class AgreementWatch:
    """The coordinator's federation.toml, read again whenever it was replaced while a training runs: what it offers to members."""

    def __init__(self, identity: MemberIdentity) -> None:
        self.parties = identity.agreement.parties
        self.offered = identity.agreement.digest()
        """SHA-256 of the agreement in the file."""
        self._file = identity.key_file.parent / FILE
        self._seen: tuple[int, int] | None = None
        """Time and inode of the file that was read last."""

    def find_revoked(self) -> list[str]:
        """Return parties of the running agreement whose keys a new file no longer has; [] if the file is the same."""
        try:
            about = self._file.stat()
            if self._seen == (about.st_mtime_ns, about.st_ino):
                return []
            self._seen = about.st_mtime_ns, about.st_ino
            present = load_agreement(self._file, dates=False)
        except OSError:
            return []
        except ConfigError as error:
            log_warning("federation.toml was replaced and cannot be read", reason=str(error))
            return []
        if present.digest() == self.offered:
            return []
        self.offered = present.digest()
        then = "members can accept it; restart this coordinator once all have"
        log_warning(f"federation.toml was replaced: {then}")
        keys = {party.parsed.key_fingerprint for party in present.parties}
        return [party.name for party in self.parties if party.parsed.key_fingerprint not in keys]
