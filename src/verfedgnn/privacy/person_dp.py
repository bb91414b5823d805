r"""Group privacy: what the protection of single ratings gives for all ratings of one user at one party.

k training ratings of a user move the user's row of the gradient by at most k Delta, and the rows of k items by Delta each, which
is sqrt(k) Delta in l2. k validation ratings move the sum of squared errors and their count k times as far as one. With noise of
the same size, Renyi divergences grow with the square of these factors:

.. math::
    \rho_k = k^2 \rho_{users} + k \rho_{items} + k_{valid}^2 \rho_{validation}
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from verfedgnn.config import Config
from verfedgnn.core.pairs import Pairs, PartyInput
from verfedgnn.privacy import release_events as events
from verfedgnn.privacy.rating_dp import training_releases, validation_releases
from verfedgnn.privacy.release_events import Release, ReleaseEvent


def person_epsilon(
    config: Config, *, training: int, validation: int, rounds: int, validations: int, delta: float
) -> float:
    """Return the epsilon at `delta` for all ratings of one user at one party, of which so many are in each part."""
    users, items = training_releases(config, rounds)
    found = [_scaled(users, training), _scaled(items, math.sqrt(training))]
    found += [_scaled(release, validation) for release in validation_releases(config, validations)]
    return events.compose_epsilon(found, delta)


def person_report(config: Config, data: PartyInput, *, rounds: int, validations: int) -> dict[str, Any]:
    """Return the epsilon of the median and of the most active user of a party. It is for the party's own eyes."""
    counts = np.stack([_per_user(part, data.users) for part in (data.train, data.valid)], 1)
    active = counts[counts.sum(1) > 0]
    chosen = {"median": np.ceil(np.median(active, 0)), "largest": active.max(0)}
    delta = config.gradients.delta
    return {
        name: {
            "training": int(ratings[0]),
            "validation": int(ratings[1]),
            "epsilon": person_epsilon(
                config,
                training=int(ratings[0]),
                validation=int(ratings[1]),
                rounds=rounds,
                validations=validations,
                delta=delta,
            ),
        }
        for name, ratings in chosen.items()
    }


def _per_user(pairs: Pairs, users: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.bincount(pairs.user.cpu().numpy(), minlength=users)


def _scaled(release: Release, factor: float) -> Release:
    """Return a release whose inputs differ `factor` times as much; without a difference it is not a release."""
    if not factor:
        return Release(release.what, 0)
    assert release.event is not None
    changed = {name: value * factor**2 for name, value in release.event.parameters}
    return Release(release.what, release.count, ReleaseEvent(release.event.name, tuple(changed.items())))
