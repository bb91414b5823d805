"""Summarise an agreement for programs and for tables."""

from __future__ import annotations

from typing import Any

from verfedgnn.config import Config, build_config, presets
from verfedgnn.federation.agreement import Agreement, Member
from verfedgnn.federation.certificates import certificate_key


def summarise_agreement(agreement: Agreement) -> dict[str, Any]:
    """Return the agreement and its members as JSON values."""
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
        "members": [_summarise_member(m) for m in (agreement.coordinator, *agreement.parties)],
    }


def changed_settings(config: Config) -> dict[str, Any]:
    """Return the settings, by path, that differ from the preset of the configuration."""
    base = build_config(preset=config.base) if config.base in presets() else Config(base=config.base)
    before = base.values()
    return {path: own for path, own in config.values().items() if path not in before or own != before[path]}


def _summarise_member(member: Member) -> dict[str, str]:
    return {
        "name": member.name,
        "certificate": member.fingerprint,
        "key": certificate_key(member.certificate),
        "expires": member.expires.isoformat(),
    }
