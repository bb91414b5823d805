"""The tables of a lift as people read them: headings, rows and notes, for the terminal and for documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from verfedgnn.evaluation.bootstrap import FEWEST_USERS
from verfedgnn.evaluation.gain_text import format_gain, format_signed
from verfedgnn.evaluation.verdict import party_verdicts
from verfedgnn.evaluation.verdict_words import (
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
from verfedgnn.reports.document import Tone

NEWCOMERS = "Customers new to a party and known elsewhere"
MEASURES = {"rmse": "test RMSE, lower is better", "ndcg@20": "test NDCG@20, higher is better"}
SIMPLE = {"rmse": "means", "ndcg@20": "popularity"}
"""The name of the simple model, by metric."""
PAYS_TONES: dict[str, Tone] = {
    YES: "good",
    LIKELY_BETTER: "likely-good",
    NO_DIFFERENCE: "same",
    MIXED: "mixed",
    UNCLEAR: "unclear",
    LIKELY_WORSE: "likely-bad",
    NO: "bad",
}
"""The tone of each word of a verdict."""
WORDS_NOTE = (
    f"{YES}, {NO}: the gain or loss is clear, also after a correction for the number of verdicts (Holm). "
    f"{LIKELY_BETTER}, {LIKELY_WORSE}: the interval excludes 0, but among so many verdicts this can be chance. "
    f"{NO_DIFFERENCE}: the whole interval lies within ±{SMALL:g} %. "
    f"{UNCLEAR}: the interval is wider and includes 0, or there are fewer than {FEWEST_USERS} users."
)
COMPARE_NOTE = (
    "NDCG@20 of newcomers and of known customers cannot be compared: all liked items of a newcomer are wanted, of a known customer "
    "only those in the test part."
)
_NOTES = {
    "rmse": "means: user and item means of the party's own ratings. alone: the best mixture of them and a model of its own.",
    "ndcg@20": "popularity: the most rated items. alone: the best mixture of popularity, EASE and a model of its own.",
}
_COLUMNS = (
    "federated: what the party serves. gain: over {simple} or alone, the better of the two in the row, with its 95 % interval. "
    + WORDS_NOTE
)
NOT_TRAINED = "none in training"
"""Name of the customers without training ratings at the party."""
NOT_TRAINED_NOTE = (
    f"{NOT_TRAINED}: customers with so few ratings here that none fell into the training part. They are not the newcomers above: "
    "those had ratings, and all of them were held out."
)
GROUP_NOTE = (
    "Groups are corrected among themselves, apart from the verdicts of parties. There are more groups than parties, so fewer of them "
    "are yes or no."
)
COUNT_NOTE = "A customer of several parties is in one group at each of them, so these groups can add up to more than all customers."
_GROUPS = {
    "by_own_ratings": ("own ratings", "the party"),
    "by_other_ratings": ("ratings elsewhere", "other parties"),
    "by_other_parties": ("other parties", ""),
}
"""The heading of the first column of each table of groups, and where ratings are counted."""


@dataclass(frozen=True)
class LiftTable:
    """One table of a lift."""

    title: str
    label: str
    """Heading of the first column."""
    metric: str
    rows: Sequence[tuple[str, Mapping[str, Any]]]
    """The first cell and the figures of each row."""
    overall: Mapping[str, Any] | None = None
    note: str = ""

    @property
    def ways(self) -> dict[str, str]:
        """The columns of figures, with their headings."""
        names = {
            "simple": SIMPLE[self.metric],
            "alone": "alone",
            "federated": "federated",
        }
        return {way: name for way, name in names.items() if way in self.rows[0][1]}

    @property
    def header(self) -> list[str]:
        """The headings of all columns."""
        return [self.label, "users", *self.ways.values(), "gain", "pays"]

    def cells(self, name: str, row: Mapping[str, Any]) -> list[str]:
        """Return the cells of one row."""
        figures = ["-" if row.get(way) is None else f"{row[way]:.4f}" for way in self.ways]
        return [name, f"{row['users']:,}", *figures, format_gain(row), row["pays"]]


def party_lines(lift: Mapping[str, Any]) -> list[str]:
    """Return the name, the verdict and the gains of each party as a line."""
    return [
        f"**{party.name}: {party.pays}.** {party.text}."
        + (f" For whom: {party.for_whom}." if party.for_whom else "")
        for party in party_verdicts(lift)
    ]


SHORT_HEADER = ["all parties together", "users", "simple", "alone", "federated", "gain", "pays"]
SHORT_NOTE = (
    "Measured on test ratings: RMSE of predicted ratings (lower is better), NDCG@20 of lists (higher is better). "
    "Newcomers have no training ratings at the party and some at another. "
    "simple: own means or popularity. alone: the best mixture that a party has without the others. federated: what it serves; "
    "for newcomers, what a second training without their ratings would serve. "
    f"gain: over simple or alone, the better of the two in the row, with its 95 % interval. {WORDS_NOTE} {COMPARE_NOTE}"
)
SEED_NOTE = (
    "spread: the standard deviation between the seeds. yes, no, likely better and likely worse also need a gain or loss with every "
    "seed."
)


def short_rows(lift: Mapping[str, Any]) -> list[list[str]]:
    """Return one row for each table of a lift, over all parties."""
    rows = []
    for customers, table in judged_tables(lift):
        row = table["overall"]
        figures = ["-" if row[way] is None else f"{row[way]:.4f}" for way in ("simple", "alone", "federated")]
        name = f"{WHAT[table['metric']]}, {customers}"
        rows.append([name, f"{row['users']:,}", *figures, format_gain(row), row["pays"]])
    return rows


def seed_table(lift: Mapping[str, Any]) -> tuple[list[str], list[list[str]]] | None:
    """Return the header and the rows of the gains by seed; None for a lift of one seed."""
    if "seeds" not in lift:
        return None
    header = ["party", "of", "for", *(f"seed {seed}" for seed in lift["seeds"]), "mean", "spread", "pays"]
    rows = []
    for customers, table in judged_tables(lift):
        parties = [(row["name"], row) for row in table["parties"]]
        for name, row in [*parties, ("all parties", table["overall"])]:
            gain = row["gain"]
            if gain is not None:
                seeds = [f"{format_signed(percent)} %" for percent in gain["by_seed"]]
                spread = f"{gain['spread_percent']:.1f}"
                about = [name, WHAT[table["metric"]], customers]
                rows.append([*about, *seeds, format_gain(row), spread, row["pays"]])
    return header, rows


def readable_tables(lift: Mapping[str, Any]) -> list[LiftTable]:
    """Return the tables of a lift: by party, for newcomers, and by groups of customers of all parties together."""
    parts = halves(lift)
    tables: list[LiftTable] = []
    for number, part in enumerate(parts):
        what = WHAT[part["metric"]].capitalize()
        tables.append(_by_party(part, f"{what} ({MEASURES[part['metric']]})", _note(part, first=not number)))
    for part in parts:
        new = part.get("newcomers")
        if new is not None and new["overall"]["cases"]:
            tables.append(_by_party(new, f"{NEWCOMERS}: {_title(new)}", _newcomer_note(lift, new)))
    groups = []
    for name, (label, where) in _GROUPS.items():
        for customers, table in judged_tables(lift):
            rows = [(_label_group(row), row) for row in table.get(name, [])]
            if where:
                whose = "Newcomers by their" if customers == NEW else "By a customer's"
                title = f"{whose} training ratings at {where}"
            elif customers == NEW:
                title = "Newcomers by other parties that know them"
            else:
                title = "By other parties that know the customer"
            if rows:
                groups.append(LiftTable(f"{title}: {_title(table)}", label, table["metric"], rows))
    notes = [GROUP_NOTE, *([COUNT_NOTE] if len(lift["parties"]) > 1 else [])]
    if any(name == NOT_TRAINED for table in groups for name, _ in table.rows):
        notes.append(NOT_TRAINED_NOTE)
    return tables + _note_first(groups, " ".join(notes))


def group_tables(lift: Mapping[str, Any], most_parties: int) -> list[LiftTable]:
    """Return the tables of groups of customers for each of the first parties, of known customers and of newcomers."""
    tables = []
    for name, (label, where) in _GROUPS.items():
        for customers, table in judged_tables(lift):
            who = customers.removesuffix("s").removeprefix("known ")
            rows = [
                (f"{row['name']}: {_label_group(each)}", each)
                for row in table["parties"][:most_parties]
                for each in row.get(name, [])
            ]
            what = f"a {who}'s training ratings at {where}" if where else f"other parties that know the {who}"
            if rows:
                title = f"By party and {what}: {_title(table)}"
                tables.append(LiftTable(title, f"party: {label}", table["metric"], rows))
    return _note_first(tables, GROUP_NOTE)


def _note_first(tables: list[LiftTable], note: str) -> list[LiftTable]:
    """Return the tables with a note below the first one, which holds for all of them."""
    return [replace(table, note=note if not number else "") for number, table in enumerate(tables)]


def _label_group(row: Mapping[str, Any]) -> str:
    return str(row["other_parties"]) if "other_parties" in row else band_label(row)


def band(row: Mapping[str, Any]) -> str:
    """Format a range of numbers of ratings, such as `3-5`."""
    low, high = row["from"], row["to"]
    return f"{low}" if low == high else f"{low}+" if high is None else f"{low}-{high}"


def band_label(row: Mapping[str, Any]) -> str:
    """Format a range of numbers of ratings for readers; 0 says that these are no newcomers."""
    return NOT_TRAINED if row["to"] == 0 else band(row)


def format_weights(weights: Mapping[str, float]) -> str:
    """Format the weights of a gate, largest first, such as `0.60 federated, 0.30 alone, 0.10 means`."""
    used = sorted(((weight, name) for name, weight in weights.items() if abs(weight) >= 0.005), reverse=True)
    return ", ".join(f"{weight:.2f} {name}" for weight, name in used) or "-"


def gate_rows(metrics: Mapping[str, Any]) -> list[list[str]]:
    """Return the party, the kind of prediction and the weights for known and new customers, for parties with a gate."""
    ranks = metrics["test"]["rmse"] is None
    rows = []
    for party in metrics["parties"]:
        for key, what in (("gate", "lists" if ranks else "ratings"), ("list_gate", "lists")):
            gate = party.get(key)
            if gate:
                weights = [format_weights(gate[who]) for who in ("known", "newcomers")]
                rows.append([party["name"], what, *weights])
    return rows


GATE_HEADER = ["party", "of", "customers it knows", "customers new to it"]
GATE_NOTE = (
    "Each party chose these weights on its own validation part. Weights of ratings sum to 1. "
    "Weights of lists multiply scores of different spread, so they are not shares."
)


def _title(part: Mapping[str, Any]) -> str:
    return f"{WHAT[part['metric']]} ({part['metric'].upper()})"


def _by_party(part: Mapping[str, Any], title: str, note: str) -> LiftTable:
    rows = [(row["name"], row) for row in part["parties"]]
    return LiftTable(title, "party", part["metric"], rows, part["overall"], note)


def _note(part: Mapping[str, Any], *, first: bool) -> str:
    """Return the note below the table of known customers; the first one explains all columns."""
    metric = part["metric"]
    notes = [_NOTES[metric]]
    if first:
        notes.append(_COLUMNS.format(simple=SIMPLE[metric]))
    return " ".join(notes)


def _newcomer_note(lift: Mapping[str, Any], table: Mapping[str, Any]) -> str:
    note = "All figures are without ratings of the customer at the party."
    if lift["newcomers"].get("training") == "second":
        note += " A second training held out all ratings of a tenth of the users at each party."
    return f"{note} {COMPARE_NOTE}" if table["metric"] == "ndcg@20" else note
