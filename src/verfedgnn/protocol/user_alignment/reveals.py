"""What an alignment reveals to whom, in words."""

from __future__ import annotations

from verfedgnn.core.user_rule import UserRule

REVEALS = {
    "keyed": (
        "The coordinator learns how many users each party has and how many any of them share, under pseudonyms. Together with "
        "any one party, which knows the key, it could look users up."
    ),
    "ecdh": (
        "The coordinator learns how many users each party has and how many any of them share, under pseudonyms. It could look "
        "users up only together with the first two parties of the roster, which also learn how many users each party has."
    ),
    "none": "Nothing is exchanged: every party's file must list the same users. A hash of the whole list is compared.",
}
"""What each method shows to the coordinator and to keyholders."""
RULE_REVEALS = {
    "any": "Parties learn the number of users in the federation, not which of their own users others have.",
    "all": "Parties learn which of their users all the others have.",
    "some": "Parties learn which of their users are at {} parties or more, not at which.",
}
"""What each rule shows to the parties."""


def describe_reveals(method: str, rule: UserRule) -> str:
    """Return what an alignment shows to whom, in words."""
    if method == "none":
        return REVEALS[method]
    shown = RULE_REVEALS[rule] if isinstance(rule, str) else RULE_REVEALS["some"].format(rule)
    return f"{REVEALS[method]} {shown}"
