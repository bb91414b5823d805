"""Rules between sections of the configuration, and how many parties it needs; rules within a section are in its class."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from verfedgnn import plugins
from verfedgnn.core.option_names import option, setting

if TYPE_CHECKING:
    from verfedgnn.config import Config


def find_conflict(config: Config) -> str | None:
    """Return which settings of a configuration conflict and what to do about it, or None."""
    if config.model.gnn not in plugins.GNNS:
        plugins.load_gnn(config.model.gnn)  # raises if the plug-in cannot be loaded
    return _missing_protection(config) or _mismatch(config)


def _missing_protection(config: Config) -> str | None:
    """Return the setting that leaves more unprotected than `unprotected` allows."""
    gradients = config.gradients
    allowed = config.unprotected
    if gradients.protects_ratings:
        missing = _missing_for_skellam(config)
        if missing:
            return f"gradients.mechanism = skellam needs {missing}; start from {option('preset', 'private')}"
    if gradients.mechanism in ("ternary", "laplace") and gradients.clip > 0.5 and "clip" not in allowed:
        return (
            f"gradients.clip = {gradients.clip} lets two gradients differ by more than 1 per coordinate, which the "
            f"guarantee does not cover; use 0.5 or accept it with {setting('unprotected', 'clip')}"
        )
    if config.exchange != "off" and config.exchange < 2 and "projection" not in allowed:
        return (
            f"exchange = {config.exchange:g} means 2q > N + 1, so Theorem 1 does not hide single values; "
            f"use 2 or more, or accept it with {setting('unprotected', 'projection')}"
        )
    model = config.model
    exact = model.form == "propagation" and not model.estimators
    if exact and config.exchange != "off" and "degrees" not in allowed:
        return (
            "model.estimators = false exchanges how many items each user has at each party; "
            f"set it to true, or accept it with {setting('unprotected', 'degrees')}"
        )
    return None


def _mismatch(config: Config) -> str | None:
    """Return the settings of two sections that do not fit together."""
    model = config.model
    if model.form != "propagation" and model.gnn != "gcn":
        return (
            f"model.form = {model.form} has no graph neural network, so {option('model', model.gnn)} would change nothing; "
            f"leave it out or choose {option('preset', 'paper')}"
        )
    if model.form != "propagation" and config.exchange != "off":
        return f"model.form = {model.form} has no neighbourhoods to exchange; set exchange = off"
    if config.lists and not model.solved:
        return "lists = true needs model.form = solved; leave it out or start from " + option(
            "preset", "best"
        )
    problem = _mismatch_of_solved(config)
    if problem:
        return problem
    if config.masking and not config.gradients.integers:
        return (
            f"masking needs integers, and {config.gradients.mechanism} gradients are not; "
            "use ternary, skellam or rounded, or set masking = false"
        )
    return None


def _mismatch_of_solved(config: Config) -> str | None:
    """Return the settings that do not fit a model whose items are solved at home."""
    solved = config.model.solved
    mechanism = config.gradients.mechanism
    if solved != (mechanism == "rounded") and (not solved or mechanism != "none"):
        return "model.form = solved or means and gradients.mechanism = rounded belong together; set both"
    if solved and 0 < config.model.dim < 6:
        return "model.form = solved needs vectors of at least 6 numbers, which carry the first sums, too; raise model.dim"
    if solved and (config.training.batch or config.training.participation < 1):
        return (
            "model.form = solved needs every rating and every party in every round: training.batch = 0 and "
            "participation = 1"
        )
    if config.means_only and config.training.epochs > 1:
        return "model.form = means takes one round; set training.epochs = 1"
    if config.ranks and config.model.raters > 0:
        return "a model of lists (model.biases = false) has no raters; set model.raters = 0"
    return None


def _missing_for_skellam(config: Config) -> str | None:
    """Return the first condition of differential privacy of single ratings that the other settings do not meet."""
    training = config.training
    model = config.model
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
    return max(1, round_half_up(config.training.participation * parties))


def round_half_up(value: float) -> int:
    """Round to the nearest integer, halves upwards."""
    return math.floor(value + 0.5)


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
