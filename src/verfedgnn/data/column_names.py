"""The columns of a table by role, such as user, item and rating, matched by common names or the option `columns`."""

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from verfedgnn.core.errors import UNKNOWN_COLUMN, DataError, MissingColumns
from verfedgnn.core.option_names import option

RATING_ROLES = ("user", "item", "rating")

# Common names in lower case without punctuation; the earlier one wins.
ALIASES = {
    "user": "user userid uid customer customerid reviewerid visitorid",
    "item": "item itemid iid movieid businessid product productid bookid isbn asin sku",
    "rating": "rating ratings stars score overall bookrating",
    "event": "event eventtype eventname action behavior behaviour behaviortype interaction",
    "time": "time timestamp ts date datetime unixreviewtime when dateadded ratedat ratedon createdat reviewdate"
    " ratingdate purchasedate orderdate",
    "title": "title name itemtitle booktitle",
    "category": "category",
    "genre": "genre",
}

# Parts of names that say what a column may hold, but too little to read it unasked; the user confirms them.
_HINTS = {
    "user": "user customer client member person account buyer viewer listener player",
    "item": "item film movie book song track album game show product title name",
    "rating": "rating stars score grade mark vote points note value feedback",
    "event": "event action behavior behaviour interaction",
    "time": "time date",
}


def normalise_name(name: str) -> str:
    """Return a column's name in lower case without punctuation."""
    # RecBole appends the type to the name: user_id:token.
    return re.sub(r"[^a-z0-9]", "", name.split(":")[0].lower())


def match_columns(
    there: Sequence[str],
    wanted: Mapping[str, str],
    *,
    required: Sequence[str] = RATING_ROLES,
    keep: Sequence[str] | None = (),
    source: str,
    advice: str = "",
) -> dict[str, str]:
    """Return the name of the table's column for each role; raise `MissingColumns` if a required role has no column.

    Columns of ratings and events are matched only if they are required. `keep` names further columns to keep under their names,
    None all. `advice` is added to the suggested remedy.
    """
    absent = [f"{role}={column}" for role, column in wanted.items() if column not in there]
    names = {role: column for role, column in wanted.items() if column in there}
    by_alias = {normalise_name(column): column for column in reversed(there)}
    for role, aliases in ALIASES.items():
        if role not in wanted and (role in required or role not in ("rating", "event")):
            hit = next((by_alias[alias] for alias in aliases.split() if alias in by_alias), None)
            if hit is not None and hit not in names.values():
                names[role] = hit
    left = [column for column in there if column not in names.values()]
    kept = left if keep is None else [column for column in keep if column in there]
    names |= {column: column for column in kept if column not in names}
    missing = [role for role in required if role not in names and role not in wanted]
    _check_roles(wanted, (*ALIASES, *required, *(keep or ())), lacks=bool(absent or missing))
    if not absent and not missing:
        return names
    left = [column for column in there if column not in names.values() or column == names.get("title")]
    lacking = [role for role in (*wanted, *missing) if role not in names]
    guesses = _guess(lacking, left)
    named = {role: names.get(role) or guesses.get(role, UNKNOWN_COLUMN) for role in (*wanted, *missing)}
    lack = f"no column for {', '.join(missing)}"
    if absent:
        lack = f"{option('columns')} names {', '.join(absent)}, which does not exist"
    likes = None
    advice = "" if UNKNOWN_COLUMN not in named.values() else advice
    if missing == ["rating"] and not absent:
        advice = f" Without ratings, count every row as a like: {option('events', 5)}"
        if "rating" not in guesses:
            kinds = "event" in names or _guess(["event"], left)
            weights = (
                f"; weigh its kinds with {option('events', {'view': 1, 'purchase': 5})}" if kinds else ""
            )
            likes = f"no column of ratings, so every row is a like{weights}"
    shown = ", ".join(column[:30] for column in there[:12]) + (", ..." if len(there) > 12 else "")
    raise MissingColumns(f"{source}: {lack}; its columns are: {shown}", named, advice, likes=likes)


def _guess(roles: Sequence[str], left: Sequence[str]) -> dict[str, str]:
    """Return the columns that a reader may have meant: for each role, the shortest name with a hint in it."""
    guesses: dict[str, str] = {}
    for role in roles:
        hints = _HINTS.get(role, "").split()
        free = [column for column in left if column not in guesses.values()]
        similar = [column for column in free if any(hint in normalise_name(column) for hint in hints)]
        if similar:
            guesses[role] = min(similar, key=len)
    return guesses


def _check_roles(wanted: Mapping[str, str], known: Sequence[str], *, lacks: bool) -> None:
    """Raise `DataError` if the option `columns` misspells a role.

    Other keys name further item columns. They are mistakes if the table `lacks` a column.
    """
    for role, column in wanted.items():
        near = get_close_matches(normalise_name(role), known, 1)
        if role in known or role == column or not (near or lacks):
            continue
        swapped = normalise_name(column) in known
        meant = {near[0]: column} if near else {column: role}
        hint = f"; did you mean {option('columns', meant)}?" if near or swapped else "."
        keys = f"The keys are {', '.join(dict.fromkeys(known))}, and the values are the names of your columns"
        raise DataError(f"{option('columns')} has the unknown key '{role}'{hint} {keys}")
