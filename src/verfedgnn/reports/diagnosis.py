"""What the figures of a run show beside its verdict, in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from verfedgnn.config import Config
from verfedgnn.data import PartyData
from verfedgnn.reports.phrases import warn_of_lists

MEANS_WIN = 0.995
"""Share of the means' RMSE that a model must stay below to be called better than them."""
STILL_IMPROVING = 0.002
"""Relative improvement over the last tenth of a training from which on more rounds are worthwhile."""
FEW = 0.5
"""Share of users below which those who are shared, or who take part, are called few."""


@dataclass(frozen=True)
class Customers:
    """Counts of the customers of a federation."""

    users: int
    """Customers who take part."""
    shared: int
    """Customers with ratings at two or more parties."""
    left_out: int = 0
    """Customers whom the rule of `--users` leaves out, counted at each party."""
    given: int = 0
    """Customers before that rule, counted at each party."""

    @classmethod
    def count(cls, parties: Sequence[PartyData]) -> Customers:
        """Count the customers of these parties."""
        known = np.zeros(parties[0].ratings.n_users, np.int64)
        left_out = 0
        given = 0
        for party in parties:
            rated = np.unique(party.ratings.user)
            known[rated] += 1
            left_out += party.ratings.dropped_users
            given += party.ratings.dropped_users + len(rated)
        return cls(int((known > 0).sum()), int((known > 1).sum()), left_out, given)


def diagnose(
    metrics: Mapping[str, Any],
    config: Config,
    *,
    history: Sequence[Mapping[str, Any]] = (),
    customers: Customers | None = None,
) -> list[str]:
    """Return what the figures of a run show beside its verdict, a sentence or two each, the most important first.

    `history` is the content of history.jsonl. Without `customers`, nothing is said about the overlap.
    """
    findings = [
        _left_out(customers),
        _still_improving(metrics, config, history),
        warn_of_lists(metrics),
        _means(metrics, config),
        _one_party_only(customers, len(metrics["parties"])),
    ]
    return [finding for finding in findings if finding is not None]


def _left_out(customers: Customers | None) -> str | None:
    if customers is None or customers.left_out <= FEW * customers.given:
        return None
    return (
        f"The setting --users leaves out {customers.left_out:,} of {customers.given:,} customers, counted at each party. "
        "With --users any everybody takes part and is served."
    )


def _still_improving(
    metrics: Mapping[str, Any], config: Config, history: Sequence[Mapping[str, Any]]
) -> str | None:
    if len(history) < 2 or metrics["best_round"] < history[-1]["round"]:
        return None
    name = next(key for key in history[-1] if key.startswith("valid_"))
    before = history[-1 - max(1, len(history) // 10)][name]
    now = history[-1][name]
    if not before or abs(now - before) < STILL_IMPROVING * abs(before):
        return None
    return (
        f"Validation was still improving in the last round ({name.removeprefix('valid_').upper()} {before:.4f} to {now:.4f}): "
        f"train with --set training.epochs={2 * config.training.epochs}."
    )


def _means(metrics: Mapping[str, Any], config: Config) -> str | None:
    """Compare predicted ratings with each party's user and item means."""
    error = metrics["test"]["rmse"]
    means = metrics.get("means", {}).get("rmse")
    if error is None or means is None or error < MEANS_WIN * means:
        return None
    if not means:
        return "The ratings of each party are all equal, so there is nothing to predict; lists are what this run is for."
    close = "hardly better than" if error < means else "no better than"
    compared = "worse than" if error > means / MEANS_WIN else close
    text = f"Predicted ratings are {compared} the parties' user and item means (RMSE {error:.4f}, means {means:.4f})."
    remedies = {
        "paper": " Preset best adds the means to the model, and lists.",
        "private": " The noise of the privacy budget hides more than the ratings show; more customers or a larger --epsilon help.",
    }
    return text + remedies.get(config.base, "")


def _one_party_only(customers: Customers | None, parties: int) -> str | None:
    if customers is None or parties < 2 or customers.shared >= FEW * customers.users:
        return None
    alone = customers.users - customers.shared
    return (
        f"{alone:,} of {customers.users:,} customers are at one party only. They gain at another party, as newcomers; at their own, "
        f"only the {customers.shared:,} shared customers can gain."
    )
