"""Splits of ratings into training, validation and test parts.

The part of a rating in a random split is a hash of (seed, user id, item id). Every organisation can compute
the parts of its own ratings, the pooled table and the parties' tables agree, and new ratings do not change
the parts of others.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from verfedgnn.core.errors import DataError
from verfedgnn.core.option_names import option
from verfedgnn.data.ids import StrArray
from verfedgnn.data.ratings import Ratings

TRAIN = 0
VALID = 1
TEST = 2

_BLOCK = 1 << 20
"""Number of ratings that are hashed at once."""
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def split_by_rating(
    ratings: Ratings, *, fractions: tuple[float, float, float] = (0.6, 0.2, 0.2), seed: int = 0
) -> NDArray[np.int8]:
    """Assign each rating to a part (`TRAIN`, `VALID`, `TEST`) at random.

    The fractions hold in expectation. A part with fraction f of n ratings gets f n of them, with standard
    deviation sqrt(n f (1 - f)), less than 0.05 % of a million ratings.
    """
    if len(fractions) != 3 or min(fractions) < 0 or not np.isclose(sum(fractions), 1):
        raise DataError(
            f"fractions {tuple(fractions)} are not three shares that add up to 1; use for example 0.6,0.2,0.2"
        )
    hashes = _pair_hashes(ratings, seed)
    part = np.empty(len(ratings), np.int8)
    # In blocks, because a hash takes eight times the memory of a part.
    for start in range(0, len(ratings), _BLOCK):
        block = slice(start, start + _BLOCK)
        uniform = (hashes(block) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        part[block] = uniform >= fractions[0]
        part[block][uniform >= fractions[0] + fractions[1]] = TEST
    if fractions[2] == 0:
        part[part == TEST] = VALID if fractions[1] else TRAIN
    return part


def _pair_hashes(ratings: Ratings, seed: int) -> Callable[[slice | NDArray[np.int64]], NDArray[np.uint64]]:
    """Return a function that hashes the user id and the item id of some ratings."""
    # A party may have ratings of only a few of the common users, so only those are hashed.
    present = np.zeros(ratings.n_users, bool)
    present[ratings.user] = True
    users = np.zeros(ratings.n_users, np.uint64)
    users[present] = hash64(ratings.user_ids[present], seed)
    # A different seed keeps a user and an item with the same id from cancelling.
    items = hash64(ratings.item_ids, ~seed)
    items = mix(items + _GOLDEN)
    return lambda rows: mix((users[ratings.user[rows]] ^ items[ratings.item[rows]]) + _GOLDEN)


def cap_ratings(
    ratings: Ratings, chosen: NDArray[np.bool_], most: int, *, seed: int = 0
) -> NDArray[np.bool_]:
    """Return which `chosen` ratings remain if every user keeps at most `most` of them, drawn by a hash of the ids.

    The draw of a user depends on no other user's ratings.
    """
    rows = np.flatnonzero(chosen)
    user = ratings.user[rows]
    order = np.lexsort((_pair_hashes(ratings, seed)(rows), user))
    first = np.searchsorted(user[order], user[order])
    kept = np.zeros(len(ratings), bool)
    kept[rows[order[np.arange(len(rows)) - first < most]]] = True
    return kept


def split_by_time(ratings: Ratings) -> NDArray[np.int8]:
    """Assign each rating to a part by time: a user's last is `TEST`, the one before `VALID`, the others
    `TRAIN`.

    All ratings of users with fewer than three are `TRAIN`. Ties in time are broken by the order of item ids.
    "Last" refers to this table: to split over all parties, split before items are divided among them.
    """
    if ratings.time is None:
        raise DataError(
            f"{ratings.name} has no times to split by; split by rating, or name the column with "
            f"{option('columns', {'time': '...'})}"
        )
    order = np.lexsort((ratings.item, ratings.time, ratings.user))
    user = ratings.user[order]
    count = np.bincount(ratings.user, minlength=ratings.n_users)
    from_end = np.cumsum(count)[user] - 1 - np.arange(len(user))
    enough = count[user] >= 3
    part = np.full(len(user), TRAIN, np.int8)
    part[order[enough & (from_end == 0)]] = TEST
    part[order[enough & (from_end == 1)]] = VALID
    return part


def split_newcomers(
    ratings: Ratings,
    party: str,
    *,
    share: float = 0.1,
    fractions: tuple[float, float, float] = (0.6, 0.2, 0.2),
    seed: int = 0,
) -> NDArray[np.int8]:
    """Return the part of each rating so that some users are new to the party: all of their ratings there are `TEST`.

    The ratings of all other users are `TRAIN` or `VALID`, in the proportion of `fractions`.
    """
    kept = fractions[0] + fractions[1]
    part = split_by_rating(ratings, fractions=(fractions[0] / kept, fractions[1] / kept, 0.0), seed=seed)
    part[(draw_users(ratings, party, seed) < share)[ratings.user]] = TEST
    return part


def draw_users(ratings: Ratings, party: str, seed: int) -> NDArray[np.float64]:
    """Draw a number from [0, 1) for each user with ratings, and -1 for all others.

    The draw is a hash of seed, party and user id. A party computes it without the others, and each party draws other users.
    """
    salt = int(hash64(np.array([party]), seed)[0])
    present = np.zeros(ratings.n_users, bool)
    present[ratings.user] = True
    uniform = np.full(ratings.n_users, -1.0)
    drawn = mix(hash64(ratings.user_ids[present], salt) + _GOLDEN)
    uniform[present] = (drawn >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return uniform


def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply the finaliser of splitmix64, a bijection of 64 bits in which each input bit flips half of the
    output bits.
    """
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))


def hash64(ids: StrArray, seed: int) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each id, from its code points and the seed only.

    The zero padding of fixed-width text does not change the hash, so it does not depend on the other ids.
    """
    start = np.full(len(ids), int(seed) % 2**64, np.uint64)
    h = mix(start + _GOLDEN)
    width = ids.dtype.itemsize // 4
    points = np.ascontiguousarray(ids).view(np.uint32).reshape(len(ids), width)
    for column in points.T:
        h = np.where(column != 0, mix((h ^ column) + _GOLDEN), h)
    return h
