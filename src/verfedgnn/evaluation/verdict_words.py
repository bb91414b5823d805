"""The words of a lift: six answers to "does joining pay?" for one row, and one word for several rows.

Every surface shows these words: terminal, reports, notebooks, the web page, data frames and metrics.json.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from verfedgnn.evaluation.bootstrap import FEWEST_USERS

YES, NO = "yes", "no"
"""The gain or loss is clear among all verdicts of a run (`chance.py`)."""
LIKELY_BETTER, LIKELY_WORSE = "likely better", "likely worse"
"""The 95 % interval excludes 0, but among so many verdicts this can be chance."""
NO_DIFFERENCE = "no difference"
"""The interval, rounded to 0.1 per cent as it is shown, lies within `SMALL` per cent around 0."""
UNCLEAR = "cannot tell"
"""Anything else: the interval is wide and includes 0, or there are fewer than `FEWEST_USERS` users."""
MIXED = "mixed"
"""Joining pays for some customers or parties, and not for others."""
ORDER = (YES, MIXED, LIKELY_BETTER, NO_DIFFERENCE, UNCLEAR, LIKELY_WORSE, NO)
"""All words, the best first."""
SMALL = 0.5
"""A gain or loss of at most this many per cent, of RMSE or NDCG@20 without joining, is called small."""

WHAT = {"rmse": "predicted ratings", "ndcg@20": "lists"}
KNOWN = "known customers"
NEW = "newcomers"


def is_judged(row: Mapping[str, Any]) -> bool:
    """Return whether a row has enough users for a verdict."""
    return row["gain"] is not None and row["users"] >= FEWEST_USERS


def choose_word(row: Mapping[str, Any], *, clear: bool) -> str:
    """Return the word for a row with enough users; `clear` says whether its gain or loss is clear among all verdicts.

    A gain over several seeds that has not the same sign with each of them (p = 1) is neither likely better nor likely worse.
    """
    low = row["gain"]["low_percent"]
    high = row["gain"]["high_percent"]
    excludes_zero = (low > 0 or high < 0) and row["gain"]["p"] < 1
    if clear and excludes_zero:
        return YES if low > 0 else NO
    if round(low, 1) >= -SMALL and round(high, 1) <= SMALL:
        return NO_DIFFERENCE
    if excludes_zero:
        return LIKELY_BETTER if low > 0 else LIKELY_WORSE
    return UNCLEAR


def combine_words(words: Iterable[str]) -> str:
    """Return one word for several rows.

    A clear word counts more than a likely one, and a likely one more than *cannot tell*. Two that contradict each other give
    *mixed* if they are clear, and *cannot tell* if they are likely. *No difference* needs every row to say so.
    """
    found = set(words)
    if not found:
        return UNCLEAR
    if MIXED in found:
        return MIXED
    for pair, both in (((YES, NO), MIXED), ((LIKELY_BETTER, LIKELY_WORSE), UNCLEAR)):
        chosen = found.intersection(pair)
        if chosen:
            return chosen.pop() if len(chosen) == 1 else both
    return NO_DIFFERENCE if found == {NO_DIFFERENCE} else UNCLEAR


def combine_rows(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return one word for the rows that have test cases."""
    return combine_words(row["pays"] for row in rows if row["gain"] is not None)


def halves(lift: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the tables of ratings and those of lists, or the only ones there are."""
    return [lift, lift["lists"]] if "lists" in lift else [lift]


def judged_tables(lift: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return every table of a lift with its customers: all tables of known customers, then those of newcomers."""
    parts = halves(lift)
    new = [(NEW, part["newcomers"]) for part in parts if "newcomers" in part]
    return [*((KNOWN, part) for part in parts), *new]
