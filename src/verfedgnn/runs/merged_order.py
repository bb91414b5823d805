r"""One order for the items of several parties.

A model of lists orders the catalogue of one party. Its softmax gives shares of this catalogue alone and says
nothing about the party, so shares of a small catalogue are large. Items of several parties are therefore
ordered by

.. math:: P(p, v \mid u) = P(p \mid u) \, P(v \mid p, u), \qquad P(p \mid u) = \frac{n_{up} + a \pi_p}{\sum_q (n_{uq} + a \pi_q)}

- n_up is the number of items that u likes at party p, and pi_p the share of p in the likes of all users;
- P(v | p, u) is the softmax over the items of p that u has not rated.

For one party P(p | u) is 1. Predicted ratings of parties are compared by their position in the party's scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from verfedgnn.core.rating_scale import upper_quarter
from verfedgnn.data import Ratings

if TYPE_CHECKING:
    from verfedgnn.runs.run import Run

_Rating = TypeVar("_Rating", float, Tensor)
PRIOR_LIKES = 1.0
"""a: as many likes as all users' habit counts for."""


def is_liked(table: Ratings) -> NDArray[np.bool_]:
    """Return whether each rating is in the upper quarter of the scale."""
    return np.asarray(table.rating >= upper_quarter(table.scale))


def weigh_parties(likes: ArrayLike, totals: ArrayLike) -> NDArray[np.float64]:
    """Return P(p | u) (..., P) from a user's likes at each party (..., P) and all users' likes there (P,)."""
    everybody = np.asarray(totals, np.float64) + 1  # a party without likes is possible, too
    counts = np.asarray(likes, np.float64) + PRIOR_LIKES * everybody / everybody.sum()
    weights: NDArray[np.float64] = counts / counts.sum(-1, keepdims=True)
    return weights


def place_in_scale(rating: _Rating, scale: tuple[float, float]) -> _Rating:
    """Return the position of a rating in its scale, from 0 to 1 for ratings within it."""
    low, high = scale
    return (rating - low) / ((high - low) or 1.0)


def score_catalogues(run: Run, users: NDArray[np.int64], parties: Sequence[int]) -> list[Tensor]:
    """Return scores (n, M_p) for each of `parties` that order their items in one list; -inf for rated items.

    The rows of `users` are distinct. Scores are the logarithms of P(p, v | u), or positions in the scale for a run whose lists
    are ordered by predicted ratings.
    """
    ranker = run.ranker
    ranks = ranker.config.ranks
    place = np.full(run.parties[0].ratings.n_users, -1, np.int64)
    place[users] = np.arange(len(users))
    likes = np.zeros((len(users), len(parties)))
    totals = np.zeros(len(parties))
    found = []
    for column, p in enumerate(parties):
        table = run.parties[p].ratings
        model = ranker.models[p]
        scores = model.score(torch.from_numpy(users).to(model.users.device)).cpu()
        rated = np.flatnonzero(place[table.user] >= 0)
        rows = place[table.user[rated]]
        liked = is_liked(table)
        likes[:, column] = np.bincount(rows[liked[rated]], minlength=len(users))
        totals[column] = np.count_nonzero(liked)
        if not ranks:
            scores = place_in_scale(scores, table.scale)
        scores[rows, table.item[rated]] = -torch.inf
        found.append(scores)
    if not ranks:
        return found
    weights = torch.from_numpy(np.log(weigh_parties(likes, totals)))
    return [
        scores - scores.logsumexp(1, keepdim=True).nan_to_num(neginf=0.0) + weights[:, column : column + 1]
        for column, scores in enumerate(found)
    ]
