"""From finished trainings to a run: every party chooses its mixtures, the verdict is measured, and all ratings are put to use.

It is the same for all parties on one machine and for one party of a federation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from verfedgnn.config import Config
from verfedgnn.core.errors import Interrupted
from verfedgnn.core.option_names import option, resume_words
from verfedgnn.core.pairs import Choices
from verfedgnn.data.splits import suits
from verfedgnn.evaluation.lift import measure_lift
from verfedgnn.runs.ledger import Ledger
from verfedgnn.runs.metrics_file import Trained, build_metrics
from verfedgnn.runs.prepared_data import Prepared, describe_twins
from verfedgnn.runs.run import Run
from verfedgnn.training.own_models import model_without_items
from verfedgnn.training.party_gate import gate_party
from verfedgnn.training.progress import Stop, Watcher, never


def make_run(
    prepared: Sequence[Prepared],
    config: Config,
    judged: Sequence[Trained],
    final: Sequence[Trained] = (),
    *,
    folder: Path | None = None,
    before: dict[str, Any] | None = None,
    watch: Watcher | None = None,
    stop: Stop = never,
) -> Run:
    """Return the run of trainings of ratings and, if there is a second one, of lists; with a `folder`, also write it.

    The `judged` ones give the figures and choose the mixtures. Then what is served repeats these choices on all ratings, with the
    `final` trainings. With privacy of single ratings, another training would cost budget: the parties only repeat what they do at
    home. `before` is what the run records of the run before it.
    """
    if config.trains_lists and not config.federates_lists:
        # each party orders lists by its own models
        empty = [model_without_items(party.input) for party in prepared]
        ratings, privacy = judged[0].ratings, judged[0].privacy
        nothing = Trained(empty, torch.zeros(1), 0, 0, 0.0, ratings, [], Ledger(), privacy)
        judged, final = [*judged, nothing], [*final, nothing] if final else final
    choices = [[Choices() for _ in prepared] for _ in judged]
    try:
        run = _mix(prepared, config, judged, choices, watch, stop)
        if config.trains_final and (final or not config.model.solved):
            whole = [each.with_everything(config) for each in prepared]
            again = [[each.repeat() for each in made] for made in choices]
            at_home = [replace(each, rounds=0, seconds=0.0, ledger=Ledger()) for each in judged]
            served = _mix(whole, config.for_final(), final or at_home, again, watch, stop)
            run = served.as_final_of(run)
    except Interrupted:
        raise Interrupted(
            "the federation is trained, but the parties' own models are not", resume_hint(folder)
        ) from None
    if before is not None:
        run.metrics["after"] = before
    if folder is not None:
        run.complete_folder(folder)
    return run


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
        models, gated = result.models, []
        if own.training.gate:
            gated = [
                gate_party(party, model, result.public, own, made, watch=watch, stop=stop)
                for party, model, made in zip(prepared, models, chosen, strict=True)
            ]
            models = [ways["federated"].model for ways in gated]
        runs.append(
            Run(
                own,
                [each.party for each in prepared],
                [each.parts for each in prepared],
                models,
                build_metrics(prepared, models, own, result, [ways["federated"].weights for ways in gated]),
                result.history,
                result.ledger,
                result.public,
                torch.device(prepared[0].train.user.device),
                alone=[ways["alone"].model for ways in gated] or None,
            )
        )
        lifts.append((own.ranks, [{way: each.model for way, each in ways.items()} for ways in gated]))
    for lists in runs[1:]:
        runs[0].add_lists(lists)
    if config.training.gate and config.split.kind != "all":
        runs[0].metrics["lift"] = measure_lift(prepared, lifts)
        runs[0].metrics["split"] = _describe_split(prepared, config)
        if config.split.kind == "random":
            runs[0].metrics["lift"]["twins"] = describe_twins(prepared)
    return runs[0]


def _describe_split(prepared: Sequence[Prepared], config: Config) -> str:
    """Return on which ratings the run was judged."""
    dates = config.split.dates
    if dates is None or config.split.kind in ("random", "rating"):
        return "on ratings at random"
    by_date = [config.split.kind == "date" or suits(each.party.ratings, dates) for each in prepared]
    return f"on ratings since {dates[1]}" if all(by_date) else "on ratings at random"


def resume_hint(folder: Path | None) -> str:
    """Return a hint on how to resume an interrupted training."""
    if folder is None:
        return f"nothing is kept; pass {option('out')} to be able to resume"
    return f"resume with {resume_words(folder)}"
