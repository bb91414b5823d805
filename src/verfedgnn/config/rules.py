"""Rules between sections of the configuration; rules within a section are in its class."""

from __future__ import annotations

from typing import TYPE_CHECKING

from verfedgnn import plugins
from verfedgnn.core.option_names import option, setting

if TYPE_CHECKING:
    from verfedgnn.config import Config


def find_conflict(config: Config) -> str | None:
    """Return which settings of a configuration conflict and what to do about it, or None."""
    if config.model.gnn not in plugins.GNNS:
        plugins.load_gnn(config.model.gnn, config.model.form)  # raises if the plug-in lacks that form
    return _missing_protection(config) or _mismatch(config)


def _missing_protection(config: Config) -> str | None:
    """Return the setting that leaves more unprotected than `unprotected` allows."""
    gradients = config.gradients
    exchange = config.exchange
    allowed = config.unprotected
    if gradients.mechanism == "skellam":
        missing = _missing_for_skellam(config)
        if missing:
            return f"gradients.mechanism = skellam needs {missing}; start from {option('preset', 'private')}"
    if gradients.mechanism in ("ternary", "laplace") and gradients.clip > 0.5 and "clip" not in allowed:
        return (
            f"gradients.clip = {gradients.clip} lets two gradients differ by more than 1 per coordinate, which the "
            f"guarantee does not cover; use 0.5 or accept it with {setting('unprotected', 'clip')}"
        )
    if exchange.mode == "projected" and "projection" not in allowed:
        if exchange.block == 1:
            return (
                "exchange.block = 1 sends every user's value times a known number; "
                f"use 2 or more, or accept it with {setting('unprotected', 'projection')}"
            )
        if exchange.ratio < 2:
            return (
                f"exchange.ratio = {exchange.ratio} means 2q > N + 1, so Theorem 1 does not hide single values; "
                f"use 2 or more, or accept it with {setting('unprotected', 'projection')}"
            )
    if not config.model.estimators and exchange.mode != "off" and "degrees" not in allowed:
        return (
            "model.estimators = false exchanges how many items each user has at each party; "
            f"set it to true, or accept it with {setting('unprotected', 'degrees')}"
        )
    if exchange.mode in ("masked", "noised") and not config.masking:
        return f"exchange.mode = {exchange.mode} is protected by masks; add {setting('masking', True)}"
    return None


def _mismatch(config: Config) -> str | None:
    """Return the settings of two sections that do not fit together."""
    exchange = config.exchange
    model = config.model
    if model.form in ("factors", "solved") and exchange.mode != "off":
        return f"model.form = {model.form} has no neighbourhoods to exchange; set exchange.mode = off"
    if model.generator and exchange.mode == "off":
        return "model.generator learns from exchanged neighbourhoods; choose an exchange.mode other than off"
    if exchange.backward and model.form != "messages":
        return "exchange.backward trains message embeddings; set model.form = messages"
    if exchange.backward and not model.estimators:
        return "exchange.backward does not work with exact degrees; set model.estimators = true"
    training = config.training
    every_rating = not training.batch and training.user_blocks == 1 and not training.ranks
    if (
        model.raters
        and model.form != "solved"
        and not (model.biases and model.threshold == "all" and every_rating)
    ):
        return (
            "model.raters needs every rating in every round: model.biases = true, model.threshold = all, training.batch = 0, "
            "user_blocks = 1 and objective = rating; otherwise set model.raters = 0"
        )
    if training.from_means and not model.biases:
        return "training.from_means starts the biases; set model.biases = true"
    if exchange.bits < 32 and not model.estimators:
        return f"exchange.bits = {exchange.bits} is too small for exact degrees; use 32 or 64"
    problem = _mismatch_of_solved(config)
    if problem:
        return problem
    if config.masking and config.gradients.mechanism not in ("ternary", "skellam", "rounded"):
        return (
            f"masking needs integers, and {config.gradients.mechanism} gradients are not; "
            "use ternary, skellam or rounded, or set masking = false"
        )
    return None


def _mismatch_of_solved(config: Config) -> str | None:
    """Return the settings that do not fit a model whose items are solved at home."""
    solved = config.model.form == "solved"
    mechanism = config.gradients.mechanism
    if solved != (mechanism == "rounded") and (not solved or mechanism != "none"):
        return "model.form = solved and gradients.mechanism = rounded belong together; set both"
    if solved and config.model.dim < 6:
        return "model.form = solved needs vectors of at least 6 numbers, which carry the first sums, too; raise model.dim"
    training = config.training
    if solved and (
        training.batch or training.user_blocks > 1 or training.average or training.participation < 1
    ):
        return (
            "model.form = solved needs every rating and every party in every round: training.batch = 0, user_blocks = 1, "
            "average = 0 and participation = 1"
        )
    if solved and config.model.raters and training.ranks:
        return "a model of lists has no raters; set model.raters = 0"
    if solved and config.model.biases == training.ranks:
        return "a solved model of ratings has biases, and one of lists has none; set model.biases"
    return None


def _missing_for_skellam(config: Config) -> str | None:
    """Return the first condition of differential privacy of single ratings that the other settings do not meet."""
    training = config.training
    model = config.model
    conditions = {
        "masking = true (only sums are protected)": config.masking,
        "model.form = factors (a message depends on all of a user's ratings)": model.form == "factors",
        "model.residual = false (a private user embedding depends on all of a user's ratings)": not model.residual,
        "model.bound and training.error_clip (they bound the effect of a rating)": model.bound
        and training.error_clip,
        "training.batch = 0, user_blocks = 1 and participation = 1 (every rating in every round)": not training.batch
        and training.user_blocks == 1
        and training.participation == 1,
        "training.l2_rating = 0 (it depends on the number of ratings)": not training.l2_rating,
        "training.objective = rating": not training.ranks,
        "lists = false (a second training would release more)": not config.lists,
        "split.kind = rating or newcomers (by time, one rating more moves others to another part)": config.split.kind
        != "time",
    }
    return next((condition for condition, met in conditions.items() if not met), None)
