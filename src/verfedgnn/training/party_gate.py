"""The gate: each party mixes its own models with the federated ones, so that joining costs no accuracy.

For ratings it mixes its means, the federated means, EASE on what means leave, its models alone and the federated ones; for lists
popularity, EASE, its model alone and the federated model (`stacks.py`). The weights come from the party's own validation part and are
sent to nobody. Under preset private, a party first re-estimates its items. The same mixture without the federated models is what the
party would serve if it had not joined.
"""

from __future__ import annotations

import torch
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.core.pairs import Choices, scale_unit
from verfedgnn.gnn.model import Model
from verfedgnn.protocol.solved_round import own_totals
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.runs.prepared_data import Prepared
from verfedgnn.training.own_models import (
    OwnRatings,
    ease_model,
    fit_party_means,
    means_model,
    own_list_model,
    own_rating_models,
    popularity_model,
    refit_items,
    residual_model,
    training_counts,
)
from verfedgnn.training.progress import Stop, Watcher, never
from verfedgnn.training.stacks import FEDERATED, Mixture, stack_lists, stack_ratings

Models = dict[str, PartyModel]


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
        model = refit_items(model, data, choices)
    if config.ranks:
        alone = own_list_model(data, config.seed, choices, watch=watch, stop=stop)
        parts = {"popularity": popularity_model(data), "EASE": ease_model(data, choices), "alone": alone}
        parts |= {"federated": model} if model.items.shape[1] else {}
    else:
        own = own_rating_models(data, config.seed, choices, watch=watch, stop=stop)
        parts = _rating_parts(party, choices, _others_totals(party, public, config)) | own
        parts |= {} if config.means_only else _split_models(model, config)
    simple = next(iter(parts.values()))
    ways = {"simple": Mixture(simple, {}, {})}
    if FEDERATED[0] in parts and not config.means_only:
        some = {name: part for name, part in parts.items() if name not in FEDERATED[1:]}
        ways["means"] = _mix(some, party, choices, "mixture with means")
    home = {name: part for name, part in parts.items() if name not in FEDERATED}
    ways["alone"] = _mix(home, party, choices, "mixture alone", ranks=config.ranks)
    ways["federated"] = _mix(parts, party, choices, "mixture", ways["alone"], ranks=config.ranks)
    return ways


def _mix(
    parts: Models,
    party: Prepared,
    choices: Choices,
    name: str,
    start: Mixture | None = None,
    *,
    ranks: bool = False,
) -> Mixture:
    """Return the mixture of `parts` that is best on the validation part, or that of the choices called `name` if they repeat.

    A search for lists begins with the mixture `start`.
    """
    counts = training_counts(party.input)
    if choices.repeats:
        known, newcomers = choices.recorded[name]
        return Mixture.of(parts, known, newcomers, counts)
    mixed = stack_lists(parts, party.input, start) if ranks else stack_ratings(parts, party.valid, counts)
    choices.recorded[name] = list(mixed.known.values()), list(mixed.newcomers.values())
    return mixed


def _rating_parts(party: Prepared, choices: Choices, others: Tensor | None) -> Models:
    """Return the models that a party can mix to predict ratings without training one, by name; the simplest comes first.

    `others` are the other parties' numbers of ratings and sums of residuals by user.
    """
    data = party.input
    device = party.train.user.device
    means = fit_party_means(data, choices)
    parts = {"means": means_model(means, means.user_offset, device)}
    if others is not None:
        elsewhere = others.cpu().double().numpy()
        offset = means.federated_offset(elsewhere, scale_unit(data.scale), data.valid, data.scale, choices)
        parts["federated means"] = means_model(means, offset, device)
    return parts | {"EASE": residual_model(data, parts["means"], choices)}


def _others_totals(party: Prepared, public: Tensor, config: Config) -> Tensor | None:
    """Return the other parties' number of ratings of each user, and the sum of their residuals (N, 2); None if nobody shares them."""
    model = Model(config.model, party.input.users)
    if model.solved is None:
        return None
    own = OwnRatings.of(party.input)
    return model.views(public)["totals"] - own_totals(model, own.graph, own.targets)


def _split_models(model: PartyModel, config: Config) -> Models:
    """Return the two models that a federated model with `model.raters` averages, or the model itself, by name."""
    name = FEDERATED[1]
    own = config.model.dim + 2
    both = own + config.model.raters + 2
    if not config.model.raters or model.users.shape[1] != both + 1:
        return {name: model}
    found = {}
    for part, columns in ((name, slice(own)), (f"{name} raters", slice(own, both))):
        users = torch.cat([model.users[:, columns], model.users[:, both:]], 1)
        items = torch.cat([2 * model.items[:, columns], model.items[:, both:]], 1)
        found[part] = PartyModel(users, items, model.embeddings)
    return found
