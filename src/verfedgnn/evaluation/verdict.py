"""Does joining pay? The words and sentences of a verdict, the same in the terminal, on pages, in reports, notebooks and metrics.json.

One rule gives the word of an organisation (`party_word`): what its customers see decides, so lists count, for new and for known
customers. Predicted ratings count only where no lists were judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from verfedgnn.evaluation.chance import FEWEST_USERS
from verfedgnn.evaluation.gain_text import format_signed, join_names

YES, NO = "yes", "no"
"""The gain or loss is clear, also after a correction for several verdicts (`chance.py`)."""
LIKELY_BETTER, LIKELY_WORSE = "likely better", "likely worse"
"""The 95 % interval excludes 0, but among several verdicts this can be chance."""
NO_DIFFERENCE = "no difference"
"""The whole interval is small: within `SMALL` per cent of RMSE, or `SMALL` of 100 customers."""
UNCLEAR = "cannot tell"
"""The interval is wide and includes 0, or there are fewer than `FEWEST_USERS` customers."""
MIXED = "mixed"
"""Some customers gain and others lose."""
ORDER = (YES, MIXED, LIKELY_BETTER, NO_DIFFERENCE, UNCLEAR, LIKELY_WORSE, NO)
"""All words, the best first."""
SMALL = 0.5
MOSTLY = 0.7
"""Share of the gain in ratings from which on shared means are said to bring most of it."""

KNOWN, NEW = "known customers", "new customers"
Lift = Mapping[str, Any]
Row = Mapping[str, Any]

_PAYS = {
    YES: "Joining pays for {}",
    MIXED: "Joining helps some customers of {} and harms others",
    LIKELY_BETTER: "Joining likely pays for {}",
    NO_DIFFERENCE: "Joining makes no difference for {}",
    UNCLEAR: "The data cannot tell whether joining pays for {}",
    LIKELY_WORSE: "Joining likely does not pay for {}",
    NO: "Joining does not pay for {}",
}
ADVICE = {
    YES: "Join: train every night and serve the federated lists.",
    MIXED: "Look at who loses before you join.",
    LIKELY_BETTER: "Try it live: `serve --split-test 50` shows both lists to real customers.",
    NO_DIFFERENCE: "Stay out, or join for the customers of the others: yours see no difference.",
    UNCLEAR: "Collect more ratings, or try it live with `serve --split-test 50`.",
    LIKELY_WORSE: "Stay out for now.",
    NO: "Stay out.",
}
"""What to do, by word."""
MEANS_ADVICE = "Preset `means` brings most of it in one round."


@dataclass(frozen=True)
class Answer:
    """The verdict of one organisation."""

    party: str
    word: str
    sentences: tuple[str, ...]
    """What its new customers see, then its known ones, then predicted ratings."""


def judged_tables(lift: Lift) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the tables of a lift with their customers: lists before ratings, new customers before known ones."""
    parts = [lift["lists"]] if "lists" in lift else []
    parts += [lift] if "overall" in lift else []
    return [table for part in parts for table in ((NEW, part["newcomers"]), (KNOWN, part))]


def narrow_lift(lift: Lift, party: str) -> dict[str, Any]:
    """Return the lift of one party, as that party's own run has it."""
    narrow = {name: value for name, value in lift.items() if name == "twins"}

    def only(table: Mapping[str, Any]) -> dict[str, Any]:
        (row,) = (row for row in table["parties"] if row["name"] == party)
        overall = {name: value for name, value in row.items() if name not in ("name", "by_own_ratings")}
        return {"metric": table["metric"], "overall": overall, "parties": [row]}

    for part in (lift.get("lists"), lift if "overall" in lift else None):
        if part is not None:
            table = only(part) | {"newcomers": only(part["newcomers"])}
            narrow |= table if part is lift else {"lists": table}
    return narrow | describe_lift(narrow)


def is_judged(row: Row) -> bool:
    """Return whether a row has enough customers for a verdict."""
    return row["gain"] is not None and row["users"] >= FEWEST_USERS


def choose_word(row: Row, *, clear: bool) -> str:
    """Return the word for a row with enough customers; `clear` says whether its gain or loss is clear among several."""
    low, high = gain_ends(row)
    if low >= -SMALL and high <= SMALL:
        return NO_DIFFERENCE
    if low > 0:
        return YES if clear else LIKELY_BETTER
    if high < 0:
        return NO if clear else LIKELY_WORSE
    return UNCLEAR


def gain_ends(row: Row) -> tuple[float, float]:
    """Return the ends of a gain's interval: in per cent of RMSE, or in customers of 100."""
    gain = row["gain"]
    if "ndcg@20" in row:
        return 100 * gain["low"], 100 * gain["high"]
    return gain["low_percent"], gain["high_percent"]


def combine_words(words: Iterable[str]) -> str:
    """Return one word for several groups of customers.

    A gain for some and a loss for others are *mixed*, if one of them is clear. Else a clear word counts more than a likely one, and
    that more than *cannot tell*. *No difference* needs every group to say so.
    """
    given = set(words)
    better, worse = given & {YES, LIKELY_BETTER}, given & {NO, LIKELY_WORSE}
    if MIXED in given or (better and worse and given & {YES, NO}):
        return MIXED
    if better and worse:
        return UNCLEAR
    for word in (YES, NO, LIKELY_BETTER, LIKELY_WORSE):
        if word in given:
            return word
    return NO_DIFFERENCE if given == {NO_DIFFERENCE} else UNCLEAR


def party_word(lift: Lift, party: str | None = None) -> str:
    """Return the word of one organisation, or one word for all of them."""
    if party is None:
        return combine_words(party_word(lift, name) for name in party_names(lift))
    tables = judged_tables(lift)
    decisive = [table for _, table in tables if table["metric"] != "rmse"] or [table for _, table in tables]
    return combine_words(_row(table, party)["pays"] for table in decisive)


def _row(table: Mapping[str, Any], party: str | None) -> Row:
    if party is None:
        overall: Row = table["overall"]
        return overall
    return next(row for row in table["parties"] if row["name"] == party)


def party_names(lift: Lift) -> list[str]:
    """Return the names of the organisations in a lift."""
    return [row["name"] for row in judged_tables(lift)[0][1]["parties"]]


def answers(lift: Lift) -> list[Answer]:
    """Return the verdict of each organisation."""
    return [Answer(name, party_word(lift, name), tuple(sentences(lift, name))) for name in party_names(lift)]


def sentences(lift: Lift, party: str | None = None) -> list[str]:
    """Return what one organisation's customers, or those of all, see if it joins: a sentence for each table."""
    return [
        _describe(_row(table, party), customers, table["metric"]) for customers, table in judged_tables(lift)
    ]


def _describe(row: Row, customers: str, metric: str) -> str:
    """Return what joining changes for some customers, in plain units."""
    if row["gain"] is None:
        return f"No {customers} could be tested."
    if not is_judged(row):
        return f"Only {row['users']} {customers} were tested, too few to tell."
    before, after = show_figures(row, metric)
    low, high = gain_ends(row)
    if metric == "rmse":
        share = f"{format_signed(row['gain']['percent'])} % ({format_signed(low)} to {format_signed(high)})"
        what = f"Predicted stars for {customers} are off by {after}"
        change = f" instead of {before}, a gain of {share}"
    else:
        share = f"{format_signed(low)} to {format_signed(high)} of 100"
        what = f"Of 100 {customers}, {after} find something they like among the first 20"
        change = f", where it was {before} without the others ({share})"
    if row["pays"] == NO_DIFFERENCE:
        return f"{what}, with or without the others."
    prefix = {
        UNCLEAR: "Not clear: ",
        LIKELY_BETTER: "Likely better: ",
        LIKELY_WORSE: "Likely worse: ",
        NO: "Worse: ",
    }
    start = prefix.get(row["pays"], "")
    return f"{start}{what if not start else what[0].lower() + what[1:]}{change}."


def show_figures(row: Row, metric: str) -> tuple[str, str]:
    """Return a row's figure without joining and with it: RMSE, or customers of 100."""
    before, after = row[row["reference"]], row["federated"]
    if metric == "rmse":
        return f"{before:.3f}", f"{after:.3f}"
    digits = 0 if abs(after - before) >= 0.01 and min(before, after) >= 0.1 else 1
    shown = [f"{100 * figure:.{digits}f}".replace("100.0", "100") for figure in (before, after)]
    return shown[0], shown[1]


def show_cell(row: Row, metric: str) -> str:
    """Return a row in a table's cell, such as `38, was 34`, `likely 38, was 34` or `38, as before`."""
    if not is_judged(row):
        return "too few"
    before, after = show_figures(row, metric)
    if row["pays"] == NO_DIFFERENCE:
        return f"{after}, as before"
    if before == after:
        return f"{after}, not clear"
    mark = {LIKELY_BETTER: "likely ", LIKELY_WORSE: "likely ", UNCLEAR: "perhaps "}.get(row["pays"], "")
    return f"{mark}{after}, was {before}"


def verdict_table(lift: Lift) -> tuple[list[str], list[list[str]], list[str]]:
    """Return the header, the rows and the notes of the table with one line an organisation."""
    tables = judged_tables(lift)
    marks = {"hitrate@20": "*", "rmse": "**"}
    header = ["", "joining pays"]
    for customers, table in tables:
        metric = table["metric"]
        name = customers if metric != "rmse" else f"stars, {customers}"
        header.append(f"{name}{marks[metric]}")
    rows = [
        [
            answer.party,
            answer.word,
            *(show_cell(_row(table, answer.party), table["metric"]) for _, table in tables),
        ]
        for answer in answers(lift)
    ]
    metrics = {table["metric"] for _, table in tables}
    notes = ["*  of 100 customers, how many find something they like among the first 20"]
    notes = [*(notes if "hitrate@20" in metrics else [])]
    notes += ["** error of predicted stars, lower is better"] if "rmse" in metrics else []
    return header, rows, notes


def headline(lift: Lift) -> str:
    """Return the verdict as a sentence for each word, and what the customers of all organisations together see."""
    by_word = group_by_word({answer.party: answer.word for answer in answers(lift)})
    said = [f"{_PAYS[word].format(join_names(names))}." for word, names in by_word.items()]
    seen = [sentence for sentence in sentences(lift) if not sentence.startswith(("No ", "Only "))]
    return " ".join([*said, *seen[:1]])


def group_by_word(words: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the names that have each word, the best word first."""
    return {word: names for word in ORDER if (names := [name for name in words if words[name] == word])}


def share_of_means(lift: Lift, party: str | None = None) -> float | None:
    """Return the share of the gain in ratings of known customers that shared means bring alone; None without a gain."""
    if "overall" not in lift:
        return None
    row = _row(lift, party)
    if "means" not in row or row["pays"] not in (YES, LIKELY_BETTER) or row["means"] is None:
        return None
    before = row[row["reference"]]
    return float((before - row["means"]) / (before - row["federated"]))


def describe_source(lift: Lift) -> str | None:
    """Return where the gain in predicted stars comes from; None without a gain."""
    share = share_of_means(lift)
    if share is None:
        return None
    if share >= MOSTLY:
        return f"Shared means alone bring {min(share, 1):.0%} of the gain in predicted stars."
    brought = f"{share:.0%}" if share > 0 else "nothing"
    return (
        f"Shared means alone bring {brought} of the gain in predicted stars; the rest needs the federation."
    )


def advise(lift: Lift) -> str:
    """Return what to do: one sentence an organisation's word asks for, or preset means where it brings most of a gain."""
    word = party_word(lift)
    share = share_of_means(lift)
    if word not in (YES, MIXED, LIKELY_BETTER) and share is not None and share >= MOSTLY:
        return f"Lists do not gain; predicted stars do. {MEANS_ADVICE}"
    return ADVICE[word]


def describe_lift(lift: Lift) -> dict[str, Any]:
    """Return the sentences of a lift as metrics.json has them."""
    source = describe_source(lift)
    return {
        "headline": headline(lift),
        "verdicts": [
            {"name": each.party, "pays": each.word, "sentences": list(each.sentences)}
            for each in answers(lift)
        ],
        "source": source,
        "advice": advise(lift),
    }


def list_points(lift: Lift) -> Sequence[str]:
    """Return what follows the headline: the other tables, where the gain comes from, twins, and what to do."""
    twins = lift.get("twins")
    points = [*sentences(lift)[1:], lift.get("source"), twins, lift["advice"]]
    return [point for point in points if point]


PARTNERS_HEADER = ["party", "without", "of", "gain with all", "gain without"]


def partner_rows(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return the rows of the table of `compare_partners`: party, partner, customers, gain with all partners and without this one."""
    table = []
    for row in rows:
        if row["with"]["gain"] is None or row["without"]["gain"] is None:
            continue
        stars = row["metric"] == "rmse"
        gains = [
            f"{format_signed(row[way]['gain']['percent'])} %"
            if stars
            else f"{format_signed(100 * row[way]['gain']['value'])} of 100"
            for way in ("with", "without")
        ]
        table.append(
            [row["party"], row["partner"], f"{'stars' if stars else 'lists'}, {row['customers']}", *gains]
        )
    return table
