"""The answer to "does joining pay?" in words: for whom, by how much, for whom not, and what to do next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

YES, NO, UNCLEAR = "yes", "no", "cannot tell"
WHAT = {"rmse": "predicted ratings", "ndcg@20": "lists"}
KNOWN = "customers that the parties know"
NEW = "customers new to one party and known to another"
_BETTER = {"rmse": "lower", "ndcg@20": "higher"}
_SIMPLE = {
    ("rmse", KNOWN): "own means",
    ("rmse", NEW): "item means",
    ("ndcg@20", KNOWN): "popularity",
    ("ndcg@20", NEW): "popularity",
}
"""The name of the simple model, by metric and customers."""


def summarise(lift: Mapping[str, Any]) -> str:
    """Return one paragraph that summarises the `lift` part of metrics.json."""
    halves = _halves(lift)
    sentences = [_known(table) for table in halves]
    sentences += [_new(table["newcomers"]) for table in halves if "newcomers" in table]
    activity = _activity(halves[-1])
    if activity:
        sentences.append(activity)
    sentences.append(_advise(lift))
    return " ".join(sentences)


def judged_tables(lift: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return every table of a lift with its customers: all tables of known customers, then those of newcomers."""
    halves = _halves(lift)
    new = [(NEW, half["newcomers"]) for half in halves if "newcomers" in half]
    return [*((KNOWN, half) for half in halves), *new]


def verdict(lift: Mapping[str, Any]) -> str:
    """Return the verdict over all tables: yes if any of them says yes, else no if any says no, else cannot tell."""
    verdicts = {table["overall"]["pays"] for _, table in judged_tables(lift)}
    return YES if YES in verdicts else NO if NO in verdicts else UNCLEAR


def headline(lift: Mapping[str, Any]) -> str:
    """Return the verdict as a short sentence. Terminal, reports, notebooks and the web page show the same one."""
    gains = {customers for customers, table in judged_tables(lift) if table["overall"]["pays"] == YES}
    if gains == {KNOWN, NEW}:
        return "Joining pays."
    if gains:
        return f"Joining pays for {gains.pop()}."
    if verdict(lift) == NO:
        return "Joining does not pay."
    return "The data cannot tell whether joining pays."


def deciding_figures(lift: Mapping[str, Any]) -> str:
    """Return a sentence with the figures of the first table that has the verdict: federated beside alone and simple."""
    word = verdict(lift)
    for customers, table in judged_tables(lift):
        row = table["overall"]
        if row["pays"] == word and row["gain"] is not None:
            metric = table["metric"]
            ways = {"federated": "federated", "alone": "alone", "simple": _SIMPLE[metric, customers]}
            if customers == NEW:
                del ways["alone"]  # without ratings of the customer, it is the simple model
            figures = ", ".join(f"{name} {row[way]:.4f}" for way, name in ways.items())
            return (
                f"{metric.upper()} of {WHAT[metric]} for {customers}, {_BETTER[metric]} is better: {figures}; "
                f"gain {_bare_percent(row)}."
            )
    return "There are no test cases to decide by."


def _halves(lift: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the tables of ratings and those of lists, or the only ones there are."""
    return [lift, lift["lists"]] if "lists" in lift else [lift]


def _known(table: Mapping[str, Any]) -> str:
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


def _new(table: Mapping[str, Any]) -> str:
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


def _exceptions(rows: Sequence[Mapping[str, Any]], overall: str) -> str:
    """Return a list of the parties whose verdict contradicts the one over all parties."""
    against = {YES: NO, NO: YES}.get(overall)
    wanted = (against,) if against else (YES, NO)
    named = [f"{row['name']}: {row['pays']}, {_bare_percent(row)}" for row in rows if row["pays"] in wanted]
    return f" ({'; '.join(named[:5])})" if named else ""


def _activity(table: Mapping[str, Any]) -> str | None:
    """Return a sentence on the most active customers if joining makes no clear difference for them; else None."""
    bands = [row for row in table.get("by_own_ratings", []) if row["gain"] is not None and row["from"] > 0]
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


def _advise(lift: Mapping[str, Any]) -> str:
    """Return a sentence that recommends what to do next."""
    gains = {customers for customers, table in judged_tables(lift) if table["overall"]["pays"] == YES}
    if "newcomers" not in lift:
        judge = "newcomers are judged by `verfedgnn train` with --lift."
        return f"Join; {judge}" if gains else f"Before you decide: {judge}"
    if gains == {KNOWN, NEW}:
        return "Join, and serve what the gate has chosen for each party."
    if gains == {NEW}:
        return "Join for the newcomers; the gate keeps serving the other customers what each party has alone."
    if gains == {KNOWN}:
        return "Join; newcomers gain nothing yet, so look again when more customers are shared."
    found = "does not pay" if verdict(lift) == NO else "shows no clear gain"
    return (
        f"On this data joining {found}: look at the overlap with `verfedgnn data check`, add a party that shares more "
        "customers, or stay with what each party has alone."
    )


def _percent(row: Mapping[str, Any]) -> str:
    """Return the size of a gain or loss with its interval, such as `41.0 % (32.1 to 50.3)`."""
    found = row["gain"]
    ends = sorted(abs(found[end]) for end in ("low_percent", "high_percent"))
    return f"{abs(found['percent']):.1f} % ({ends[0]:.1f} to {ends[1]:.1f})"


def _bare_percent(row: Mapping[str, Any]) -> str:
    """Return a signed gain for use inside brackets."""
    found = row["gain"]
    gain, low, high = (round(found[end], 1) + 0.0 for end in ("percent", "low_percent", "high_percent"))
    return f"{gain:+.1f} %, {low:+.1f} to {high:+.1f}"
