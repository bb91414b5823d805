r"""A split test: some customers get the federated lists, the others those of their party alone, and clicks say which are better.

A customer's bucket is a keyed hash of the id: it stays the same as long as the secret does, and nobody else can foretell it.
Of the n customers of a bucket, c clicked at least once. The 95 % interval of the difference of the two shares counts two more
customers in each bucket, of whom one clicked (Agresti and Caffo, 2000), since it would be too narrow for few clicks:

.. math:: \tilde p = \frac{c + 1}{n + 2}, \qquad \widehat{\mathrm{Var}}(\tilde p) = \frac{\tilde p (1 - \tilde p)}{n + 1} .
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

from verfedgnn.core.errors import ConfigError, DataError
from verfedgnn.core.files import creating, read_private, writing
from verfedgnn.data.ratings import format_count

ModelName = Literal["federated", "alone"]
"""The models of a run, and the buckets that get their lists."""
FEDERATED: ModelName = "federated"
ALONE: ModelName = "alone"
BUCKETS = (FEDERATED, ALONE)
COLUMNS = ("user", "bucket", "clicked")
FEWEST_CUSTOMERS = 20
NORMAL_95 = 1.959964
MOST_DIGITS = 4
_YES_NO = {"true": 1.0, "yes": 1.0, "false": 0.0, "no": 0.0}


@dataclass(frozen=True)
class SplitTest:
    """A division of customers into two buckets."""

    secret: bytes
    percent: float

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
class SplitResult:
    """The customers who clicked, of 100 in each bucket, and the difference with its 95 % interval."""

    federated: float
    alone: float
    low: float
    high: float
    counts: Mapping[ModelName, int]
    unmarked: int
    """Rows without bucket, which are left out."""

    @property
    def digits(self) -> int:
        """Decimals with which the interval is seen to include 0 or not."""
        size = min(abs(self.low), abs(self.high))
        return min(MOST_DIGITS, max(1, math.ceil(-math.log10(2 * size)) if size else 1))

    @property
    def interval(self) -> str:
        """The difference and its interval as text, such as `+0.7 (0.2 to 1.2)`."""
        digits = self.digits
        return f"{self.federated - self.alone:+.{digits}f} ({self.low:.{digits}f} to {self.high:.{digits}f})"

    @property
    def sentence(self) -> str:
        """The result in plain words."""
        verdict = "That is no clear difference: the interval includes 0. Go on with the test, or keep what is simpler."
        if self.low > 0 or self.high < 0:
            verdict = f"{'The federated' if self.low > 0 else 'Your own'} lists are better."
        federated, alone = (f"{share:.{self.digits}f}" for share in (self.federated, self.alone))
        shown = (
            f"Of 100 customers shown the federated lists, {federated} clicked, of 100 shown your own, {alone}"
        )
        return f"{shown}: {self.interval}. {verdict}"


def compare(
    clicked: Mapping[ModelName, int], counts: Mapping[ModelName, int], unmarked: int = 0
) -> SplitResult:
    """Compare the two buckets, given how many customers of each clicked and how many there are."""
    wide = {name: (clicked[name] + 1) / (counts[name] + 2) for name in BUCKETS}
    centre = wide[FEDERATED] - wide[ALONE]
    half = NORMAL_95 * math.sqrt(sum(wide[name] * (1 - wide[name]) / (counts[name] + 1) for name in BUCKETS))
    federated, alone = (100 * clicked[name] / counts[name] for name in BUCKETS)
    return SplitResult(federated, alone, 100 * (centre - half), 100 * (centre + half), counts, unmarked)


def confirm(file: Path) -> SplitResult:
    """Compare the buckets of a split test from a CSV file with the columns user, bucket and clicked.

    A customer may have several rows, one for each list that was shown. `clicked` is 1 or 0, or the number of clicks.
    """
    clicked: dict[ModelName, dict[str, bool]] = {name: {} for name in BUCKETS}
    unmarked = 0
    for place, row in _read_rows(file):
        bucket, clicks = _parse_row(row, place)
        if bucket is None:
            unmarked += 1
            continue
        user = row["user"]
        if user in clicked[ALONE if bucket == FEDERATED else FEDERATED]:
            raise DataError(
                f"{place}: customer '{user}' is in both buckets; a comparison needs customers who saw one "
                "kind of list. Take rows of one split test, with one secret and one percentage"
            )
        clicked[bucket][user] = clicked[bucket].get(user, False) or clicks > 0
    for name, customers in clicked.items():
        if len(customers) < FEWEST_CUSTOMERS:
            had = format_count(len(customers), "customer") if customers else "no customer"
            raise DataError(
                f"{file} has {had} of bucket '{name}'; both buckets need {FEWEST_CUSTOMERS} or more. Log the field "
                "`bucket` of every answer, also where nobody clicked"
            )
    counts = {name: len(customers) for name, customers in clicked.items()}
    return compare({name: sum(customers.values()) for name, customers in clicked.items()}, counts, unmarked)


def _read_rows(file: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the place and the cells of each row."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as text:
            delimiter = max(",;\t", key=text.readline().count)
            text.seek(0)
            rows = csv.DictReader(text, delimiter=delimiter, restkey="", restval="")
            rows.fieldnames = columns = [name.strip().lower() for name in rows.fieldnames or []]
            missing = [name for name in COLUMNS if name not in columns]
            if missing:
                had = ", ".join(columns) or "no column"
                raise DataError(
                    f"{file} has no column '{missing[0]}', but {had}; it needs {', '.join(COLUMNS)}"
                )
            for row in rows:
                yield f"{file}, line {rows.line_num}", {name: row[name].strip() for name in COLUMNS}
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{file} cannot be read ({error}); give a CSV file in UTF-8") from None


def _parse_row(row: Mapping[str, str], place: str) -> tuple[ModelName | None, float]:
    """Return the bucket of a row, if it has one, and the number of clicks."""
    name = row["bucket"].lower()
    bucket = next((bucket for bucket in BUCKETS if bucket == name), None)
    if name and bucket is None:
        known = f"use {' or '.join(BUCKETS)}, as in the field `bucket` of the answers"
        raise DataError(f"{place}: the bucket is '{name[:40]}'; {known}")
    if not row["user"]:
        raise DataError(f"{place} has no user; give the id of the customer")
    value = row["clicked"].lower()
    try:
        clicks = _YES_NO[value] if value in _YES_NO else float(value)
    except ValueError:
        clicks = math.nan
    if not 0 <= clicks < math.inf:
        raise DataError(f"{place}: clicked is '{value[:40]}'; give 0, 1 or a larger count")
    return bucket, clicks
