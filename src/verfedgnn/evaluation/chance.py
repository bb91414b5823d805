"""Chance over the many verdicts of a run: when a gain is clear enough to be called yes or no.

A 95 % interval misses the truth once in twenty times, and a run has a dozen verdicts. The words yes and no are therefore corrected
by Holm's method: where no verdict of a run has a true gain or loss, the chance that any of them says yes or no is `ERROR`. The
correction holds for verdicts that depend on each other, too. Intervals are not corrected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

from verfedgnn.evaluation.verdict_words import choose_word, is_judged, judged_tables

ERROR = 0.05
"""Chance of any false yes or no among the verdicts of a run."""
GROUPS = ("by_own_ratings", "by_other_ratings", "by_other_parties")
"""Tables of groups of customers: by their ratings at the party, by those at other parties, and by the parties that know them."""

Row = dict[str, Any]


def p_value(value: float, error: float, freedom: float) -> float:
    """Return the chance of a gain at least as far from 0 as `value` if there is none, by Student's t.

    `error` is the standard error of the gain and `freedom` the degrees of freedom.
    """
    if not value:
        return 1.0
    return float(2 * stdtr(freedom, -abs(value) / error)) if error else 0.0


def holm(chances: Sequence[float]) -> NDArray[np.bool_]:
    """Return which of several p-values are clear at `ERROR` for all of them together.

    The smallest is compared with ERROR / n, the next one with ERROR / (n - 1), and so on up to the first that fails.
    """
    found = np.asarray(chances, np.float64)
    order = np.argsort(found, kind="stable")
    passed = found[order] <= ERROR / np.arange(len(found), 0, -1)
    clear = np.zeros(len(found), bool)
    clear[order] = np.logical_and.accumulate(passed)
    return clear


def decide_verdicts(lift: Row) -> None:
    """Set the word `pays` in every row of a lift, and `verdicts`, the number of rows that are corrected together.

    These are the rows of the parties and of all parties together. The rows of groups of customers are a family of their own,
    corrected among themselves.
    """
    tables = [table for _, table in judged_tables(lift)]
    rows = [row for table in tables for row in (*table["parties"], table["overall"])]
    lift["verdicts"] = sum(is_judged(row) for row in rows)
    _decide(rows)
    _decide(row for table in tables for whole in (table, *table["parties"]) for row in _groups(whole))


def _decide(rows: Iterable[Row]) -> None:
    judged = [row for row in rows if is_judged(row)]
    for row, clear in zip(judged, holm([row["gain"]["p"] for row in judged]), strict=True):
        row["pays"] = choose_word(row, clear=bool(clear))


def _groups(table: Mapping[str, Any]) -> list[Row]:
    return [row for name in GROUPS for row in table.get(name, [])]
