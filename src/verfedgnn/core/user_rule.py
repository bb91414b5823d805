"""The rule that decides which users take part in a federation."""

from __future__ import annotations

from typing import Literal

from verfedgnn.core.errors import DataError

UserRule = Literal["any", "all"] | int
"""Users at any party, at all parties, or at a number of parties or more."""


def fewest_parties(rule: UserRule, parties: int) -> int:
    """Return at how many of `parties` parties a user must be present to take part."""
    if rule == "any":
        return 1
    if rule == "all":
        return parties
    if not isinstance(rule, int) or rule < 2:
        raise DataError(f"users = {rule!r} is not a rule; use any, all or a number of parties from 2")
    if rule > parties:
        raise DataError(
            f"users = {rule}, but there are only {parties} parties; use any, all or a lower number"
        )
    return rule


def describe_rule(rule: UserRule) -> str:
    """Return the rule in words: "at any party", "at every party" or "at 2 or more parties"."""
    if isinstance(rule, str):
        return {"any": "at any party", "all": "at every party"}[rule]
    return f"at {rule} or more parties"
