"""What the result of a training means, and what to do next: sentences and a step, from figures only.

The command line ends with these sentences and prints the step as a command. Reports and pages can show the sentences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from verfedgnn.config import Config
from verfedgnn.data import PartyData
from verfedgnn.data.parties import count_kept
from verfedgnn.evaluation.verdict import headline, verdict
from verfedgnn.evaluation.verdict_words import LIKELY_BETTER, LIKELY_WORSE, MIXED, NO, NO_DIFFERENCE, YES
from verfedgnn.privacy.visibility import describe_two_parties
from verfedgnn.reports.phrases import warn_of_lists

MEANS_WIN = 0.995
"""Share of the means' RMSE that a model must stay below to be called better than them."""
STILL_IMPROVING = 0.002
"""Relative improvement over the last tenth of a training from which on more rounds are worthwhile."""
FEW = 0.5
"""Share of users below which those who are shared, or who take part, are called few."""

Action = Literal["train", "tune", "lift", "check", "report", "serve"]


@dataclass(frozen=True)
class Step:
    """What to do next, without the names of files."""

    action: Action
    options: tuple[str, ...] = ()
    """Options of `verfedgnn train` that change what was trained."""


@dataclass(frozen=True)
class Finding:
    """One thing that the figures show."""

    name: str
    text: str
    """One or two sentences: what the figures mean and what follows."""
    step: Step | None = None
    """What to do about it; None if there is nothing to do."""


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
            kept, before = count_kept(party.ratings.notes) or (len(rated), len(rated))
            left_out += before - kept
            given += before
        return cls(int((known > 0).sum()), int((known > 1).sum()), left_out, given)


def diagnose(
    metrics: Mapping[str, Any],
    config: Config,
    *,
    history: Sequence[Mapping[str, Any]] = (),
    customers: Customers | None = None,
) -> list[Finding]:
    """Return what the figures of a run show, the most important first; the last one always has a step.

    `history` is the content of history.jsonl. Without `customers`, nothing is said about the overlap.
    """
    found = [
        _left_out(customers),
        _still_improving(metrics, config, history),
        _lists(metrics),
        _means(metrics, config),
        _one_party_only(customers, len(metrics["parties"])),
        _two_parties(metrics, config),
        _lift(metrics),
    ]
    return [finding for finding in found if finding is not None]


def next_step(findings: Sequence[Finding]) -> Step:
    """Return the step of the first finding that has one."""
    return next(finding.step for finding in findings if finding.step is not None)


def _left_out(customers: Customers | None) -> Finding | None:
    if customers is None or customers.left_out <= FEW * customers.given:
        return None
    text = (
        f"The setting --users leaves out {customers.left_out:,} of {customers.given:,} customers, counted at each party. "
        "With --users any everybody takes part and is served."
    )
    return Finding("most left out", text, Step("train", ("--users", "any")))


def _still_improving(
    metrics: Mapping[str, Any], config: Config, history: Sequence[Mapping[str, Any]]
) -> Finding | None:
    if len(history) < 2 or metrics["best_round"] < history[-1]["round"]:
        return None
    name = next(key for key in history[-1] if key.startswith("valid_"))
    before = history[-1 - max(1, len(history) // 10)][name]
    now = history[-1][name]
    if not before or abs(now - before) < STILL_IMPROVING * abs(before):
        return None
    epochs = 2 * config.training.epochs
    text = (
        f"Validation was still improving in the last round ({name.removeprefix('valid_').upper()} {before:.4f} to {now:.4f}), "
        f"so more epochs give a better model."
    )
    return Finding("still improving", text, Step("train", ("--set", f"training.epochs={epochs}")))


def _lists(metrics: Mapping[str, Any]) -> Finding | None:
    text = warn_of_lists(metrics)
    if text is None:
        return None
    by_stars = metrics["test"]["rmse"] is not None and "lists" not in metrics
    return Finding("lists lose", text, Step("train", ("--preset", "best")) if by_stars else None)


def _means(metrics: Mapping[str, Any], config: Config) -> Finding | None:
    """Compare predicted ratings with each party's user and item means."""
    found = metrics["test"]["rmse"]
    means = metrics.get("means", {}).get("rmse")
    if found is None or means is None or found < MEANS_WIN * means:
        return None
    if not means:
        text = "The ratings of each party are all equal, so there is nothing to predict; lists are what this run is for."
        return Finding("equal ratings", text)
    close = "hardly better than" if found < means else "no better than"
    compared = "worse than" if found > means / MEANS_WIN else close
    text = f"Predicted ratings are {compared} the parties' user and item means (RMSE {found:.4f}, means {means:.4f})."
    if config.base == "paper":
        return Finding(
            "means win",
            f"{text} Preset best adds the means to the model, and lists.",
            Step("train", ("--preset", "best")),
        )
    if config.base == "private" and "noise" not in config.unprotected:
        return Finding(
            "means win",
            f"{text} The noise of the privacy budget hides more than the ratings show; more customers or a larger "
            "--epsilon help.",
        )
    judged = "lift" in metrics
    return Finding(
        "means win",
        f"{text} More ratings, or settings that `tune` finds, may help; lists can still be worth it.",
        Step("tune") if judged and verdict(metrics["lift"]) not in (YES, MIXED, LIKELY_BETTER) else None,
    )


def _one_party_only(customers: Customers | None, parties: int) -> Finding | None:
    if customers is None or parties < 2 or customers.shared >= FEW * customers.users:
        return None
    alone = customers.users - customers.shared
    text = (
        f"{alone:,} of {customers.users:,} customers are at one party only. They gain at another party, as newcomers; at their own, "
        f"only the {customers.shared:,} shared customers can gain."
    )
    return Finding("few shared", text)


def _two_parties(metrics: Mapping[str, Any], config: Config) -> Finding | None:
    if len(metrics["parties"]) != 2:
        return None
    return Finding("two parties", describe_two_parties(config))


def _lift(metrics: Mapping[str, Any]) -> Finding:
    if len(metrics["parties"]) < 2:
        return Finding("one party", "This run holds one party, so its model can be served.", Step("serve"))
    if "lift" not in metrics:
        text = "What joining gains each party is not judged yet."
        if metrics.get("old_lift"):
            text = (
                "An earlier version judged what joining gains each party, in another format; judge it again."
            )
        return Finding("not judged", text, Step("lift"))
    pays = verdict(metrics["lift"])
    if pays in (YES, MIXED, LIKELY_BETTER):
        return Finding("pays", f"{headline(metrics['lift'])} The report shows by how much.", Step("report"))
    if pays in (NO, LIKELY_WORSE, NO_DIFFERENCE):
        text = (
            f"{headline(metrics['lift'])} Look at how many customers the parties share before adding a party."
        )
        return Finding("does not pay", text, Step("check"))
    text = "The test customers are too few to tell whether joining pays; more of them narrow the intervals."
    return Finding("cannot tell", text, Step("report"))
