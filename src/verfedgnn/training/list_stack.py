r"""The gate for lists: a weighted mixture of popularity, EASE, a party's own ranking model and the federated one.

.. math::
    s_{uv} = \sum_k w_k f_k(u, v), \qquad w_k \ge 0

The party chooses w by NDCG@20 on its own validation part. It starts from its best single model, or from the mixture that it has
without the federation. It accepts a change of one weight only if NDCG rises by more than a fraction of its standard error, so that
the noise of a small validation part does not decide. Finally all scores are multiplied by one factor, the temperature, which
maximises the likelihood of the softmax.

Newcomers, users without a training rating at the party, have separate weights for popularity and the federated model. These start
from a mixture that serves newcomers well on all data sets at hand (`NEWCOMER_START`). They change only for clear evidence on
newcomers in the validation part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from verfedgnn.core.list_metrics import list_quality, sample_users
from verfedgnn.core.pairs import Pairs, PartyInput
from verfedgnn.runs.party_model import PartyModel
from verfedgnn.training.rating_stack import Stacked, Weights
from verfedgnn.training.simple_models import liked, training_counts

STEPS = (0.0, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0, 1.5, 2.5, 4.0, 8.0)
"""Weights that are tried, relative to the spread of a model's scores."""
PASSES = 2
"""Number of searches over all weights."""
MARGIN = 0.2
"""Least rise of NDCG that is accepted, in standard errors."""
FEWEST_NEWCOMERS = 30
"""Fewest newcomers that can change their weights."""
NEWCOMER_START = 2.0
"""Weight of the federated model in lists for newcomers before any evidence, if popularity has 1, both relative to their spread."""
NEWCOMER_MARGIN = 2.0
"""Least rise of newcomers' NDCG that changes their weights, in standard errors."""
MOST_SCORES = 1 << 24
"""Most scores of one model in memory while weights are chosen; beyond that, users are sampled."""
K = 20
"""Length of the lists that NDCG judges."""


@dataclass(frozen=True)
class JudgedUsers:
    """Scores of the judged validation users by each model, and the items that these users want."""

    scores: list[Tensor]
    """One matrix (n, M_p) per model."""
    wanted: tuple[Tensor, Tensor]
    """Rows of users, and the items that they want."""
    hidden: Tensor
    """Whether an item is in the user's training part and therefore not ranked (n, M_p)."""

    @property
    def spread(self) -> list[float]:
        """Standard deviation of each model's scores."""
        return [max(float(scores.std()), 1e-9) for scores in self.scores]

    def ndcg(self, weights: Sequence[float]) -> Tensor:
        """Return NDCG@20 of each user for the weighted sum."""
        return list_quality(self.total(weights), *self.wanted, K)[1]

    def total(self, weights: Sequence[float]) -> Tensor:
        """Return the weighted sum of the scores."""
        total = torch.zeros_like(self.scores[0])
        for weight, scores in zip(weights, self.scores, strict=True):
            if weight:
                total.add_(scores, alpha=weight)
        return total.masked_fill_(self.hidden, -torch.inf)


def stack_lists(
    models: Mapping[str, PartyModel],
    data: PartyInput,
    start: Stacked | None = None,
) -> Stacked:
    """Return the best mixture of `models` for one party; the first model is the simplest, popularity.

    The search begins with the mixture `start` of some of the models, by default with the best single model.
    """
    names = list(models)
    counts = training_counts(data)
    wanted = liked(data.valid, data.scale)
    new = counts[wanted.user.long()] == 0
    usual = judge_users(list(models.values()), data, wanted.take(~new))
    first = None if start is None else [start.known.get(name, 0.0) for name in names]
    known = search_weights(usual, first, MARGIN)
    singles = [
        float(usual.ndcg([float(k == chosen) for k in range(len(names))]).mean())
        for chosen in (0, -1 % len(names))
    ]
    for_newcomers = _newcomer_weights(models, data, wanted.take(new), helps=not singles[1] < singles[0])
    newcomers = [for_newcomers.get(name, 0.0) for name in names]
    temperature = _temperature(usual, known)
    known = [weight * temperature for weight in known]
    newcomers = [weight * temperature for weight in newcomers]
    return Stacked.of(models, known, newcomers, counts)


def _newcomer_weights(
    models: Mapping[str, PartyModel],
    data: PartyInput,
    wanted: Pairs,
    *,
    helps: bool,
) -> Weights:
    """Return the weights for newcomers; `wanted` holds the liked validation ratings of newcomers.

    Without enough of them, the federated model takes part if it `helps` known users more than popularity does.
    """
    usable = [name for name in models if name != "EASE"]  # EASE needs a user's own items
    names = list(dict.fromkeys([usable[0], usable[-1]]))
    judged = judge_users([models[name] for name in names], data, wanted)
    if not len(judged.hidden):
        anybody = torch.arange(data.users, device=data.train.user.device)[:FEWEST_NEWCOMERS]
        judged = replace(judged, scores=[models[name].score(anybody) for name in names])
    options = [
        [before.get(name, 0.0) / each for name, each in zip(names, judged.spread, strict=True)]
        for before in ({"federated": NEWCOMER_START, usable[0]: 1.0}, {usable[0]: 1.0})
    ]
    start = options[0 if helps else 1]
    if len(judged.hidden) >= FEWEST_NEWCOMERS:
        start = max(options, key=lambda weights: float(judged.ndcg(weights).mean()))
        start = search_weights(judged, start, NEWCOMER_MARGIN)
    return dict(zip(names, _normalise(start, judged.spread), strict=True))


def judge_users(models: Sequence[PartyModel], data: PartyInput, wanted: Pairs) -> JudgedUsers:
    """Score the catalogue with each model for the users of `wanted`, or for a sample of them."""
    users = sample_users(torch.unique(wanted.user).long(), data.items, MOST_SCORES)
    row_of = torch.full((data.users,), -1, dtype=torch.long, device=users.device)
    row_of[users] = torch.arange(len(users), device=users.device)
    (wanting, item), (trained, known) = (
        (row_of[pairs.user.long()], pairs.item.long()) for pairs in (wanted, data.train)
    )
    hidden = torch.zeros((len(users), data.items), dtype=torch.bool, device=users.device)
    hidden[trained[trained >= 0], known[trained >= 0]] = True
    pairs = torch.unique(wanting[wanting >= 0] * data.items + item[wanting >= 0])
    return JudgedUsers(
        [model.score(users) for model in models], (pairs // data.items, pairs % data.items), hidden
    )


def search_weights(judged: JudgedUsers, start: Sequence[float] | None, margin: float) -> list[float]:
    """Search along one weight at a time and return the weights with the best NDCG."""
    if not len(judged.hidden):
        return list(start or [1.0] + [0.0] * (len(judged.scores) - 1))
    spread = judged.spread
    single = [
        [1 / spread[k] if k == chosen else 0.0 for k in range(len(spread))] for chosen in range(len(spread))
    ]
    weights = single[0] if start is None else _normalise(start, spread)
    best = judged.ndcg(weights)
    for candidate in single[1:]:
        weights, best = _better(judged, candidate, weights, best, margin)
    for _ in range(PASSES):
        for k in range(len(spread)):
            for step in STEPS:
                candidate = [*weights]
                candidate[k] = step / spread[k]
                if any(candidate):
                    weights, best = _better(judged, candidate, weights, best, margin)
    return weights


def _normalise(weights: Sequence[float], spread: Sequence[float]) -> list[float]:
    """Scale the weights so that the largest weighted model has a spread of 1, the unit of `STEPS`."""
    largest = max(weight * each for weight, each in zip(weights, spread, strict=True))
    return [weight / largest if largest else 0.0 for weight in weights]


def _better(
    judged: JudgedUsers, candidate: list[float], weights: list[float], best: Tensor, margin: float
) -> tuple[list[float], Tensor]:
    """Return `candidate` and its NDCG if it exceeds `best` by the margin, else `weights` and `best`."""
    found = judged.ndcg(candidate)
    change = found - best
    error = float(change.std()) / len(change) ** 0.5 if len(change) > 1 else float("inf")
    return (candidate, found) if float(change.mean()) > max(margin * error, 1e-6) else (weights, best)


def _temperature(judged: JudgedUsers, weights: Sequence[float]) -> float:
    """Return the factor on all scores that maximises the likelihood of the wanted items under a softmax."""
    if not len(judged.hidden):
        return 1.0
    total = judged.total(weights)
    row, item = judged.wanted

    def loss(factor: float) -> float:
        return float((torch.logsumexp(total * factor, 1)[row] - total[row, item] * factor).sum())

    wanted = torch.isfinite(total[row, item])  # an item of the validation part that was rated twice is hidden
    row, item = row[wanted], item[wanted]
    factors = [float(2.0 ** (step / 2)) for step in range(-14, 15)]
    return min(factors, key=loss)
