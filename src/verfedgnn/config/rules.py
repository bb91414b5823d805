"""Rules between sections of the configuration, and how many parties it needs; rules within a section are in its class."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from verfedgnn.core.option_names import option, setting

if TYPE_CHECKING:
    from verfedgnn.config import Config


def find_conflicts(config: Config) -> Iterator[str]:
    """Yield which settings of a configuration conflict, and what to do about it."""
    yield from _find_unprotected(config)
    yield from _find_mismatches(config)


def _find_unprotected(config: Config) -> Iterator[str]:
    """Yield the settings that leave more unprotected than `unprotected` allows."""
    model, gradients, allowed = config.model, config.gradients, config.unprotected
    missing = _missing_for_skellam(config) if gradients.protects_ratings else None
    if missing:
        yield f"gradients.mechanism = skellam needs {missing}; start from {option('preset', 'private')}"
    if gradients.mechanism in ("ternary", "laplace") and gradients.clip > 0.5 and "clip" not in allowed:
        yield (
            f"gradients.clip = {gradients.clip} lets two gradients differ by more than 1 per coordinate, which the "
            f"guarantee does not cover; use 0.5 or accept it with {setting('unprotected', 'clip')}"
        )
    if config.exchange != "off" and config.exchange < 2 and "projection" not in allowed:
        yield (
            f"exchange = {config.exchange:g} means 2q > N + 1, so Theorem 1 does not hide single values; "
            f"use 2 or more, or accept it with {setting('unprotected', 'projection')}"
        )
    exact = model.form == "propagation" and not model.estimators
    if exact and config.exchange != "off" and "degrees" not in allowed:
        yield (
            "model.estimators = false exchanges how many items each user has at each party; "
            f"set it to true, or accept it with {setting('unprotected', 'degrees')}"
        )


def _find_mismatches(config: Config) -> Iterator[str]:
    """Yield the settings of two sections that do not fit together."""
    model, training, mechanism = config.model, config.training, config.gradients.mechanism
    solved = model.solved
    if model.form != "propagation" and model.gnn != "gcn":
        yield (
            f"model.form = {model.form} has no graph neural network, so {option('model', model.gnn)} would change nothing; "
            f"leave it out or choose {option('preset', 'paper')}"
        )
    if model.form != "propagation" and config.exchange != "off":
        yield f"model.form = {model.form} has no neighbourhoods to exchange; set exchange = off"
    if config.lists and not solved:
        start = option("preset", "best")
        yield f"lists = true needs model.form = solved; leave it out or start from {start}"
    if solved != (mechanism == "rounded") and (not solved or mechanism != "none"):
        yield "model.form = solved or means and gradients.mechanism = rounded belong together; set both"
    if solved and 0 < model.dim < 6:
        yield "model.form = solved needs vectors of at least 6 numbers, which carry the first sums, too; raise model.dim"
    if solved and (training.batch or training.participation < 1):
        every = "training.batch = 0 and participation = 1"
        yield f"model.form = solved needs every rating and every party in every round: {every}"
    if config.means_only and training.epochs > 1:
        yield "model.form = means takes one round; set training.epochs = 1"
    if config.ranks and model.raters > 0:
        yield "a model of lists (model.biases = false) has no raters; set model.raters = 0"
    if config.masking and not config.gradients.integers:
        yield (
            f"masking needs integers, and {mechanism} gradients are not; use ternary, skellam or rounded, or set "
            "masking = false"
        )


def _missing_for_skellam(config: Config) -> str | None:
    """Return the first condition of differential privacy of single ratings that the other settings do not meet."""
    training, model = config.training, config.model
    conditions = {
        "masking = true (only sums are protected)": config.masking,
        "model.form = factors (a neighbourhood depends on all of a user's ratings)": model.form == "factors",
        "model.bound and training.error_clip (they bound the effect of a rating)": model.bound
        and training.error_clip,
        "training.batch = 0 and participation = 1 (every rating in every round)": not training.batch
        and training.participation == 1,
        "lists = false (a second training would release more)": not config.lists,
        "split.kind = date with split.dates (by auto, one rating more can move all others)": not config.split.dates
        or config.split.kind == "date",
    }
    return next((condition for condition, met in conditions.items() if not met), None)


def active_count(config: Config, parties: int) -> int:
    """Return how many of `parties` take part in a round (Sec. 4.6)."""
    return max(1, math.floor(config.training.participation * parties + 0.5))


def fewest_parties_in_sum(config: Config, parties: int) -> int:
    """Return how many of `parties` every sum must include.

    Rounded gradients are nearly exact, and sums of them over changing sets of parties could be solved for single parties. So every
    sum includes all parties.
    """
    return parties if config.gradients.needs_everybody else 1


def too_few(config: Config, least: int, parties: int) -> str | None:
    """Return why a federation of `parties` cannot have the configured protection; None if it can.

    `least` is the smallest number of parties that a sum may have.
    """
    if config.masking and least < 2:
        return "masking hides nothing with a single active party; use more parties or masking=false"
    wanted = fewest_parties_in_sum(config, parties)
    if least < wanted:
        return (
            f"gradients.mechanism = {config.gradients.mechanism} needs all {wanted} parties in every sum, but a sum may have {least}. "
            f"Sums over changing sets show a single party's gradients; set min_parties = {wanted} in federation.toml, and send it to "
            "all members"
        )
    return None
