"""Summarise an agreement for programs and for tables."""

from __future__ import annotations

from typing import Any

from verfedgnn.config import Config, build_config, presets
from verfedgnn.federation.agreement import Agreement, Member
from verfedgnn.federation.certificates import certificate_key
from verfedgnn.federation.stages import list_stages


def summarise_agreement(agreement: Agreement) -> dict[str, Any]:
    """Return the agreement and its members as JSON values."""
    return {
        "name": agreement.name,
        "address": agreement.address,
        "alignment": agreement.alignment,
        "quorum": agreement.quorum,
        "configuration": agreement.training_config.fingerprint(),
        "fingerprint": agreement.fingerprint(),
        "digest": agreement.digest(),
        "preset": agreement.config.base,
        "settings": changed_settings(agreement.training_config),
        "trainings": [stage.name for stage in list_stages(agreement)],
        "two_parties": describe_two_parties(agreement),
        "members": [_summarise_member(m) for m in (agreement.coordinator, *agreement.parties)],
    }


def describe_two_parties(agreement: Agreement) -> str | None:
    """Return what two parties can and cannot hide from each other; None for any other number of parties."""
    if len(agreement.parties) != 2:
        return None
    config = agreement.training_config
    gradients = {
        "ternary": "ternary gradients",
        "rounded": "gradients rounded to 8 bits",
        "laplace": "gradients with Laplace noise",
        "skellam": "gradients with Skellam noise",
        "none": "exact gradients",
    }[config.gradients.mechanism]
    neighbourhoods = {
        "noised": " and noised neighbourhoods",
        "projected": " and projected neighbourhoods",
        "masked": " and exact neighbourhoods",
        "exact": " and exact neighbourhoods",
        "off": "",
    }[config.exchange.mode]
    hidden = (
        "masks hide them only from the coordinator"
        if config.masking
        else "without masks the coordinator sees them, too"
    )
    return (
        f"With two parties every sum minus your own part is the other's: each sees the other's {gradients}{neighbourhoods}; "
        f"{hidden}."
    )


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
