"""Numbers, warnings and what figures mean, in the words of reports and of the terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from rich.filesize import decimal

from verfedgnn.core.option_names import option
from verfedgnn.privacy.visibility import describe_seen
from verfedgnn.runs.run_folder import trainings_of

if TYPE_CHECKING:
    from verfedgnn.config import Config

MEANS_WIN = 0.995
"""Share of the means' RMSE that a model must stay below to be called better than them."""
CLEAR_LOSS = 0.02
"""Share of popularity's NDCG by which lists must lose to be called worse."""


def format_metric(value: float | None) -> str:
    """Format a metric with four decimals; None, for a metric without data, becomes a dash."""
    return "-" if value is None else f"{value:.4f}"


def format_duration(seconds: float) -> str:
    """Format a duration, such as `2 min 05 s`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def format_size(count: float) -> str:
    """Format a number of bytes, such as `1.5 MB`."""
    return decimal(round(count)).replace(" bytes", " B").replace(" byte", " B")


def total_bytes(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the bytes up, down, and per party and round of all trainings of a run."""
    parts = trainings_of(metrics).values()
    rounds = sum(part["rounds"] for part in parts)
    each = sum(part["bytes"]["per_party_per_round"] * part["rounds"] for part in parts)
    total = {way: sum(part["bytes"][way] for part in parts) for way in ("up", "down")}
    return total | {"per_party_per_round": each / max(1, rounds)}


def describe_cost(metrics: Mapping[str, Any]) -> str:
    """Return what a run cost each party: rounds, bytes, and seconds of all trainings, own models and judging."""
    parts, size = trainings_of(metrics).values(), total_bytes(metrics)
    each = format_size((size["up"] + size["down"]) / max(1, len(metrics["parties"])))
    at_home = metrics.get("at_home", {"seconds": 0.0})
    seconds = format_duration(sum(part["seconds"] for part in (*parts, at_home)))
    return f"{sum(part['rounds'] for part in parts):,} rounds, {each} for each party, {seconds} of training and judging"


@cache
def audit_records() -> Mapping[str, Mapping[str, Any]]:
    """Return the record of the attacks on each preset, measured once and shipped with the product (`results/attacks.md`).

    `learnt` is what others learn, in one sentence; `figures` has the AUC by attacker and data.
    """
    text = files("verfedgnn.privacy").joinpath("audit_record.json").read_text("utf-8")
    records: Mapping[str, Mapping[str, Any]] = json.loads(text)
    return records


def find_record(config: Config) -> Mapping[str, Any]:
    """Return the record of the preset's audit if the configuration protects as the preset does, else an empty one."""
    from verfedgnn.config import Config

    record = audit_records().get(config.base, {})
    own, audited = (
        (each.gradients, each.exchange, each.masking, each.unprotected)
        for each in (config, Config.preset(config.base))
    )
    return record if own == audited else {}


def describe_learnt(config: Config, parties: int = 0) -> str:
    """Return what others learn, from the record of the preset's audit if it applies, and what two `parties` see of each other."""
    learnt = str(
        find_record(config).get(
            "learnt", "See `settings visibility`, and `verfedgnn audit` of packages/verfedgnn-research."
        )
    )
    return f"The other party sees your {describe_seen(config)}. {learnt}" if parties == 2 else learnt


def name_ratings(metrics: Mapping[str, Any]) -> str:
    """Return what a run learns from: likes, if it predicts no stars."""
    return "likes" if metrics["test"].get("rmse") is None else "ratings"


def describe_served(metrics: Mapping[str, Any]) -> str:
    """Return on what the judged and the served models were trained."""
    ratings, what = sum(party["ratings"] for party in metrics["parties"]), name_ratings(metrics)
    judged = f"judged {metrics['split']}" if "split" in metrics else "judged on the test part"
    if "final" in metrics:
        return f"models trained on all {ratings:,} {what}; {judged}, with models that had not seen them"
    return f"the judged models, which have not seen the test part ({judged})"


def describe_about(metrics: Mapping[str, Any], config: Config) -> dict[str, str]:
    """Return what terminal, report and page say beside the verdict: the cost, what others learn, and what is served."""
    return {
        "Cost": f"{describe_cost(metrics)}.",
        "Others learn": describe_learnt(config, len(metrics["parties"])),
        "Served": f"{describe_served(metrics)}.",
    }


def warn_of_lists(metrics: Mapping[str, Any]) -> str | None:
    """Return a sentence that names the parties whose lists do not reach the most popular items; None if there are none."""
    name = next((key for key in metrics["test"] if key.startswith("ndcg@")), "")
    figures = [(p["name"], p["test"].get(name), p["popularity"].get(name)) for p in metrics["parties"]]
    worse = [row for row in figures if None not in row and row[1] < row[2]]
    if not worse:
        return None
    clearly = [row for row in worse if row[1] < (1 - CLEAR_LOSS) * row[2]]
    named = [
        f"{who} ({name.upper()} {found:.4f}, popularity {popular:.4f})"
        for who, found, popular in clearly or worse
    ]
    places = ", ".join(named[:5]) + (f" and {len(named) - 5} more" if len(named) > 5 else "")
    text = f"Lists are {'worse' if clearly else 'no better'} than the most popular items at {places}."
    if metrics["test"]["rmse"] is not None and "lists" not in metrics:
        preset = option("preset", "best")
        return f"{text} They are ordered by predicted stars; train with {preset} to order them by a model of lists."
    return f"{text} Train with more data, or show these customers what is popular." if clearly else text


def diagnose(metrics: Mapping[str, Any], config: Config) -> list[str]:
    """Return what the figures of a run show beside its verdict, the most important first."""
    findings = warn_of_lists(metrics), _compare_with_means(metrics, config)
    return [finding for finding in findings if finding is not None]


def _compare_with_means(metrics: Mapping[str, Any], config: Config) -> str | None:
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
