"""The answer to "does joining pay?" on top of every surface: a headline, the figures that decide, and a line for each party."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verfedgnn.core.option_names import worded
from verfedgnn.data.ratings import format_count
from verfedgnn.evaluation.chance import GROUPS
from verfedgnn.evaluation.gain_text import format_interval, format_signed, join_names
from verfedgnn.evaluation.verdict_words import (
    KNOWN,
    LIKELY_BETTER,
    LIKELY_WORSE,
    MIXED,
    NEW,
    NO,
    NO_DIFFERENCE,
    ORDER,
    SMALL,
    UNCLEAR,
    WHAT,
    YES,
    combine_rows,
    judged_tables,
)

_ANSWERS = {
    YES: "pays for {}",
    MIXED: "improves some predictions and worsens others for {}",
    LIKELY_BETTER: "is likely better for {}",
    NO_DIFFERENCE: "makes no difference for {}",
    LIKELY_WORSE: "is likely worse for {}",
    NO: "does not pay for {}",
}
"""What joining does, by word."""


@dataclass(frozen=True)
class PartyVerdict:
    """What joining is worth to one party, as one line."""

    name: str
    pays: str
    """One of the words in `verdict_words.ORDER`."""
    text: str
    """For which predictions and customers, and by how much, with intervals."""
    for_whom: str
    """The verdict of each group of customers with their number; empty if groups were not judged."""
    gainers: frozenset[str]
    """The customers who clearly gain: `KNOWN`, `NEW` or both."""
    likely: frozenset[str]
    """The customers who likely gain."""


@dataclass(frozen=True)
class _Answer:
    """The answer for known customers or newcomers, over ratings and lists."""

    customers: str
    word: str
    figure: str
    """The largest gain or loss with this word, such as `lists +6.8 %`; empty if the word has no direction."""
    small: bool
    """Whether this gain or loss is at most `SMALL` per cent."""


def narrow_lift(lift: Mapping[str, Any], party: str) -> dict[str, Any]:
    """Return the lift of one party, as if it were the only one."""
    nobody = {"name": party, "users": 0, "gain": None, "pays": UNCLEAR}
    found = next((row for row in lift["parties"] if row["name"] == party), nobody)
    groups = {name: found[name] for name in GROUPS if name in found}
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

    If no verdict of a single party is clear, the parties are judged together.
    """
    found = {party.pays for party in party_verdicts(lift)}
    if not found & {YES, MIXED, NO}:
        return combine_rows(table["overall"] for _, table in judged_tables(lift))
    if len(found) > 1 and not found & {YES, MIXED}:
        return NO
    return found.pop() if len(found) == 1 else MIXED


def headline(lift: Mapping[str, Any]) -> str:
    """Return the verdict as a few short sentences. Terminal, reports, notebooks and the web page show the same ones.

    The first ones answer for all parties together, the last one for each party. Known customers come first, because they are most
    users, unless only the answer for newcomers is clear and large.
    """
    answers = [answer for customers in (KNOWN, NEW) if (answer := _answer(lift, customers)) is not None]
    if not answers:
        return "There are no test cases, so the data cannot tell whether joining pays."
    answers.sort(key=lambda answer: answer.small or answer.word not in (YES, MIXED, NO))
    by_word: dict[tuple[str, bool], list[_Answer]] = {}
    for answer in answers:
        by_word.setdefault((answer.word, answer.small), []).append(answer)
    sentences: list[str] = []
    for (word, small), same in by_word.items():
        whom = " and ".join(
            answer.customers + (f" ({answer.figure})" if answer.figure else "") for answer in same
        )
        subject = "It" if sentences else "Joining"
        if word == UNCLEAR:
            sentences.append(f"For {whom} the data cannot tell.")
        elif small and word in (YES, NO):
            sentences.append(
                f"{subject} {'gains' if word == YES else 'costs'} {SMALL:g} % or less for {whom}."
            )
        else:
            sentences.append(f"{subject} {_ANSWERS[word].format(whom)}.")
    if "newcomers" not in lift:
        sentences.append("Newcomers are not judged yet.")
    return " ".join([*sentences, *_answer_by_party(lift)])


def deciding_figures(lift: Mapping[str, Any]) -> str:
    """Return sentences with the gain in each table, for all parties together.

    The order is always the same: known customers before newcomers, predicted ratings (RMSE) before lists (NDCG@20).
    """
    tables = [(customers, table) for customers, table in judged_tables(lift) if table["overall"]["gain"]]
    if not tables:
        return "There are no test cases to decide by."
    whose = ", at all parties together" if len(lift["parties"]) > 1 else ""
    seeds = f", mean of {len(lift['seeds'])} seeds" if "seeds" in lift else ""
    sentences = [f"Gain over the best without joining{whose}{seeds}."]
    for who in (KNOWN, NEW):
        figures = [
            f"{WHAT[table['metric']]} ({table['metric'].upper()}) {format_interval(table['overall'])}"
            for customers, table in tables
            if customers == who
        ]
        if figures:
            sentences.append(f"{who.capitalize()}: {', '.join(figures)}.")
    return " ".join(sentences)


def warn_of_one_split(lift: Mapping[str, Any], folder: Path | None = None) -> str | None:
    """Return that a verdict of one seed is provisional, and how to be sure; None for a lift over several seeds.

    `folder` is the run's. Documents that travel without their run leave it out.
    """
    if "seeds" in lift:
        return None
    run = "RUN" if folder is None else shlex.quote(str(folder))
    judge = worded(f"`verfedgnn lift {run} --seeds 3`", "`vf.lift(run, seeds=3)`")
    return f"Provisional: this is one split of the ratings; run {judge} to be sure."


def count_customers(users: int, customers: str) -> str:
    """Return a number of customers, such as `74 newcomers` or `1 known customer`."""
    return format_count(users, customers.removesuffix("s"))


def group_by_word(words: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the names that have each word, the best word first."""
    return {word: names for word in ORDER if (names := [name for name in words if words[name] == word])}


def _answer(lift: Mapping[str, Any], customers: str) -> _Answer | None:
    """Return the answer for known customers or newcomers of all parties together; None without test cases."""
    found = [(table["metric"], table["overall"]) for who, table in judged_tables(lift) if who == customers]
    rows = [(metric, row) for metric, row in found if row["gain"] is not None]
    if not rows:
        return None
    word = combine_rows(row for _, row in rows)
    gains = [(row["gain"]["percent"], metric) for metric, row in rows if row["pays"] == word]
    if word not in (YES, LIKELY_BETTER, LIKELY_WORSE, NO):
        return _Answer(customers, word, "", small=False)
    percent, metric = max(gains) if word in (YES, LIKELY_BETTER) else min(gains)
    small = abs(percent) <= SMALL
    figure = "" if small else f"{WHAT[metric]} {format_signed(percent)} %"
    return _Answer(customers, word, figure, small)


def _answer_by_party(lift: Mapping[str, Any]) -> list[str]:
    """Return a sentence with the word of each party; none for a single party."""
    words = {party.name: party.pays for party in party_verdicts(lift)}
    if len(words) < 2:
        return []
    by_word = group_by_word(words)
    if len(by_word) == 1:
        whose = "both parties" if len(words) == 2 else f"all {len(words)} parties"
        return [f"By party: {next(iter(by_word))} at {whose}."]
    return [f"By party: {'; '.join(f'{word} at {join_names(names)}' for word, names in by_word.items())}."]


def _judge_party(name: str, lift: Mapping[str, Any]) -> PartyVerdict:
    """Return the verdict of the only party of `lift`."""
    tables = judged_tables(lift)
    pays = combine_rows(table["overall"] for _, table in tables)
    words = {}
    for customers, table in tables:
        row = table["overall"]
        if row["gain"] is not None:
            what = f"{WHAT[table['metric']]} for {count_customers(row['users'], customers)}"
            words[f"{what}, {format_interval(row)}"] = row["pays"]
    by_word = group_by_word(words)
    texts = [
        ("" if word == pays == next(iter(by_word)) else f"{word}: ") + "; ".join(found)
        for word, found in by_word.items()
    ]
    text = ". ".join(text[:1].upper() + text[1:] for text in texts) or "No test cases"
    gainers, likely = (
        frozenset(customers for customers, table in tables if table["overall"]["pays"] == word)
        for word in (YES, LIKELY_BETTER)
    )
    return PartyVerdict(name, pays, text, _describe_groups(lift), gainers, likely - gainers)


def _describe_groups(lift: Mapping[str, Any]) -> str:
    """Return for whom joining pays at the only party of `lift`: the word of each group, with the number of its customers."""
    counts = lift["overall"].get("customers")
    if counts is None or "newcomers" not in lift or len(counts["by_other_parties"]) < 2:
        return ""
    tables = judged_tables(lift)
    known = _join_groups(
        [table for customers, table in tables if customers == KNOWN], counts["by_other_parties"]
    )
    texts = [
        f"{_name_group(numbers, len(counts['by_other_parties']))} ({count:,}): {word}"
        for numbers, count, word in known
    ]
    new = combine_rows(table["overall"] for customers, table in tables if customers == NEW)
    texts.append(f"newcomers known elsewhere ({counts['elsewhere_only']:,} today): {new}")
    return f"{'customers ' if known else ''}{'; '.join(texts)}"


def _join_groups(
    tables: Sequence[Mapping[str, Any]], counts: Sequence[int]
) -> list[tuple[list[int], int, str]]:
    """Return numbers of other parties, how many customers these know, and their word; neighbours with one word are joined.

    Those at all parties come first. Customers known here only stay on their own.
    """
    found: list[tuple[list[int], int, str]] = []
    for number in reversed(range(len(counts))):
        if not counts[number]:
            continue
        word = combine_rows(row for table in tables for row in _find_group(table, number))
        if found and number and found[-1][2] == word:
            numbers, count, _ = found.pop()
            found.append(([*numbers, number], count + counts[number], word))
        else:
            found.append(([number], counts[number], word))
    return found


def _name_group(others: Sequence[int], parties: int) -> str:
    """Return where customers are whom these numbers of other parties know, the largest first."""
    if others[0] == 0:
        return "here only"
    if len(others) > 1:
        return f"at {others[-1] + 1} {'to' if len(others) > 2 else 'or'} {others[0] + 1} parties"
    if others[0] == parties - 1:
        return "at both parties" if parties == 2 else f"at all {parties} parties"
    return f"at {others[0] + 1} parties"


def _find_group(table: Mapping[str, Any], number: int) -> list[Mapping[str, Any]]:
    """Return the row of the customers whom this number of other parties knows; that of everybody if there is one group only."""
    groups = table.get("by_other_parties")
    return [row for row in groups if row["other_parties"] == number] if groups else [table["overall"]]
