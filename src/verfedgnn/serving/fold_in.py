r"""Folding in: a user's place in a run's common space of tastes from their own ratings alone, and what each rating contributes.

Of ratings, with :math:`b_i = L^\top h_i` and :math:`y_i` the rating less what the average user would give (`tastes.py`),

.. math::
    z = A^{-1} \sum_i b_i y_i / \sigma_i^2, \qquad A = I + \sum_i b_i b_i^\top / \sigma_i^2

so that a prediction is a sum over the user's own ratings,
:math:`\hat r_j = h_j \cdot m + \sum_i b_j^\top A^{-1} b_i y_i / \sigma_i^2`.

Of a ranking, whose scores are shares of a softmax over the party's catalogue, z is the maximum of
:math:`\sum_i \log \mathrm{softmax}_i - |z|^2 / 2` over liked items, by Newton's method. There :math:`z = \sum_i (b_i - \bar b)`,
where :math:`\bar b` is the catalogue's mean under the shares: again a sum over the user's own items.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from verfedgnn.serving.user_prior import PartyTastes

Vector = NDArray[np.float64]
NEWTON_STEPS = 20


@dataclass(frozen=True)
class Rated:
    """A user's ratings at one party; for a ranking, the liked items."""

    party: int
    items: NDArray[np.int64]
    ratings: NDArray[np.float32]


@dataclass(frozen=True)
class Folded:
    """A user as their ratings make them."""

    z: Vector
    pulls: list[Vector]
    """For each `Rated` (n, R): what each rating adds to z."""

    def contributions(self, targets: Vector) -> list[Vector]:
        """What each rating adds to the score of each target item (T, R): (T, n) for each `Rated`."""
        return [targets @ pull.T for pull in self.pulls]


def fold_in(places: Sequence[PartyTastes], rated: Sequence[Rated], *, ranks: bool) -> Folded:
    """The most probable place of a user with these ratings; without any, the average user's."""
    return _ranked(places, rated) if ranks else _rated(places, rated)


def _rated(places: Sequence[PartyTastes], rated: Sequence[Rated]) -> Folded:
    size = places[0].items.shape[1]
    matrix, weighted = np.eye(size), []
    for own in rated:
        place = places[own.party]
        b = place.directions(own.items)
        matrix += b.T @ b / place.variance
        weighted.append(b * ((own.ratings - place.level[own.items]) / place.variance)[:, None])
    inverse = np.linalg.inv(matrix).astype(np.float64)
    pulls = [pull @ inverse for pull in weighted]
    return Folded(sum((pull.sum(0) for pull in pulls), np.zeros(size)), pulls)


def _ranked(places: Sequence[PartyTastes], rated: Sequence[Rated]) -> Folded:
    size = places[0].items.shape[1]
    z = np.zeros(size)
    liked = [places[own.party].directions(own.items) for own in rated]
    centres = [np.zeros(size) for _ in rated]
    for _ in range(NEWTON_STEPS):
        slope, curve = -z, np.eye(size)
        for number, own in enumerate(rated):
            place = places[own.party]
            share = _softmax(place.level + place.items @ z.astype(np.float32))
            centre = share @ place.items
            spread = (place.items * share[:, None]).T @ place.items - np.outer(centre, centre)
            centres[number] = centre.astype(np.float64) + place.common
            slope = slope + (liked[number] - centres[number]).sum(0)
            curve = curve + len(own.items) * spread
        step = np.linalg.solve(curve, slope)
        # The objective is concave; a step is shortened so that no score of a typical item jumps by more than a few units.
        z = z + step * min(1.0, 3.0 / max(float(np.linalg.norm(step)), 1e-9))
        if float(np.abs(step).max(initial=0.0)) < 1e-4:
            break
    return Folded(z, [b - centre for b, centre in zip(liked, centres, strict=True)])


def _softmax(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    shares: NDArray[np.float32] = np.exp(scores - scores.max())
    shares /= shares.sum()
    return shares
