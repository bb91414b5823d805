"""The rule that decides which users take part in a federation."""

from __future__ import annotations

from typing import Literal

from verfedgnn.core.errors import DataError

UserRule = Literal["any", "all"] | int
"""Users at any party, at all parties, or at this many parties or more."""


def fewest_parties(rule: UserRule, parties: int) -> int:
    """Return the number of parties, of `parties` in all, that a user has to be at."""
    if rule == "any":
        return 1
    if rule == "all":
        return parties
    if not isinstance(rule, int) or rule < 2:
        raise DataError(f"users = {rule!r} is not known: use any, all or a number of parties from 2")
    if rule > parties:
        raise DataError(
            f"users = {rule}, but there are only {parties} parties: use any, all or a lower number"
        )
    return rule


def describe_rule(rule: UserRule) -> str:
    """Return where users have to be, in words: "at any party", "at every party" or "at 2 or more parties"."""
    if isinstance(rule, str):
        return {"any": "at any party", "all": "at every party"}[rule]
    return f"at {rule} or more parties"
