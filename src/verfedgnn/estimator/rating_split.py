"""Cross-validation of ratings, for scikit-learn's model selection."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verfedgnn.core.errors import ConfigError
from verfedgnn.estimator.rated_pairs import read_pairs


class RatingSplit:
    """Folds of ratings in which every tested user and every tested item also has ratings to train on.

    Ratings go to `n_splits` folds at random. A rating whose user or item has no other rating outside the fold is
    always trained on, because a recommender has no vector for a user or an item that it has never seen.
    """

    def __init__(self, n_splits: int = 5, *, seed: int = 0) -> None:
        self.n_splits = n_splits
        self.seed = seed

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:
        """Return the number of folds."""
        return self.n_splits

    def split(
        self, X: Any, y: Any = None, groups: Any = None
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Yield the rows to train on and the rows to test of each fold; `X` has the columns party, user and item."""
        pairs = read_pairs(X)
        if not 2 <= self.n_splits <= len(pairs):
            raise ConfigError(
                f"n_splits = {self.n_splits} is not between 2 and {len(pairs)}, the number of ratings"
            )
        owner = np.full(len(pairs), "") if pairs.parties is None else pairs.parties
        _, user = np.unique(pairs.users, return_inverse=True)
        _, item = np.unique(np.stack([owner, pairs.items]), axis=1, return_inverse=True)
        fold = np.random.default_rng(self.seed).permutation(len(pairs)) % self.n_splits
        for k in range(self.n_splits):
            outside = fold != k
            known = [np.bincount(code[outside], minlength=code.max() + 1)[code] > 0 for code in (user, item)]
            tested = ~outside & known[0] & known[1]
            yield np.flatnonzero(~tested), np.flatnonzero(tested)

    def __repr__(self) -> str:
        return f"RatingSplit(n_splits={self.n_splits}, seed={self.seed})"
