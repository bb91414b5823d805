"""The gate: each party mixes its own models with the federated ones, so that joining costs no accuracy, and the run that follows.

For ratings it mixes its means, the federated means, EASE on what means leave, its models alone and the federated ones; for lists
popularity, EASE, its model alone and the federated model (`stacks.py`). The weights come from the party's own validation part and are
sent to nobody. Under preset private, a party first re-estimates its items. The same mixture without the federated models is what the
party would serve if it had not joined.

Then the verdict is measured, and all ratings are put to use. It is the same for all parties on one machine and for one party of a
federation.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.core.errors import Interrupted
from verfedgnn.core.pairs import Choices, PartyInput
from verfedgnn.core.rating_means import fit_means
from verfedgnn.data.splits import FEWEST_TEST_USERS, choose_dates, suits
from verfedgnn.evaluation.lift import measure_lift
from verfedgnn.gnn.model import Model
from verfedgnn.protocol.solved_round import own_totals
from verfedgnn.runs.ledger import Ledger
from verfedgnn.runs.metrics_file import Trained, build_metrics
from verfedgnn.runs.party_model import ChosenColumns, MixedUsers, OwnUsers, PartyModel
from verfedgnn.runs.prepared_data import Prepared, describe_twins
from verfedgnn.runs.run import Run
from verfedgnn.training import own_models
from verfedgnn.training.progress import Stop, Watcher, never, resume_hint
from verfedgnn.training.stacks import FEDERATED, Mixture, stack_lists, stack_ratings

Models = dict[str, PartyModel]


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
    """Return the run of trainings of ratings and, if there is a second one, of lists; with a `folder`, also write it.

    The `judged` ones give the figures and choose the mixtures. Then what is served repeats these choices on all ratings, with the
    `final` trainings. With privacy of single ratings, another training would cost budget: the parties only repeat what they do at
    home.
    """
    began = time.perf_counter()
    if config.trains_lists and not config.federates_lists:
        # each party orders lists by its own models
        empty = [own_models.model_without_items(party.input) for party in prepared]
        nothing = Trained(empty, torch.zeros(1), 0, 0, 0.0, [], Ledger(), judged[0].privacy)
        judged, final = [*judged, nothing], [*final, nothing] if final else final
    own = None if folder is None else folder / "checkpoint" / "own"
    choices = [
        [Choices(own and own / f"{kind}-{place}") for place in range(len(prepared))]
        for kind in range(len(judged))
    ]
    try:
        run = _serve(prepared, config, judged, choices, watch, stop)
        if config.trains_final and (final or not config.model.solved):
            whole = [party.with_everything(config) for party in prepared]
            repeated = [[choice.repeat() for choice in made] for made in choices]
            at_home = [replace(result, rounds=0, seconds=0.0, ledger=Ledger()) for result in judged]
            served = _serve(whole, config.for_final(), final or at_home, repeated, watch, stop)
            run = served.as_final_of(run)
    except Interrupted:
        what = "the federation is trained, but the parties' own models are not"
        raise Interrupted(what, resume_hint(folder)) from None
    run.metrics["at_home"] = {"seconds": round(time.perf_counter() - began, 3)}
    if folder is not None:
        run.folder = folder.resolve()
        run.complete_folder(folder)
    return run


def _serve(
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
        gates = [
            {"known": ways["federated"].known, "newcomers": ways["federated"].newcomers} for ways in gated
        ]
        runs.append(
            Run(
                own,
                [party.party for party in prepared],
                [party.parts for party in prepared],
                models,
                build_metrics(prepared, models, own, result, gates),
                result.history,
                result.ledger,
                result.public,
                torch.device(prepared[0].train.user.device),
                alone=[ways["alone"].model for ways in gated] or None,
            )
        )
        lifts.append((own.ranks, [{way: mixed.model for way, mixed in ways.items()} for ways in gated]))
    run, *lists = runs
    for orders in lists:
        run.add_lists(orders)
    if config.training.gate and config.split.kind != "all":
        kind, dates = config.split.kind, config.split.dates
        dated = kind == "date" or (kind == "auto" and all(suits(p.party.ratings, dates) for p in prepared))
        run.metrics["lift"] = measure_lift(prepared, lifts)
        how = f"since {dates[1]}" if dated and dates else f"at random{why_random(prepared, config)}"
        run.metrics["split"] = f"on ratings {how}"
        if not (dated and dates):
            run.metrics["lift"]["twins"] = describe_twins(prepared)
    return run


def why_random(prepared: Sequence[Prepared], config: Config) -> str:
    """Return in brackets why the data do not suit a split by date; "" if they do, or if dates from the data would reveal ratings."""
    tables, dates = [party.party.ratings for party in prepared], config.split.dates
    if undated := [party.party.name for party in prepared if party.party.ratings.time is None]:
        return f" (no dates at {', '.join(undated)})"
    known = dates or config.gradients.protects_ratings or choose_dates(tables, config.split.fractions)
    return "" if known else f" (fewer than {FEWEST_TEST_USERS} customers return after the date)"


def gate_party(
    party: Prepared,
    model: PartyModel,
    public: Tensor,
    config: Config,
    choices: Choices,
    *,
    watch: Watcher | None = None,
    stop: Stop = never,
) -> dict[str, Mixture]:
    """Train a party's own models and return what it can serve, by way.

    The ways are simple, means (own models and shared means, for ratings), alone and federated, which is served. `model` is the
    party's federated model, and `public` are the public parameters, flat. `choices` records what the party chooses, or repeats it.
    """
    data = party.input
    if config.gradients.protects_ratings:
        model = own_models.refit_items(model, data, choices)
    if config.ranks:
        parts = {
            "popularity": own_models.popularity_model(data),
            "EASE": own_models.ease_model(data, choices),
            "alone": own_models.own_list_model(data, config.seed, choices, watch=watch, stop=stop),
        }
        parts |= {"federated": model} if model.items.shape[1] else {}
    else:
        own = own_models.own_rating_models(data, config.seed, choices, watch=watch, stop=stop)
        parts = _rating_parts(data, public, config, choices) | own
        parts |= {} if config.means_only else _split_models(model, public, data, config, choices)

    counts = own_models.training_counts(data)
    known = counts > 0
    place = torch.where(known, known.cumsum(0) - 1, known.sum()).int()
    for name in parts.keys() - FEDERATED:  # only the party's own users have rows of their own
        parts[name] = replace(parts[name], vectors=OwnUsers.of(parts[name].users, place))

    def mix(name: str, without: Sequence[str] = (), start: Mixture | None = None) -> Mixture:
        """Return the mixture of models that is best on the validation part, or the one of the choices called `name`."""
        models = {part: parts[part] for part in parts if part not in without}
        if choices.repeats:
            known, newcomers = choices.recorded[name]
            return Mixture.of(models, known, newcomers, counts)
        ranks = config.ranks
        mixed = stack_lists(models, data, start) if ranks else stack_ratings(models, data.valid, counts)
        choices.recorded[name] = list(mixed.known.values()), list(mixed.newcomers.values())
        return mixed

    ways = {"simple": Mixture(next(iter(parts.values())), {}, {})}
    if FEDERATED[0] in parts and not config.means_only:
        ways["means"] = mix("mixture with means", FEDERATED[1:])
    ways["alone"] = mix("mixture alone", FEDERATED)
    return ways | {"federated": mix("mixture", start=ways["alone"])}


def _rating_parts(data: PartyInput, public: Tensor, config: Config, choices: Choices) -> Models:
    """Return the models that a party can mix to predict ratings without training one, by name; the simplest comes first."""
    device = data.train.user.device
    means = fit_means(data, choices)
    parts = {"means": own_models.means_model(means, means.user_offset, device)}
    model = Model(config.model, data.users)
    if model.solved is not None:  # else nobody shares numbers of ratings and sums of residuals
        own = own_models.OwnRatings(data)
        others = model.views(public)["totals"] - own_totals(model, own.graph, own.targets)
        offset = means.federated_offset(others.cpu().double().numpy(), data, choices)
        parts["federated means"] = own_models.means_model(means, offset, device)
    return parts | {"EASE": own_models.residual_model(data, parts["means"], choices)}


def _split_models(
    model: PartyModel, public: Tensor, data: PartyInput, config: Config, choices: Choices
) -> Models:
    """Return the model, or the two that it averages, by name: the second one with its items fitted again."""
    hidden, own = config.model.raters, config.model.dim + 2
    if not hidden:
        return {"federated": model}
    marks, name = Model(config.model, data.users).views(public)["raters"][:, -hidden:], "federated raters"
    nobody = torch.zeros(data.users, dtype=torch.bool, device=marks.device)
    users = MixedUsers([model.vectors, marks], [(1.0, 1.0)] * 2, nobody)
    doubled, mean = 2 * model.items[:, :-1], model.items[:, -1:]
    items = torch.cat([doubled, mean, torch.zeros_like(doubled[:, :hidden])], 1)  # none reads y_u yet
    parts = []
    for columns in ([*range(own), doubled.shape[1]], range(own, items.shape[1])):
        kept = torch.tensor(columns, device=items.device)
        parts.append(PartyModel(ChosenColumns(users, kept), items[:, kept], model.embeddings))
    second = own_models.refit_items(parts[1], data, choices, f"items of {name}", hidden)
    return {"federated": parts[0], name: second}
