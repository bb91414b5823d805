"""The answer to "does joining pay?" in words: for whom, by how much, for whom not, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

YES, NO = "yes", "no"
WHAT = {"rmse": "predicted ratings", "ndcg@20": "lists"}


def summarise(lift: dict[str, Any]) -> str:
    """Return one paragraph that summarises the `lift` part of metrics.json."""
    tables = [lift, *([lift["lists"]] if "lists" in lift else [])]
    sentences = [_known(table) for table in tables]
    sentences += [_new(table["newcomers"]) for table in tables]
    activity = _activity(tables[-1])
    if activity:
        sentences.append(activity)
    sentences.append(_advice(tables))
    return " ".join(sentences)


def verdict(lift: dict[str, Any]) -> str:
    """Return the verdict over all tables: yes if any of them says yes, else no if any says no, else cannot tell."""
    rows = [
        table["overall"]
        for half in (lift, lift.get("lists"))
        if half is not None
        for table in (half, half["newcomers"])
    ]
    verdicts = {row["pays"] for row in rows}
    return YES if YES in verdicts else NO if NO in verdicts else "cannot tell"


def _known(table: dict[str, Any]) -> str:
    """Return a sentence on the gain for customers that the parties know."""
    row = table["overall"]
    what = WHAT[table["metric"]]
    if row["gain"] is None:
        return f"There are no test cases to judge {what} by."
    if row["pays"] == YES:
        text = f"Joining improves {what} for customers that the parties know by {_percent(row)}"
    elif row["pays"] == NO:
        text = f"Joining makes {what} for customers that the parties know worse by {_percent(row)}"
    else:
        text = f"For customers that the parties know, joining makes no clear difference to {what} ({_bare_percent(row)})"
    return f"{text}, compared with the best each party has alone{_exceptions(table['parties'], row['pays'])}."


def _new(table: dict[str, Any]) -> str:
    """Return a sentence on the gain for customers who are new to one party and known to another."""
    row = table["overall"]
    what = WHAT[table["metric"]]
    reference = "item means" if table["metric"] == "rmse" else "the most popular items"
    if row["gain"] is None:
        return f"No customer in the test part is new to one party and known to another, so {what} for them are not judged."
    count = f"{row['users']:,} customers new to one party and known to another"
    if row["pays"] == YES:
        text = f"It improves {what} for {count} by {_percent(row)}"
    elif row["pays"] == NO:
        text = f"It makes {what} for {count} worse by {_percent(row)}"
    else:
        text = f"For {count}, it makes no clear difference to {what} ({_bare_percent(row)})"
    return f"{text}, compared with {reference}{_exceptions(table['parties'], row['pays'])}."


def _exceptions(rows: Sequence[dict[str, Any]], overall: str) -> str:
    """Return a list of the parties whose verdict contradicts the one over all parties."""
    against = {YES: NO, NO: YES}.get(overall)
    wanted = (against,) if against else (YES, NO)
    named = [f"{row['name']}: {row['pays']}, {_bare_percent(row)}" for row in rows if row["pays"] in wanted]
    return f" ({'; '.join(named[:5])})" if named else ""


def _activity(table: dict[str, Any]) -> str | None:
    """Return a sentence on the most active customers if joining makes no clear difference for them; else None."""
    bands = [row for row in table["by_own_ratings"] if row["gain"] is not None and row["from"] > 0]
    same = None
    for row in reversed(bands):
        if row["pays"] == YES:
            break
        same = row["from"]
    if same is None or len(bands) < 2:
        return None
    return (
        f"For customers with {same} or more ratings at a party, {WHAT[table['metric']]} do not improve beyond the interval; "
        "the gate serves them what the party has alone as far as that is better."
    )


def _advice(tables: Sequence[dict[str, Any]]) -> str:
    """Return a sentence that recommends what to do next."""
    known = any(table["overall"]["pays"] == YES for table in tables)
    new = any(table["newcomers"]["overall"]["pays"] == YES for table in tables)
    if known and new:
        return "Join, and serve what the gate has chosen for each party."
    if new:
        return "Join for the newcomers; the gate keeps serving the other customers what each party has alone."
    if known:
        return "Join; newcomers gain nothing yet, so look again when more customers are shared."
    return (
        "On this data joining does not pay: look at the overlap with `verfedgnn data check`, add a party that shares more "
        "customers, or stay with what each party has alone."
    )


def _percent(row: dict[str, Any]) -> str:
    """Return the size of a gain or loss with its interval, such as `41.0 % (32.1 to 50.3)`."""
    found = row["gain"]
    ends = sorted(abs(found[end]) for end in ("low_percent", "high_percent"))
    return f"{abs(found['percent']):.1f} % ({ends[0]:.1f} to {ends[1]:.1f})"


def _bare_percent(row: dict[str, Any]) -> str:
    """Return a signed gain for use inside brackets."""
    found = row["gain"]
    return f"{found['percent']:+.1f} %, {found['low_percent']:+.1f} to {found['high_percent']:+.1f}"
