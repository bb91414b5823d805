"""What a lift shows, point by point: each table in words, who differs, who loses, how chance is dealt with, and what to do next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from verfedgnn.core.option_names import worded
from verfedgnn.data.ratings import format_count
from verfedgnn.evaluation.bootstrap import FEWEST_USERS
from verfedgnn.evaluation.gain_text import format_interval, format_signed, join_names
from verfedgnn.evaluation.verdict import PartyVerdict, count_customers, group_by_word, party_verdicts, verdict
from verfedgnn.evaluation.verdict_words import (
    KNOWN,
    LIKELY_BETTER,
    LIKELY_WORSE,
    MIXED,
    NEW,
    NO,
    NO_DIFFERENCE,
    SMALL,
    UNCLEAR,
    WHAT,
    YES,
    halves,
    judged_tables,
)

FALL = 0.01
"""Share of its value that Recall@20 or HitRate@20 must lose to be said to fall."""
SAME = 0.002
"""Figures whose ratio differs from 1 by less than this are called the same."""
_SIMPLE = {
    ("rmse", KNOWN): "own means",
    ("rmse", NEW): "item means",
    ("ndcg@20", KNOWN): "most popular items",
    ("ndcg@20", NEW): "most popular items",
}
"""The name of the simple model, by metric and customers."""
_FEDERATED = ("federated means", "federated", "federated raters")
"""Names of the models in a gate's mixture that come from the federation."""
_EFFECTS = {
    YES: "Joining improves {}: {}",
    LIKELY_BETTER: "Joining likely improves {}: {}",
    NO_DIFFERENCE: "Joining makes no difference to {}: {}",
    UNCLEAR: "The data cannot tell whether joining changes {}: {}",
    LIKELY_WORSE: "Joining likely makes {} worse: {}",
    NO: "Joining makes {} worse: {}",
}
"""What joining does to predictions, by word."""


def summarise(lift: Mapping[str, Any]) -> str:
    """Return the points of a lift as one paragraph."""
    return " ".join(list_points(lift))


def list_points(lift: Mapping[str, Any]) -> list[str]:
    """Return what the `lift` part of metrics.json shows for all parties together, who differs, and what to do."""
    points: list[str | None] = [_describe_training(lift)]
    points += [_describe_table(customers, table) for customers, table in judged_tables(lift)]
    points += [
        *_list_losers(lift),
        _describe_falls(lift),
        _describe_activity(halves(lift)[-1]),
        _describe_chance(lift),
        _compare_seeds(lift),
        _advise(lift),
    ]
    return [point for point in points if point is not None]


def _describe_training(lift: Mapping[str, Any]) -> str | None:
    """Return that the verdict is preliminary if the training was shorter than its preset's and still improved."""
    if "short" not in lift:
        return None
    short = lift["short"]
    leave = worded("without `--set epochs`", "without `epochs`")
    return (
        f"The training was short: the run has {short['epochs']} of the {short['usual']} epochs of preset {short['preset']}, and "
        f"validation still improved in its last round. Train {leave} before you decide."
    )


def _describe_table(customers: str, table: Mapping[str, Any]) -> str:
    """Return sentences on the gain in one table, and the parties that differ."""
    row = table["overall"]
    metric = table["metric"]
    what = f"{WHAT[metric]} for {count_customers(row['users'], customers)}"
    if row["gain"] is None and customers == NEW:
        return f"No customer in the test part is new to one party and known to another, so {WHAT[metric]} for newcomers are not judged."
    if row["gain"] is None:
        return f"There are no test cases to judge {WHAT[metric]} by."
    if row["users"] < FEWEST_USERS:
        text = f"Fewer than {FEWEST_USERS} customers are too few to judge {what}"
    else:
        text = _EFFECTS[row["pays"]].format(what, format_interval(row))
        text += f", compared with {_name_reference(customers, table)}"
    return f"{text}.{_list_exceptions(table['parties'], row['pays'])}"


def _name_reference(customers: str, table: Mapping[str, Any]) -> str:
    """Return what a party has without joining, with which the gain of all parties together compares."""
    row = table["overall"]
    several = len(table["parties"]) != 1
    alone = row["reference"] == "alone" and abs(row["alone"] - row["simple"]) >= SAME * row["simple"]
    model = f"own model{'s' if several else ''}" if alone else _SIMPLE[table["metric"], customers]
    return f"{'the parties' + chr(39) if several else 'its'} {model}"


def _list_exceptions(rows: Sequence[Mapping[str, Any]], overall: str) -> str:
    """Return a sentence that names the parties with another word than all parties together; clear ones with their gain."""
    if len(rows) < 2:
        return ""
    others = [row for row in rows if row["pays"] != overall]
    names = {
        f"{row['name']} ({format_interval(row)})" if row["pays"] in (YES, NO) else row["name"]: row["pays"]
        for row in others
    }
    texts = [f"{word} at {join_names(found)}" for word, found in group_by_word(names).items()]
    return f" By party: {'; '.join(texts)}." if texts else ""


def _list_losers(lift: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each group of customers who lose, such as those whom no other party knows."""
    found = []
    for customers, table in judged_tables(lift):
        groups = {
            **{_describe_overlap(row): row for row in table.get("by_other_parties", [])},
            **{f"{_describe_band(row)} at the party": row for row in table.get("by_own_ratings", [])},
            **{f"{_describe_band(row)} at other parties": row for row in table.get("by_other_ratings", [])},
        }
        if len(lift["parties"]) < 2 or table["overall"]["pays"] == NO:
            continue
        what = WHAT[table["metric"]] + (" for newcomers" if customers == NEW else "")
        losers = [f"{group}, {format_interval(row)}" for group, row in groups.items() if row["pays"] == NO]
        if losers:
            found.append(f"Joining makes {what} worse for customers {'; '.join(losers)}.")
    return found


def _describe_falls(lift: Mapping[str, Any]) -> str | None:
    """Return where fewer liked items are in the lists although they stand higher up; None if nowhere."""
    found = []
    for customers, table in judged_tables(lift):
        for name, row in _rows_with_all(table):
            if not row["gain"] or row["gain"]["percent"] <= 0:
                continue
            for metric, label in (("recall@20", "Recall@20"), ("hitrate@20", "HitRate@20")):
                before = row.get(metric, {}).get(row["reference"])
                after = row.get(metric, {}).get("federated")
                if before is not None and before - after >= FALL * before:
                    found.append(f"{label} for {customers} at {name} ({before:.4f} to {after:.4f})")
    if not found:
        return None
    return f"NDCG@20 rises, but another metric of the same lists falls: {join_names(found)}."


def _rows_with_all(table: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the rows of the parties by name, then that of all parties together if there are several."""
    everybody = [("all parties together", table["overall"])] if len(table["parties"]) > 1 else []
    return [*((row["name"], row) for row in table["parties"]), *everybody]


def _describe_overlap(row: Mapping[str, Any]) -> str:
    number = row["other_parties"]
    if not number:
        return "whom no other party knows"
    return f"whom {number} other {'party knows' if number == 1 else 'parties know'}"


def _describe_band(row: Mapping[str, Any]) -> str:
    low = row["from"]
    high = row.get("to")
    if high == 0:
        return "without training ratings"
    count = f"{low}" if low == high else f"{low} or more" if high is None else f"{low} to {high}"
    return f"with {count} {'rating' if count == '1' else 'ratings'}"


def _describe_activity(table: Mapping[str, Any]) -> str | None:
    """Return from how many ratings on joining shows no gain; None if it never does, or shows one throughout."""
    bands = [row for row in table.get("by_own_ratings", []) if row["gain"] is not None and row["from"] > 0]
    same = None
    for row in reversed(bands):
        if row["pays"] in (YES, LIKELY_BETTER):
            break
        same = row["from"]
    else:
        return None
    if same is None:
        return None
    return f"For customers with {format_count(same, 'rating')} or more at a party, {WHAT[table['metric']]} show no clear or likely gain."


def _describe_chance(lift: Mapping[str, Any]) -> str | None:
    """Return how chance is dealt with, and how far likely words can be trusted."""
    count = lift["verdicts"]
    if not count:
        return None
    among = f" among its {count} verdicts (Holm's correction)" if count > 1 else ""
    text = f"Without a true gain or loss, at most 1 run in 20 has a false yes or no{among}."
    rows = [row for _, table in judged_tables(lift) for _, row in _rows_with_all(table)]
    if any(row["pays"] in (LIKELY_BETTER, LIKELY_WORSE) for row in rows):
        text += (
            " Likely better or worse: the 95 % interval excludes 0, but without a true difference about 1 interval in 20 does so "
            "by chance."
        )
    return text


def _compare_seeds(lift: Mapping[str, Any]) -> str | None:
    """Return what an interval over seeds covers, and which gains are not clear but positive with every seed."""
    if "seeds" not in lift:
        return None
    count = len(lift["seeds"])
    text = f"An interval over {count} seeds also covers one more seed, so it is wider than that of a single run; more seeds narrow it."
    likely = []
    for customers, table in judged_tables(lift):
        for name, row in _rows_with_all(table):
            gains = (row["gain"] or {}).get("by_seed", [0.0])
            if row["pays"] == UNCLEAR and min(gains) >= SMALL:
                span = f"{format_signed(min(gains))} to {format_signed(max(gains))} %"
                likely.append(f"{WHAT[table['metric']]} for {customers} at {name} ({span})")
    return f"{text} Cannot tell, but positive with every seed: {'; '.join(likely)}." if likely else text


def _advise(lift: Mapping[str, Any]) -> str:
    """Return what to do next: the same advice for a party here and in the lift of that party alone."""
    parties = party_verdicts(lift)
    if not parties:
        parties = [PartyVerdict("", verdict(lift), "", "", _gainers(lift), frozenset())]
    if "newcomers" not in lift:
        return (
            "Join if newcomers gain, too."
            if any(p.gainers for p in parties)
            else "Judge newcomers before you decide."
        )
    advice = {party.name: _advise_party(party, lift) for party in parties}
    texts = {
        text: [name for name in advice if advice[name] == text] for text in dict.fromkeys(advice.values())
    }
    if len(texts) > 1:
        sentences = [f"{join_names(names)}: {text}." for text, names in texts.items()]
    else:
        (text,) = texts
        sentences = [f"{text[:1].upper()}{text[1:]}."]
    gains = frozenset().union(*(party.gainers for party in parties))
    together = _gainers(lift)
    if not gains and len(parties) > 1 and together:
        sentences.append(
            "For all parties together the gain is clear, so more ratings may make it clear for each."
        )
    if (gains or together) == {NEW}:
        sentences.append(_describe_weights(lift))
    return " ".join(sentences)


def _gainers(lift: Mapping[str, Any]) -> frozenset[str]:
    """Return the customers who gain at all parties together."""
    return frozenset(customers for customers, table in judged_tables(lift) if table["overall"]["pays"] == YES)


def _advise_party(party: PartyVerdict, lift: Mapping[str, Any]) -> str:
    """Return what one party should do, as a sentence without a capital and a full stop."""
    more = "more customers, ratings or seeds can make it clear"
    if party.pays == MIXED:
        return "join for what improves, and keep what you have alone for the rest"
    if party.gainers:
        only = {frozenset({KNOWN}): " for known customers", frozenset({NEW}): " for newcomers"}
        gated = any("gate" in row for row in lift["parties"])
        serve = ", and serve what the gate has chosen" if gated and KNOWN in party.gainers else ""
        likely = "".join(f" and likely for {customers}" for customers in party.likely)
        return f"join{only.get(party.gainers, '')}{likely}{serve}"
    if party.pays == LIKELY_BETTER:
        return f"joining is likely better, but no gain is clear yet; {more}"
    if party.pays == UNCLEAR:
        return f"no gain or loss is clear yet; {more}"
    found = {NO_DIFFERENCE: "makes no difference", LIKELY_WORSE: "is likely worse", NO: "does not pay"}[
        party.pays
    ]
    check = worded("`verfedgnn data check`", "`vf.check`")
    return f"joining {found}, so stay alone, or look at the overlap with {check} and add a party that shares more customers"


def _describe_weights(lift: Mapping[str, Any]) -> str:
    """Return what known customers are served, from the weights of the gates."""
    parts = [half for half in halves(lift) if all("gate" in row for row in half["parties"])]
    if not parts:
        return "Serve known customers what each party has alone."
    texts = []
    for half in parts:
        weights = {row["name"]: row["gate"]["known"] for row in half["parties"]}
        federated = {name: sum(found.get(way, 0) for way in _FEDERATED) for name, found in weights.items()}
        used = [name for name, weight in federated.items() if weight >= 0.005]
        if not used:
            continue
        if half["metric"] == "rmse":
            texts.append(
                "predicted ratings at "
                + join_names([f"{name} (weight {federated[name]:.2f})" for name in used])
            )
        else:
            texts.append(f"lists at {join_names(used)}")
    if not texts:
        return "The gates serve known customers what each party has alone."
    return f"Known customers are served mixtures with federated models too: {' and '.join(texts)}."
