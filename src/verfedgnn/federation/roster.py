"""The roster of a federation: create it, admit and remove parties, renew the coordinator's certificate."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from verfedgnn.config import Config, build_config, presets, read_preset
from verfedgnn.core.errors import ConfigError
from verfedgnn.core.files import write_bytes
from verfedgnn.federation.agreement import (
    FILE,
    Agreement,
    Member,
    build_agreement,
    load_agreement,
    save_agreement,
)
from verfedgnn.federation.certificates import (
    COORDINATOR,
    CertificateError,
    Key,
    certificate_key,
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
from verfedgnn.federation.key_files import AUTHORITY, AUTHORITY_KEY, COORDINATOR_KEY, PARTY_KEY
from verfedgnn.plugins import GNNS, REMEDY


def begin(
    folder: Path, built: Config, *, preset: str, file: Path | None, overrides: dict[str, Any], **values: Any
) -> tuple[Agreement, str]:
    """A new federation in a new folder, and a note on its masking; `values` are the agreement's name, address and rules."""
    chosen, note = _masked(built.with_code(), preset, file, overrides)
    if chosen.model.gnn not in GNNS and chosen.model.code is None:
        raise ConfigError(
            f"GNN '{chosen.model.gnn}' is in no file, so members could not compare its code; {REMEDY}"
        )
    try:
        authority_key, authority = new_authority(values["name"])
    except CertificateError as error:
        raise ConfigError(f"{error}; name the federation with --name") from None
    key, coordinator = _new_coordinator(authority_key, authority)
    agreement = build_agreement(
        {**values, "config": chosen, "authority": authority, "coordinator": coordinator}
    )
    _new_folder(folder)
    write_secret(folder / AUTHORITY_KEY, key_pem(authority_key))
    write_secret(folder / COORDINATOR_KEY, key_pem(key))
    _write(folder / AUTHORITY, authority)
    save_agreement(folder / FILE, agreement)
    return agreement, note


def ask(name: str, folder: Path) -> tuple[Path, str]:
    """A party's key in a new folder; its request and the fingerprint of its public key."""
    if name.lower() == COORDINATOR:
        raise ConfigError(f"'{name}' is kept for the coordinator; choose another name")
    key = new_key()
    csr = request(key, name)
    _new_folder(folder)
    write_secret(folder / PARTY_KEY, key_pem(key))
    sent = folder / f"{name}.csr"
    _write(sent, csr)
    return sent, short(key_fingerprint(key))


def admit(
    folder: Path, requests: Sequence[Path], *, replace: bool, confirm: Callable[[dict[str, str]], None]
) -> Agreement:
    """Put parties on the roster, once `confirm` has agreed to the fingerprints of their public keys."""
    agreement = load_agreement(folder, dates=False)
    authority_key = read_key(folder / AUTHORITY_KEY)
    members = {party.name: party for party in agreement.parties}
    signed: dict[str, Member] = {}
    fingerprints: dict[str, str] = {}
    for path in requests:
        csr = _read(path)
        try:
            asked = read_request(csr)
            member = Member(name=asked.name, certificate=issue(authority_key, agreement.authority, csr))
        except CertificateError as error:
            raise ConfigError(f"{path}: {error}") from None
        if asked.name in signed:
            raise ConfigError(
                f"{path}: there is another request for {asked.name}; give the one whose fingerprint you compared"
            )
        if replace and asked.name not in members:
            raise ConfigError(
                f"{path}: {asked.name} is no member whose certificate could be replaced; leave out --replace"
            )
        if asked.name in members and not replace:
            raise ConfigError(
                f"{path}: {asked.name} is a member already; give it a new certificate with --replace"
            )
        signed[asked.name] = member
        fingerprints[asked.name] = short(key_fingerprint(asked.key))
    changed = agreement.with_values(parties=list((members | signed).values()))
    confirm(fingerprints)
    save_agreement(folder / FILE, changed)
    return changed


def remove(folder: Path, name: str) -> Agreement:
    """Take a party off the roster."""
    agreement = load_agreement(folder, dates=False)
    if agreement.member(name) is agreement.coordinator:
        raise ConfigError(
            f"'{COORDINATOR}' is the coordinator itself; give it a new key with `verfedgnn federation renew {folder}`"
        )
    changed = agreement.with_values(parties=[party for party in agreement.parties if party.name != name])
    save_agreement(folder / FILE, changed)
    return changed


def renew(folder: Path) -> Agreement:
    """A new key and certificate for the coordinator."""
    agreement = load_agreement(folder, dates=False)
    key, coordinator = _new_coordinator(read_key(folder / AUTHORITY_KEY), agreement.authority)
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
    return changed


def _masked(config: Config, preset: str, file: Path | None, overrides: dict[str, Any]) -> tuple[Config, str]:
    """Across organisations masking is on unless somebody decided about it; where it cannot be, say why."""
    decided = (
        set(read_preset(preset))
        | set(overrides)
        | set(tomllib.loads(file.read_text("utf-8")) if file else ())
    )
    if "masking" in decided:
        return config, ""
    if config.gradients.mechanism not in ("ternary", "skellam"):
        return config, f": it needs ternary or Skellam gradients, and these are {config.gradients.mechanism}"
    return config.with_values({"masking": True}), ""


def _new_coordinator(authority_key: Key, authority: str) -> tuple[Key, Member]:
    key = new_key()
    return key, Member(
        name=COORDINATOR, certificate=issue(authority_key, authority, request(key, COORDINATOR), server=True)
    )


def _new_folder(folder: Path) -> None:
    """An empty folder that only its owner may enter."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ConfigError(f"{folder} exists already and is left as it is; choose another folder")
        folder.chmod(0o700)
    except OSError as error:
        raise ConfigError(
            f"cannot create {folder}: {error.strerror or error}; choose another folder"
        ) from None


def _write(path: Path, text: str) -> None:
    try:
        write_bytes(path, text.encode())
    except OSError as error:
        raise ConfigError(
            f"cannot write {path}: {error.strerror or error}; make room or choose another folder"
        ) from None


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8", "replace")
    except OSError as error:
        raise ConfigError(f"cannot read the request {path}: {error.strerror or error}") from None


def changed_settings(config: Config) -> dict[str, Any]:
    """The settings that are not as in the preset this configuration started from, by path."""
    base = build_config(preset=config.base) if config.base in presets() else Config(base=config.base)
    before = base.values()
    return {path: own for path, own in config.values().items() if path not in before or own != before[path]}


def summary(agreement: Agreement) -> dict[str, Any]:
    """The agreement for programs."""
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
        "settings": changed_settings(agreement.config),
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
