"""From finished trainings to a run: every party chooses its mixtures, the verdict is measured, and all ratings are put to use.

It is the same for all parties on one machine and for one party of a federation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.core.errors import Interrupted
from verfedgnn.core.option_names import option, resume_words
from verfedgnn.core.pairs import Choices
from verfedgnn.data.splits import suits
from verfedgnn.evaluation.lift import measure_lift
from verfedgnn.protocol.replica import parameters_digest
from verfedgnn.runs.ledger import Ledger
from verfedgnn.runs.metrics_file import build_metrics
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.runs.prepared_data import Prepared
from verfedgnn.runs.run import Run
from verfedgnn.training.party_gate import Gated, gate_parties
from verfedgnn.training.progress import Stop, Watcher, never
from verfedgnn.training.simple_models import model_without_items


@dataclass(frozen=True)
class Trained:
    """The result of one training of the federation, before any mixture."""

    models: list[PartyModel]
    """Model of the best validation, for each party in order."""
    public: Tensor
    """Public parameters of the best validation, flat."""
    rounds: int
    best_round: int
    """Round of the best validation."""
    seconds: float
    """Seconds spent in rounds."""
    ratings: int
    """Number of training ratings of all parties."""
    history: list[dict[str, Any]]
    ledger: Ledger
    privacy: dict[str, Any]
    """The `privacy` part of metrics.json."""


def make_run(
    prepared: Sequence[Prepared],
    config: Config,
    judged: Sequence[Trained],
    final: Sequence[Trained] = (),
    *,
    folder: Path | None = None,
    watch: Watcher | None = None,
    stop: Stop = never,
) -> Run:
    """Return the run of trainings of ratings and, if there is a second one, of lists.

    The `judged` ones give the figures and choose the mixtures. Then what is served repeats these choices on all ratings, with the
    `final` trainings. With privacy of single ratings, another training would cost budget: the parties only repeat what they do at
    home.
    """
    if config.trains_lists and not config.federates_lists:
        judged = [*judged, _nothing_shared(prepared, judged[0])]
        final = [*final, judged[1]] if final else final
    choices = [[Choices() for _ in prepared] for _ in judged]
    try:
        run = _mix(prepared, config, judged, choices, watch, stop)
        if not config.trains_final or (config.model.form == "solved" and not final):
            return run
        whole = [each.with_everything(config) for each in prepared]
        again = [[each.repeat() for each in made] for made in choices]
        at_home = [replace(each, rounds=0, seconds=0.0, ledger=Ledger()) for each in judged]
        return _mix(whole, config.for_final(), final or at_home, again, watch, stop).as_final_of(run)
    except Interrupted:
        raise Interrupted(
            "the federation is trained, but the parties' own models are not", resume_hint(folder)
        ) from None


def _nothing_shared(prepared: Sequence[Prepared], ratings: Trained) -> Trained:
    """Return what stands for a training of lists where the federation has none: each party orders lists by its own models."""
    empty = [model_without_items(party.input) for party in prepared]
    return Trained(empty, torch.zeros(1), 0, 0, 0.0, ratings.ratings, [], Ledger(), ratings.privacy)


def _mix(
    prepared: Sequence[Prepared],
    config: Config,
    trained: Sequence[Trained],
    choices: Sequence[Sequence[Choices]],
    watch: Watcher | None,
    stop: Stop,
) -> Run:
    """Let every party choose its mixtures, or repeat them, and return the run of ratings with that of lists."""
    configs = [config, config.for_lists()] if config.trains_lists else [config]
    runs, lifts = [], []
    for own, result, chosen in zip(configs, trained, choices, strict=False):
        gated: list[Gated] = []
        if own.training.gate:
            models, public = result.models, result.public
            gated = gate_parties(prepared, models, public, own, chosen, watch=watch, stop=stop)
        runs.append(_make_run(prepared, own, result, gated))
        lifts.append((own.ranks, [each.ways for each in gated]))
    for lists in runs[1:]:
        runs[0].add_lists(lists)
    if config.training.gate and config.split.kind != "all":
        runs[0].metrics["lift"] = measure_lift(prepared, lifts)
        runs[0].metrics["split"] = _describe_split(prepared, config)
    return runs[0]


def _describe_split(prepared: Sequence[Prepared], config: Config) -> str:
    """Return on which ratings the run was judged."""
    dates = config.split.dates
    if dates is None or config.split.kind in ("random", "rating"):
        return "on ratings at random"
    by_date = [config.split.kind == "date" or suits(each.party.ratings, dates) for each in prepared]
    return f"on ratings since {dates[1]}" if all(by_date) else "on ratings at random"


def _make_run(prepared: Sequence[Prepared], config: Config, trained: Trained, gated: Sequence[Gated]) -> Run:
    """Return the run of one training; with a gate, each party serves its mixture."""
    models = [each.served.model for each in gated] if gated else trained.models
    metrics = build_metrics(
        prepared,
        models,
        config,
        trained.ledger,
        rounds=trained.rounds,
        best_round=trained.best_round,
        seconds=trained.seconds,
        privacy=trained.privacy,
        digest=parameters_digest(trained.public),
        gates=[each.weights for each in gated] if gated else None,
        federated=trained.models if gated else None,
    )
    metrics["all_ratings"] = trained.ratings
    return Run(
        config,
        [each.party for each in prepared],
        [each.parts for each in prepared],
        models,
        metrics,
        trained.history,
        trained.ledger,
        trained.public,
        torch.device(prepared[0].train.user.device),
        alone=[each.alone.model for each in gated] if gated else None,
    )


def resume_hint(folder: Path | None) -> str:
    """Return a hint on how to resume an interrupted training."""
    if folder is None:
        return f"nothing is kept; pass {option('out')} to be able to resume"
    return f"resume with {resume_words(folder)}"
