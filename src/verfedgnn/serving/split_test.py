r"""A split test: some customers get the federated lists, the others those of their party alone, and clicks say which are better.

A customer's bucket is a keyed hash of the id, so it stays the same as long as the secret does, and nobody
else can foretell it.

The share of customers in a bucket who clicked is :math:`\hat p = \sum_u y_u / \sum_u x_u`, where each
:math:`x_u` is 1. Clicks per list have the same form, with a customer's clicks and lists. Customers are
independent, the rows of one customer are not, so the variance is that of a ratio over n customers:

.. math::
    \widehat{\mathrm{Var}}(\hat p) = \frac{n}{n - 1} \sum_u (y_u - \hat p x_u)^2 \Big/ \Big(\sum_u x_u\Big)^2 .

The interval counts two more customers in each bucket, who were shown one list each, and of whom one clicked
(Agresti and Caffo, 2000). Without them, an interval from few clicks is too narrow.
"""

from __future__ import annotations

import csv
import hashlib
import hmac
import math
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from verfedgnn.core.errors import ConfigError, DataError
from verfedgnn.core.files import creating, read_private, writing
from verfedgnn.data.ratings import format_count

ModelName = Literal["federated", "alone"]
"""The models of a run, and the buckets that get their lists."""
FEDERATED: ModelName = "federated"
ALONE: ModelName = "alone"
BUCKETS = (FEDERATED, ALONE)
FEWEST_CUSTOMERS = 20
"""Fewest customers of a bucket from which an interval follows."""
NORMAL_95 = 1.959964
MOST_DIGITS = 4
_YES_NO = {"true": 1.0, "yes": 1.0, "false": 0.0, "no": 0.0}


@dataclass(frozen=True)
class SplitTest:
    """A division of customers into two buckets."""

    secret: bytes
    percent: float
    """Percentage of customers who get the federated lists."""

    def bucket(self, user: str) -> ModelName:
        """Return the bucket of a customer, by the id."""
        digest = hmac.digest(self.secret, user.encode(errors="surrogatepass"), "sha256")
        return FEDERATED if int.from_bytes(digest[:8]) * 100 < self.percent * 2**64 else ALONE


def open_split_test(percent: float, file: Path) -> SplitTest:
    """Return the split test with the secret in `file`, which is created if it is missing."""
    try:
        if not file.exists():
            with writing(file.parent), creating(file) as out:
                out.write(f"{secrets.token_hex(32)}\n".encode())
        text = read_private(file).strip()
    except OSError as error:
        raise ConfigError(f"the secret {file} cannot be read ({error}); choose another --split-key") from None
    if len(text) < 16:
        raise ConfigError(f"the secret in {file} is too short; remove the file, and a new one is drawn")
    return SplitTest(hashlib.sha256(text).digest(), percent)


@dataclass(frozen=True)
class Clicks:
    """What the customers of one bucket were shown and clicked; entries of both arrays are customers."""

    shown: NDArray[np.float64]
    clicked: NDArray[np.float64]

    def rate(self) -> float:
        """Return the clicks for each that was shown."""
        return float(self.clicked.sum() / self.shown.sum())

    def widened(self) -> Clicks:
        """Return the clicks with two more customers, of whom one clicked."""
        return Clicks(np.append(self.shown, [1, 1]), np.append(self.clicked, [1, 0]))

    def variance(self) -> float:
        """Return the variance of the rate over customers."""
        count = len(self.shown)
        left = self.clicked - self.rate() * self.shown
        return float(count / (count - 1) * (left @ left) / self.shown.sum() ** 2)


@dataclass(frozen=True)
class Comparison:
    """Rates of the two buckets in per cent, and their difference with its 95 % interval."""

    federated: float
    alone: float
    low: float
    high: float

    @property
    def difference(self) -> float:
        """The rate of the federated bucket minus that of the other one."""
        return self.federated - self.alone

    @property
    def digits(self) -> int:
        """Decimals with which the interval is seen to include 0 or not."""
        size = min(abs(self.low), abs(self.high))
        return min(MOST_DIGITS, max(1, math.ceil(-math.log10(2 * size)) if size else 1))

    def interval(self) -> str:
        """Return the difference and its interval as text, such as `+0.7 (0.2 to 1.2)`."""
        digits = self.digits
        return f"{self.difference:+.{digits}f} ({self.low:.{digits}f} to {self.high:.{digits}f})"


@dataclass(frozen=True)
class SplitResult:
    """The result of a split test."""

    customers: Comparison
    """Customers who clicked, of 100; the verdict follows from this."""
    lists: Comparison
    """Clicks of 100 lists that were shown."""
    counts: Mapping[ModelName, int]
    """Number of customers in each bucket."""
    unmarked: int
    """Rows without bucket, which are left out."""
    one_row_each: bool
    """Whether the file has no column of users, so that each row counts as a customer."""

    @property
    def sentence(self) -> str:
        """The result in plain words."""
        found = self.customers
        if found.low > 0:
            verdict = "The federated lists are better."
        elif found.high < 0:
            verdict = "Your own lists are better."
        else:
            verdict = "That is no clear difference: the interval includes 0. Go on with the test, or keep what is simpler."
        digits = found.digits
        return (
            f"Of 100 customers shown the federated lists, {found.federated:.{digits}f} clicked, of 100 shown your own, "
            f"{found.alone:.{digits}f}: {found.interval()}. {verdict}"
        )


def compare(federated: Clicks, alone: Clicks) -> Comparison:
    """Compare the rates of two buckets."""
    first, second = federated.widened(), alone.widened()
    centre = first.rate() - second.rate()
    half = NORMAL_95 * math.sqrt(first.variance() + second.variance())
    rates = federated.rate(), alone.rate(), centre - half, centre + half
    return Comparison(*(100 * rate for rate in rates))


def confirm(file: Path) -> SplitResult:
    """Compare the buckets of a split test from a CSV file with the columns bucket, user, clicked and optionally shown.

    A customer may have several rows. `clicked` is 1 or 0, or the number of clicks, and `shown` the number of
    lists, 1 by default. Without a column `user`, each row counts as a customer.
    """
    totals: dict[ModelName, dict[str, list[float]]] = {name: {} for name in BUCKETS}
    unmarked = 0
    one_row_each = False
    for place, row in _read_rows(file):
        one_row_each = "user" not in row
        bucket, shown, clicked = _parse_row(row, place)
        unmarked += bucket is None
        if bucket is None or not shown:
            continue
        user = row.get("user", place)
        if user in totals[ALONE if bucket == FEDERATED else FEDERATED]:
            raise DataError(
                f"{place}: customer '{user}' is in both buckets; a comparison needs customers who saw one "
                "kind of list. Take rows of one split test, with one secret and one percentage"
            )
        total = totals[bucket].setdefault(user, [0.0, 0.0])
        total[0] += shown
        total[1] += clicked
    people: dict[ModelName, Clicks] = {}
    lists: dict[ModelName, Clicks] = {}
    for name, customers in totals.items():
        if len(customers) < FEWEST_CUSTOMERS:
            had = format_count(len(customers), "customer") if customers else "no customer"
            raise DataError(
                f"{file} has {had} of bucket '{name}'; both buckets need {FEWEST_CUSTOMERS} or more. Log the field "
                "`bucket` of every answer, also where nobody clicked"
            )
        shown_to, clicked_by = np.array(list(customers.values())).T
        lists[name] = Clicks(shown_to, clicked_by)
        people[name] = Clicks(np.ones(len(customers)), (clicked_by > 0).astype(np.float64))
    return SplitResult(
        compare(people[FEDERATED], people[ALONE]),
        compare(lists[FEDERATED], lists[ALONE]),
        {name: len(customers) for name, customers in totals.items()},
        unmarked,
        one_row_each,
    )


def _read_rows(file: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the place and the cells of each row."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as text:
            head = text.readline()
            delimiter = max(",;\t", key=head.count)
            columns = [name.strip().lower() for name in next(csv.reader([head], delimiter=delimiter), [])]
            missing = [name for name in ("bucket", "clicked") if name not in columns]
            if missing:
                raise DataError(
                    f"{file} has no column '{missing[0]}', but {', '.join(columns) or 'no column'}; it needs bucket and "
                    "clicked, and takes user and shown"
                )
            for line, cells in enumerate(csv.reader(text, delimiter=delimiter), 2):
                if cells:
                    yield f"{file}, line {line}", dict(zip(columns, map(str.strip, cells), strict=False))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{file} cannot be read ({error}); give a CSV file in UTF-8") from None


def _parse_row(row: Mapping[str, str], place: str) -> tuple[ModelName | None, float, float]:
    """Return the bucket of a row, if it has one, the number of lists that were shown, and that of clicks."""
    name = row.get("bucket", "").lower()
    bucket = next((bucket for bucket in BUCKETS if bucket == name), None)
    if name and bucket is None:
        raise DataError(
            f"{place}: the bucket is '{name[:40]}'; use {' or '.join(BUCKETS)}, as in the field `bucket` of the answers"
        )
    if row.get("user") == "":
        raise DataError(f"{place} has no user; give the id of the customer")
    counts = []
    for column, default in (("shown", "1"), ("clicked", "")):
        value = row.get(column, default).lower()
        try:
            count = _YES_NO[value] if value in _YES_NO else float(value)
        except ValueError:
            count = math.nan
        if not 0 <= count < math.inf:
            raise DataError(f"{place}: {column} is '{value[:40]}'; give 0, 1 or a larger count")
        counts.append(count)
    shown, clicked = counts
    if clicked and not shown:
        raise DataError(f"{place} has a click on a list that was not shown; correct shown or clicked")
    return bucket, shown, clicked
