"""Splits of ratings into training, validation and test parts.

The part of a rating depends on no other rating, so every organisation splits its own ratings, and new ratings do not move old ones.
At random, it is a hash of (seed, user id, item id). By date, two dates that all parties agree on divide the ratings.

Newcomers are judged on customers whom a party *withholds*: nothing of them is in its training part. A party draws them by a hash of
the user id under its own secret, so that nobody else can tell who they are.
"""

import hashlib
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from verfedgnn.core.errors import DataError
from verfedgnn.core.option_names import option
from verfedgnn.data.ids import StrArray
from verfedgnn.data.ratings import Ratings

TRAIN = 0
VALID = 1
TEST = 2
UNUSED = 3
"""Part of ratings that a split by date leaves out: those of withheld users before the dates on which they are judged."""
NEWCOMER = 4
"""Part of the test ratings of withheld users."""
WITHHELD = (0.05, 0.1)
"""Shares of a party's users who are withheld to choose the mixture for newcomers, and to judge it."""
FEWEST_TEST_USERS = 300
"""Fewest known customers of a party with a rating after the second date for a split by date."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def split_by_rating(
    ratings: Ratings, *, fractions: tuple[float, float, float] = (0.6, 0.2, 0.2), seed: int = 0
) -> NDArray[np.int8]:
    """Assign each rating to a part (`TRAIN`, `VALID`, `TEST`) at random; the fractions hold in expectation."""
    uniform = (_pair_hashes(ratings, seed) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    part = (uniform >= fractions[0]).astype(np.int8)
    part[uniform >= fractions[0] + fractions[1]] = TEST
    if fractions[2] == 0:
        part[part == TEST] = VALID if fractions[1] else TRAIN
    return part


def _pair_hashes(ratings: Ratings, seed: int) -> NDArray[np.uint64]:
    """Hash the user id and the item id of each rating."""
    # A party may have ratings of only a few of the common users, so only those are hashed.
    present = np.bincount(ratings.user, minlength=ratings.n_users) > 0
    users = np.zeros(ratings.n_users, np.uint64)
    users[present] = hash64(ratings.user_ids[present], seed)
    # A different seed keeps a user and an item with the same id from cancelling.
    items = mix(hash64(ratings.item_ids, ~seed) + _GOLDEN)
    return mix((users[ratings.user] ^ items[ratings.item]) + _GOLDEN)


def split_by_date(ratings: Ratings, dates: tuple[date, date]) -> NDArray[np.int8]:
    """Assign each rating to a part: `TRAIN` before the first date, `VALID` before the second, else `TEST`."""
    if ratings.time is None:
        named = f"name the column with {option('columns', {'time': '...'})}"
        raise DataError(f"{ratings.name} has no times to split by date; set split.kind = random, or {named}")
    seconds = np.array(dates, "datetime64[s]").astype(np.int64)
    return np.searchsorted(seconds, ratings.time, "right").astype(np.int8)


def choose_dates(
    tables: Sequence[Ratings], fractions: tuple[float, float, float]
) -> tuple[date, date] | None:
    """Return two dates that divide the ratings of all tables by `fractions`; None where a table does not suit such a split."""
    times = [table.time for table in tables if table.time is not None]
    if len(times) < len(tables) or not all(map(len, times)):
        return None
    ends = np.quantile(np.concatenate(times), [fractions[0], fractions[0] + fractions[1]])
    try:
        first, second = (datetime.fromtimestamp(float(end), UTC).date() for end in ends)
    except (OverflowError, OSError, ValueError):  # times that are no seconds since 1970
        return None
    dates = (first, max(second, first + timedelta(days=1)))
    return dates if all(suits(table, dates) for table in tables) else None


def suits(ratings: Ratings, dates: tuple[date, date] | None) -> bool:
    """Return whether a split by `dates` judges at least `FEWEST_TEST_USERS` users who rated before the first one, too."""
    if dates is None or ratings.time is None:
        return False
    parts = split_by_date(ratings, dates)
    known, tested = (np.unique(ratings.user[parts == wanted]) for wanted in (TRAIN, TEST))
    return len(np.intersect1d(known, tested)) >= FEWEST_TEST_USERS and bool((parts == VALID).any())


def draw_withheld(ratings: Ratings, secret: bytes) -> NDArray[np.int8]:
    """Return for each user `VALID` or `NEWCOMER` if the party withholds everything of the user for that part, else `TRAIN` (N,)."""
    part = np.full(ratings.n_users, TRAIN, np.int8)
    for row in np.unique(ratings.user).tolist():
        digest = hashlib.blake2b(str(ratings.user_ids[row]).encode(), key=secret, digest_size=8).digest()
        uniform = int.from_bytes(digest) / 2**64
        if uniform < sum(WITHHELD):
            part[row] = VALID if uniform < WITHHELD[0] else NEWCOMER
    return part


def withhold(
    ratings: Ratings, parts: NDArray[np.int8], withheld: NDArray[np.int8], *, dated: bool
) -> NDArray[np.int8]:
    """Return `parts` with the ratings of withheld users in their users' part.

    With a split by date (`dated`), they are judged on ratings of that part's dates only, and the others are `UNUSED`.
    """
    wanted = withheld[ratings.user]
    dates = np.where(wanted == NEWCOMER, TEST, wanted)
    moved = np.where(parts == dates, wanted, UNUSED) if dated else wanted
    return np.where(wanted == TRAIN, parts, moved).astype(np.int8)


def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply the finaliser of splitmix64, a bijection of 64 bits in which each input bit flips half of the output bits."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def hash64(ids: StrArray, seed: int) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each id, from its code points and the seed only.

    The zero padding of fixed-width text does not change the hash, so it does not depend on the other ids.
    """
    h = mix(np.full(len(ids), int(seed) % 2**64, np.uint64) + _GOLDEN)
    points = np.ascontiguousarray(ids).view(np.uint32).reshape(len(ids), ids.dtype.itemsize // 4)
    for column in points.T:
        h = np.where(column != 0, mix((h ^ column) + _GOLDEN), h)
    return h
