"""Which column of a table is what: names as people spell them, or as `--columns` says."""

import re
from collections.abc import Mapping, Sequence

from verfedgnn.core.errors import DataError

RATING_ROLES = ("user", "item", "rating")

IF_EVENTS = "if each row is an event such as a view, say what events are worth with --events view=1,purchase=5 or --events 1"
"""What to do about a table without ratings."""

# As people spell them, in lower case without punctuation; the earlier wins.
ALIASES: dict[str, tuple[str, ...]] = {
    "user": ("user", "userid", "uid", "customer", "customerid", "reviewerid", "visitorid"),
    "item": ("item", "itemid", "iid", "movieid", "businessid", "productid", "bookid", "isbn", "asin", "sku"),
    "rating": ("rating", "ratings", "stars", "score", "overall", "bookrating"),
    "event": (
        "event",
        "eventtype",
        "eventname",
        "action",
        "behavior",
        "behaviour",
        "behaviortype",
        "interaction",
    ),
    "time": ("time", "timestamp", "ts", "date", "datetime", "unixreviewtime"),
    "title": ("title", "name", "itemtitle", "booktitle"),
    "category": ("category",),
    "genre": ("genre",),
}


def normalise_name(name: str) -> str:
    """A column's name in lower case without punctuation."""
    # RecBole writes the type behind the name: user_id:token.
    return re.sub(r"[^a-z0-9]", "", name.split(":")[0].lower())


def match_columns(
    found: Sequence[str],
    wanted: Mapping[str, str],
    *,
    required: Sequence[str] = RATING_ROLES,
    keep: Sequence[str] = (),
    source: str,
    advice: str = "",
    remedy: str | None = None,
) -> dict[str, str]:
    """The table's name for each role it has a column for; a table without the required ones is an error.

    A column of events is only looked for, and one of ratings only used, where it is required. `advice` is one more way out,
    and `remedy` the one for a table that the options of commands are not for.
    """
    absent = [f"{role}={column}" for role, column in wanted.items() if column not in found]
    names = {role: column for role, column in wanted.items() if column in found}
    by_alias = {normalise_name(column): column for column in reversed(found)}
    for role, aliases in ALIASES.items():
        if role not in wanted and (role in required or role not in ("rating", "event")):
            hit = next((by_alias[alias] for alias in aliases if alias in by_alias), None)
            if hit is not None and hit not in names.values():
                names[role] = hit
    names |= {column: column for column in keep if column in found and column not in names}
    missing = [role for role in required if role not in names and role not in wanted]
    if absent or missing:
        lack = (
            f"--columns names {', '.join(absent)}, which is not there"
            if absent
            else f"no column for {', '.join(missing)}"
        )
        shown = ", ".join(column[:30] for column in found[:12]) + (", ..." if len(found) > 12 else "")
        events = f"; {IF_EVENTS}" if missing == ["rating"] else ""
        naming = f"name them with --columns {','.join(f'{role}=...' for role in required)}"
        raise DataError(f"{source}: {lack}; its columns are: {shown}; {remedy or naming + advice + events}")
    return names
