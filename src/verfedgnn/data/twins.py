"""Twins: items of two parties that are probably the same product, because nearly the same users rated both.

In a trial with all files on one machine, a held-out rating of a product may be among the partner's training data under another
id. Joining then seems to gain what it only copies. Ids of two parties may coincide by chance, so only users are compared.

Two items with n_a and n_b raters, k of them in common, are twins if k / (n_a + n_b - k) is at least `ALIKE` and chance does not
explain it. By chance, k is hypergeometric among N' users, where 1 / N' = sum_u p_a(u) p_b(u) and p_a(u) is the share of user u in
the ratings of a party: N' is below the number of users, because active users meet more often. Over all pairs of a size that
could be alike, at most the share `WRONG` of the twins is due to chance (Benjamini and Hochberg). A product with one rater has no
twin: without that rating nothing at home leads to the product, so a model cannot profit from the partner's copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from verfedgnn.data.parties import PartyData
from verfedgnn.data.ratings import Mask, Ratings

if TYPE_CHECKING:
    from scipy.sparse import csr_array

ALIKE = 0.7
"""Least share of common raters among all raters of two items (Jaccard); volumes of a series stay below it."""
WRONG = 0.01
"""Largest expected share of pairs that are called twins by chance."""
_MOST_COUNTS = 10_000_000


@dataclass(frozen=True, eq=False)
class Twins:
    """The twins of two parties."""

    first: int
    second: int
    items: NDArray[np.int64]
    """Item of the first and item of the second party (pairs, 2)."""


def find_twins(parties: Sequence[PartyData]) -> list[Twins]:
    """Return the twins of all pairs of parties that have some; the parties share one user axis."""
    rated = [_rated(party.ratings) for party in parties]
    result = []
    for second, other in enumerate(rated):
        for first in range(second):
            items = _match(rated[first], other)
            if len(items):
                result.append(Twins(first, second, items))
    return result


def twin_cases(
    parties: Sequence[PartyData], twins: Sequence[Twins], counted: Sequence[Mask] | None = None
) -> list[Mask]:
    """Return a mask over each party's ratings: whether the same user rated a twin of the item at another party.

    `counted` are masks over the ratings of each party that count at the other party, such as its training ratings; all by default.
    """
    from scipy.sparse import csr_array

    tables = [party.ratings for party in parties]
    counted = [np.ones(len(table), bool) for table in tables] if counted is None else counted
    cases = [np.zeros(len(table), bool) for table in tables]
    for pair in twins:
        both = (pair.first, pair.second, pair.items), (pair.second, pair.first, pair.items[:, ::-1])
        for here, there, items in both:
            table = tables[here]
            shape = (tables[there].n_items, table.n_items)
            same = csr_array((np.ones(len(items), np.int32), (items[:, 1], items[:, 0])), shape)
            elsewhere = _rated(tables[there].take(counted[there])).T.tocsr() @ same
            cases[here] |= np.asarray(elsewhere[table.user, table.item] > 0).ravel()
    return cases


def _rated(ratings: Ratings) -> csr_array:
    """Return which user rated which item, as ones (items, users); a pair occurs once."""
    from scipy.sparse import csr_array  # a member of a federation, which sees one party, never loads it here

    ones = np.ones(len(ratings), np.int32)
    return csr_array((ones, (ratings.item, ratings.user)), (ratings.n_items, ratings.n_users))


def _match(first: csr_array, second: csr_array) -> NDArray[np.int64]:
    """Return the pairs of twins among the items of two parties."""
    sizes = [np.diff(first.indptr), np.diff(second.indptr)]
    active = [rated.sum(0) / max(1, rated.nnz) for rated in (first, second)]
    meeting = float(active[0] @ active[1])
    parts = [(np.empty((0, 2), np.int64), np.empty(0))]
    for rows in _blocks(first, second):
        common = (first[rows] @ second.T).tocoo()
        items = np.stack([common.row + rows.start, common.col], 1).astype(np.int64)
        raters = np.stack([sizes[0][items[:, 0]], sizes[1][items[:, 1]]], 1)
        alike = (common.data >= 2) & (common.data >= ALIKE * (raters.sum(1) - common.data))
        parts.append((items[alike], _chance(common.data[alike], raters[alike], meeting, first.shape[1])))
    items, chance = (np.concatenate(column) for column in zip(*parts, strict=True))
    # Benjamini and Hochberg: the largest rank r whose probability is at most r / tests x WRONG.
    order = np.argsort(chance, kind="stable")
    enough = chance[order] * _count_tests(*sizes) <= WRONG * np.arange(1, len(order) + 1)
    kept = order[: np.flatnonzero(enough)[-1] + 1] if enough.any() else order[:0]
    return items[np.sort(kept)]


def _blocks(first: csr_array, second: csr_array) -> Iterator[slice]:
    """Cut the items of the first party into blocks with about `_MOST_COUNTS` pairs of ratings by one user."""
    work = np.cumsum(first @ second.sum(0))
    block = (work // _MOST_COUNTS).astype(np.int64)
    edges = [0, *(np.flatnonzero(np.diff(block)) + 1).tolist(), len(work)]
    return (slice(start, end) for start, end in pairwise(edges))


def _chance(
    common: NDArray[np.int32], raters: NDArray[np.int32], meeting: float, most: int
) -> NDArray[np.float64]:
    """Return the probability of so many common raters or more; `meeting` is 1 / N', and there are `most` users."""
    from scipy.stats import hypergeom

    cases, case = np.unique(np.column_stack([common, raters]), axis=0, return_inverse=True)
    k, a, b = cases.T
    # Few products have more raters than half of N'. Two that nearly all users rated are alike by chance.
    users = np.minimum(np.maximum(round(1 / meeting) if meeting else 0, 2 * np.maximum(a, b)), most)
    return np.asarray(hypergeom.sf(k - 1, users, a, b))[case.ravel()]


def _count_tests(first: NDArray[np.int32], second: NDArray[np.int32]) -> int:
    """Return how many pairs of items have two raters or more and sizes that allow them to be alike."""
    sizes, others = first[first >= 2], np.sort(second[second >= 2])
    low, high = np.ceil(ALIKE * sizes), np.floor(sizes / ALIKE)
    return int((np.searchsorted(others, high, "right") - np.searchsorted(others, low, "left")).sum())
