"""The privacy report of a run: the guarantee of each release and of all releases composed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from verfedgnn.config import Config
from verfedgnn.core.pairs import PartyInput
from verfedgnn.privacy import release_events as events
from verfedgnn.privacy.projection import Exchange
from verfedgnn.privacy.protections import PROTECTIONS, Protection, name_epsilon
from verfedgnn.privacy.rating_dp import training_releases, validation_releases
from verfedgnn.privacy.release_events import DELTA, Release, ReleaseEvent
from verfedgnn.privacy.visibility import list_disclosures

SIMULATED = (
    "simulated: on one machine the noise derives from the run's seed; anyone who knows the seed can remove it"
)
SECRET = "private: noise and batches derive from a secret that never leaves the party"
PUBLIC_NOISE = (
    "none: all parties agreed to draw the noise from the shared seed, so each of them can remove it"
)
"""The guarantee of noise with `unprotected = ["noise"]`."""


def privacy_report(
    protection: Protection,
    *,
    releases: int,
    exchanges: int,
    exchange: Exchange,
    validations: int,
    randomness: str,
    parties: Sequence[PartyInput],
) -> dict[str, Any]:
    """Build the `privacy` section of metrics.json.

    Args:
        protection: Protection of the gradients, with the configuration of the training.
        releases: Number of gradients that the busiest party sent.
        exchanges: Number of neighbourhoods that the busiest party sent.
        exchange: How neighbourhoods were sent.
        validations: Number of validation errors that each party reported.
        randomness: Source of the parties' noise, `SIMULATED` or `SECRET`.
        parties: Data of the parties that the report is for, for the guarantee of their most active users.
    """
    config, sent = protection.config, protection.releases(releases)
    if config.exchange != "off":
        sent.append(Release("neighbourhoods", exchanges))
    sent += protection.validation_releases(validations)
    gradients = {"mechanism": config.gradients.mechanism, "clip": config.gradients.clip, "releases": releases}
    report: dict[str, Any] = {
        "gradients": gradients | protection.guarantee(releases, validations),
        "neighbourhoods": _neighbourhoods(config, exchange, exchanges),
        "validation": {"releases": validations, **protection.validation_guarantee()},
        "masking": "the coordinator sees sums over the active parties only" if config.masking else "off",
        "randomness": randomness,
        "events": [release.to_dict() for release in sent],
    }
    if "noise" in config.unprotected:
        for name in ("gradients", "validation"):
            if PROTECTIONS[report[name]["mechanism"]].is_noisy:  # promises nothing then
                kept = {key: report[name][key] for key in ("mechanism", "releases")}
                report[name] = kept | {"guarantee": PUBLIC_NOISE}
        report["events"] = [Release(release.what, release.count).to_dict() for release in sent]
    elif config.gradients.protects_ratings:
        report["persons"] = _persons(config, parties, releases, validations)
        report["sent"] = list_disclosures(config)
    return report


def _persons(
    config: Config, parties: Sequence[PartyInput], releases: int, validations: int
) -> dict[str, Any]:
    """Return what the run promises for all ratings of one user at one party."""
    counts = {"rounds": releases, "validations": validations}
    people = {party.name: person_report(config, party, **counts) for party in parties}
    texts = []
    for which in ("median", "largest"):
        worst = max((person[which] for person in people.values()), key=lambda person: person["epsilon"])
        ratings = worst["training"] + worst["validation"]
        texts.append(f"epsilon {name_epsilon(worst['epsilon'])} for {ratings:,} ratings ({which})")
    return {
        "neighbouring": "two data sets that differ in all ratings of one user at one party",
        "delta": DELTA,
        "parties": people,
        "guarantee": f"for all ratings of one user at a party, {' and '.join(texts)}, at delta {DELTA:g}",
    }


def _neighbourhoods(config: Config, exchange: Exchange, exchanges: int) -> dict[str, Any]:
    if config.exchange == "off":
        return {"mechanism": "none sent", "guarantee": "neighbourhoods never leave a party"}
    report: dict[str, Any] = {"mechanism": "projected", "releases": exchanges}
    estimated = config.model.form == "propagation" and config.model.estimators
    protected, size = exchange.protected, {"users": exchange.users, "rows": exchange.rows}
    holds = "2q <= N + 1 holds" if protected else "2q <= N + 1 does not hold"
    text = f"{holds}: no single value can be solved for exactly (Theorem 1); this is obfuscation, not differential privacy"
    if not (protected and estimated):
        text = "none: " + (holds if estimated else "exact degrees travel beside the neighbourhoods")
    return report | size | {"protected": protected and estimated, "guarantee": text}


# Group privacy: what the protection of single ratings gives for all ratings of one user at one party.
#
# k training ratings of a user move the user's row of the gradient by at most k Delta, and the rows of k items by Delta each, which
# is sqrt(k) Delta in l2. k validation ratings move the sum of squared errors and their count k times as far as one. With noise of
# the same size, Renyi divergences grow with the square of these factors:
#
# .. math::
#     \rho_k = k^2 \rho_{users} + k \rho_{items} + k_{valid}^2 \rho_{validation}


def person_epsilon(config: Config, *, training: int, validation: int, rounds: int, validations: int) -> float:
    """Return the epsilon for all ratings of one user at one party, of which so many are in each part."""
    users, items = training_releases(config, rounds)
    moved = [_scaled(users, training), _scaled(items, math.sqrt(training))]
    moved += [_scaled(release, validation) for release in validation_releases(config, validations)]
    return events.compose_epsilon(moved)


def person_report(config: Config, data: PartyInput, *, rounds: int, validations: int) -> dict[str, Any]:
    """Return the epsilon of the median and of the most active user of a party. It is for the party's own eyes."""
    users = [part.user.cpu().numpy() for part in (data.train, data.valid)]
    ratings = np.stack([np.bincount(user, minlength=data.users) for user in users], 1)
    active = ratings[ratings.sum(1) > 0]
    report = {}
    for name, numbers in (("median", np.ceil(np.median(active, 0))), ("largest", active.max(0))):
        person = dict(zip(("training", "validation"), map(int, numbers), strict=True))
        epsilon = person_epsilon(config, **person, rounds=rounds, validations=validations)
        report[name] = {**person, "epsilon": epsilon}
    return report


def _scaled(release: Release, factor: float) -> Release:
    """Return a release whose inputs differ `factor` times as much; without a difference it is not a release."""
    if not factor or release.event is None:
        return Release(release.what, 0)
    changed = {name: value * factor**2 for name, value in release.event.parameters.items()}
    return replace(release, event=ReleaseEvent(release.event.name, changed))
