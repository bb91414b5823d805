r"""Folding in: estimate a user's position in taste space from their own ratings alone, with the contribution of each rating.

For ratings, let :math:`b_i = L^\top h_i`, and let :math:`y_i` be the rating minus the average user's prediction
(`user_prior.py`). Then

.. math::
    z = A^{-1} \sum_i b_i y_i / \sigma_i^2, \qquad A = I + \sum_i b_i b_i^\top / \sigma_i^2

so a prediction is a sum over the user's own ratings,
:math:`\hat r_j = h_j \cdot m + \sum_i b_j^\top A^{-1} b_i y_i / \sigma_i^2`.

For a model of lists, whose scores are softmax shares of the party's catalogue, z maximises
:math:`\sum_i \log \mathrm{softmax}_i - |z|^2 / 2` over the liked items, by Newton's method. At the maximum
:math:`z = \sum_i (b_i - \bar b)`, where :math:`\bar b` is the mean of the catalogue weighted by the shares. This is again a sum
over the user's own items. The item weights have no part in it: trained vectors were fitted without them, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from verfedgnn.serving.user_prior import PartyPrior

Vector = NDArray[np.float64]
NEWTON_STEPS = 20


@dataclass(frozen=True)
class UserRatings:
    """A user's ratings at one party."""

    party: int
    items: NDArray[np.int64]
    ratings: NDArray[np.float32]


@dataclass(frozen=True)
class FoldedUser:
    """A user's estimated position in taste space."""

    z: Vector
    """Position (R,)."""
    pulls: list[Vector]
    """Contribution of each rating to z, an (n, R) matrix for each `UserRatings`; 0 for what a model of lists does not count
    as liked."""

    def split_score(self, targets: Vector) -> list[Vector]:
        """Return each rating's contribution to the scores of `targets` (T, R), a (T, n) matrix per `UserRatings`."""
        return [targets @ pull.T for pull in self.pulls]


def fold_in(priors: Sequence[PartyPrior], rated: Sequence[UserRatings], *, ranks: bool) -> FoldedUser:
    """Return the most probable position of a user with these ratings; without ratings, the average user's."""
    return _fold_in_likes(priors, rated) if ranks else _fold_in_ratings(priors, rated)


def fold_in_at(
    priors: Sequence[PartyPrior],
    rated: Sequence[UserRatings],
    parties: Iterable[int],
    *,
    ranks: bool,
    joint: bool,
) -> dict[int, FoldedUser]:
    """Return the user's position at each of `parties`: one position for all if the prior is joint, else one a party.

    A party whose model was trained alone knows only the ratings at that party.
    """
    if joint:
        return dict.fromkeys(parties, fold_in(priors, rated, ranks=ranks))
    local = {p: [UserRatings(0, own.items, own.ratings) for own in rated if own.party == p] for p in parties}
    return {p: fold_in([priors[p]], own, ranks=ranks) for p, own in local.items()}


def merge_ratings(older: Sequence[UserRatings], newer: Sequence[UserRatings]) -> list[UserRatings]:
    """Return all ratings of a user by party; for an item that is rated twice, the newer rating counts."""
    merged = []
    for party in sorted({own.party for own in (*older, *newer)}):
        found = [own for own in (*newer, *older) if own.party == party]
        items, first = np.unique(np.concatenate([own.items for own in found]), return_index=True)
        merged.append(UserRatings(party, items, np.concatenate([own.ratings for own in found])[first]))
    return merged


def _fold_in_ratings(priors: Sequence[PartyPrior], rated: Sequence[UserRatings]) -> FoldedUser:
    size = priors[0].items.shape[1]
    matrix, weighted = np.eye(size), []
    for own in rated:
        prior = priors[own.party]
        b = prior.project_items(own.items)
        matrix += b.T @ b / prior.variance
        weighted.append(b * ((own.ratings - prior.level[own.items]) / prior.variance)[:, None])
    inverse = np.linalg.inv(matrix).astype(np.float64)
    pulls = [pull @ inverse for pull in weighted]
    return FoldedUser(sum((pull.sum(0) for pull in pulls), np.zeros(size)), pulls)


def _fold_in_likes(priors: Sequence[PartyPrior], rated: Sequence[UserRatings]) -> FoldedUser:
    size = priors[0].items.shape[1]
    z = np.zeros(size)
    likes = [own.ratings >= priors[own.party].liked_from for own in rated]
    liked = [priors[own.party].project_items(own.items[like]) for own, like in zip(rated, likes, strict=True)]
    centres = [np.zeros(size) for _ in rated]
    for _ in range(NEWTON_STEPS):
        slope = -z
        curve = np.eye(size)
        for number, own in enumerate(rated):
            if not len(liked[number]):
                continue
            prior = priors[own.party]
            share = _softmax(prior.level + prior.items @ z.astype(np.float32))
            centre = share @ prior.items
            spread = (prior.items * share[:, None]).T @ prior.items - np.outer(centre, centre)
            centres[number] = centre.astype(np.float64) + prior.common
            slope = slope + (liked[number] - centres[number]).sum(0)
            curve = curve + len(liked[number]) * spread
        step = np.linalg.solve(curve, slope)
        # The objective is concave. Long steps are shortened so that no typical item's score jumps by more than a few units.
        z = z + step * min(1.0, 3.0 / max(float(np.linalg.norm(step)), 1e-9))
        if float(np.abs(step).max(initial=0.0)) < 1e-4:
            break
    pulls = []
    for like, directions, centre in zip(likes, liked, centres, strict=True):
        pull = np.zeros((len(like), size))
        pull[like] = directions - centre
        pulls.append(pull)
    return FoldedUser(z, pulls)


def _softmax(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    shares: NDArray[np.float32] = np.exp(scores - scores.max())
    shares /= shares.sum()
    return shares
