r"""Measure a lower bound on epsilon: many trainings with and without a planted rating, told apart by what others see.

A test that says "planted" with probability p if the rating is there, and q if it is not, proves that

.. math::
    \varepsilon \ge \ln \frac{p - \delta}{q}, \qquad \varepsilon \ge \ln \frac{1 - q - \delta}{1 - p} .

p and q are bounded by Clopper-Pearson intervals. The first half of the trainings fixes the test, a linear discriminant and its
threshold; the second half measures it. A bound above the promise would prove that the promise is broken. A bound below it proves
nothing, but a mistake in the sensitivity or in the noise moves it.

Two parties train on a few ratings. The attacker is the second party. It subtracts its own part from every sum, so that only the
noise of the first party remains. It sees every channel of preset private: sums of gradients, public parameters, and the validation
errors that the coordinator sees.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta, norm

from verfedgnn.config import Config
from verfedgnn.data import TRAIN, VALID, PartyData, read_ratings
from verfedgnn.privacy.rating_dp import rating_epsilon
from verfedgnn.privacy.release_events import DELTA
from verfedgnn_research.attacks.overlap_attack import Listener
from verfedgnn_research.attacks.recording import record_federation

USERS = 8
ITEMS = 6
PLANTED = (0, 0)
"""User and item, at the first party, of the planted rating."""
CHANNELS = ("sums of gradients", "public parameters", "validation errors", "all channels")
WORLDS = {"training": TRAIN, "validation": VALID}
"""Part into which the planted rating falls, by name."""


@dataclass(frozen=True)
class EpsilonBound:
    """A lower bound on epsilon from one channel."""

    planted: str
    """Part of the planted rating."""
    channel: str
    hits: float
    """Share of the trainings with the planted rating that the test recognises."""
    false_alarms: float
    """Share of the trainings without it that the test takes for one with it."""
    epsilon: float
    """Lower bound, true with the stated probability."""
    gaussian: float
    """Epsilon at delta of Gaussian noise with which the same error rates are just possible."""


def audit_epsilon(
    config: Config,
    *,
    trials: int = 1000,
    error: float = 0.05,
    watch: Callable[[int, int], None] = lambda done, total: None,
) -> list[EpsilonBound]:
    """Train `trials` times without a planted rating, with one in the training part and with one in the validation part.

    Return a lower bound on epsilon for each part and channel, each of which is wrong with a probability of at most `error`.
    """
    worlds: dict[str, list[NDArray[np.float64]]] = {}
    total = trials * (1 + len(WORLDS))
    for number, (name, part) in enumerate((("none", None), *WORLDS.items())):
        found = []
        for trial in range(trials):
            found.append(_observe(config.with_values({"seed": number * trials + trial}), part))
            watch(number * trials + trial + 1, total)
        worlds[name] = found
    features = {name: np.stack(found) for name, found in worlds.items()}
    width = config.model.dim + config.model.biases
    columns = dict(
        zip(
            CHANNELS,
            (slice(0, width), slice(width, 2 * width), slice(2 * width, None), slice(None)),
            strict=True,
        )
    )
    return [
        _bound(features[name][:, chosen], features["none"][:, chosen], name, channel, DELTA, error)
        for name in WORLDS
        for channel, chosen in columns.items()
    ]


def claimed_epsilon(config: Config) -> float:
    """Return the epsilon that a whole training promises."""
    rounds = config.training.epochs
    validations = -(-rounds // (config.training.evaluate_every or 1))
    return rating_epsilon(config, rounds=rounds, validations=validations)


def lower_bound(hits: int, false_alarms: int, count: int, delta: float, error: float) -> tuple[float, float]:
    """Return the lower bound on epsilon, and the epsilon of Gaussian noise, from a test's outcomes in `count` trainings each."""
    low = float(beta.ppf(error / 2, hits, count - hits + 1)) if hits else 0.0
    high = (
        float(beta.ppf(1 - error / 2, false_alarms + 1, count - false_alarms))
        if false_alarms < count
        else 1.0
    )
    best = 0.0
    for more, less in ((low, high), (1 - high, 1 - low)):
        if more > delta and less > 0:
            best = max(best, math.log((more - delta) / less))
    shift = float(norm.ppf(low) - norm.ppf(high)) if low > 0 and high < 1 else 0.0
    if shift <= 0:
        return best, 0.0
    from dp_accounting import get_epsilon_gaussian

    return best, float(get_epsilon_gaussian(1 / shift, delta))


def planted_parties(part: int | None) -> tuple[list[PartyData], list[NDArray[np.int8]]]:
    """Return two parties and the parts of their ratings; with a `part`, the first has the planted rating in it."""
    rng = np.random.default_rng(0)
    parties = []
    parts = []
    for name in ("first", "second"):
        cells = [(u, v) for u in range(USERS) for v in range(ITEMS) if (u, v) != PLANTED and (u + v) % 3]
        cells += [(u, 0) for u in range(1, 4) if (u, 0) not in cells]
        stars = rng.integers(1, 6, len(cells)).astype(float).tolist()
        split = [VALID if (u * ITEMS + v) % 4 == 0 else TRAIN for u, v in cells]
        if part is not None and name == "first":
            cells = [*cells, PLANTED]
            stars = [*stars, 5.0]
            split = [*split, part]
        user, item = ([f"{prefix}{cell[k]:02}" for cell in cells] for k, prefix in enumerate(("u", name[0])))
        table = read_ratings((user, item, stars), scale=(1, 5), name=name)
        parties.append(PartyData(name, replace(table, catalogue=ITEMS)))
        parts.append(np.array(split, np.int8))
    return parties, parts


def _observe(config: Config, part: int | None) -> NDArray[np.float64]:
    """Train once and return what the second party and the coordinator see of the planted user, channel by channel."""
    parties, parts = planted_parties(part)
    federation = record_federation(parties, config, parts=parts)
    listener = Listener(federation.parties[1])
    validations: list[tuple[float, float]] = []
    for _ in range(federation.coordinator.rounds):
        trip = federation.round()
        listener.hear(federation.sum_of_others(trip, 1))
        reply = trip.replies["first"]
        if reply.error is not None and reply.count is not None:
            validations.append((reply.error, float(reply.count)))
    user = PLANTED[0]
    public = federation.coordinator.model.views(federation.coordinator.public)
    final = np.concatenate(
        [public[name][user].reshape(-1).numpy() for name in federation.coordinator.model.per_user]
    )
    return np.concatenate([listener.mean_gradient(user), final, np.mean(validations, 0)]).astype(np.float64)


def _bound(
    planted: NDArray[np.float64],
    without: NDArray[np.float64],
    name: str,
    channel: str,
    delta: float,
    error: float,
) -> EpsilonBound:
    """Fix a test on the first half of the trainings and bound epsilon by the second half."""
    half = len(planted) // 2
    direction = _discriminant(planted[:half], without[:half])
    there = planted @ direction
    absent = without @ direction
    counts = _choose(there[:half], absent[:half], delta, error)
    hits = int((there[half:] > counts).sum())
    false = int((absent[half:] > counts).sum())
    count = len(planted) - half
    epsilon, gaussian = lower_bound(hits, false, count, delta, error)
    return EpsilonBound(name, channel, hits / count, false / count, epsilon, gaussian)


def _discriminant(planted: NDArray[np.float64], without: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return Fisher's linear discriminant of two samples (n, F)."""
    scale = np.concatenate([planted, without]).std(0) + 1e-12
    spread = np.cov(
        np.concatenate([planted - planted.mean(0), without - without.mean(0)]) / scale, rowvar=False
    )
    spread = np.atleast_2d(spread) + 1e-6 * np.eye(planted.shape[1])
    found: NDArray[np.float64] = np.linalg.solve(spread, (planted.mean(0) - without.mean(0)) / scale) / scale
    return found


def _choose(there: NDArray[np.float64], absent: NDArray[np.float64], delta: float, error: float) -> float:
    """Return the threshold with the largest lower bound on the given scores."""
    candidates: Sequence[float] = np.quantile(
        np.concatenate([there, absent]), np.linspace(0.02, 0.98, 49)
    ).tolist()

    def value(threshold: float) -> tuple[float, float]:
        return lower_bound(
            int((there > threshold).sum()), int((absent > threshold).sum()), len(there), delta, error
        )

    return max(candidates, key=lambda threshold: (max(value(threshold)), -abs(threshold)))
