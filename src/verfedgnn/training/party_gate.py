"""The gate: each party mixes its own models with the federated ones, so that joining costs no accuracy.

For ratings it mixes its means, the federated means, EASE on what means leave, its models alone and the federated ones
(`rating_stack.py`); for lists popularity, EASE, its model alone and the federated model (`list_stack.py`). The weights come from the
party's own validation part and are sent to nobody. Under preset private, a party first re-estimates its items (`item_refit.py`). The
same mixture without the federated models is what the party would serve if it had not joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from verfedgnn.config import Config
from verfedgnn.core.pairs import Choices, scale_unit
from verfedgnn.gnn.model import Model
from verfedgnn.protocol.solved_round import own_totals
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.runs.prepared_data import Prepared
from verfedgnn.training.item_refit import refit_items
from verfedgnn.training.list_stack import stack_lists
from verfedgnn.training.own_models import OwnRatings, own_list_model, own_rating_models
from verfedgnn.training.progress import Stop, Watcher, never
from verfedgnn.training.rating_stack import FEDERATED, Stacked, stack_ratings
from verfedgnn.training.simple_models import (
    ease_model,
    fit_party_means,
    means_model,
    popularity_model,
    residual_model,
    training_counts,
)


@dataclass(frozen=True)
class Gated:
    """The mixture that a party serves, and the one it would serve without the federation."""

    served: Stacked
    """The mixture of all models."""
    alone: Stacked
    """The mixture of the models that do not come from the federation."""
    ways: dict[str, PartyModel]
    """What lift compares: simple, means (own models and shared means, for ratings), alone and federated."""

    @property
    def weights(self) -> dict[str, dict[str, float]]:
        """Weights of the models in the served mixture, for metrics.json."""
        return {"known": self.served.known, "newcomers": self.served.newcomers}


def gate_parties(
    prepared: Sequence[Prepared],
    models: Sequence[PartyModel],
    public: Tensor,
    config: Config,
    choices: Sequence[Choices],
    *,
    watch: Watcher | None = None,
    stop: Stop = never,
) -> list[Gated]:
    """Train each party's own models and choose its mixture; `public` are the public parameters, flat.

    `choices` records what each party chooses, or repeats it.
    """
    gated = []
    for party, model, chosen in zip(prepared, models, choices, strict=True):
        alone = train_own(party, config, chosen, watch=watch, stop=stop)
        if config.gradients.protects_ratings:
            model = refit_items(model, party.input, chosen)
        gated.append(gate_party(party, model, alone, public, config, chosen))
    return gated


def train_own(
    party: Prepared, config: Config, choices: Choices, *, watch: Watcher | None = None, stop: Stop = never
) -> dict[str, PartyModel]:
    """Train a party's own models, for ratings or for lists, and return them by name."""
    if config.ranks:
        return {"alone": own_list_model(party.input, config.seed, choices, watch=watch, stop=stop)}
    return own_rating_models(party.input, config.seed, choices, watch=watch, stop=stop)


def gate_party(
    party: Prepared,
    federated: PartyModel,
    alone: dict[str, PartyModel],
    public: Tensor,
    config: Config,
    choices: Choices,
) -> Gated:
    """Return one party's mixtures: what it serves, what it would serve without the federation, and with shared means only."""
    ranks = config.ranks
    shared = federated.items.shape[1] > 0
    if ranks:
        parts = list_parts(party, alone, choices) | ({"federated": federated} if shared else {})
    else:
        parts = rating_parts(party, alone, choices, others_totals(party, public, config))
        parts |= {} if config.means_only else split_models(federated, config)
    home = {name: model for name, model in parts.items() if name not in FEDERATED}
    alone_mixed = mix_parts(home, party, choices, "mixture alone", ranks=ranks)
    served = mix_parts(parts, party, choices, "mixture", alone_mixed, ranks=ranks)
    ways = {"simple": next(iter(parts.values()))}
    if FEDERATED[0] in parts and not config.means_only:
        some = {name: model for name, model in parts.items() if name not in FEDERATED[1:]}
        ways["means"] = mix_parts(some, party, choices, "mixture with means", ranks=ranks).model
    return Gated(served, alone_mixed, ways | {"alone": alone_mixed.model, "federated": served.model})


def gate_alone(party: Prepared, alone: dict[str, PartyModel], config: Config, choices: Choices) -> Stacked:
    """Return the mixture of a party that has not joined."""
    parts = list_parts(party, alone, choices) if config.ranks else rating_parts(party, alone, choices)
    return mix_parts(parts, party, choices, "mixture alone", ranks=config.ranks)


def mix_parts(
    parts: dict[str, PartyModel],
    party: Prepared,
    choices: Choices,
    name: str,
    start: Stacked | None = None,
    *,
    ranks: bool,
) -> Stacked:
    """Return the mixture of `parts` that is best on the validation part, or that of the choices called `name` if they repeat.

    A search for lists begins with the mixture `start`.
    """
    counts = training_counts(party.input)
    if choices.repeats:
        known, newcomers = choices.recorded[name]
        return Stacked.of(parts, known, newcomers, counts)
    mixed = stack_lists(parts, party.input, start) if ranks else stack_ratings(parts, party.valid, counts)
    choices.recorded[name] = list(mixed.known.values()), list(mixed.newcomers.values())
    return mixed


def rating_parts(
    party: Prepared, alone: dict[str, PartyModel], choices: Choices, others: Tensor | None = None
) -> dict[str, PartyModel]:
    """Return the models without federated vectors that a party can mix to predict ratings, by name; the simplest comes first.

    `others` are the other parties' numbers of ratings and sums of residuals by user (`others_totals`).
    """
    data = party.input
    device = party.train.user.device
    means = fit_party_means(data, choices)
    parts = {"means": means_model(means, means.user_offset, device)}
    if others is not None:
        elsewhere = others.cpu().double().numpy()
        offset = means.federated_offset(elsewhere, scale_unit(data.scale), data.valid, data.scale, choices)
        parts["federated means"] = means_model(means, offset, device)
    parts["EASE"] = residual_model(data, parts["means"], choices)
    return parts | alone


def others_totals(party: Prepared, public: Tensor, config: Config) -> Tensor | None:
    """Return the other parties' number of ratings of each user, and the sum of their residuals (N, 2); None if nobody shares them."""
    model = Model(config.model, party.input.users)
    if model.solved is None:
        return None
    own = OwnRatings.of(party.input)
    return model.views(public)["totals"] - own_totals(model, own.graph, own.targets)


def split_models(model: PartyModel, config: Config) -> dict[str, PartyModel]:
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


def list_parts(party: Prepared, alone: dict[str, PartyModel], choices: Choices) -> dict[str, PartyModel]:
    """Return the models that a party can mix on its own to order lists, by name; the simplest comes first."""
    return {"popularity": popularity_model(party.input), "EASE": ease_model(party.input, choices)} | alone
