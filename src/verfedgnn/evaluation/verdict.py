"""Does joining pay? The words and sentences of a verdict, the same in the terminal, on pages, in reports, notebooks and metrics.json.

One rule gives the word of an organisation (`party_word`): what its customers see decides, so lists count, for new and for known
customers. Predicted ratings count only where no lists were judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from verfedgnn.evaluation.chance import FEWEST_USERS, format_signed

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
DECISIVE = 2
"""Number of tables that decide the word: those of lists, or of ratings where no lists were judged."""
SMALL = 0.5
MOSTLY = 0.7
"""Share of the gain in ratings from which on shared means are said to bring most of it."""
MOST_NAMES = 5
"""Largest number of names in a sentence."""

KNOWN, NEW = "known customers", "new customers"
Lift = Mapping[str, Any]
Row = Mapping[str, Any]


class Phrases(NamedTuple):
    """What is said about a word."""

    headline: str
    advice: str
    """What to do."""
    start: str = ""
    """Beginning of a sentence about customers."""
    mark: str = ""
    """Beginning of a cell of a table."""


WORDS = {
    YES: Phrases("Joining pays for {}", "Join, train every night and serve the federated lists."),
    MIXED: Phrases(
        "Joining helps some customers of {} and harms others", "Look at who loses before you join."
    ),
    LIKELY_BETTER: Phrases(
        "Joining likely pays for {}",
        "Show both lists to real customers with `serve --split-test 50`.",
        "Likely better: ",
        "likely ",
    ),
    NO_DIFFERENCE: Phrases(
        "Joining makes no difference for {}",
        "Stay out, or join for the customers of others; yours see no difference.",
    ),
    UNCLEAR: Phrases(
        "The data cannot tell whether joining pays for {}",
        "Train again with more data, or decide by a split test: `serve --split-test 50`.",
        "Cannot tell: ",
        "perhaps ",
    ),
    LIKELY_WORSE: Phrases(
        "Joining likely does not pay for {}", "Stay out for now.", "Likely worse: ", "likely "
    ),
    NO: Phrases("Joining does not pay for {}", "Stay out.", "Worse: "),
}
"""All words, the best first."""


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
    _, low, high = scale_gain(row)
    if low >= -SMALL and high <= SMALL:
        return NO_DIFFERENCE
    if low > 0:
        return YES if clear else LIKELY_BETTER
    if high < 0:
        return NO if clear else LIKELY_WORSE
    return UNCLEAR


def scale_gain(row: Row) -> tuple[float, float, float]:
    """Return a gain and the ends of its interval: in per cent of RMSE, or in customers of 100."""
    gain = row["gain"]
    if "ndcg@20" in row:
        return 100 * gain["value"], 100 * gain["low"], 100 * gain["high"]
    return gain["percent"], gain["low_percent"], gain["high_percent"]


def gain_unit(row: Row) -> str:
    """Return the unit of `scale_gain`."""
    return "of 100" if "ndcg@20" in row else "%"


def _show_gain(row: Row) -> str:
    return f"{format_signed(scale_gain(row)[0])} {gain_unit(row)}"


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
    return combine_words(_row(table, party)["pays"] for _, table in judged_tables(lift)[:DECISIVE])


def shared_word(lift: Lift) -> str:
    """Return the word in whose colour a headline stands: *cannot tell* where some judged organisations gain and others do not."""
    tables = [table for _, table in judged_tables(lift)[:DECISIVE]]
    judged = [name for name in party_names(lift) if any(is_judged(_row(table, name)) for table in tables)]
    better = [party_word(lift, name) in (YES, LIKELY_BETTER) for name in judged]
    return UNCLEAR if any(better) and not all(better) else party_word(lift)


def _row(table: Mapping[str, Any], party: str | None) -> Row:
    if party is None and len(table["parties"]) > 1:
        overall: Row = table["overall"]
        return overall
    return next(row for row in table["parties"] if party in (None, row["name"]))


def party_names(lift: Lift) -> list[str]:
    """Return the names of the organisations in a lift."""
    return [row["name"] for row in judged_tables(lift)[0][1]["parties"]]


def answers(lift: Lift) -> list[dict[str, Any]]:
    """Return the verdict of each organisation: its `name`, the word, and what its customers see."""
    return [
        {"name": name, "pays": party_word(lift, name), "sentences": sentences(lift, name)}
        for name in party_names(lift)
    ]


def sentences(lift: Lift, party: str | None = None) -> list[str]:
    """Return what one organisation's customers, or those of all, see if it joins: a sentence for each table."""
    return [
        _describe(_row(table, party), customers, table["metric"]) for customers, table in judged_tables(lift)
    ]


def summarise_verdict(lift: Lift, party: str) -> tuple[str, str]:
    """Return the word of one organisation and what its known customers gain, rounded; "" if that could not be tested."""
    row = _row(judged_tables(lift)[1][1], party)
    return party_word(lift, party), "" if row["gain"] is None else _show_gain(row)


def _describe(row: Row, customers: str, metric: str) -> str:
    """Return what joining changes for some customers, in plain units."""
    if row["gain"] is None:
        return f"No {customers} could be tested."
    if not is_judged(row):
        return f"Only {row['users']} {customers} were tested, too few to tell."
    before, after = _show_figures(row, metric)
    gain, low, high = map(format_signed, scale_gain(row))
    if metric == "rmse":
        what = f"Predicted stars for {customers} are off by {after}"
        change = f" instead of {before}, a gain of {gain} % ({low} to {high})"
    else:
        what = f"Of 100 {customers}, {after} find something they like among the first 20"
        change = f", where it was {before} without the others ({low} to {high} of 100)"
    if row["pays"] == NO_DIFFERENCE:
        figures = row.get("ndcg@20", row)
        unused = (
            "name" in row and not any(scale_gain(row)) and figures[row["reference"]] == figures["federated"]
        )
        why = f": {row.get('name')} would not use the federated model, since its own is as good" * unused
        return f"{what}, with or without the others{why}."
    start = WORDS[row["pays"]].start
    return f"{start}{_small(what) if start else what}{change}."


def _show_figures(row: Row, metric: str) -> tuple[str, str]:
    """Return a row's figure without joining and with it: RMSE, or customers of 100."""
    before, after = row[row["reference"]], row["federated"]
    if metric == "rmse":
        return f"{before:.3f}", f"{after:.3f}"
    digits = 0 if abs(after - before) >= 0.01 and min(before, after) >= 0.1 else 1
    shown = [f"{100 * figure:.{digits}f}".replace("100.0", "100") for figure in (before, after)]
    return shown[0], shown[1]


def _show_cell(row: Row, metric: str) -> str:
    """Return a row in a table's cell, such as `38, was 34`, `likely 38, was 34` or `38, as before`."""
    if not is_judged(row):
        return "too few"
    before, after = _show_figures(row, metric)
    if row["pays"] == NO_DIFFERENCE:
        return f"{after}, as before"
    if before == after:
        return f"{after}, {UNCLEAR}"
    return f"{WORDS[row['pays']].mark}{after}, was {before}"


def verdict_table(lift: Lift) -> tuple[list[str], list[list[str]], list[str]]:
    """Return the header, the rows and the notes of the table with one line an organisation."""
    tables = [(customers, table, table["metric"]) for customers, table in judged_tables(lift)]
    header = ["", "joining pays"]
    header += [f"stars, {who.split()[0]}**" if metric == "rmse" else f"{who}*" for who, _, metric in tables]
    rows = [
        [
            name,
            party_word(lift, name),
            *(_show_cell(_row(table, name), metric) for _, table, metric in tables),
        ]
        for name in party_names(lift)
    ]
    notes = {
        "hitrate@20": "*  of 100 customers, how many find something they like among the first 20",
        "rmse": "** error of predicted stars, lower is better",
    }
    return header, rows, list(dict.fromkeys(notes[metric] for _, _, metric in tables))


def headline(lift: Lift) -> str:
    """Return the verdict as a sentence for each word, and what the customers see who earned the first."""
    words = {name: party_word(lift, name) for name in party_names(lift)}
    said = [f"{phrases.headline.format(join_names(names))}." for phrases, names in _by_word(words)]
    return " ".join([*said, *_quote(lift, words)])


def _by_word(words: Mapping[str, str]) -> list[tuple[Phrases, list[str]]]:
    """Return what is said about each word that an organisation has, the best first, and the names of these organisations."""
    named = [(phrases, [name for name in words if words[name] == word]) for word, phrases in WORDS.items()]
    return [(phrases, names) for phrases, names in named if names]


def _quote(lift: Lift, words: Mapping[str, str]) -> list[str]:
    """Return the sentence about customers who earned the best word: of all organisations if all have it, else of one of them."""
    alike = len(set(words.values())) == 1
    for _, names in _by_word(words):
        for party in (*[None] * alike, *names):
            word = words[names[0]]
            for customers, table in judged_tables(lift)[:DECISIVE]:
                row = _row(table, party)
                if is_judged(row) and row["pays"] in ({word, YES} if word == LIKELY_BETTER else {word}):
                    text = _describe(row, customers, table["metric"])
                    return [text if party is None else f"At {party}, {_small(text)}"]
    return [text for text in sentences(lift) if not text.startswith(("No ", "Only "))][:1]


def _small(text: str) -> str:
    """Return a sentence as it stands after a colon or a comma."""
    return text[0].lower() + text[1:]


def join_names(names: Sequence[str]) -> str:
    """Return names as part of a sentence, such as `a, b and c`; the last of many names are counted."""
    shown = list(names)
    if len(shown) > MOST_NAMES:
        shown = [*shown[: MOST_NAMES - 1], f"{len(shown) - MOST_NAMES + 1} more"]
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def _share_of_means(lift: Lift) -> float | None:
    """Return the share of the gain in ratings of known customers that shared means bring alone; None without a gain."""
    row = lift.get("overall", {})
    if row.get("means") is None or row["pays"] not in (YES, LIKELY_BETTER):
        return None
    before = row[row["reference"]]
    return float((before - row["means"]) / (before - row["federated"]))


def describe_lift(lift: Lift) -> dict[str, Any]:
    """Return the sentences of a lift as metrics.json has them: verdicts, where the gain in stars comes from, and what to do."""
    words = {name: party_word(lift, name) for name in party_names(lift)}
    share, source, advice = _share_of_means(lift), None, _advise(words)
    if share is not None:
        brought = f"{min(share, 1):.0%}" if share > 0 else "nothing"
        rest = "." if share >= MOSTLY else "; the rest needs the federation."
        source = f"Shared means alone bring {brought} of the gain in predicted stars{rest}"
        if share >= MOSTLY and not {*words.values()} & {YES, MIXED, LIKELY_BETTER}:
            advice = "Lists do not gain; predicted stars do. Preset `means` brings most of it in one round."
    return {"headline": headline(lift), "verdicts": answers(lift), "source": source, "advice": advice}


def _advise(words: Mapping[str, str]) -> str:
    """Return what each organisation should do, by its own word."""
    advice = [(phrases.advice, names) for phrases, names in _by_word(words)]
    if len(advice) == 1:
        return advice[0][0]
    return " ".join(f"For {join_names(names)}: {_small(text)}" for text, names in advice)


def list_points(lift: Lift) -> Sequence[str]:
    """Return what follows the headline: the other tables, where the gain comes from, twins, and what to do."""
    twins = lift.get("twins")
    others = [text for text in sentences(lift) if text not in headline(lift)]
    if len({party_word(lift, name) for name in party_names(lift)}) > 1:
        others = [f"At all parties together, {_small(text)}" for text in others]
    points = [*others, lift.get("source"), twins, lift["advice"]]
    return [point for point in points if point]


PARTNERS_HEADER = ["party", "without", "of", "gain with all", "gain without"]


def partner_rows(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return the rows of the table of `compare_partners`: party, partner, customers, gain with all partners and without this one."""
    table = []
    for row in rows:
        both = row["with"], row["without"]
        if all(each["gain"] for each in both):
            what = "stars" if row["metric"] == "rmse" else "lists"
            table.append(
                [row["party"], row["partner"], f"{what}, {row['customers']}", *map(_show_gain, both)]
            )
    return table
