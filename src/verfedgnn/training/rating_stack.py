r"""The gate for ratings: a weighted mixture of a party's means, the federated means, its own model and the federated one.

.. math::
    \hat r = f_0 + \sum_k w_k (f_k - f_0), \qquad
    w = \arg\min_{w \ge 0} \sum_{\text{own validation}} (\hat r - r)^2 + \rho \sigma^2 |w - w_0|^2

:math:`f_0` are the party's own means. The party chooses w on its own validation part and sends it to nobody. The prior w_0 gives
all models the same weight, so that the noise of a small validation part does not decide. A party that gains nothing from the
others serves what it has alone.

Newcomers, users without a training rating at the party, have separate weights. Their prior starts from the weights of the other
users. A model trained alone knows nothing about newcomers, so its weight goes to the federated models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from verfedgnn.core.pairs import Pairs
from verfedgnn.runs.party_model import PartyModel

Weights = dict[str, float]

FEDERATED = ("federated means", "federated", "federated raters")
"""Names of the models in a mixture that come from the federation."""
PRIOR = 10.0
"""rho: the prior counts as much as ten ratings on which two models differ by the typical error."""

NEWCOMER_PRIOR = 200.0
"""The same for newcomers. The validation part has few of them, mostly users with few ratings, so they seldom change the prior."""


@dataclass(frozen=True)
class Stacked:
    """A mixture of models, and the weight of each."""

    model: PartyModel
    known: Weights
    """Weights for users with training ratings at the party, by name of the model."""
    newcomers: Weights
    """Weights for users without training ratings at the party, by name of the model."""

    @classmethod
    def of(
        cls,
        models: Mapping[str, PartyModel],
        known: Sequence[float],
        newcomers: Sequence[float],
        counts: Tensor,
    ) -> Stacked:
        """Mix `models` with the weights of each, for users with `counts` training ratings at the party (N,)."""
        mixed = mix_models(list(models.values()), known, newcomers, counts)
        return cls(mixed, dict(zip(models, known, strict=True)), dict(zip(models, newcomers, strict=True)))


def stack_ratings(models: Mapping[str, PartyModel], valid: Pairs, counts: Tensor) -> Stacked:
    """Return the best mixture of `models` for one party; the first model is the simple reference f_0.

    `counts` is the number of training ratings of each user at the party (N,).
    """
    names = list(models)
    new = (counts[valid.user.long()] == 0).cpu().numpy()
    predicted = np.stack([model.predict(valid).cpu().numpy() for model in models.values()], 1)
    rating = valid.rating.cpu().numpy().astype(np.float64)
    equal = np.full(len(names) - 1, 1 / len(names))
    known = _solve(predicted[~new], rating[~new], equal, PRIOR)
    newcomers = _solve(predicted[new], rating[new], _newcomer_prior(names[1:], known), NEWCOMER_PRIOR)
    return Stacked.of(models, _shares(known), _shares(newcomers), counts)


def _newcomer_prior(names: list[str], known: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the weights of newcomers before evidence: those of the federated models, which share the others' weight, up to 1."""
    federated = np.where([name in FEDERATED for name in names], known, 0.0)
    if not federated.sum():
        return federated
    return np.asarray(federated * min(known.sum(), 1.0) / federated.sum())


def _solve(
    predicted: NDArray[np.float64], rating: NDArray[np.float64], start: NDArray[np.float64], prior: float
) -> NDArray[np.float64]:
    """Return the weights w >= 0 of all models but the first, pulled towards `start`."""
    if not len(rating) or not len(start):
        return start
    left = rating - predicted[:, 0]
    change = predicted[:, 1:] - predicted[:, :1]
    pull = np.sqrt(prior * np.square(left).mean())
    matrix = np.concatenate([change, pull * np.eye(len(start))])
    target = np.concatenate([left, pull * start])
    from scipy.optimize import nnls  # half a second, which commands that stack nothing do not spend

    return np.asarray(nnls(matrix, target)[0])


def _shares(weights: NDArray[np.float64]) -> list[float]:
    """Return the coefficient of each model; that of the reference f_0 is 1 minus the sum of the others."""
    return [float(1 - weights.sum()), *(float(weight) for weight in weights)]


def mix_models(
    models: Sequence[PartyModel], known: Sequence[float], newcomers: Sequence[float], counts: Tensor
) -> PartyModel:
    """Return the weighted sum of `models` as one model: a product of longer vectors.

    Users without training ratings at the party (`counts` = 0) have the weights `newcomers`.
    """
    new = (counts == 0).unsqueeze(1)
    users = []
    items = []
    scores = None
    for model, usual, other in zip(models, known, newcomers, strict=True):
        if usual == 0.0 and other == 0.0:
            continue
        weight = torch.where(new, torch.tensor(other), torch.tensor(usual)).to(model.users)
        users.append(model.users * weight)
        items.append(model.items)
        if model.item_scores is not None:
            scores = model.item_scores.scaled(usual)  # a newcomer has no items that could score others
    return PartyModel(torch.cat(users, 1), torch.cat(items, 1), models[-1].embeddings, scores)
