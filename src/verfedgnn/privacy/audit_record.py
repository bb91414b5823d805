"""What attacks reached on trainings of each preset, measured once and shipped with the product (`results/attacks.md`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True)
class AuditRecord:
    """The headline of the attacks on one preset."""

    learnt: str
    """What others learn, in one sentence."""
    figures: Mapping[str, float]
    """AUC by attacker and data: 0.5 is a coin toss, 1 is certainty."""
    data: str
    """Data sets and seeds."""
    commit: str


@cache
def audit_records() -> Mapping[str, AuditRecord]:
    """Return the record of each preset that was attacked, by name."""
    text = files("verfedgnn.privacy").joinpath("audit_record.json").read_text("utf-8")
    return {preset: AuditRecord(**values) for preset, values in json.loads(text).items()}
