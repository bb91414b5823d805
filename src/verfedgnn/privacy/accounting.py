"""The privacy report of a run: the guarantee of each release and of all releases composed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from verfedgnn.config import Config
from verfedgnn.core.pairs import Pairs, PartyInput
from verfedgnn.privacy import release_events as events
from verfedgnn.privacy.rating_dp import (
    noise_multiplier,
    protects_users,
    rating_epsilon,
    sampling_delta,
    training_releases,
    validation_releases,
)
from verfedgnn.privacy.release_events import Release, ReleaseEvent
from verfedgnn.privacy.visibility import list_disclosures

SIMULATED = (
    "simulated: on one machine the noise derives from the run's seed; anyone who knows the seed can remove it"
)
SECRET = "private: noise and batches derive from a secret that never leaves the party"
PUBLIC_NOISE = (
    "none: all parties agreed to draw the noise from the shared seed, so each of them can remove it"
)
"""The guarantee of noise with `unprotected = ["noise"]`."""
WORTHLESS = 0.5
"""Smallest delta that is reported as no guarantee."""
TOO_LARGE = 20.0
"""Epsilon from which on a guarantee is said to protect nothing: it allows odds to change by a factor of e^20."""


def privacy_report(
    config: Config,
    *,
    releases: int,
    exchanges: int,
    users: int,
    rows: int,
    protected: bool,
    validations: int,
    randomness: str,
    parties: Sequence[PartyInput],
) -> dict[str, Any]:
    """Build the `privacy` section of metrics.json.

    Args:
        config: Configuration of the training.
        releases: Number of gradients that the busiest party sent.
        exchanges: Number of neighbourhoods that the busiest party sent.
        users: Number of users N.
        rows: Number of rows q of the projection.
        protected: Whether 2q <= N + 1 holds in every block.
        validations: Number of validation errors that each party reported.
        randomness: Source of the parties' noise, `SIMULATED` or `SECRET`.
        parties: Data of the parties that the report is for, for the guarantee of their most active users.
    """
    sent = (
        _gradient_releases(config, releases),
        [Release("neighbourhoods", exchanges)] if config.exchange.mode != "off" else [],
        _validation_releases(config, validations),
    )
    report = {
        "gradients": _gradients(config, sent[0], releases, validations),
        "neighbourhoods": _neighbourhoods(config, users, rows, protected, exchanges),
        "validation": _validation(config, validations),
        "masking": "the coordinator sees sums over the active parties only" if config.masking else "off",
        "randomness": randomness,
        "events": [release.to_dict() for part in sent for release in part],
    }
    if "noise" in config.unprotected:
        return report | _without_noise(report, sent)
    if config.gradients.mechanism == "skellam":
        report["persons"] = _persons(config, parties, releases, validations)
        report["sent"] = list_disclosures(config)
    return report


def _without_noise(report: Mapping[str, Any], sent: Iterable[list[Release]]) -> dict[str, Any]:
    """Return the parts of a report that promise something because of noise, without the promise."""
    noisy = ("ternary", "laplace", "skellam")
    parts = {
        name: {key: report[name][key] for key in ("mechanism", "releases")} | {"guarantee": PUBLIC_NOISE}
        for name in ("gradients", "validation")
        if report[name]["mechanism"] in noisy
    }
    events = [Release(release.what, release.count).to_dict() for part in sent for release in part]
    return parts | {"events": events}


def _persons(
    config: Config, parties: Sequence[PartyInput], releases: int, validations: int
) -> dict[str, Any]:
    """Return what the run promises for all ratings of one user at one party."""
    delta = config.gradients.delta
    report: dict[str, Any] = {
        "neighbouring": "two data sets that differ in all ratings of one user at one party",
        "delta": delta,
    }
    if protects_users(config):
        whole = rating_epsilon(config, rounds=releases, validations=validations, delta=delta)
        return report | {
            "epsilon": whole,
            "guarantee": f"epsilon {_name_epsilon(whole)} at delta {delta:g} for every user",
        }
    found = {
        each.name: person_report(config, each, rounds=releases, validations=validations) for each in parties
    }
    texts = []
    for which in ("median", "largest"):
        worst = max((each[which] for each in found.values()), key=lambda person: person["epsilon"])
        ratings = worst["training"] + worst["validation"]
        texts.append(f"epsilon {_name_epsilon(worst['epsilon'])} for {ratings:,} ratings ({which})")
    return report | {
        "parties": found,
        "guarantee": f"for all ratings of one user at a party, {' and '.join(texts)}, at delta {delta:g}",
    }


def _gradient_releases(config: Config, count: int) -> list[Release]:
    settings = config.gradients
    if settings.mechanism == "skellam":
        return training_releases(config, count)
    if settings.mechanism == "ternary":
        return [Release("gradients", count, events.ternary(settings.r))]
    if settings.mechanism == "laplace":
        return [Release("gradients", count, events.laplace(settings.epsilon))]
    return [Release("gradients", count)]


def _validation_releases(config: Config, count: int) -> list[Release]:
    return (
        validation_releases(config, count)
        if config.gradients.mechanism == "skellam"
        else [Release("validation errors", count)]
    )


def _gradients(config: Config, sent: list[Release], releases: int, validations: int) -> dict[str, Any]:
    settings = config.gradients
    report: dict[str, Any] = {"mechanism": settings.mechanism, "clip": settings.clip, "releases": releases}
    if settings.mechanism == "skellam":
        return report | _single_ratings(config, releases, validations)
    if settings.mechanism == "none":
        return report | {"guarantee": "none: the coordinator receives each party's exact gradients"}
    if settings.mechanism == "rounded":
        seen = "sums over all parties" if config.masking else "each party's gradients"
        noise = settings.noise or 0.0
        how = f", with noise of {noise:g} times their size" if noise else ""
        return report | {
            "noise": noise,
            "guarantee": f"none: the coordinator sees {seen}, rounded to 8 bits{how}",
        }
    report["neighbouring"] = (
        "two gradients of one party that differ by at most 1 in l1 after rescaling and clipping"
    )
    if settings.mechanism == "laplace":
        pure = settings.epsilon * releases
        return report | {
            "per_round": {"epsilon": settings.epsilon, "delta": 0.0},
            "composed": _smaller(pure, events.compose_epsilon(sent, settings.delta), settings.delta),
            "guarantee": f"epsilon = {settings.epsilon:g} per release, at worst {_name_epsilon(pure)} over the run",
        }
    delta = min(1.0, 1 / settings.r)
    composed = events.compose_total_variation(sent)
    meaning = "no guarantee" if composed >= WORTHLESS else f"delta {composed:.3g}"
    return report | {
        "r": settings.r,
        "per_round": {"epsilon": 0.0, "delta": delta},
        "composed": {"epsilon": 0.0, "delta": composed},
        "guarantee": f"(0, {delta:.3g})-DP per release; composed over {releases:,} releases: {meaning} over the whole run",
    }


def _name_epsilon(epsilon: float) -> str:
    """Return an epsilon, with a remark if it is so large that it means nothing."""
    text = f"{epsilon:,.0f}" if epsilon >= 100 else f"{epsilon:.3g}"
    return f"{text} (so large that it protects nothing)" if epsilon >= TOO_LARGE else text


def _smaller(pure: float, composed: float, delta: float) -> dict[str, float]:
    """Return the better of the plain sum of epsilons, which needs no delta, and the composed epsilon."""
    return {"epsilon": pure, "delta": 0.0} if pure <= composed else {"epsilon": composed, "delta": delta}


def _single_ratings(config: Config, releases: int, validations: int) -> dict[str, Any]:
    delta = config.gradients.delta
    unit, whom = ("user", "all ratings") if protects_users(config) else ("single rating", "one rating")
    one, whole = (
        rating_epsilon(config, rounds=r, validations=v, delta=delta)
        for r, v in ((1, 0), (releases, validations))
    )
    return {
        "clip": config.training.error_clip,
        "noise": noise_multiplier(config),
        "neighbouring": f"two data sets of which one has {whom} of one user at one party more",
        "per_round": {"epsilon": one, "delta": delta},
        "composed": {
            "epsilon": whole,
            "delta": min(
                1.0,
                delta + sampling_delta(config, rounds=releases, validations=validations, epsilon=whole),
            ),
        },
        "guarantee": f"epsilon {_name_epsilon(whole)} at delta {delta:g} for every {unit}, over all {releases:,} rounds, against "
        "anyone who sees the sums and the trained model",
    }


def _validation(config: Config, validations: int) -> dict[str, Any]:
    if config.gradients.mechanism == "skellam":
        report = {"mechanism": "skellam", "releases": validations}
        return report | {
            "guarantee": "covered by the epsilon of gradients"
            + ("" if protects_users(config) else ": a rating is in one of the two parts")
        }
    summed = "1 - NDCG@20 over its users" if config.ranks else "squared errors"
    guarantee = f"none: each party's exact sum of {summed} and its count"
    return {"mechanism": "none", "releases": validations, "guarantee": guarantee}


def _neighbourhoods(config: Config, users: int, rows: int, protected: bool, exchanges: int) -> dict[str, Any]:
    exchange = config.exchange
    if exchange.mode == "off":
        return {"mechanism": "none sent", "guarantee": "neighbourhoods never leave a party"}
    report: dict[str, Any] = {"mechanism": exchange.mode, "releases": exchanges}
    if exchange.mode == "exact":
        seen = "the sum over all active parties" if config.masking else "each party's neighbourhoods"
        return report | {"guarantee": f"none: the coordinator receives {seen}, the others receive their sum"}
    estimated = config.model.form == "propagation" and config.model.estimators
    holds = "2q <= N + 1 holds in every block" if protected else "2q <= N + 1 does not hold"
    text = f"{holds}: no single value can be solved for exactly (Theorem 1); this is obfuscation, not differential privacy"
    if not (protected and estimated):
        text = "none: " + (holds if estimated else "exact degrees travel beside the neighbourhoods")
    return report | {"users": users, "rows": rows, "protected": protected and estimated, "guarantee": text}


# Group privacy: what the protection of single ratings gives for all ratings of one user at one party.
#
# k training ratings of a user move the user's row of the gradient by at most k Delta, and the rows of k items by Delta each, which
# is sqrt(k) Delta in l2. k validation ratings move the sum of squared errors and their count k times as far as one. With noise of
# the same size, Renyi divergences grow with the square of these factors:
#
# .. math::
#     \rho_k = k^2 \rho_{users} + k \rho_{items} + k_{valid}^2 \rho_{validation}


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
