"""The answer to "does joining pay?" in words: for which party and whom, by how much, for whom not, and what to do next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from verfedgnn.core.option_names import worded
from verfedgnn.data.ratings import format_count
from verfedgnn.evaluation.bootstrap import FEWEST_USERS
from verfedgnn.evaluation.chance import excludes_zero
from verfedgnn.evaluation.gain_text import format_percent, format_signed, join_names

YES, NO, UNCLEAR = "yes", "no", "cannot tell"
MIXED = "mixed"
"""Joining pays for some customers or parties, and not for others."""
WHAT = {"rmse": "predicted ratings", "ndcg@20": "lists"}
KNOWN = "known customers"
NEW = "newcomers"
SMALL = 0.5
"""A gain below this many per cent is called small in the headline."""
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


@dataclass(frozen=True)
class PartyVerdict:
    """What joining is worth to one party, as one line."""

    name: str
    pays: str
    """yes, no, mixed or cannot tell."""
    text: str
    """For which predictions and customers, and by how much, with intervals."""
    gainers: frozenset[str]
    """The customers who gain: `KNOWN`, `NEW` or both."""
    largest: float = 0.0
    """The largest clear gain in per cent."""


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
        _describe_activity(_halves(lift)[-1]),
        _describe_chance(lift),
        _compare_seeds(lift),
        _advise(lift),
    ]
    return [point for point in points if point is not None]


def judged_tables(lift: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return every table of a lift with its customers: all tables of known customers, then those of newcomers."""
    halves = _halves(lift)
    new = [(NEW, half["newcomers"]) for half in halves if "newcomers" in half]
    return [*((KNOWN, half) for half in halves), *new]


def narrow_lift(lift: Mapping[str, Any], party: str) -> dict[str, Any]:
    """Return the lift of one party, as if it were the only one."""
    nobody = {"name": party, "users": 0, "gain": None, "pays": UNCLEAR}
    found = next((row for row in lift["parties"] if row["name"] == party), nobody)
    groups = {name: found[name] for name in ("by_own_ratings", "by_other_parties") if name in found}
    narrow = {**lift, "overall": found, "parties": [found], **groups}
    for part in ("lists", "newcomers"):
        if part in lift:
            narrow[part] = narrow_lift(lift[part], party)
    return narrow


def party_verdicts(lift: Mapping[str, Any]) -> list[PartyVerdict]:
    """Return the verdict of each party over all tables, in the order of the parties."""
    return [_judge_party(row["name"], narrow_lift(lift, row["name"])) for row in lift["parties"]]


def verdict(lift: Mapping[str, Any]) -> str:
    """Return yes if joining pays for every party, no if it pays for none, and mixed if it pays for some of them.

    If the data of no single party can tell, the parties are judged together.
    """
    found = {party.pays for party in party_verdicts(lift)}
    if found <= {UNCLEAR}:
        found = {_combine(table["overall"]["pays"] for _, table in judged_tables(lift))}
    if len(found) > 1 and not found & {YES, MIXED}:
        return NO
    return found.pop() if len(found) == 1 else MIXED


def headline(lift: Mapping[str, Any]) -> str:
    """Return the verdict as a short sentence or two. Terminal, reports, notebooks and the web page show the same ones."""
    parties = party_verdicts(lift)
    named = {word: [party for party in parties if party.pays == word] for word in (YES, MIXED, NO, UNCLEAR)}
    if len(parties) < 2 or len(named[UNCLEAR]) == len(parties):
        return _headline_of_all(lift, together=len(parties) > 1)
    sentences = []
    small = [party for party in named[YES] if party.largest < SMALL]
    large = [party for party in named[YES] if party.largest >= SMALL]
    if large:
        sentences.append(f"Joining pays for {_name_parties(large, parties)}{_scope(large)}.")
    if small:
        subject = "It" if sentences else "Joining"
        whose = _name_parties(small, parties)
        sentences.append(f"{subject} gains {SMALL:g} % or less for {whose}{_scope(small)}.")
    if named[MIXED]:
        subject = "It" if sentences else "Joining"
        whose = _name_parties(named[MIXED], parties)
        sentences.append(f"{subject} improves some predictions and worsens others for {whose}.")
    if named[NO]:
        subject = "It" if sentences else "Joining"
        sentences.append(f"{subject} does not pay for {_name_parties(named[NO], parties, none='any party')}.")
    if named[UNCLEAR]:
        sentences.append(f"For {_name_parties(named[UNCLEAR], parties)} the data cannot tell.")
    return " ".join(sentences)


def deciding_figures(lift: Mapping[str, Any]) -> str:
    """Return sentences with the gain in each table, for all parties together.

    The order is always the same: known customers before newcomers, predicted ratings (RMSE) before lists (NDCG@20).
    """
    tables = [(customers, table) for customers, table in judged_tables(lift) if table["overall"]["gain"]]
    if not tables:
        return "There are no test cases to decide by."
    whose = ", at all parties together" if len(lift["parties"]) > 1 else ""
    sentences = [f"Gain over the best without joining{whose}{_describe_seeds(lift)}."]
    for who in (KNOWN, NEW):
        figures = [
            f"{WHAT[table['metric']]} ({table['metric'].upper()}) {_format(table['overall'])}"
            for customers, table in tables
            if customers == who
        ]
        if figures:
            sentences.append(f"{_capitalise(who)}: {', '.join(figures)}.")
    return " ".join(sentences)


def _describe_seeds(lift: Mapping[str, Any]) -> str:
    """Return over how many seeds a lift is the mean, as the end of a sentence."""
    return f", mean of {len(lift['seeds'])} seeds" if "seeds" in lift else ""


def _halves(lift: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the tables of ratings and those of lists, or the only ones there are."""
    return [lift, lift["lists"]] if "lists" in lift else [lift]


def _combine(verdicts: Any) -> str:
    """Return the verdict over several tables: mixed if some say yes and some say no."""
    words = set(verdicts) - {UNCLEAR}
    return MIXED if len(words) > 1 else words.pop() if words else UNCLEAR


def _judge_party(name: str, lift: Mapping[str, Any]) -> PartyVerdict:
    """Return the verdict of the only party of `lift`."""
    tables = judged_tables(lift)
    parts: dict[str, list[str]] = {YES: [], NO: [], UNCLEAR: []}
    pays = _combine(table["overall"]["pays"] for _, table in tables)
    for customers, table in tables:
        row = table["overall"]
        if row["gain"] is None:
            continue
        what = f"{WHAT[table['metric']]} for {_count(row['users'], customers)}"
        parts[row["pays"]].append(f"{what}, {_format(row)}")
    texts = [
        ("" if word == pays else f"{word}: ") + "; ".join(found) for word, found in parts.items() if found
    ]
    gainers = frozenset(customers for customers, table in tables if table["overall"]["pays"] == YES)
    clear = [table["overall"]["gain"]["percent"] for _, table in tables if table["overall"]["pays"] == YES]
    text = ". ".join(_capitalise(text) for text in texts) or "No test cases"
    return PartyVerdict(name, pays, text, gainers, max(clear, default=0.0))


def _headline_of_all(lift: Mapping[str, Any], *, together: bool) -> str:
    """Return the headline of one party, or of several that cannot be judged apart."""
    tables = judged_tables(lift)
    word = _combine(table["overall"]["pays"] for _, table in tables)
    whose = "For all parties together, joining" if together else "Joining"
    gainers = {customers for customers, table in tables if table["overall"]["pays"] == YES}
    judged = {customers for customers, _ in tables}
    if word == YES:
        text = f"{whose} pays{'' if gainers == judged == {KNOWN, NEW} else f' for {gainers.pop()}'}."
        return f"{text} The data of a single party cannot tell." if together else text
    if word == MIXED:
        return f"{whose} improves some predictions and worsens others."
    if word == NO:
        return f"{whose} does not pay."
    if NEW not in judged:
        return "For known customers the data cannot tell whether joining pays. Newcomers are not judged yet."
    return "The data cannot tell whether joining pays."


def _name_parties(some: Sequence[PartyVerdict], parties: Sequence[PartyVerdict], none: str = "") -> str:
    """Return the names of some parties, or that they are all of them."""
    if len(some) < len(parties):
        return join_names([party.name for party in some])
    return none or ("both parties" if len(parties) == 2 else f"all {len(parties)} parties")


def _scope(parties: Sequence[PartyVerdict]) -> str:
    """Return which customers of these parties gain, if it is the same kind at all of them."""
    kinds = {party.gainers for party in parties}
    only = kinds.pop() if len(kinds) == 1 else frozenset()
    return f" ({next(iter(only))} only)" if len(only) == 1 else ""


def _describe_table(customers: str, table: Mapping[str, Any]) -> str:
    """Return sentences on the gain in one table, and the parties that differ."""
    row = table["overall"]
    metric = table["metric"]
    what = f"{WHAT[metric]} for {_count(row['users'], customers)}"
    if row["gain"] is None and customers == NEW:
        return f"No customer in the test part is new to one party and known to another, so {WHAT[metric]} for newcomers are not judged."
    if row["gain"] is None:
        return f"There are no test cases to judge {WHAT[metric]} by."
    compared = f", compared with {_name_reference(customers, table)}"
    if row["users"] < FEWEST_USERS:
        text = f"Fewer than {FEWEST_USERS} customers are too few to judge {what}"
    elif row["pays"] == YES:
        text = f"Joining improves {what}: {_format(row)}{compared}"
    elif row["pays"] == NO:
        text = f"Joining makes {what} worse: {_format(row)}{compared}"
    elif _is_zero(row):
        text = f"Joining makes no difference to {what}{compared}"
    else:
        text = f"Joining makes no clear difference to {what}: {_format(row)}{compared}"
    return f"{text}.{_list_exceptions(table['parties'], row['pays'])}"


def _name_reference(customers: str, table: Mapping[str, Any]) -> str:
    """Return what a party has without joining, with which the gain of all parties together compares."""
    row = table["overall"]
    several = len(table["parties"]) != 1
    alone = row["reference"] == "alone" and abs(row["alone"] - row["simple"]) >= SAME * row["simple"]
    model = f"own model{'s' if several else ''}" if alone else _SIMPLE[table["metric"], customers]
    return f"{'the parties' + chr(39) if several else 'its'} {model}"


def _list_exceptions(rows: Sequence[Mapping[str, Any]], overall: str) -> str:
    """Return a sentence that names the parties with another verdict than all parties together."""
    if len(rows) < 2:
        return ""
    texts = [
        f"{row['name']} {row['pays']}, {_format(row)}"
        for row in rows
        if row["pays"] != overall and row["pays"] != UNCLEAR
    ]
    if len(texts) > 5:
        texts = [*texts[:5], f"and {len(texts) - 5} more"]
    unclear = [row["name"] for row in rows if row["pays"] == UNCLEAR and overall != UNCLEAR]
    if unclear:
        texts.append(f"{join_names(unclear)} cannot tell")
    return f" By party: {'; '.join(texts)}." if texts else ""


def _list_losers(lift: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each group of customers who lose, such as those whom no other party knows."""
    found = []
    for customers, table in judged_tables(lift):
        groups = {
            **{_describe_overlap(row): row for row in table.get("by_other_parties", [])},
            **{_describe_band(row): row for row in table.get("by_own_ratings", []) if customers == KNOWN},
        }
        if len(lift["parties"]) < 2 or table["overall"]["pays"] == NO:
            continue
        what = WHAT[table["metric"]] + (" for newcomers" if customers == NEW else "")
        losers = [f"{group}, {_format(row)}" for group, row in groups.items() if row["pays"] == NO]
        if losers:
            found.append(f"Joining makes {what} worse for customers {'; '.join(losers)}.")
    return found


def _describe_falls(lift: Mapping[str, Any]) -> str | None:
    """Return where fewer liked items are in the lists although they stand higher up; None if nowhere."""
    found = []
    for customers, table in judged_tables(lift):
        everybody = [("all parties together", table["overall"])] if len(table["parties"]) > 1 else []
        for name, row in [*((row["name"], row) for row in table["parties"]), *everybody]:
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


def _describe_overlap(row: Mapping[str, Any]) -> str:
    number = row["other_parties"]
    if not number:
        return "whom no other party knows"
    return f"whom {number} other {'party knows' if number == 1 else 'parties know'}"


def _describe_band(row: Mapping[str, Any]) -> str:
    low = row["from"]
    high = row.get("to")
    if high == 0:
        return "without training ratings at the party"
    count = f"{low}" if low == high else f"{low} or more" if high is None else f"{low} to {high}"
    return f"with {count} {'rating' if count == '1' else 'ratings'} at the party"


def _describe_activity(table: Mapping[str, Any]) -> str | None:
    """Return from how many ratings on joining makes no clear difference; None if it never does, or makes one throughout."""
    bands = [row for row in table.get("by_own_ratings", []) if row["gain"] is not None and row["from"] > 0]
    same = None
    for row in reversed(bands):
        if row["pays"] == YES:
            break
        same = row["from"]
    else:
        return None
    if same is None:
        return None
    return f"For customers with {format_count(same, 'rating')} or more at a party, {WHAT[table['metric']]} do not improve clearly."


def _describe_chance(lift: Mapping[str, Any]) -> str | None:
    """Return how chance is dealt with, and the verdicts that are unclear for this reason only."""
    count = lift["verdicts"]
    if not count:
        return None
    among = f" among its {count} verdicts (Holm's correction)" if count > 1 else ""
    text = f"Without a true gain or loss, at most 1 run in 20 has a false yes or no{among}."
    doubtful = []
    for customers, table in judged_tables(lift):
        names = [row["name"] for row in table["parties"] if row["pays"] == UNCLEAR and excludes_zero(row)]
        if names:
            doubtful.append(f"{WHAT[table['metric']]} for {customers} at {join_names(names)}")
    if doubtful:
        text += f" The interval excludes 0 for {'; '.join(doubtful)}, but among {count} verdicts this can be chance."
    if "seeds" not in lift:
        judge = worded("`verfedgnn lift RUN --seeds 3`", "`vf.lift(run, seeds=3)`")
        text += f" This run is one split of the ratings; {judge} judges three."
    return text


def _compare_seeds(lift: Mapping[str, Any]) -> str | None:
    """Return what an interval over seeds covers, and which gains are not clear but positive with every seed."""
    if "seeds" not in lift:
        return None
    count = len(lift["seeds"])
    text = f"An interval over {count} seeds also covers one more seed, so it is wider than that of a single run; more seeds narrow it."
    likely = []
    for customers, table in judged_tables(lift):
        everybody = [("all parties together", table["overall"])] if len(table["parties"]) > 1 else []
        for name, row in [*((row["name"], row) for row in table["parties"]), *everybody]:
            gains = (row["gain"] or {}).get("by_seed", [0.0])
            if row["pays"] == UNCLEAR and min(gains) >= SMALL:
                span = f"{format_signed(min(gains))} to {format_signed(max(gains))} %"
                likely.append(f"{WHAT[table['metric']]} for {customers} at {name} ({span})")
    return f"{text} Not clear, but positive with every seed: {'; '.join(likely)}." if likely else text


def _describe_training(lift: Mapping[str, Any]) -> str | None:
    """Return that the verdict is preliminary if the training was shorter than its preset's and still improved."""
    if "short" not in lift:
        return None
    short = lift["short"]
    leave = worded("without `--set epochs`", "without `epochs`")
    return (
        f"This verdict is preliminary: the run has {short['epochs']} of the {short['usual']} epochs of preset {short['preset']}, and "
        f"validation still improved in its last round. Train {leave} before you decide."
    )


def _advise(lift: Mapping[str, Any]) -> str:
    """Return sentences that recommend what to do next."""
    tables = judged_tables(lift)
    gains = {customers for customers, table in tables if table["overall"]["pays"] == YES}
    parties = party_verdicts(lift)
    gains |= {customers for party in parties for customers in party.gainers}
    gated = any("gate" in row for row in lift["parties"])
    if "newcomers" not in lift:
        judge = f"newcomers are judged by {worded('`verfedgnn train` with --lift', '`vf.lift`')}."
        return f"Join; {judge}" if gains else f"Before you decide: {judge}"
    if gains == {KNOWN, NEW}:
        return "Join, and serve what the gate has chosen for each party." if gated else "Join."
    if gains == {NEW}:
        winners = [party.name for party in parties if party.gainers]
        whose = f" of {join_names(winners)}" if 0 < len(winners) < len(parties) else ""
        return f"Join for the newcomers{whose}. {_describe_weights(lift)}"
    if gains == {KNOWN}:
        return "Join; newcomers gain nothing yet, so look again when more customers are shared."
    likely = [(customers, table) for customers, table in tables if table["overall"]["gain"]]
    likely.sort(key=lambda found: -found[1]["overall"]["gain"]["percent"])
    if verdict(lift) != NO and likely and likely[0][1]["overall"]["gain"]["percent"] >= SMALL:
        customers, table = likely[0]
        row = table["overall"]
        what = f"{WHAT[table['metric']]} for {_count(row['users'], customers)}"
        return f"No gain is clear yet. The largest is {_format(row)}, in {what}; more customers, ratings or seeds can make it clear."
    found = "does not pay" if verdict(lift) == NO else "shows no clear gain"
    return (
        f"On this data joining {found}: look at the overlap with {worded('`verfedgnn data check`', '`vf.check`')}, add a "
        "party that shares more customers, or stay with what each party has alone."
    )


def _describe_weights(lift: Mapping[str, Any]) -> str:
    """Return what known customers are served, from the weights of the gates."""
    halves = [half for half in _halves(lift) if all("gate" in row for row in half["parties"])]
    if not halves:
        return "Serve known customers what each party has alone."
    texts = []
    for half in halves:
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


def _count(users: int, customers: str) -> str:
    """Return a number of customers, such as `74 newcomers` or `1 known customer`."""
    return format_count(users, customers.removesuffix("s"))


def _capitalise(text: str) -> str:
    return text[:1].upper() + text[1:]


def _is_zero(row: Mapping[str, Any]) -> bool:
    return bool(row["gain"]["low_percent"] == row["gain"]["high_percent"] == 0)


def _format(row: Mapping[str, Any]) -> str:
    """Return the gain of a row with cases, also of few users."""
    found = row["gain"]
    return format_percent(found["percent"], found["low_percent"], found["high_percent"])
