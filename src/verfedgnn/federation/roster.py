"""Create a federation, admit and remove its parties, renew the coordinator's certificate, and prepare nights."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from verfedgnn.config import Config, build_config, read_preset
from verfedgnn.config.party_counts import fewest_parties_in_sum
from verfedgnn.core.errors import ConfigError
from verfedgnn.core.files import make_folder, write_bytes
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
    issue,
    key_fingerprint,
    key_pem,
    make_request,
    new_authority,
    new_key,
    read_key,
    read_request,
    short_fingerprint,
    write_secret,
)
from verfedgnn.federation.key_files import AUTHORITY, AUTHORITY_KEY, COORDINATOR_KEY, PARTY_KEY
from verfedgnn.plugins import GNNS, REMEDY


class NewFederation(NamedTuple):
    """A federation that was just created."""

    agreement: Agreement
    unmasked: str | None
    """Reason why masking could not be switched on by default; None if it is on or was chosen explicitly."""


def create_federation(
    folder: Path,
    *,
    preset: str,
    model: str | None,
    config_file: Path | None,
    overrides: dict[str, Any],
    **rules: Any,
) -> NewFederation:
    """Create the authority, the coordinator's key and the agreement in a new folder.

    `rules` are the remaining fields of the agreement: name, address, alignment, min_parties.
    """
    built = build_config(preset=preset, model=model, file=config_file, overrides=overrides)
    config, unmasked = _mask_by_default(built.with_code(), preset, config_file, overrides)
    if config.model.gnn not in GNNS and config.model.code is None:
        raise ConfigError(
            f"GNN '{config.model.gnn}' is not defined in a file, so members cannot compare its code; {REMEDY}"
        )
    try:
        authority_key, authority = new_authority(rules["name"])
    except CertificateError as error:
        raise ConfigError(f"{error}; set the name of the federation with --name") from None
    key, coordinator = _new_coordinator(authority_key, authority)
    agreement = build_agreement(
        {**rules, "config": config, "authority": authority, "coordinator": coordinator}
    )
    _new_folder(folder)
    write_secret(folder / AUTHORITY_KEY, key_pem(authority_key))
    write_secret(folder / COORDINATOR_KEY, key_pem(key))
    _write(folder / AUTHORITY, authority)
    save_agreement(folder / FILE, agreement)
    return NewFederation(agreement, unmasked)


class JoinRequest(NamedTuple):
    """A party's request to join, and the fingerprint by which the coordinator recognises it."""

    key_file: Path
    request_file: Path
    fingerprint: str


def request_membership(name: str, folder: Path) -> JoinRequest:
    """Create a party's key and certificate request in a new folder."""
    if name.lower() == COORDINATOR:
        raise ConfigError(f"'{name}' is reserved for the coordinator; choose another name")
    key = new_key()
    csr = make_request(key, name)
    _new_folder(folder)
    key_file = folder / PARTY_KEY
    request_file = folder / f"{name}.csr"
    write_secret(key_file, key_pem(key))
    _write(request_file, csr)
    return JoinRequest(key_file, request_file, short_fingerprint(key_fingerprint(key)))


def admit_parties(
    folder: Path, requests: Sequence[Path], *, replace: bool, confirm: Callable[[dict[str, str]], None]
) -> Agreement:
    """Sign certificate requests and add their parties to the roster.

    `confirm` receives the fingerprint of each party's public key and raises an error if they are not accepted.
    """
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
        name = asked.name
        if name in signed:
            raise ConfigError(
                f"{path}: there is another request for {name}; pass only the one whose fingerprint you compared"
            )
        if replace and name not in members:
            raise ConfigError(f"{path}: {name} has no certificate to replace; omit --replace")
        if name in members and not replace:
            raise ConfigError(f"{path}: {name} is already a member; pass --replace to renew its certificate")
        signed[name] = member
        fingerprints[name] = short_fingerprint(key_fingerprint(asked.key))
    parties = list((members | signed).values())
    changed = agreement.with_values(parties=parties)
    needed = min(len(parties), fewest_parties_in_sum(changed.training_config, len(parties)))
    if 0 < changed.min_parties < needed:
        changed = changed.with_values(min_parties=needed)
    confirm(fingerprints)
    save_agreement(folder / FILE, changed)
    return changed


def _check_coordinates(folder: Path) -> None:
    """Raise `ConfigError` if a folder has an agreement but not the coordinator's key: only the coordinator changes an agreement."""
    if (folder / FILE).is_file() and not (folder / COORDINATOR_KEY).is_file():
        raise ConfigError(
            f"{folder} is not the coordinator's folder; only the coordinator changes the agreement and sends it to all members"
        )


def remove_party(folder: Path, name: str) -> Agreement:
    """Remove a party from the roster."""
    _check_coordinates(folder)
    agreement = load_agreement(folder, dates=False)
    if agreement.member(name) is agreement.coordinator:
        raise ConfigError(
            f"'{COORDINATOR}' is the coordinator; renew its key with `verfedgnn federation renew {folder}`"
        )
    parties = [party for party in agreement.parties if party.name != name]
    required = min(agreement.min_parties, len(parties))
    changed = agreement.with_values(parties=parties, min_parties=required)
    save_agreement(folder / FILE, changed)
    return changed


def renew_coordinator(folder: Path) -> Agreement:
    """Create a new key and certificate for the coordinator."""
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
            f"cannot replace {folder / COORDINATOR_KEY}: {error.strerror or error}; fix this and run the command again"
        ) from None
    save_agreement(folder / FILE, changed)
    return changed


def prepare_nights(folder: Path, overrides: dict[str, Any], *, undo: bool = False) -> Agreement:
    """Change the settings to those of trainings that continue the last one (`Config.for_night`), with `overrides`.

    With `undo`, change them back to those of trainings from nothing (`Config.for_full_training`).
    """
    _check_coordinates(folder)
    agreement = load_agreement(folder, dates=False)
    before = agreement.config
    config = (before.for_full_training() if undo else before.for_night()).with_values(overrides)
    if config == before:
        kind = "trainings from nothing" if undo else "nights"
        raise ConfigError(
            f"{folder / FILE} has the settings of {kind} already, with {before.training.epochs} epochs; "
            "pass --set epochs=N to change that"
        )
    changed = agreement.with_values(config=config)
    save_agreement(folder / FILE, changed)
    return changed


def _mask_by_default(
    config: Config, preset: str, file: Path | None, overrides: dict[str, Any]
) -> tuple[Config, str | None]:
    """Switch masking on unless a preset, file or option sets it; return the reason if that is impossible."""
    chosen = set(read_preset(preset)) | set(overrides)
    if file is not None:
        chosen |= set(tomllib.loads(file.read_text("utf-8")))
    if "masking" in chosen:
        return config, None
    mechanism = config.gradients.mechanism
    if mechanism not in ("ternary", "skellam", "rounded"):
        return config, f"it needs ternary or Skellam gradients, and these are {mechanism}"
    return config.with_values({"masking": True}), None


def _new_coordinator(authority_key: Key, authority: str) -> tuple[Key, Member]:
    key = new_key()
    return key, Member(
        name=COORDINATOR,
        certificate=issue(authority_key, authority, make_request(key, COORDINATOR), server=True),
    )


def _new_folder(folder: Path) -> None:
    """Create a folder that only its owner can enter; raise `ConfigError` if it is not empty."""
    try:
        make_folder(folder)
        if any(folder.iterdir()):
            raise ConfigError(f"{folder} already exists and is not empty; choose another folder")
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
            f"cannot write {path}: {error.strerror or error}; free some space or choose another folder"
        ) from None


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8", "replace")
    except OSError as error:
        raise ConfigError(f"cannot read the request {path}: {error.strerror or error}") from None
