"""The tables of a lift as people read them: headings, rows and notes, for the terminal and for documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from verfedgnn.evaluation.bootstrap import FEWEST_USERS
from verfedgnn.evaluation.verdict import KNOWN, WHAT, judged_tables
from verfedgnn.reports.document import Tone

NEWCOMERS = "Customers new to a party and known elsewhere"
MEASURES = {"rmse": "test RMSE, lower is better", "ndcg@20": "test NDCG@20, higher is better"}
SIMPLE = {"rmse": "means", "ndcg@20": "popularity"}
"""The name of the simple model, by metric."""
PAYS_TONES: dict[str, Tone] = {"yes": "good", "no": "bad", "cannot tell": "unclear"}
_NOTES = {
    "rmse": "means: user and item means of the party's own ratings. alone: the best mixture of them and a model of its own.",
    "ndcg@20": "popularity: the most rated items. alone: the best mixture of popularity, EASE and a model of its own.",
}
_COLUMNS = (
    "federated: what the party serves. pooled: the model trained on all data in one place, unprotected. "
    "gain: over alone, with its 95 % interval. "
    f"cannot tell: the interval includes 0, or there are fewer than {FEWEST_USERS} users."
)


@dataclass(frozen=True)
class LiftTable:
    """One table of a lift."""

    title: str
    label: str
    """Heading of the first column."""
    metric: str
    reference: str
    """The way that the gain is over: alone or simple."""
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
            "pooled": "pooled",
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


SHORT_HEADER = ["prediction", "users", "simple", "alone", "federated", "gain", "pays"]
SHORT_NOTE = (
    "Measured on test ratings: RMSE of predicted ratings (lower is better), NDCG@20 of lists (higher is better). "
    "simple: own means or popularity. alone: the best that a party has without the others. federated: what it serves; "
    "for newcomers, what a second training without their ratings would serve. "
    "gain: over alone, for newcomers over simple, with its 95 % interval."
)


def short_rows(lift: Mapping[str, Any]) -> list[list[str]]:
    """Return one row for each table of a lift, over all parties."""
    rows = []
    for customers, table in judged_tables(lift):
        row = table["overall"]
        figures = ["-" if row[way] is None else f"{row[way]:.4f}" for way in ("simple", "alone", "federated")]
        who = "known customers" if customers == KNOWN else "newcomers"
        name = f"{WHAT[table['metric']]}, {who}"
        rows.append([name, f"{row['users']:,}", *figures, format_gain(row), row["pays"]])
    return rows


def halves(lift: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the tables of ratings and those of lists, or the only ones there are."""
    return [lift, lift["lists"]] if "lists" in lift else [lift]


def readable_tables(lift: Mapping[str, Any]) -> list[LiftTable]:
    """Return the tables of a lift: by party, for newcomers, by activity, and by number of other parties."""
    parts = halves(lift)
    tables: list[LiftTable] = []
    for number, part in enumerate(parts):
        what = WHAT[part["metric"]].capitalize()
        note = _NOTES[part["metric"]] if number else f"{_NOTES[part['metric']]} {_COLUMNS}"
        tables.append(_by_party(part, f"{what} ({MEASURES[part['metric']]})", note))
    for part in parts:
        new = part.get("newcomers")
        if new is not None and new["overall"]["cases"]:
            tables.append(_by_party(new, f"{NEWCOMERS}: {_title(new)}", _newcomer_note(lift, new)))
    for part in parts:
        rows = [(band(row), row) for row in part.get("by_own_ratings", [])]
        title = f"By a customer's training ratings at the party: {_title(part)}"
        if rows:
            tables.append(LiftTable(title, "own ratings", part["metric"], part["reference"], rows))
    for part in parts:
        rows = [(str(row["other_parties"]), row) for row in part.get("by_other_parties", [])]
        title = f"By other parties that know the customer: {_title(part)}"
        if len(rows) > 1:  # a single row repeats the total
            tables.append(LiftTable(title, "other parties", part["metric"], part["reference"], rows))
    return tables


def band(row: Mapping[str, Any]) -> str:
    """Format a range of numbers of ratings, such as `3-5`."""
    low, high = row["from"], row["to"]
    return f"{low}" if low == high else f"{low}+" if high is None else f"{low}-{high}"


def format_gain(row: Mapping[str, Any]) -> str:
    """Format a gain in per cent with its interval, such as `+12.2 % (+11.2 to +13.3)`; with too few users it becomes a dash."""
    found = row["gain"]
    if not found or row["users"] < FEWEST_USERS:
        return "-"
    if found["low_percent"] == found["high_percent"] == 0:
        return "0 %"
    digits = 1 if found["high_percent"] - found["low_percent"] >= 0.1 else 3
    ends = [found[name] for name in ("percent", "low_percent", "high_percent")]
    gain, low, high = (f"{round(end, digits) + 0.0:+.{digits}f}" for end in ends)  # without a negative zero
    return f"{gain} % ({low} to {high})"


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
    return LiftTable(title, "party", part["metric"], part["reference"], rows, part["overall"], note)


def _newcomer_note(lift: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    note = f"gain: over {SIMPLE[new['metric']]}, here without ratings of the customer at the party."
    if lift["newcomers"].get("training") == "second":
        note += " A second training held out all ratings of a tenth of the users at each party."
    return note
